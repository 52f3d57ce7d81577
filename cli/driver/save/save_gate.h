#ifndef EPS_CLI_DRIVER_SAVE_SAVE_GATE_H_
#define EPS_CLI_DRIVER_SAVE_SAVE_GATE_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "wire/control_client.h"

namespace eps {

// The border at which the servers wait for the driver: while it writes a checkpoint, or until it
// has decided whether the run ends there. Thread-compatible.
class SaveGate {
 public:
  // At which borders of a job of `last` steps the driver has something to do.
  struct Borders {
    uint64_t save_every = 0;  // steps between checkpoints; 0: none before the last step
    // Steps between evaluations that may end the run, at the border of the step after an evaluated
    // one; 0: none.
    uint64_t decide_every = 0;
    uint64_t last = 0;
  };
  explicit SaveGate(const Borders& borders) : borders_(borders) {}

  // Sets the gate at the first border at which something is left to do, or removes the gate if
  // there is none. `step` is the border of the job, and `known` that of the last record that the
  // driver has: a decision at a border that it has not reached is still open. The gate stands in
  // advance, so that no step passes a decision. Errors are those of ControlClient::Gate.
  absl::Status SetAfter(uint64_t step, uint64_t known, ControlClient* client);
  // Sets the gate at the first border from `step` on that no server has passed and at which every
  // server holds its whole state. With quantization.residual_home=worker that is often the next
  // border. Errors are those of ControlClient::Gate.
  absl::Status SetFrom(uint64_t step, ControlClient* client);

  // Requests a checkpoint at the first border that SetFrom finds, or at the next one of SetAfter if
  // that comes first. REQUIRES SetAfter. Errors are those of ControlClient::Gate.
  absl::Status SaveFrom(uint64_t step, ControlClient* client);
  // Sets the gate at the border at which the job stands, while nobody has begun the step after it.
  absl::Status Hold(uint64_t step, ControlClient* client);

  // Sets the gate at the border of `step` again, at which the job stands: the lead answers only a
  // driver that still has the job (docs/protocol.md, "Drivers", D7). Aborted if it has not. Other
  // errors are those of ControlClient::Gate.
  absl::Status Confirm(uint64_t step, ControlClient* client) const;

  // The border of the gate; 0 if there is none.
  uint64_t border() const { return border_; }
  // Whether a checkpoint is due at a border before the last one.
  bool Saves(uint64_t step) const {
    return (borders_.save_every > 0 && step % borders_.save_every == 0) || step == requested_;
  }
  // The border of the last SaveFrom; 0 if there is none.
  uint64_t requested() const { return requested_; }

 private:
  absl::StatusOr<uint64_t> Ask(std::optional<uint64_t> border, ControlClient* client) const;
  // Whether the driver decides at a border before the last one whether the run ends there.
  bool Decides(uint64_t step) const;
  // Returns the first border with a checkpoint after `saved`, or with a decision after `decided`; 0
  // if only the last is left.
  uint64_t Next(uint64_t saved, uint64_t decided) const;

  const Borders borders_;
  uint64_t border_ = 0;
  uint64_t requested_ = 0;
};

}  // namespace eps

#endif  // EPS_CLI_DRIVER_SAVE_SAVE_GATE_H_
