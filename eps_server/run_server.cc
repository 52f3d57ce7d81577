// Implements RunServer: starts a Server and shuts it down after a signal.

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>

#include "base/descriptor.h"
#include "base/exit_code.h"
#include "base/log.h"
#include "eps_server/server.h"

namespace eps {
namespace {

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

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "eps serve: %s\n", std::string(status.message()).c_str());
  return static_cast<int>(ExitCodeOf(status));
}

}  // namespace

int RunServer(const ServerOptions& options, const std::function<void(const Server&)>& ready) {
  SignalFile signals;
  if (!signals.ok()) return Fail(absl::InternalError("signalfd failed"));
  auto server = Server::Start(options);
  if (!server.ok()) return Fail(server.status());
  std::printf("eps serve: listening on %s\n", (*server)->address().c_str());
  std::fflush(stdout);
  if (ready) ready(**server);
  const int signal = signals.Wait();
  EPS_LOG_INFO((signal == SIGTERM ? "SIGTERM" : "SIGINT") << ": draining");
  signals.Unblock();  // a second signal ends the process at once
  (*server)->Shutdown(kGrace);
  return static_cast<int>(signal == SIGTERM ? ExitCode::kOk : ExitCode::kInterrupted);
}

}  // namespace eps
