#ifndef EPS_CLI_DRIVER_STEP_WATCH_H_
#define EPS_CLI_DRIVER_STEP_WATCH_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <thread>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "eps/v1/types.pb.h"
#include "wire/control_client.h"

namespace eps {

// Receives the lead's records on a thread of its own and returns them in order. Call Next and end
// from one thread.
class StepWatch {
 public:
  // Starts with the records after `after_step`; `until_evaluation` as in ControlClient::Watch. The
  // client must outlive this object. The destructor cancels the client's watch.
  StepWatch(ControlClient* client, uint64_t after_step, uint64_t until_evaluation);
  ~StepWatch();
  StepWatch(const StepWatch&) = delete;
  StepWatch& operator=(const StepWatch&) = delete;

  // Returns the next record; nullopt if none arrives within `patience` or if the stream has ended.
  std::optional<v1::StepRecord> Next(std::chrono::milliseconds patience) EPS_EXCLUDES(mu_);
  // Returns the status of the stream once it has ended and Next has returned all its records; else
  // nullopt.
  std::optional<absl::Status> end() EPS_EXCLUDES(mu_);

 private:
  void Run(uint64_t after_step, uint64_t until_evaluation);

  ControlClient* const client_;
  Mutex mu_;
  CondVar changed_;
  std::deque<v1::StepRecord> records_ EPS_GUARDED_BY(mu_);
  std::optional<absl::Status> end_ EPS_GUARDED_BY(mu_);
  std::thread thread_;  // last, because it uses the members above
};

}  // namespace eps

#endif  // EPS_CLI_DRIVER_STEP_WATCH_H_
