#ifndef EPS_OPTIMIZER_REDUCED_GRADIENT_H_
#define EPS_OPTIMIZER_REDUCED_GRADIENT_H_

// The sum of a chunk's contributions between its reduction and its update. In mode sealed all
// updates of a step wait for the lead's decision, and so do the sums: in memory, or where a tier
// keeps them.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/job/layout/chunk_map.h"
#include "compression/codec.h"

namespace eps {

// The reduced gradient of one chunk. Its memory, or its place in a tier, is freed with it, on any
// thread, also after the backend that made it. Immutable, thread-safe.
class ReducedGradient {
 public:
  virtual ~ReducedGradient() = default;
  // Returns whether Open needs no bytes.
  virtual bool in_memory() const = 0;
  // Returns the gradient's elements. `stored`: the bytes that its tier has read, unchanged as long
  // as the result lives; empty if the gradient is in memory. DataLoss names the place and both
  // checksums if they are damaged.
  virtual absl::StatusOr<std::shared_ptr<const EncodedChunk>> Open(
      const Chunk& chunk, absl::Span<const uint8_t> stored) const = 0;
};

// A reduced gradient in memory.
class GradientInMemory final : public ReducedGradient {
 public:
  explicit GradientInMemory(std::shared_ptr<const EncodedChunk> gradient)
      : gradient_(std::move(gradient)) {}

  const EncodedChunk& gradient() const { return *gradient_; }

  bool in_memory() const override { return true; }
  absl::StatusOr<std::shared_ptr<const EncodedChunk>> Open(
      const Chunk&, absl::Span<const uint8_t>) const override {
    return gradient_;
  }

 private:
  const std::shared_ptr<const EncodedChunk> gradient_;
};

// Memory through which a gradient passes on its way to and from the place where a tier keeps it.
// For one thread at a time.
class GradientRoom {
 public:
  virtual ~GradientRoom() = default;
  // At least 4 bytes per element of the chunk, aligned for floats. During an update it begins with
  // the bytes of the gradient that is updated with.
  virtual absl::Span<uint8_t> memory() = 0;
  // Returns whether a gradient may be kept in the codec of its contribution; otherwise in FP32.
  virtual bool takes_codecs() const { return true; }
  // The memory begins with `size` bytes: the chunk's gradient in this codec. Returns its handle.
  // The tier stores the bytes before the operation completes. Call at most once.
  virtual std::shared_ptr<const ReducedGradient> Keep(const Codec* codec, size_t size) = 0;
};

}  // namespace eps

#endif  // EPS_OPTIMIZER_REDUCED_GRADIENT_H_
