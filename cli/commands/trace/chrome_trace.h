#ifndef EPS_CLI_COMMANDS_TRACE_CHROME_TRACE_H_
#define EPS_CLI_COMMANDS_TRACE_CHROME_TRACE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "eps/v1/types.pb.h"

namespace eps {

// Merges the reports of several processes into one file in Chrome's JSON trace event format, which
// ui.perfetto.dev and chrome://tracing show: a row of tracks for each process, in the order of
// their first reports, and in it a track for each thread. Not synchronized.
class ChromeTrace {
 public:
  // Names the stages; those without a name are shown by their numbers.
  void NameStage(uint32_t stage, const std::string& name) { stages_[stage] = name; }
  // Adds a report whose clock is `ahead_ns` ahead of that of the file. Leaves out what refers to
  // names that the report does not have.
  void Add(const v1::TraceReport& report, int64_t ahead_ns);
  // Says how the clock of a server was aligned, for readers of the file.
  void NoteClock(const std::string& server, int64_t ahead_ns, int64_t error_ns);

  uint64_t spans() const { return spans_; }
  uint64_t dropped() const { return dropped_; }
  size_t processes() const { return processes_.size(); }
  // Returns the file. Its times begin with the first span.
  std::string Json() const;

 private:
  // A span on the file's clock.
  struct Span {
    std::string name;
    uint32_t thread = 0;
    int64_t start_ns = 0;
    uint64_t duration_ns = 0;
    uint64_t step = 0;
    uint32_t subject = 0;
    uint32_t part = 0;
  };
  // The spans of one process, in the order of their reports.
  struct Process {
    std::string name;
    std::vector<Span> spans;
  };
  // How far a server's clock is ahead, and the most by which that is wrong.
  struct Clock {
    int64_t ahead_ns = 0;
    int64_t error_ns = 0;
  };

  Process* Find(const std::string& name);
  void WriteSpan(size_t pid, const Span& span, int64_t first_ns, std::string* json) const;
  std::string ArgsOf(const Span& span) const;

  std::map<uint32_t, std::string> stages_;
  std::map<std::string, Clock> clocks_;  // by server
  std::vector<Process> processes_;
  uint64_t spans_ = 0;
  uint64_t dropped_ = 0;
};

}  // namespace eps

#endif  // EPS_CLI_COMMANDS_TRACE_CHROME_TRACE_H_
