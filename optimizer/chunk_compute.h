#ifndef EPS_OPTIMIZER_CHUNK_COMPUTE_H_
#define EPS_OPTIMIZER_CHUNK_COMPUTE_H_

// All computation over the floats of one chunk, wherever they lie: permanently in DRAM, or in a
// staging buffer between two transfers. Every backend that computes on the host gets its bits here.

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"
#include "base/job/optimizers.h"
#include "base/memory_account.h"
#include "optimizer/reduced_gradient.h"
#include "optimizer/update_request.h"
#include "optimizer/update_rule.h"

namespace eps {

class ReductionPlan;
class TileEncoder;
struct Panel;

// The arrays of a chunk: weights first, then the state fields, `stride` floats apart. Borrowed.
struct ChunkArrays {
  float* weights = nullptr;
  uint64_t stride = 0;
  // For the chunk's reduced gradient, if the tier keeps it outside of memory.
  GradientRoom* room_or_null = nullptr;

  float* array(size_t index) const { return weights + index * stride; }
  // The stride for that many elements: arrays begin at cache lines, so that a vector never
  // straddles two chunks.
  static uint64_t Stride(uint64_t elements) {
    constexpr uint64_t kAlignment = 16;  // in floats
    return (elements + kAlignment - 1) / kAlignment * kAlignment;
  }
};

// Whether a ChunkCompute can update. Without updates, the rule of the job need not be there.
enum class Updates { kHere, kElsewhere };

// The operations of StateBackend on a chunk's arrays. Immutable, thread-safe; the caller excludes
// concurrent calls on the same arrays.
class ChunkCompute {
 public:
  // `spec` and `account` must outlive the result. With Updates::kHere, the errors of NewUpdateRule.
  static absl::StatusOr<ChunkCompute> New(const JobSpec& spec, MemoryAccount* account,
                                          Updates updates = Updates::kHere);

  bool adapts() const { return RowOf(spec_->optimizer.name).adapts; }
  size_t arrays() const { return arrays_; }  // weights and state fields of a chunk not frozen

  // FailedPrecondition with both versions unless `present` is `wanted`, or the chunk is frozen and
  // has content, which is that of all versions; nullopt means that the chunk has no content.
  static absl::Status CheckVersion(const Chunk& chunk, std::optional<Version> present,
                                   Version wanted);
  // Checks that an update may begin on a chunk at `present`: it is not frozen, the update goes one
  // step from there and encodes with legal codecs.
  static absl::Status CheckUpdate(const Chunk& chunk, std::optional<Version> present,
                                  const UpdateRequest& request);
  // InvalidArgument with both sizes if `state` has the wrong one.
  absl::Status CheckState(const Chunk& chunk, Version version, const Bytes& state) const;

  // The operations of StateBackend, without their version checks.
  Bytes Read(const Chunk& chunk, Version version, const Codec& codec, Axis axis,
             const ChunkArrays& arrays) const;
  // Returns a copy of what Read returned elsewhere, charged as if it were made here.
  Bytes CopyEncoded(absl::Span<const uint8_t> encoded) const;
  Bytes ReadState(const Chunk& chunk, const ChunkArrays& arrays) const;
  // REQUIRES CheckState.
  void WriteState(const Chunk& chunk, const Bytes& state, const ChunkArrays& arrays) const;
  void Initialize(const Chunk& chunk, const ChunkArrays& arrays) const;
  // Uses no array, and leaves the sum in `room_or_null` if there is one.
  absl::StatusOr<UpdateResult> Reduce(const Chunk& chunk, const UpdateRequest& request,
                                      GradientRoom* room_or_null) const;
  // A gradient at the begin of some memory.
  struct Gathered {
    const Codec* codec = nullptr;
    uint64_t bytes = 0;
  };
  // Writes the gradient that Update would use: a single contribution as it came, otherwise the sum
  // in FP32; with `decodes`, in FP32 always. `into` is aligned for floats and has 4 bytes per
  // element. REQUIRES inputs, or a reduced gradient in memory.
  absl::StatusOr<Gathered> Gather(const Chunk& chunk, const UpdateRequest& request, bool decodes,
                                  absl::Span<uint8_t> into) const;
  // Returns the rule with the numbers of a request and of one segment's parameter group. REQUIRES
  // Updates::kHere.
  std::unique_ptr<const PreparedUpdate> Prepare(const Chunk& chunk, const UpdateRequest& request,
                                                uint32_t segment) const;
  // Measures the segments for their trust ratios. The sums have SquareSum's order, tile by tile.
  // REQUIRES what Update does, and an optimizer that adapts.
  absl::StatusOr<MeasureResult> Measure(const Chunk& chunk, const UpdateRequest& request,
                                        const ChunkArrays& arrays) const;
  // REQUIRES Updates::kHere; CheckUpdate; and the room with its bytes for a gradient that is not in
  // memory. An error leaves the arrays as they were.
  absl::StatusOr<UpdateResult> Update(const Chunk& chunk, const UpdateRequest& request,
                                      const ChunkArrays& arrays) const;

 private:
  size_t ArraysOf(const Chunk& chunk) const { return chunk.frozen ? 1 : arrays_; }

  // One for each entry of UpdateRequest::encode.
  using Encoders = std::vector<std::unique_ptr<TileEncoder>>;

  ChunkCompute(const JobSpec& spec, std::unique_ptr<UpdateRule> rule, MemoryAccount* account)
      : spec_(&spec),
        rule_(std::move(rule)),
        arrays_(1 + StateFields(spec.optimizer).size()),
        account_(account) {}

  // The numbers of the segment's parameter group.
  GroupScalars ScalarsOf(const Segment& segment) const;
  // The options for encoding the weights of `version`: a function of (spec, version, chunk), so
  // that every reader gets equal bytes.
  EncodeOptions OptionsOfWeights(const Chunk& chunk, Version version, Axis axis) const;
  // Reduces a panel to `gradient`, updates it and encodes its new weights; `tiles` are the plan's
  // buffers.
  void UpdatePanel(const Chunk& chunk, const ReductionPlan& plan, const Panel& panel,
                   const UpdateRequest& request, const ChunkArrays& arrays, float* tiles,
                   float* gradient, const Encoders& encoders) const;

  const JobSpec* spec_;
  std::unique_ptr<UpdateRule> rule_;  // null without updates
  size_t arrays_;
  MemoryAccount* account_;
};

}  // namespace eps

#endif  // EPS_OPTIMIZER_CHUNK_COMPUTE_H_
