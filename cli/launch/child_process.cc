#include "cli/launch/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/exit_code.h"

namespace eps {
namespace {

using Clock = std::chrono::steady_clock;

// The poll interval of waits that have no kernel event.
constexpr std::chrono::milliseconds kPollInterval{5};

// Pids of live children, for KillAllChildren in a signal handler; 0 marks a free slot.
constexpr size_t kMaxChildren = 4096;
std::array<std::atomic<pid_t>, kMaxChildren> live_children{};
static_assert(std::atomic<pid_t>::is_always_lock_free, "a signal handler reads them");

void Remember(pid_t pid) {
  for (std::atomic<pid_t>& place : live_children) {
    pid_t free = 0;
    if (place.compare_exchange_strong(free, pid)) return;
  }
  EPS_CHECK_MSG(false, "more than " << kMaxChildren << " child processes");
}

void Forget(pid_t pid) {
  for (std::atomic<pid_t>& place : live_children) {
    pid_t expected = pid;
    if (place.compare_exchange_strong(expected, 0)) return;
  }
}

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// Runs in the child between fork and exec, so it makes only async-signal-safe calls. Returns only
// if exec failed.
void BecomeProgram(pid_t parent, int in, int out, int log, char** argv, char** environment) {
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent) _exit(69);
  setpgid(0, 0);
  signal(SIGINT, SIG_DFL);
  signal(SIGTERM, SIG_DFL);
  signal(SIGPIPE, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(log, 2) < 0) return;
  // Close descriptors that libraries opened without O_CLOEXEC: they would keep ports and pipes
  // open.
  syscall(SYS_close_range, 3u, ~0u, 4u /* CLOSE_RANGE_CLOEXEC */);
  execve(argv[0], argv, environment);
}

std::string SignalText(int signal) {
  const char* const name = strsignal(signal);
  return absl::StrCat("signal ", signal, name != nullptr ? absl::StrCat(" (", name, ")") : "",
                      signal == SIGKILL ? "; the kernel sends it when memory runs out" : "");
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(ChildOptions options) {
  EPS_CHECK(!options.argv.empty());
  if (access(options.argv[0].c_str(), X_OK) != 0) {
    return absl::NotFoundError(
        absl::StrCat(options.name, ": cannot run ", options.argv[0], ": ", std::strerror(errno)));
  }
  std::unique_ptr<ChildProcess> child(new ChildProcess(std::move(options)));
  const ChildOptions& o = child->options_;
  const Descriptor null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const Descriptor log(open(o.log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  int pipe_fds[2] = {-1, -1};
  const bool piped = !o.read_stdout || pipe2(pipe_fds, O_CLOEXEC) == 0;
  child->stdout_ = Descriptor(pipe_fds[0]);
  const Descriptor writes(pipe_fds[1]);
  if (!null.ok() || !log.ok() || !piped) {
    return absl::InternalError(
        absl::StrCat(o.name, ": cannot prepare ", o.log_path, ": ", std::strerror(errno)));
  }
  const std::vector<char*> argv = Pointers(o.argv);
  const std::vector<char*> environment = Pointers(o.environment);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    BecomeProgram(parent, null.get(), o.read_stdout ? writes.get() : log.get(), log.get(),
                  const_cast<char**>(argv.data()), const_cast<char**>(environment.data()));
    static constexpr char kText[] = "cannot run the program\n";
    if (write(2, kText, sizeof(kText) - 1) < 0) _exit(70);
    _exit(70);
  }
  if (pid < 0) {
    return absl::InternalError(
        absl::StrCat(o.name, ": cannot start a process: ", std::strerror(errno)));
  }
  child->pid_ = pid;
  Remember(pid);
  return child;
}

ChildProcess::~ChildProcess() { Stop(std::chrono::seconds(2)); }

absl::StatusOr<std::string> ChildProcess::WaitForLine(absl::string_view prefix,
                                                      Clock::time_point deadline) {
  EPS_CHECK(stdout_.ok());
  while (true) {
    for (size_t end = pending_.find('\n'); end != std::string::npos; end = pending_.find('\n')) {
      const std::string line = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      if (absl::StartsWith(line, prefix)) return line.substr(prefix.size());
    }
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) {
      return absl::DeadlineExceededError(
          absl::StrCat(name(), " did not print \"", prefix, "\" in time; its log is ", log_path()));
    }
    pollfd ready = {stdout_.get(), POLLIN, 0};
    const int polled = poll(&ready, 1, static_cast<int>(std::min<int64_t>(left, 1000)));
    if (polled <= 0) continue;  // interrupted, or timed out: check the deadline
    char buffer[4096];
    const ssize_t got = read(stdout_.get(), buffer, sizeof(buffer));
    if (got > 0) {
      pending_.append(buffer, static_cast<size_t>(got));
    } else if (got == 0) {
      if (!WaitExit(deadline)) {
        return absl::DeadlineExceededError(
            absl::StrCat(name(), " closed its output but does not exit"));
      }
      const absl::Status failure = Failure();
      if (!failure.ok()) return failure;
      return absl::UnavailableError(absl::StrCat(name(), " ended before it was ready"));
    }
  }
}

bool ChildProcess::Running() {
  if (pid_ <= 0 || wait_status_.has_value()) return false;
  int status = 0;
  const pid_t ended = waitpid(pid_, &status, WNOHANG);
  if (ended == 0 || (ended < 0 && errno == EINTR)) return true;
  Forget(pid_);
  wait_status_ = ended == pid_ ? status : 0;
  return false;
}

bool ChildProcess::WaitExit(Clock::time_point deadline) {
  while (Running()) {
    if (Clock::now() >= deadline) return false;
    poll(nullptr, 0, static_cast<int>(kPollInterval.count()));
  }
  return true;
}

void ChildProcess::Signal(int signal) {
  if (Running()) kill(pid_, signal);
}

void ChildProcess::Stop(std::chrono::milliseconds grace) {
  if (!Running()) return;
  Signal(SIGTERM);
  if (WaitExit(Clock::now() + grace)) return;
  Signal(SIGKILL);
  WaitExit(Clock::now() + std::chrono::seconds(10));
}

absl::Status ChildProcess::Failure() const {
  EPS_CHECK_MSG(wait_status_.has_value(), name() << " still runs");
  const int status = *wait_status_;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return absl::OkStatus();
  std::string message = name();
  if (WIFSIGNALED(status)) {
    absl::StrAppend(&message, " was ended by ", SignalText(WTERMSIG(status)));
  } else {
    absl::StrAppend(&message, " ended with exit code ", WEXITSTATUS(status));
  }
  const std::string tail = LastLines(log_path(), 10);
  if (!tail.empty()) absl::StrAppend(&message, "\n", tail);
  absl::StrAppend(&message, "\n(its log is ", log_path(), ")");
  if (WIFSIGNALED(status)) return absl::UnavailableError(message);
  return StatusOfExitCode(WEXITSTATUS(status), message);
}

void KillAllChildren() {
  for (const std::atomic<pid_t>& place : live_children) {
    const pid_t pid = place.load(std::memory_order_relaxed);
    if (pid > 0) kill(pid, SIGKILL);
  }
}

std::string LastLines(const std::string& path, int lines) {
  constexpr off_t kMost = 8192;
  const Descriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.ok()) return "";
  const off_t size = lseek(fd.get(), 0, SEEK_END);
  std::string text(static_cast<size_t>(std::max<off_t>(0, std::min(size, kMost))), '\0');
  const ssize_t got =
      pread(fd.get(), &text[0], text.size(), size - static_cast<off_t>(text.size()));
  text.resize(got > 0 ? static_cast<size_t>(got) : 0);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  size_t begin = text.size();
  for (int i = 0; i < lines && begin != 0; ++i) {
    const size_t newline = text.rfind('\n', begin - 1);
    begin = newline == std::string::npos ? 0 : newline;
  }
  if (begin < text.size() && text[begin] == '\n') ++begin;
  return text.substr(begin);
}

absl::Status StatusOfExitCode(int code, absl::string_view message) {
  switch (static_cast<ExitCode>(code)) {
    case ExitCode::kDifferent:
    case ExitCode::kUsage:
    case ExitCode::kDataInvalid:
    case ExitCode::kNoInput:
    case ExitCode::kUnavailable:
    case ExitCode::kDoesNotFit:
    case ExitCode::kIo:
    case ExitCode::kFenced:
    case ExitCode::kCancelled:
    case ExitCode::kNotAllowed:
    case ExitCode::kInterrupted:
    case ExitCode::kTerminated:
      return WithExitCode(absl::InternalError(message), static_cast<ExitCode>(code));
    default:
      return absl::InternalError(message);
  }
}

}  // namespace eps
