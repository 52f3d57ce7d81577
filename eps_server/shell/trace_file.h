#ifndef EPS_SERVER_SHELL_TRACE_FILE_H_
#define EPS_SERVER_SHELL_TRACE_FILE_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "base/descriptor.h"
#include "base/ids.h"
#include "eps_server/core/trace/trace_action.h"

namespace eps {

// Appends what a shard does to FOLDER/shard-K.trace (eps_server/core/trace/trace_text.h), each line
// before what follows from it is done; lines outlive a process that is killed. Thread-compatible.
class TraceFile {
 public:
  // Makes the folder if it is not there, and says that a process begins. Internal with the path.
  static absl::StatusOr<std::unique_ptr<TraceFile>> Open(const std::string& folder, ShardId shard);
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  // A line that cannot be written is left out, and said in the log once.
  void Write(const TraceAction& action);

 private:
  TraceFile(Descriptor fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
  void WriteLine(const std::string& line);

  const Descriptor fd_;
  const std::string path_;
  bool failed_ = false;
};

}  // namespace eps

#endif  // EPS_SERVER_SHELL_TRACE_FILE_H_
