#ifndef EPS_WORKER_EXEC_STASH_FILED_STASH_H_
#define EPS_WORKER_EXEC_STASH_FILED_STASH_H_

// Activations that wait in a StashFile, as tensors of LibTorch. Only worker/exec includes this
// header.

#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/exec/queues/device_copies.h"
#include "worker/exec/stash/stash_file.h"
#include "worker/relay/stage_program.h"

namespace eps {

// An activation in a file, or on its way there.
class FiledActivation final : public Activation {
 public:
  FiledActivation(std::shared_ptr<StashFile> file, const at::Tensor& tensor, bool is_encoded)
      : encoded(is_encoded),
        sizes(tensor.sizes().vec()),
        type(tensor.scalar_type()),
        bytes_(tensor.nbytes()),
        file_(std::move(file)) {}
  ~FiledActivation() override {
    if (place.has_value()) file_->GiveBack(*place);
  }
  uint64_t bytes() const override { return bytes_; }

  const bool encoded;  // by the stash codec
  const std::vector<int64_t> sizes;
  const at::ScalarType type;
  std::optional<uint64_t> place;  // in the file
  DeviceCopies::Stashed before;   // in pinned memory, until it has a place

 private:
  const uint64_t bytes_;
  const std::shared_ptr<StashFile> file_;
};

// Moves activations to a file and back. Use it from one thread; throws what LibTorch throws.
class FiledStash {
 public:
  // Copies from the device to pinned memory whose activations the file does not have yet. A copy is
  // done when the next but one begins, because the host runs at most two micro-batches ahead.
  static constexpr size_t kCopies = 2;
  // Activations that are in pinned memory at most, on their way to the file and back.
  static constexpr size_t kBuffers = kCopies + 3;

  // `copies_or_null` is borrowed; null on a CPU.
  FiledStash(std::unique_ptr<StashFile> file, DeviceCopies* copies_or_null)
      : file_(std::move(file)), copies_(copies_or_null) {}

  StashFile& file() { return *file_; }
  absl::StatusOr<ActivationPtr> Stash(const at::Tensor& tensor, bool is_encoded);
  // Starts to read an activation that Unstash will ask for.
  void StartRead(const FiledActivation& stashed);
  // Returns the tensor where the worker computes.
  absl::StatusOr<at::Tensor> Unstash(const FiledActivation& stashed);

 private:
  // Writes the oldest copy to the file.
  absl::Status WriteOldest();

  const std::shared_ptr<StashFile> file_;
  DeviceCopies* const copies_;
  std::deque<std::weak_ptr<FiledActivation>> copied_;  // to pinned memory, oldest first
};

}  // namespace eps

#endif  // EPS_WORKER_EXEC_STASH_FILED_STASH_H_
