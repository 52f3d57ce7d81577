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

// Appends the protocol actions of a shard to FOLDER/shard-K.trace, in the format of
// eps_server/core/trace/trace_text.h. Each line is written before the effects that follow from its
// action, and survives a killed process. Thread-compatible.
class TraceFile {
 public:
  // Creates the folder if it does not exist, opens the file for appending and writes a line that
  // marks the start of a process. Returns Internal, naming the path, if that fails.
  static absl::StatusOr<std::unique_ptr<TraceFile>> Open(const std::string& folder, ShardId shard);
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  // Writes one line. Skips lines that it cannot write, and logs the first of them.
  void Write(const TraceAction& action);

 private:
  TraceFile(Descriptor fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
  void WriteLine(const std::string& line);

  const Descriptor fd_;
  const std::string path_;
  bool failed_ = false;  // a skipped line has been logged
};

}  // namespace eps

#endif  // EPS_SERVER_SHELL_TRACE_FILE_H_
