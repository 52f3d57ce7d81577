#include "base/plugin/check/check_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/descriptor.h"
#include "base/status_macros.h"

namespace eps {
namespace {

using Clock = std::chrono::steady_clock;

absl::Status Errno(absl::string_view call, int error) {
  return absl::InternalError(absl::StrCat(call, ": ", std::strerror(error)));
}

// A running child. The destructor kills it, and waits for it.
struct CheckProcess {
  explicit CheckProcess(pid_t pid) : pid(pid) {}
  ~CheckProcess() { Kill(); }
  CheckProcess(const CheckProcess&) = delete;
  CheckProcess& operator=(const CheckProcess&) = delete;

  // Waits for the end and returns the status as waitpid does.
  int Wait() {
    while (!ended && (waitpid(pid, &status, 0) == pid || errno != EINTR)) ended = true;
    return status;
  }
  void Kill() {
    if (ended) return;
    kill(pid, SIGKILL);
    Wait();
  }

  const pid_t pid;
  int status = 0;
  bool ended = false;
};

// Starts the child. Its stdout is this process's stderr: a plug-in may print there.
absl::StatusOr<pid_t> Spawn(const std::vector<std::string>& arguments, int report) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  int error = posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  if (error == 0) {
    error = posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  }
  if (error == 0) error = posix_spawn_file_actions_adddup2(&actions, report, kReportDescriptor);
  if (error == 0) {
    error = posix_spawn_file_actions_addclosefrom_np(&actions, kReportDescriptor + 1);
  }
  std::vector<std::string> words = arguments;
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_t pid = -1;
  if (error == 0) error = posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return Errno(absl::StrCat("starting ", arguments[0]), error);
  return pid;
}

// Reads what is there. Returns false at the end of the pipe.
absl::StatusOr<bool> ReadSome(int fd, ReportLineReader* reader) {
  char buffer[4096];
  const ssize_t got = read(fd, buffer, sizeof(buffer));
  if (got < 0 && (errno == EINTR || errno == EAGAIN)) return true;
  if (got < 0) return Errno("reading from the checks' process", errno);
  EPS_RETURN_IF_ERROR(reader->Take(absl::string_view(buffer, static_cast<size_t>(got))));
  return got > 0;
}

// Reads all that the child writes until it ends. Returns false if it has not ended at the deadline.
absl::StatusOr<bool> ReadUntilEnd(int report, int process, Clock::time_point deadline,
                                  ReportLineReader* reader) {
  for (bool open = true;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return false;
    pollfd watched[] = {{process, POLLIN, 0}, {open ? report : -1, POLLIN, 0}};
    const int ready = poll(watched, 2, static_cast<int>(std::min<int64_t>(left, 60000)) + 1);
    if (ready < 0 && errno != EINTR) return Errno("poll", errno);
    if (ready <= 0) continue;
    if (watched[1].revents != 0) {
      EPS_ASSIGN_OR_RETURN(open, ReadSome(report, reader));
    } else if (watched[0].revents != 0) {
      return true;  // all bytes were read: a process that the plug-in has started may hold the pipe
    }
  }
}

CheckProcessEnd HowItEnded(int status) {
  if (!WIFSIGNALED(status)) {
    const std::string end = absl::StrCat("ended with exit code ", WEXITSTATUS(status));
    return {end, absl::StrCat("ends its process: ", end)};
  }
  const int signal = WTERMSIG(status);
  const char* const name = sigabbrev_np(signal);
  const std::string end =
      absl::StrCat("was killed by signal ", signal, " (SIG", name == nullptr ? "?" : name, ")");
  switch (signal) {
    case SIGSEGV:
    case SIGBUS:
      return {end, absl::StrCat("reads or writes outside of its arrays, or writes to one that it "
                                "may only read: ",
                                end)};
    case SIGSYS:
      return {end, absl::StrCat("makes a system call that the fence forbids: ", end)};
    default:
      return {end, end};
  }
}

}  // namespace

absl::StatusOr<CheckProcessEnd> RunCheckProcess(const std::string& path, const std::string& work,
                                                const PluginCheckOptions& options,
                                                ReportLineReader* reader) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return Errno("pipe2", errno);
  const Descriptor report(ends[0]);
  Descriptor theirs(ends[1]);
  if (theirs.get() <= kReportDescriptor) {  // so that the child's 3 is none of its old ones
    theirs = Descriptor(fcntl(theirs.get(), F_DUPFD_CLOEXEC, kReportDescriptor + 1));
    if (!theirs.ok()) return Errno("F_DUPFD_CLOEXEC", errno);
  }
  std::vector<std::string> arguments = options.child;
  arguments.insert(arguments.end(), {path, work, absl::StrCat(options.speed_elements)});
  const auto deadline = Clock::now() + options.deadline;
  EPS_ASSIGN_OR_RETURN(const pid_t pid, Spawn(arguments, theirs.get()));
  CheckProcess process(pid);
  theirs = Descriptor();
  const Descriptor watched(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!watched.ok()) return Errno("pidfd_open", errno);
  EPS_ASSIGN_OR_RETURN(const bool ended,
                       ReadUntilEnd(report.get(), watched.get(), deadline, reader));
  if (ended) return HowItEnded(process.Wait());
  process.Kill();
  const std::string late = absl::StrCat(
      "did not end within ", std::chrono::duration<double>(options.deadline).count(), " s");
  return CheckProcessEnd{late, late};
}

absl::Status WithPath(const std::string& path, const absl::Status& status) {
  if (absl::StrContains(status.message(), path)) return status;
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

}  // namespace eps
