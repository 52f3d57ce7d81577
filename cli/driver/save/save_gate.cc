#include "cli/driver/save/save_gate.h"

#include <algorithm>
#include <optional>

#include "base/status_macros.h"

namespace eps {
namespace {

// Returns the first multiple of `every` after `step`, plus `offset`.
uint64_t NextOf(uint64_t every, uint64_t offset, uint64_t step) {
  const uint64_t passed = step < offset ? 0 : (step - offset) / every;
  return (passed + 1) * every + offset;
}

}  // namespace

uint64_t SaveGate::Next(uint64_t saved, uint64_t decided) const {
  uint64_t next = borders_.last;
  if (borders_.save_every > 0) next = std::min(next, NextOf(borders_.save_every, 0, saved));
  if (borders_.decide_every > 0) next = std::min(next, NextOf(borders_.decide_every, 1, decided));
  return next < borders_.last ? next : 0;
}

bool SaveGate::Decides(uint64_t step) const {
  return borders_.decide_every > 0 && step > 1 && (step - 1) % borders_.decide_every == 0;
}

absl::StatusOr<uint64_t> SaveGate::Ask(std::optional<uint64_t> border,
                                       ControlClient* client) const {
  return client->Gate(border, /*outlives_driver=*/borders_.decide_every > 0);
}

absl::Status SaveGate::SetAfter(uint64_t step, uint64_t known, ControlClient* client) {
  uint64_t decided = std::min(step, known);
  border_ = Next(step, decided);
  while (true) {
    const auto gate = border_ == 0 ? std::nullopt : std::make_optional(border_);
    EPS_ASSIGN_OR_RETURN(const uint64_t first, Ask(gate, client));
    if (border_ == 0 || first <= border_) return absl::OkStatus();
    // The servers name the border after a step that is open, although no worker begins the step
    // after a decision before this gate (BeginStepRequest.awaits_driver): the job stays there.
    if (Decides(border_) && first == border_ + 1) return absl::OkStatus();
    decided = std::max(decided, first - 2);
    border_ = Next(first - 1, decided);
  }
}

absl::Status SaveGate::SetFrom(uint64_t step, ControlClient* client) {
  border_ = step;
  while (true) {
    EPS_ASSIGN_OR_RETURN(const uint64_t first, Ask(border_, client));
    if (first <= border_) return absl::OkStatus();
    border_ = first;
  }
}

absl::Status SaveGate::SaveFrom(uint64_t step, ControlClient* client) {
  const uint64_t due = border_;
  border_ = step;
  // A gate after the one that is due would let the job pass that border, even for a moment.
  while (due == 0 || border_ < due) {
    EPS_ASSIGN_OR_RETURN(const uint64_t first, Ask(border_, client));
    if (first <= border_) break;
    border_ = first;
  }
  if (due != 0 && border_ >= due) EPS_RETURN_IF_ERROR(Hold(due, client));
  requested_ = border_;
  return absl::OkStatus();
}

absl::Status SaveGate::Confirm(uint64_t step, ControlClient* client) const {
  // No gate holds a job that is done, and one would keep servers that drain.
  const auto border = step < borders_.last ? std::make_optional(step) : std::nullopt;
  return Ask(border, client).status();
}

absl::Status SaveGate::Hold(uint64_t step, ControlClient* client) {
  border_ = step;
  return Ask(border_, client).status();
}

}  // namespace eps
