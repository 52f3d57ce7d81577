#ifndef EPS_STORAGE_REDUCTION_PLAN_H_
#define EPS_STORAGE_REDUCTION_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "spec/chunk_map.h"
#include "storage/state_backend.h"

namespace eps {

// The canonical reduction of one chunk's contributions as a list of steps over tile buffers. It is
// made once per update and run for every tile, so that a tile costs neither a search nor an
// allocation. The order of additions depends on the tree alone, not on how the inputs are ordered.
// Immutable after Build; thread-safe.
class ReductionPlan {
 public:
  // Floats of one tile buffer.
  static constexpr size_t kBufferElements = size_t{kTileRows} * kTileCols;

  // InvalidArgument names the part and use that is missing, or the range that is no node of the
  // tree, is there twice, or overlaps another.
  static absl::StatusOr<ReductionPlan> Build(const Chunk& chunk, uint32_t parts,
                                             const std::vector<UpdateInput>& inputs);

  // Tile buffers that Run needs: one more than the deepest right branch with partial sums.
  size_t buffers() const { return buffers_; }

  // Leaves the reduced tile in the first of the buffers, dense: element (r, c) at r * tile.cols +
  // c. `inputs` are those of Build. The calling thread must hold ScopedFlushDenormals.
  void Run(const std::vector<UpdateInput>& inputs, const Tile& tile, float* buffers) const;

 private:
  enum class Kind : uint8_t {
    kRead,     // input -> buffer
    kReadAdd,  // buffer + input -> buffer
    kAdd,      // buffer + the next buffer -> buffer
  };
  struct Operation {
    Kind kind;
    uint32_t buffer;
    uint32_t input;
  };
  class Builder;

  ReductionPlan() = default;

  std::vector<Operation> operations_;
  size_t buffers_ = 0;
};

}  // namespace eps

#endif  // EPS_STORAGE_REDUCTION_PLAN_H_
