#ifndef EPS_BASE_LOG_H_
#define EPS_BASE_LOG_H_

// Log lines on stderr: EPS_LOG_INFO("joined job " << id << " at step " << step). The message is
// anything that streams; it is not evaluated when its level is off. The environment variable
// EPS_LOG sets the lowest level to write: debug, info (default), warn, error or off; any other
// value means info and logs one warning. Thread-safe; a line is written whole. Not for the progress
// lines of training, which go to stdout.
//
// This header does not include the logging library, so that it is cheap to include.

#include <sstream>
#include <string>

namespace eps {

enum class LogLevel { kDebug, kInfo, kWarn, kError, kOff };

// Overrides the level of EPS_LOG. For tests and flags.
void SetLogLevel(LogLevel level);

namespace internal {
bool LogEnabled(LogLevel level);
// Prints `file` and `line` for warnings and errors only.
void LogLine(LogLevel level, const char* file, int line, const std::string& message);
}  // namespace internal
}  // namespace eps

#define EPS_LOG_AT(level, message)                                               \
  do {                                                                           \
    if (::eps::internal::LogEnabled(level)) {                                    \
      std::ostringstream eps_log_stream;                                         \
      eps_log_stream << message;                                                 \
      ::eps::internal::LogLine(level, __FILE__, __LINE__, eps_log_stream.str()); \
    }                                                                            \
  } while (0)

#define EPS_LOG_DEBUG(message) EPS_LOG_AT(::eps::LogLevel::kDebug, message)
#define EPS_LOG_INFO(message) EPS_LOG_AT(::eps::LogLevel::kInfo, message)
#define EPS_LOG_WARN(message) EPS_LOG_AT(::eps::LogLevel::kWarn, message)
#define EPS_LOG_ERROR(message) EPS_LOG_AT(::eps::LogLevel::kError, message)

#endif  // EPS_BASE_LOG_H_
