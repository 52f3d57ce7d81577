#ifndef EPS_WORKER_CLIENT_STAGES_STAGE_SINK_H_
#define EPS_WORKER_CLIENT_STAGES_STAGE_SINK_H_

// Where the weights of a fetched stage arrive, one chunk at a time.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "base/bytes.h"
#include "base/ids.h"
#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"
#include "compression/codec.h"

namespace eps {

// One encoded copy of a chunk's weights, with all its bytes and the CRC32C of its sender. The codec
// has not seen the bytes yet.
struct EncodedWeights {
  const Chunk* chunk = nullptr;
  const Codec* codec = nullptr;
  Axis axis = Axis::kRow;
  uint32_t view = 0;  // FetchSlice.view: 1 is the second copy
  Bytes bytes;
};

// Receives the copies of one stage.
class StageSink {
 public:
  virtual ~StageSink() = default;
  // Takes a copy. Copies arrive on any thread, in any order, several at once. Returns
  // InvalidArgument for bytes that the codec refuses, and the fetch then fails.
  virtual absl::Status Take(EncodedWeights weights) = 0;
};

// A stage's tensors in host memory: one pointer per TensorUse, in the spec's order.
using TensorPointers = std::vector<float*>;

// Decodes a stage to arrays in host memory. With quantization.backward_weights=decode_once it
// rounds matrices to bf16. Thread-safe.
class HostSink final : public StageSink {
 public:
  // `out` holds one pointer per TensorUse; in a backward pass with
  // quantization.backward_weights=both_axes it holds as many again, for the copies along the other
  // axis. Null pointers, and those of tensors without a second copy, are not written to. `spec` and
  // the arrays must outlive the sink.
  HostSink(const JobSpec* spec, StageId stage, TensorPointers out);

  absl::Status Take(EncodedWeights weights) override;

 private:
  const JobSpec* const spec_;
  const StageId stage_;
  const TensorPointers out_;
};

// Returns the tensor's array among `pointers`, which hold one per TensorUse of `stage` for each
// view; null if the stage does not use the tensor, or if there is no pointer for the view.
float* TensorPointer(const JobSpec& spec, StageId stage, const TensorPointers& pointers,
                     TensorId tensor, uint32_t view = 0);

}  // namespace eps

#endif  // EPS_WORKER_CLIENT_STAGES_STAGE_SINK_H_
