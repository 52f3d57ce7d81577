#ifndef EPS_BASE_PLUGIN_CHECK_REPORT_LINES_H_
#define EPS_BASE_PLUGIN_CHECK_REPORT_LINES_H_

// The lines that the child of a check writes to its parent, one event each:
//
//   error CODE TEXT             the object cannot be loaded; CODE is an absl::StatusCode
//   sha256 DIGEST               the description of the loaded object
//   name NAME
//   ...                         lines that only one kind of plug-in has
//   described
//   begin CHECK                 a check begins
//   at TEXT                     what the check does next; several in a check
//   passed CHECK                or:
//   failed CHECK TEXT
//   speed ELEMENTS BYTES        of the measurement; then one line for each round
//   round SECONDS...            of each loop that is timed
//   end                         the last line

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/plugin/check/plugin_check.h"

namespace eps {

// The descriptor that the child writes to.
inline constexpr int kReportDescriptor = 3;

// Limits of what the parent accepts; the child writes much less.
inline constexpr size_t kMaxReportBytes = size_t{256} << 10;
inline constexpr size_t kMaxReportLine = 1024;

// Writes lines to kReportDescriptor. Allowed in a fenced process. If the parent is gone, the
// process ends.
void WriteReportLine(absl::string_view line);

// Splits off the first word of a line.
absl::string_view TakeWord(absl::string_view* line);

// The rounds of a measurement.
struct TimedRounds {
  uint64_t elements = 0;
  uint64_t bytes = 0;                        // as the kind of plug-in counts them
  std::vector<std::vector<double>> seconds;  // of each loop, one for each round

  // Returns bytes per nanosecond (GB/s) of a loop that processes so many in a round.
  PluginRate Speed(size_t loop, double bytes_per_round) const;
  // Returns how many times the speed of the loop `other` a loop has, in each round.
  PluginRate Ratio(size_t loop, size_t other) const;
};

// Reads the lines of a child, and believes nothing: the plug-in may have written them. Each text
// ends up with printable ASCII only. Each kind of plug-in derives its reader. Thread-compatible.
class ReportLineReader {
 public:
  virtual ~ReportLineReader() = default;
  ReportLineReader(const ReportLineReader&) = delete;
  ReportLineReader& operator=(const ReportLineReader&) = delete;

  // Takes the next bytes. InvalidArgument for bytes that the child would not write.
  absl::Status Take(absl::string_view bytes);

 protected:
  // `checks` are the names of all checks, in their order; `loops` is the number of loops that are
  // timed in a round.
  ReportLineReader(const std::vector<std::string>& checks, size_t loops);

  // Takes a line of the description that only this kind of plug-in has, without its first word.
  // Returns false if the child would not write it.
  virtual bool TakeFact(absl::string_view word, absl::string_view rest) = 0;

  // Ends the report. If the child has not said that it is done, the check that was running, or else
  // the next one, fails with `reason`: how the process ended, and why. Returns the error that the
  // child has told; InvalidArgument with `end`, how the process ended, if the object was not even
  // described.
  absl::Status End(absl::string_view end, absl::string_view reason);

  const std::string& sha256() const { return sha256_; }
  const std::string& name() const { return name_; }
  const std::vector<PluginCheck>& checks() const { return checks_; }
  // None if no round was measured.
  const std::optional<TimedRounds>& rounds() const { return rounds_; }

 private:
  absl::Status TakeLine(absl::string_view line);
  absl::Status TakeDescription(absl::string_view word, absl::string_view rest);
  absl::Status TakeCheck(absl::string_view word, absl::string_view rest);
  absl::Status TakeRounds(absl::string_view word, absl::string_view rest);

  const size_t loops_;
  std::string sha256_;
  std::string name_;
  std::vector<PluginCheck> checks_;
  std::optional<TimedRounds> rounds_;
  absl::Status error_;
  std::string pending_;  // the beginning of a line
  size_t taken_ = 0;     // bytes
  bool described_ = false;
  bool ended_ = false;
  PluginCheck* running_ = nullptr;
  std::string at_;
};

}  // namespace eps

#endif  // EPS_BASE_PLUGIN_CHECK_REPORT_LINES_H_
