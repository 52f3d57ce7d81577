#include "cli/launch/interrupt.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>

#include "cli/launch/child_process.h"

namespace eps {
namespace {

std::atomic<int> first_signal{0};
std::atomic<bool> graceful{false};
std::atomic<bool> save_requested{false};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free,
              "the handler uses them");

ExitCode CodeOf(int signal) {
  return signal == SIGTERM ? ExitCode::kTerminated : ExitCode::kInterrupted;
}

void OnSignal(int signal) {
  int none = 0;
  if (first_signal.compare_exchange_strong(none, signal) && graceful.load()) return;
  KillAllChildren();
  _exit(static_cast<int>(CodeOf(signal)));
}

void OnSaveRequest(int) { save_requested.store(true); }

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

bool Interrupted() { return first_signal.load() != 0; }

void HandleSaveRequests() {
  struct sigaction action = {};
  action.sa_handler = OnSaveRequest;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &action, nullptr);
}

bool TakeSaveRequest() { return save_requested.exchange(false); }

ExitCode InterruptCode() { return CodeOf(first_signal.load()); }

}  // namespace eps
