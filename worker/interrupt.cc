#include "worker/interrupt.h"

#include <signal.h>
#include <unistd.h>

namespace eps {
namespace {

volatile sig_atomic_t first_signal = 0;

ExitCode ExitCodeOfSignal(int signal) {
  return signal == SIGTERM ? ExitCode::kTerminated : ExitCode::kInterrupted;
}

void OnSignal(int signal) {
  if (first_signal != 0) _exit(static_cast<int>(ExitCodeOfSignal(signal)));
  first_signal = signal;
}

}  // namespace

void HandleInterrupts() {
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool Interrupted() { return first_signal != 0; }

ExitCode InterruptExitCode() { return ExitCodeOfSignal(first_signal); }

}  // namespace eps
