#include "eps_server/shell/trace_file.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "eps_server/core/trace/trace_text.h"

namespace eps {
namespace {

uint64_t NowNs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace

absl::StatusOr<std::unique_ptr<TraceFile>> TraceFile::Open(const std::string& folder,
                                                           ShardId shard) {
  std::error_code ignored;  // if the folder is missing, open() below reports the error
  std::filesystem::create_directories(folder, ignored);
  const std::string path = absl::StrCat(folder, "/shard-", shard.value(), ".trace");
  Descriptor fd(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!fd.ok()) {
    return absl::InternalError(
        absl::StrCat("servers.trace: opening ", path, ": ", std::strerror(errno)));
  }
  auto file = std::unique_ptr<TraceFile>(new TraceFile(std::move(fd), path));
  file->WriteLine(TraceLine{NowNs(), std::nullopt}.ToText());
  return file;
}

void TraceFile::Write(const TraceAction& action) { WriteLine(TraceLine{NowNs(), action}.ToText()); }

void TraceFile::WriteLine(const std::string& line) {
  const ssize_t written = write(fd_.get(), line.data(), line.size());
  if (written == static_cast<ssize_t>(line.size()) || failed_) return;
  failed_ = true;
  EPS_LOG_WARN("servers.trace: cannot write to " << path_ << ": " << std::strerror(errno));
}

}  // namespace eps
