#ifndef EPS_WORKER_EXEC_TORCH_STASH_H_
#define EPS_WORKER_EXEC_TORCH_STASH_H_

// The stash of a TorchRuntime over its tiers: the device, host memory and a file. Only worker/exec
// includes this header.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/job/job_spec.h"
#include "base/memory_account.h"
#include "c10/core/Device.h"
#include "worker/exec/queues/device_copies.h"
#include "worker/exec/stash/filed_stash.h"
#include "worker/exec/stash/stash_tiers.h"
#include "worker/exec/torch_activations.h"
#include "worker/relay/stage_program.h"
#include "worker/relay/stash_codec.h"

namespace eps {

// Use it from the thread that computes. The methods are those of StageRuntime, and do not throw.
class TorchStash {
 public:
  // Activations have the type `type`. Borrows everything; `copies_or_null` is null on a CPU, and
  // `account_or_null` may be.
  TorchStash(const JobSpec& spec, const StashCodec& codec, const RuntimeOptions& options,
             at::ScalarType type, c10::Device device, DeviceCopies* copies_or_null,
             MemoryAccount* account_or_null);

  absl::Status Begin(uint64_t inputs, uint64_t gradients);
  absl::StatusOr<ActivationPtr> Stash(ActivationPtr activation);
  absl::StatusOr<ActivationPtr> Unstash(const ActivationPtr& stashed);
  void WillUnstash(const ActivationPtr& stashed);
  // Returns the bytes on the device that neither the stash of Begin nor anything else needs.
  uint64_t device_room_left() const {
    return device_room_ - std::min(device_room_, tiers_.on_device());
  }

 private:
  // Makes room for all that Begin has placed in host memory, or has to pass through it.
  absl::Status ReserveHost();
  absl::StatusOr<ActivationPtr> StashOnHost(const TorchActivation& from);
  absl::StatusOr<ActivationPtr> StashInFile(const TorchActivation& from);
  // Charges the stash in host memory, to its own limit and to the worker's account.
  absl::StatusOr<StashCharge> ChargeHost(uint64_t bytes);
  // Returns what an activation passes on, given what the stash held of it.
  at::Tensor Decoded(const at::Tensor& stashed, bool is_encoded) const;

  const StashCodec& codec_;
  const StashSizes sizes_;
  const at::ScalarType type_;  // of activations
  const std::string path_;     // worker.stash_path
  DeviceCopies* const copies_;
  MemoryAccount* const account_;
  const uint64_t device_room_;  // bytes for a stash, and for what stages keep
  MemoryAccount host_room_;     // limited by worker.stash_host
  StashTiers tiers_;
  std::unique_ptr<FiledStash> filed_;  // null while all of the stash is in memory
};

}  // namespace eps

#endif  // EPS_WORKER_EXEC_TORCH_STASH_H_
