#ifndef EPS_OPTIMIZER_REDUCTION_PLAN_H_
#define EPS_OPTIMIZER_REDUCTION_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "base/job/chunk_map.h"
#include "optimizer/panel.h"
#include "storage/state_backend.h"
#include "optimizer/strip_kernels.h"

namespace eps {

// The canonical reduction of one chunk's contributions as a list of steps. It is made once per
// update and run for every tile, so that a tile costs neither a search nor an allocation. The order
// of additions depends on the tree alone, not on how the inputs are ordered. Immutable after Build;
// thread-safe. The inputs of Build must outlive it.
//
// Inputs are decoded to tile buffers in L1, which are then added. If all of them can be read in
// place, the same sums are made in registers instead, in the order of memory (strip_kernels.h).
class ReductionPlan {
 public:
  // Floats of one tile buffer.
  static constexpr size_t kBufferElements = size_t{kTileRows} * kTileCols;

  // InvalidArgument names the part and use that is missing, or the range that is no node of the
  // tree, is there twice, or overlaps another.
  static absl::StatusOr<ReductionPlan> Build(const Chunk& chunk, uint32_t parts,
                                             const std::vector<UpdateInput>& inputs);
  // The plan of a sum that is there already.
  static ReductionPlan Of(const Chunk& chunk, const EncodedChunk& sum);

  // Tile buffers that Run needs.
  size_t buffers() const { return buffers_; }

  // Leaves the sums of a panel's elements in out[0 … elements), row after row. A panel is one row
  // of tiles over a segment's whole width: one run of elements. The calling thread must hold
  // ScopedFlushDenormals.
  void Run(const Panel& panel, float* buffers, float* out) const;

  // As Run, and updates the panel's weights and moments with the sums, in one go; or returns false
  // and does nothing, where Run and an UpdateRule have to do it.
  bool RunAdamW(const Panel& panel, float* out, const AdamWScalars& scalars,
                const strip_kernels::AdamWState& state) const;

 private:
  enum class Kind : uint8_t {
    kRead,     // input -> buffer
    kReadAdd,  // buffer + input -> buffer
    kAdd,      // buffer + the next buffer -> buffer
  };
  struct Operation {
    Kind kind;
    uint32_t buffer;
    const EncodedChunk* input;  // null for kAdd
  };
  class Builder;

  explicit ReductionPlan(const Chunk& chunk) : chunk_(&chunk) {}

  // Fills strips_ if that is possible.
  void PlanStrips();
  bool InPlace(const Panel& panel) const {
    return !strips_.empty() && panel.elements() >= strip_kernels::kStrip;
  }
  void RunTile(const Tile& tile, float* buffers) const;

  const Chunk* chunk_;
  std::vector<Operation> operations_;
  std::vector<strip_kernels::Step> strips_;  // the same as operations_; empty: not in place
  size_t buffers_ = 0;
};

}  // namespace eps

#endif  // EPS_OPTIMIZER_REDUCTION_PLAN_H_
