#ifndef EPS_CLI_DRIVER_SAVE_GATE_H_
#define EPS_CLI_DRIVER_SAVE_GATE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "wire/control_client.h"

namespace eps {

// The border at which the servers wait while a checkpoint is written. Thread-compatible.
class SaveGate {
 public:
  // Checkpoints are due every `every` steps before step `last`; 0 disables them.
  SaveGate(uint64_t every, uint64_t last) : every_(every), last_(last) {}

  // Sets the gate at the first due checkpoint after `step` that can still be exported, or removes
  // the gate if none is left. Errors are those of ControlClient::Gate.
  absl::Status SetAfter(uint64_t step, ControlClient* client);
  // Sets the gate at the first border from `step` on that no server has passed and at which every
  // server holds its whole state. With quantization.residual_home=worker that is often the next
  // border. Errors are those of ControlClient::Gate.
  absl::Status SetFrom(uint64_t step, ControlClient* client);

  // The border of the gate; 0 if there is none.
  uint64_t border() const { return border_; }

 private:
  // Returns the next step after `step` at which a checkpoint is due; 0 if only the last is left.
  uint64_t NextSave(uint64_t step) const;

  const uint64_t every_;
  const uint64_t last_;
  uint64_t border_ = 0;
};

}  // namespace eps

#endif  // EPS_CLI_DRIVER_SAVE_GATE_H_
