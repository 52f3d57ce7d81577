#ifndef EPS_WORKER_CLIENT_STAGES_GRADIENT_SOURCE_H_
#define EPS_WORKER_CLIENT_STAGES_GRADIENT_SOURCE_H_

// The gradient of one stage for one part, as a worker pushes it.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/optional.h"
#include "base/bytes.h"
#include "base/ids.h"
#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"
#include "compression/codec.h"
#include "worker/client/stages/stage_sink.h"

namespace eps {

// The bytes of a chunk's gradient.
struct EncodedGradient {
  Bytes bytes;
  uint32_t crc32c = 0;  // of whoever encoded them, so that it covers their way here
};

// Holds the memory of a gradient, which a client reads until it drops its last reference, on any
// thread. Thread-safe.
class GradientSource {
 public:
  virtual ~GradientSource() = default;
  // Returns the bytes of a chunk if the gradient is already encoded.
  virtual absl::optional<EncodedGradient> Encoded(const Chunk& chunk) const = 0;
  // Returns the FP32 elements of a tensor; null if the stage does not use it. REQUIRES a gradient
  // that is not encoded.
  virtual const float* tensor(TensorId tensor) const = 0;
};

// Gives out the memory from which a client sends without another copy.
class GradientRooms {
 public:
  virtual ~GradientRooms() = default;
  // Returns memory for the encoded bytes of a chunk, which GradientSource::Encoded may return; null
  // if there is none. The last owner gives it back, on any thread.
  virtual std::shared_ptr<uint8_t> RoomFor(ChunkId /*chunk*/, size_t /*bytes*/) { return nullptr; }
};

// A gradient in FP32 arrays.
class HostGradient final : public GradientSource {
 public:
  // `gradient` holds one pointer per TensorUse of stage `use`, valid as long as `keep_alive`.
  HostGradient(const JobSpec& spec, StageId use, const TensorPointers& gradient,
               std::shared_ptr<void> keep_alive)
      : keep_alive_(std::move(keep_alive)) {
    const std::vector<TensorUse>& uses = spec.stages[use.value()].uses;
    for (size_t i = 0; i < uses.size(); ++i) tensors_.emplace_back(uses[i].tensor, gradient[i]);
  }

  absl::optional<EncodedGradient> Encoded(const Chunk&) const override { return absl::nullopt; }
  const float* tensor(TensorId tensor) const override {
    for (const auto& [id, elements] : tensors_) {
      if (id == tensor) return elements;
    }
    return nullptr;
  }

 private:
  std::vector<std::pair<TensorId, const float*>> tensors_;
  const std::shared_ptr<void> keep_alive_;
};

}  // namespace eps

#endif  // EPS_WORKER_CLIENT_STAGES_GRADIENT_SOURCE_H_
