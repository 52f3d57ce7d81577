#include "cli/driver/save/lapsing_gate.h"

#include <algorithm>

#include "base/log.h"
#include "base/status_macros.h"

namespace eps {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kCallsInTimeout = 5;
constexpr std::chrono::milliseconds kLeastPause{100};

}  // namespace

LapsingGate::~LapsingGate() {
  if (!keeper_.joinable()) return;
  const absl::Status lifted = Lift();
  if (!lifted.ok()) EPS_LOG_WARN("the gate was not lifted: " << lifted.ToString());
}

absl::StatusOr<uint64_t> LapsingGate::SetFrom(uint64_t step, uint64_t last_step) {
  uint64_t border = step;
  v1::GateReply reply;
  while (true) {
    EPS_ASSIGN_OR_RETURN(reply, client_->LapsingGate(holder_, border));
    if (reply.step() <= border || reply.step() > last_step) break;
    border = reply.step();
  }
  const std::chrono::milliseconds pause(reply.timeout_ms() / kCallsInTimeout);
  keeper_ =
      std::thread([this, border, pause = std::max(pause, kLeastPause)] { Keep(border, pause); });
  return std::max(border, reply.step());
}

void LapsingGate::Keep(uint64_t border, std::chrono::milliseconds pause) {
  while (!LiftedWithin(pause)) {
    const absl::StatusOr<v1::GateReply> kept = client_->LapsingGate(holder_, border);
    if (!kept.ok()) EPS_LOG_WARN("the gate was not renewed: " << kept.status().ToString());
    // This process stood still for too long. A gate before the open step would only hold it up.
    if (kept.ok() && kept->step() > border) return;
  }
}

bool LapsingGate::LiftedWithin(std::chrono::milliseconds pause) {
  const auto until = Clock::now() + pause;
  MutexLock lock(&mu_);
  while (!lifted_ && Clock::now() < until) changed_.WaitUntil(&mu_, until);
  return lifted_;
}

absl::Status LapsingGate::Lift() {
  {
    MutexLock lock(&mu_);
    lifted_ = true;
    changed_.NotifyAll();
  }
  if (!keeper_.joinable()) return absl::OkStatus();
  keeper_.join();
  return client_->LapsingGate(holder_, std::nullopt).status();
}

}  // namespace eps
