#include "cli/driver/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"

namespace eps {
namespace {

constexpr absl::string_view kEraseLine = "\r\x1b[K";
constexpr size_t kUsualColumns = 80;

void Write(absl::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

struct LastLine {
  Mutex mu;
  std::string text EPS_GUARDED_BY(mu);  // empty if there is none
};

// Never destroyed: threads that end after main may still write.
LastLine& TheLastLine() {
  static LastLine* const line = new LastLine;
  return *line;
}

bool IsSet(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr && *value != '\0';
}

}  // namespace

bool TerminalReplacesLines() {
  static const bool replaces = isatty(STDOUT_FILENO) == 1 && IsSet("TERM") &&
                               absl::string_view(std::getenv("TERM")) != "dumb" &&
                               !IsSet("NO_COLOR");
  return replaces;
}

size_t TerminalColumns() {
  winsize size = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kUsualColumns;
  return size.ws_col;
}

void ShowLastLine(const std::string& line) {
  LastLine& last = TheLastLine();
  MutexLock lock(&last.mu);
  last.text = line;
  Write(absl::StrCat(kEraseLine, line));
}

void RemoveLastLine() {
  LastLine& last = TheLastLine();
  MutexLock lock(&last.mu);
  if (last.text.empty()) return;
  last.text.clear();
  Write(kEraseLine);
}

void WriteLines(absl::string_view text) {
  LastLine& last = TheLastLine();
  MutexLock lock(&last.mu);
  Write(last.text.empty() ? std::string(text) : absl::StrCat(kEraseLine, text, last.text));
}

}  // namespace eps
