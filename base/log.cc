#include "base/log.h"

#include <cstdlib>
#include <cstring>
#include <memory>

#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

namespace eps {
namespace {

spdlog::level::level_enum SpdlogLevel(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarn:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      return spdlog::level::off;
  }
  return spdlog::level::info;
}

// False: `name` is not a level.
bool ParseLevel(const char* name, LogLevel* level) {
  static constexpr struct {
    const char* name;
    LogLevel level;
  } kLevels[] = {{"debug", LogLevel::kDebug},
                 {"info", LogLevel::kInfo},
                 {"warn", LogLevel::kWarn},
                 {"error", LogLevel::kError},
                 {"off", LogLevel::kOff}};
  for (const auto& entry : kLevels) {
    if (std::strcmp(entry.name, name) != 0) continue;
    *level = entry.level;
    return true;
  }
  return false;
}

std::unique_ptr<spdlog::logger> MakeLogger() {
  auto logger =
      std::make_unique<spdlog::logger>("eps", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e %P %l %v");
  logger->flush_on(spdlog::level::debug);
  const char* wanted = std::getenv("EPS_LOG");
  LogLevel level = LogLevel::kInfo;
  if (wanted != nullptr && !ParseLevel(wanted, &level)) {
    logger->warn("EPS_LOG={} is no level (debug, info, warn, error, off); info is used", wanted);
  }
  logger->set_level(SpdlogLevel(level));
  return logger;
}

// Never destroyed: threads that end after main may still log.
spdlog::logger& Logger() {
  static spdlog::logger* const logger = MakeLogger().release();
  return *logger;
}

}  // namespace

void SetLogLevel(LogLevel level) { Logger().set_level(SpdlogLevel(level)); }

namespace internal {

bool LogEnabled(LogLevel level) { return Logger().should_log(SpdlogLevel(level)); }

void LogLine(LogLevel level, const char* file, int line, const std::string& message) {
  if (level >= LogLevel::kWarn) {
    Logger().log(SpdlogLevel(level), "{}:{}: {}", file, line, message);
  } else {
    Logger().log(SpdlogLevel(level), "{}", message);
  }
}

}  // namespace internal
}  // namespace eps
