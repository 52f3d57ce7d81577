// Implements RunServer: starts a Server, drains it and shuts it down after a signal.

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "base/descriptor.h"
#include "base/exit_code.h"
#include "base/log.h"
#include "eps_server/server.h"

namespace eps {
namespace {

using Clock = std::chrono::steady_clock;

// Calls that are still open after this time are cancelled. It only has to cover replies in flight:
// no part of an open step is durable, so waiting longer would save nothing.
constexpr std::chrono::milliseconds kGrace{1000};
constexpr int kPollMs = 60'000;

// Blocks SIGTERM and SIGINT in this thread and in all threads that it starts, and reads them from a
// file descriptor.
class SignalFile {
 public:
  SignalFile() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGTERM);
    sigaddset(&set_, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set_, &before_);
    fd_ = Descriptor(signalfd(-1, &set_, SFD_CLOEXEC));
  }
  ~SignalFile() { Unblock(); }
  bool ok() const { return fd_.ok(); }

  int fd() const { return fd_.get(); }
  // Waits for the next signal and returns its number.
  int Wait() {
    for (;;) {
      pollfd poll_fd{fd_.get(), POLLIN, 0};
      if (poll(&poll_fd, 1, kPollMs) <= 0) continue;
      signalfd_siginfo info;
      if (read(fd_.get(), &info, sizeof(info)) == sizeof(info)) {
        return static_cast<int>(info.ssi_signo);
      }
    }
  }
  // Gives the signals their default effect on the process again.
  void Unblock() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t set_;
  sigset_t before_;
  Descriptor fd_;
};

// Waits until the server has drained, another signal comes, or the time is over.
void AwaitDrain(Server* server, const SignalFile& signals, uint64_t timeout_ms) {
  const auto done = std::make_shared<Descriptor>(eventfd(0, EFD_CLOEXEC));
  if (!done->ok()) return;
  EPS_LOG_INFO("draining: waits until nothing is lost, at most " << timeout_ms
                                                                 << " ms (servers.drain_timeout)");
  server->Drain([done](const std::string& why) {
    EPS_LOG_INFO("drained: " << why);
    eventfd_write(done->get(), 1);
  });
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) {
      EPS_LOG_WARN("not drained in " << timeout_ms << " ms: the job may repeat steps");
      return server->LogWaits();
    }
    pollfd fds[] = {{done->get(), POLLIN, 0}, {signals.fd(), POLLIN, 0}};
    // Rounded up, or the last millisecond is a hot loop.
    if (poll(fds, 2, static_cast<int>(std::min<int64_t>(left + 1, kPollMs))) <= 0) continue;
    if (fds[0].revents != 0) return;
    EPS_LOG_WARN("a second signal ends the drain: the job may repeat steps");
    return;
  }
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "eps serve: %s\n", std::string(status.message()).c_str());
  return static_cast<int>(ExitCodeOf(status));
}

}  // namespace

int RunServer(ServerOptions options, const std::function<absl::Status()>& prepare) {
  SignalFile signals;
  if (!signals.ok()) return Fail(absl::InternalError("signalfd failed"));
  if (prepare) {
    const absl::Status prepared = prepare();
    if (!prepared.ok()) return Fail(prepared);
  }
  options.end_process = [] { kill(getpid(), SIGTERM); };
  auto server = Server::Start(options);
  if (!server.ok()) return Fail(server.status());
  std::printf("eps serve: listening on %s\n", (*server)->address().c_str());
  std::fflush(stdout);
  const int signal = signals.Wait();
  EPS_LOG_INFO((signal == SIGTERM ? "SIGTERM" : "SIGINT"));
  if (signal == SIGTERM && options.drain_timeout_ms > 0) {
    AwaitDrain(server->get(), signals, options.drain_timeout_ms);
  }
  signals.Unblock();  // the next signal ends the process at once
  const bool unfinished = (*server)->HasUnfinishedJob();
  (*server)->Shutdown(kGrace);
  if (!unfinished) return static_cast<int>(ExitCode::kOk);
  return static_cast<int>(signal == SIGTERM ? ExitCode::kTerminated : ExitCode::kInterrupted);
}

}  // namespace eps
