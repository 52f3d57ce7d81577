#include "cli/launch/restart_rules.h"

#include <signal.h>
#include <sys/wait.h>

#include "base/exit_code.h"

namespace eps {
namespace {

bool EndedWith(int status, ExitCode code) {
  return WIFEXITED(status) && WEXITSTATUS(status) == static_cast<int>(code);
}

// Returns whether a process was killed, or gave up because another one was unavailable. Any other
// error would recur.
bool WasLost(int status) {
  return WIFSIGNALED(status) || EndedWith(status, ExitCode::kUnavailable);
}

}  // namespace

bool WasStopped(int status) {
  if (WIFSIGNALED(status)) return WTERMSIG(status) == SIGTERM || WTERMSIG(status) == SIGINT;
  return EndedWith(status, ExitCode::kTerminated) || EndedWith(status, ExitCode::kInterrupted);
}

bool WasKilled(int status) { return WIFSIGNALED(status) && !WasStopped(status); }

RestartRules::Action RestartRules::Count() {
  if (restarts_ >= max_restarts_) return Action::kNone;
  ++restarts_;
  return Action::kRestart;
}

RestartRules::Action RestartRules::OnServerEnd(int status) {
  const bool survives = survives_ == Survives::kKilledProcesses;
  return survives && (WasLost(status) || WasStopped(status)) ? Count() : Action::kNone;
}

RestartRules::Action RestartRules::OnWorkerEnd(size_t rank, int status) {
  if (WasStopped(status)) {
    const auto [last, first] = replaced_at_.emplace(rank, steps_);
    if (!first && last->second == steps_) return Count();
    last->second = steps_;
    return Action::kReplace;
  }
  // Another process has its parts, so it lost nothing either; the new one becomes a standby.
  if (EndedWith(status, ExitCode::kFenced)) return Count();
  const bool survives = survives_ == Survives::kKilledProcesses ? WasLost(status)
                        : survives_ == Survives::kKilledWorkers ? WasKilled(status)
                                                                : false;
  return survives ? Count() : Action::kNone;
}

}  // namespace eps
