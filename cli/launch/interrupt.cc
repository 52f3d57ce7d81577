#include "cli/launch/interrupt.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>

#include "base/exit_code.h"
#include "cli/launch/child_process.h"

namespace eps {
namespace {

std::atomic<int> signals{0};
std::atomic<bool> graceful{false};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free,
              "the handler uses them");

void OnSignal(int) {
  if (signals.fetch_add(1) == 0 && graceful.load()) return;
  KillAllChildren();
  _exit(static_cast<int>(ExitCode::kInterrupted));
}

}  // namespace

void HandleInterrupts() {
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

void SetGraceful(bool value) { graceful.store(value); }

bool Interrupted() { return signals.load() > 0; }

}  // namespace eps
