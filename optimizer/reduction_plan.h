#ifndef EPS_OPTIMIZER_REDUCTION_PLAN_H_
#define EPS_OPTIMIZER_REDUCTION_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "base/job/layout/chunk_map.h"
#include "optimizer/panel.h"
#include "optimizer/strip_kernels.h"
#include "optimizer/update_request.h"

namespace eps {

// The canonical reduction of one chunk's contributions as a list of steps. One plan serves all
// tiles of an update, so that a tile costs neither a search nor an allocation. The order of
// additions depends on the tree alone, not on the order of the inputs. Immutable after Build;
// thread-safe. The inputs of Build must outlive the plan.
//
// The plan decodes inputs to tile buffers in L1 and adds those. If all inputs can be read in place,
// it makes the same sums in registers, in the order of memory (strip_kernels.h).
class ReductionPlan {
 public:
  // Floats of one tile buffer.
  static constexpr size_t kBufferElements = size_t{kTileRows} * kTileCols;

  // InvalidArgument names the part and use that is missing, or the range that is no node of the
  // tree, occurs twice, or overlaps another.
  static absl::StatusOr<ReductionPlan> Build(const Chunk& chunk, uint32_t parts,
                                             const std::vector<UpdateInput>& inputs);
  // Returns the plan of a finished sum.
  static ReductionPlan Of(const Chunk& chunk, const EncodedChunk& sum);

  // The number of tile buffers that Run needs.
  size_t buffers() const { return buffers_; }

  // Writes the sums of a panel's elements to out[0 … elements), row after row. The calling thread
  // must hold ScopedFlushDenormals.
  void Run(const Panel& panel, float* buffers, float* out) const;

  // Returns whether RunPieces may be used for ranges of a panel: all inputs can be read in place.
  bool InPlace(const Panel& panel) const {
    return !strips_.empty() && panel.elements() >= strip_kernels::kStrip;
  }
  // Writes the sums of a range of a panel to out[0 … elements), and gives each piece of them to
  // `sink` in the same pass. REQUIRES InPlace and at least strip_kernels::kStrip elements.
  void RunPieces(const Panel& panel, const ElementRange& range, float* out,
                 strip_kernels::PieceSink* sink) const;

 private:
  enum class Kind : uint8_t {
    kRead,     // input -> buffer
    kReadAdd,  // buffer + input -> buffer
    kAdd,      // buffer + the next buffer -> buffer
  };
  // One step of the reduction of a tile.
  struct Operation {
    Kind kind;
    uint32_t buffer;
    const EncodedChunk* input;  // null for kAdd
  };
  class Builder;

  explicit ReductionPlan(const Chunk& chunk) : chunk_(&chunk) {}

  // Fills strips_ if that is possible.
  void PlanStrips();
  void RunTile(const Tile& tile, float* buffers) const;

  const Chunk* chunk_;
  std::vector<Operation> operations_;
  std::vector<strip_kernels::Step> strips_;  // the same as operations_; empty: not in place
  size_t buffers_ = 0;
};

}  // namespace eps

#endif  // EPS_OPTIMIZER_REDUCTION_PLAN_H_
