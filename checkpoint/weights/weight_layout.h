#ifndef EPS_CHECKPOINT_WEIGHTS_WEIGHT_LAYOUT_H_
#define EPS_CHECKPOINT_WEIGHTS_WEIGHT_LAYOUT_H_

// The tensors of model.safetensors, which other libraries load. The model's family may spread a
// tensor of the job over several of them, as the experts of one layer.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "base/files/safetensors.h"
#include "base/ids.h"
#include "base/job/job_spec.h"
#include "base/job/models/model_family.h"

namespace eps {

// Immutable, thread-safe.
class WeightLayout {
 public:
  explicit WeightLayout(const JobSpec& spec);

  // In the order of the spec's tensors, dtype F32.
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  // The first of the entries that hold a tensor, and their number.
  size_t first_entry(TensorId tensor) const { return first_[tensor.value()]; }
  const std::vector<FileTensor>& files(TensorId tensor) const { return files_[tensor.value()]; }

  // Calls `visit(entry, first, offset, count)` for the pieces of elements [first, first + count) of
  // a tensor, in their order: `offset` is the place of the piece's first element among them. Stops
  // at the first error.
  using Visitor =
      std::function<absl::Status(size_t entry, uint64_t first, size_t offset, size_t count)>;
  absl::Status ForEachPiece(TensorId tensor, uint64_t first, size_t count,
                            const Visitor& visit) const;

 private:
  std::vector<SafetensorsEntry> entries_;
  std::vector<size_t> first_;                   // by tensor
  std::vector<std::vector<FileTensor>> files_;  // by tensor
};

}  // namespace eps

#endif  // EPS_CHECKPOINT_WEIGHTS_WEIGHT_LAYOUT_H_
