#include "base/testing/corpus.h"

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/files/tar.h"
#include "base/status_macros.h"

namespace eps {
namespace {

// The line that the signal handler writes; empty while no object lives.
char g_line[256];

void PrintLine(int /*signal*/) {
  const ssize_t ignored = write(STDERR_FILENO, g_line, std::strlen(g_line));
  static_cast<void>(ignored);
}

absl::StatusOr<std::map<std::string, std::string>> ReadMembers(int fd, const std::string& path) {
  std::map<std::string, std::string> inputs;
  TarReader reader(fd, path);
  while (true) {
    EPS_ASSIGN_OR_RETURN(const std::optional<TarMember> member, reader.Next());
    if (!member.has_value()) return inputs;
    const auto [input, is_new] = inputs.try_emplace(member->name);
    if (!is_new) return reader.Damaged(absl::StrCat("a second ", member->name));
    while (true) {
      EPS_ASSIGN_OR_RETURN(const absl::string_view bytes, reader.Read());
      if (bytes.empty()) break;
      input->second.append(bytes.data(), bytes.size());
    }
  }
}

}  // namespace

absl::StatusOr<std::map<std::string, std::string>> ReadCorpus(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return absl::NotFoundError(absl::StrCat(path, " cannot be opened"));
  absl::StatusOr<std::map<std::string, std::string>> inputs = ReadMembers(fd, path);
  close(fd);
  return inputs;
}

InputInAborts::InputInAborts() { std::signal(SIGABRT, PrintLine); }

InputInAborts::~InputInAborts() {
  std::signal(SIGABRT, SIG_DFL);
  g_line[0] = '\0';
}

void InputInAborts::Set(const std::string& member, int mutation) {
  std::snprintf(g_line, sizeof(g_line), "in mutation %d of %s\n", mutation, member.c_str());
}

}  // namespace eps
