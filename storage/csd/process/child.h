#ifndef EPS_STORAGE_CSD_PROCESS_CHILD_H_
#define EPS_STORAGE_CSD_PROCESS_CHILD_H_

#include <sys/types.h>

#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/descriptor.h"
#include "base/mutex.h"
#include "storage/csd/process/frames.h"

namespace eps::csd {

// A child process with a socket for each lane, and no other descriptor but the standard ones. It is
// expected to end when its sockets are closed, so it does not outlive this process. Thread-safe.
class Child {
 public:
  // Starts `program` with `arguments`. NotFound without such a program; Internal with the reason.
  static absl::StatusOr<std::unique_ptr<Child>> Start(const std::string& program,
                                                      const std::vector<std::string>& arguments);
  // Ends the process, if it has not ended.
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  int socket(int lane) const { return sockets_[static_cast<size_t>(lane)].get(); }

  // Closes the sockets for further use, which wakes every thread that waits for one, and waits for
  // the end of the process; kills it after `grace`. Returns how it ended: "was ended by signal 9
  // (Killed)". Later calls return the same.
  std::string End(std::chrono::milliseconds grace) EPS_EXCLUDES(mu_);

 private:
  Child() = default;

  pid_t pid_ = -1;
  std::array<Descriptor, kLaneCount> sockets_;
  Mutex mu_;
  std::string end_ EPS_GUARDED_BY(mu_);  // empty while the process runs
};

}  // namespace eps::csd

#endif  // EPS_STORAGE_CSD_PROCESS_CHILD_H_
