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

void Handle(int signal, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(signal, &action, nullptr);
}

}  // namespace

void HandleInterrupts() {
  Handle(SIGINT, OnSignal);
  Handle(SIGTERM, OnSignal);
}

void SetGraceful(bool value) { graceful.store(value); }

bool Interrupted() { return first_signal.load() != 0; }

void HandleSaveRequests() { Handle(SIGUSR1, OnSaveRequest); }

bool TakeSaveRequest() { return save_requested.exchange(false); }

ExitCode InterruptCode() { return CodeOf(first_signal.load()); }

}  // namespace eps
