#ifndef EPS_COMPRESSION_CODEC_H_
#define EPS_COMPRESSION_CODEC_H_

// A codec says how a chunk's weights or gradient look on the wire. The contract is tile-wise, so
// that any codec meets any update rule in L1 and a fused kernel is never needed to be correct.
// Encoded formats: docs/formats/codecs.md.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "common/bytes.h"
#include "spec/chunk_map.h"
#include "spec/rng.h"

namespace eps {

// Gradients of this size or more, and NaN, are refused when a chunk is opened: with at most 2^10
// parts, sums and their squares stay finite (PROTOCOL.md 2.6).
inline constexpr float kMaxGradient = 1125899906842624.0f;  // 2^50

// Numbers on the wire; never reused.
enum class CodecId : uint16_t { kNone = 0, kFp32 = 1, kBf16 = 2 };

// An encoded chunk whose bytes were checked. Immutable, thread-safe, random access by tile.
class EncodedChunk {
 public:
  virtual ~EncodedChunk() = default;
  // Decodes a tile to out[row * ld + col], or adds to it (`accumulate`: out + value, in that
  // order). Total: every tile of the grid can be read; absent elements are +0.0 and are added.
  virtual void Read(const Tile& tile, bool accumulate, size_t ld, float* out) const = 0;
  // As received: for redo logs and pass-through to a device.
  virtual const Bytes& bytes() const = 0;
};

// Encodes one chunk. Used by one thread; every tile exactly once, in grid order.
class TileEncoder {
 public:
  virtual ~TileEncoder() = default;
  // Encodes in[row * ld + col].
  virtual void Write(const Tile& tile, size_t ld, const float* in) = 0;
  // Ends the chunk: at most MaxEncodedSize bytes, exactly that if the codec is fixed_size.
  virtual Bytes Finish() = 0;
};

// Whether the bytes must be admissible as a gradient (|x| < kMaxGradient, no NaN).
enum class Content { kWeights, kGradient };

// If `status` is Open's refusal of well-formed bytes because of a value (Content::kGradient), the
// index of that element in its chunk; else nothing. Travels as a payload, inside a process only.
absl::optional<uint64_t> InadmissibleElement(const absl::Status& status);
// Marks a refusal so.
absl::Status WithInadmissibleElement(absl::Status status, uint64_t element);

// Stateless, immutable, thread-safe; owned by the registry for the life of the process.
class Codec {
 public:
  struct Traits {
    CodecId id = CodecId::kNone;
    bool exact = false;       // decode(encode(x)) == x for every float that is not NaN
    bool fixed_size = false;  // every chunk of a shape has the same encoded size
    bool uses_residual = false;
    double bits_per_element = 0;
  };

  virtual ~Codec() = default;
  virtual absl::string_view name() const = 0;
  virtual const Traits& traits() const = 0;
  virtual size_t MaxEncodedSize(const Chunk& chunk) const = 0;
  // `chunk` must outlive the result. Bytes may be hostile: every length, index and scale is
  // checked. InvalidArgument says what was expected and found; for a value that is not admissible
  // as a gradient, InadmissibleElement has its place.
  virtual absl::StatusOr<std::shared_ptr<const EncodedChunk>> Open(const Chunk& chunk, Bytes bytes,
                                                                   Content content) const = 0;
  // `chunk` must outlive the encoder. The bytes are charged to `account` (may be null) as `kind`.
  // `axis`, `rng` and `residual_or_null` matter only to codecs with blocks, stochastic rounding or
  // error feedback.
  virtual std::unique_ptr<TileEncoder> NewEncoder(const Chunk& chunk, Axis axis, const RngKey& rng,
                                                  Buffer* residual_or_null, MemoryKind kind,
                                                  MemoryAccount* account) const = 0;
};

// The codec of that name, or InvalidArgument with the known names. Thread-safe.
absl::StatusOr<const Codec*> FindCodec(absl::string_view name);
absl::StatusOr<const Codec*> FindCodec(CodecId id);
std::vector<std::string> CodecNames();

// Encodes a whole chunk that lies in memory as its segments in order, row-major (Segment::offset).
Bytes EncodeChunk(const Codec& codec, const Chunk& chunk, Axis axis, const RngKey& rng,
                  const float* elements, MemoryKind kind, MemoryAccount* account);
// The inverse, for `elements` of chunk.elements floats.
void DecodeChunk(const EncodedChunk& encoded, const Chunk& chunk, float* elements);

}  // namespace eps

#endif  // EPS_COMPRESSION_CODEC_H_
