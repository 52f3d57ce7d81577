#include "worker/interrupt.h"

#include <signal.h>
#include <unistd.h>

#include "base/exit_code.h"

namespace eps {
namespace {

volatile sig_atomic_t interrupted = 0;

void OnSignal(int) {
  if (interrupted != 0) _exit(static_cast<int>(ExitCode::kInterrupted));
  interrupted = 1;
}

}  // namespace

void HandleInterrupts() {
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool Interrupted() { return interrupted != 0; }

}  // namespace eps
