#include "cli/driver/save_gate.h"

#include <optional>

#include "base/status_macros.h"

namespace eps {

uint64_t SaveGate::NextSave(uint64_t step) const {
  if (every_ == 0) return 0;
  const uint64_t next = (step / every_ + 1) * every_;
  return next < last_ ? next : 0;
}

absl::Status SaveGate::SetAfter(uint64_t step, ControlClient* client) {
  border_ = NextSave(step);
  while (true) {
    const auto gate = border_ == 0 ? std::nullopt : std::make_optional(border_);
    EPS_ASSIGN_OR_RETURN(const uint64_t first, client->Gate(gate));
    if (border_ == 0 || first <= border_) return absl::OkStatus();
    border_ = NextSave(first - 1);
  }
}

absl::Status SaveGate::SetFrom(uint64_t step, ControlClient* client) {
  border_ = step;
  while (true) {
    EPS_ASSIGN_OR_RETURN(const uint64_t first, client->Gate(border_));
    if (first <= border_) return absl::OkStatus();
    border_ = first;
  }
}

}  // namespace eps
