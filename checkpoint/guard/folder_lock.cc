#include "checkpoint/guard/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/exit_code.h"
#include "base/files/files.h"
#include "base/folder.h"
#include "base/machine/host_name.h"

namespace eps {
namespace {

constexpr char kLockFile[] = ".lock";

// The text of the lock file, for the error of the next run.
std::string OwnerText() {
  std::string command = "unknown";
  const absl::StatusOr<std::string> words = ReadTextFile("/proc/self/cmdline");
  if (words.ok()) command = absl::StrReplaceAll(*words, {{std::string(1, '\0'), " "}});
  return absl::StrCat("process ", getpid(), " on ", HostName(), ", started ",
                      absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", absl::Now(), absl::UTCTimeZone()),
                      ": ", absl::StripSuffix(command, " "));
}

}  // namespace

absl::StatusOr<Descriptor> LockFolder(const std::string& folder) {
  const absl::Status created = CreateFolder(folder);
  if (!created.ok()) {
    const std::string text = absl::StrCat(created.message(), " (checkpoint.dir)");
    return absl::IsPermissionDenied(created) ? absl::PermissionDeniedError(text) : IoError(text);
  }
  const std::string path = absl::StrCat(folder, "/", kLockFile);
  Descriptor lock(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!lock.ok()) {
    const std::string text =
        absl::StrCat("cannot open ", path, ": ", std::strerror(errno), " (checkpoint.dir)");
    return errno == EACCES ? absl::PermissionDeniedError(text) : IoError(text);
  }
  if (flock(lock.get(), LOCK_EX | LOCK_NB) == 0) {
    const std::string owner = OwnerText();
    // The text is advice for people: a lock without it still holds.
    if (ftruncate(lock.get(), 0) != 0 || pwrite(lock.get(), owner.data(), owner.size(), 0) < 0) {
      std::fprintf(stderr, "note: cannot write %s: %s\n", path.c_str(), std::strerror(errno));
    }
    return lock;
  }
  if (errno == EWOULDBLOCK) {
    const absl::StatusOr<std::string> owner = ReadTextFile(path);
    return absl::InvalidArgumentError(
        absl::StrCat("checkpoint.dir: ", folder, " is in use by ",
                     owner.ok() && !owner->empty() ? *owner : "another process",
                     "; wait for it, stop it, or choose another folder (--out)"));
  }
  std::printf("note: cannot lock %s (%s): nothing keeps a second run out of %s\n", path.c_str(),
              std::strerror(errno), folder.c_str());
  return Descriptor();
}

}  // namespace eps
