#ifndef EPS_COMPRESSION_CODEC_H_
#define EPS_COMPRESSION_CODEC_H_

// A codec says how a chunk's weights or gradient look on the wire. The contract is tile-wise, so
// that any codec meets any update rule in L1 and a fused kernel is never needed to be correct.
// Encoded formats: docs/formats/codecs.md.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "compression/sparse.h"
#include "base/job/chunk_map.h"
#include "base/job/rng.h"

namespace eps {

// Gradients of this size or more, and NaN, are refused when a chunk is opened: with at most 2^10
// parts, sums and their squares stay finite (PROTOCOL.md 2.6).
inline constexpr float kMaxGradient = 1125899906842624.0f;  // 2^50

// A codec's number on the wire, chosen in the codec's folder; never reused. It names the format,
// not the parameters: those are part of the name, which the job spec holds.
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
  // kFp32 or kBf16 if bytes() are the chunk's elements of that codec one after the other, in chunk
  // order, so that a kernel may read them in place. kNone, always correct: Read is the only way.
  virtual CodecId in_place_format() const { return CodecId::kNone; }
  // The elements as a kernel reads few of many, valid as long as this; null, always correct: Read
  // is the only way.
  virtual const SparseElements* sparse_elements() const { return nullptr; }
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
// That refusal, by codec name and element of the chunk.
absl::Status InadmissibleGradient(absl::string_view codec, const Chunk& chunk, uint64_t element,
                                  float value);

// How one chunk is to be encoded.
struct EncodeOptions {
  // Along which blocks run; block codecs only.
  Axis axis = Axis::kRow;
  // What stochastic rounding draws from; two encodings with equal keys give equal bytes.
  RngKey rng;
  // Error feedback: the chunk's elements times FP32, added to what Write brings; holds what the
  // encoded bytes leave out once Finish returned. Null: dropped values are lost. Only for codecs
  // with uses_residual.
  float* residual_or_null = nullptr;
  // Of a codec with whole_tensors: how many elements are sent, from CountsOf. Absent: the chunk is
  // all of its tensor.
  absl::optional<uint64_t> count;
  // Who pays for the encoded bytes; the account may be null.
  MemoryKind kind = MemoryKind::kScratch;
  MemoryAccount* account = nullptr;
};

// Stateless, immutable, thread-safe; owned by the registry for the life of the process.
class Codec {
 public:
  struct Traits {
    CodecId id = CodecId::kNone;
    bool exact = false;           // decode(encode(x)) == x for every float that is not NaN
    bool fixed_size = false;      // every chunk of a shape and axis has the same encoded size
    bool uses_residual = false;   // drops elements: for gradients only
    bool whole_tensors = false;   // chooses what it sends among all chunks of a tensor: CountsOf
    uint32_t block = 1;           // elements that share a scale
    double bits_per_element = 0;  // of a large tensor; expected if not fixed_size
  };

  virtual ~Codec() = default;
  // With parameters, as FindCodec takes it: "topk:0.01".
  virtual absl::string_view name() const = 0;
  virtual const Traits& traits() const = 0;
  virtual size_t MaxEncodedSize(const Chunk& chunk, Axis axis) const = 0;
  // Bytes that the chunk holds beside the encoded ones while it is open, charged as these are.
  virtual size_t IndexSize(const Chunk& /*chunk*/) const { return 0; }
  // `chunk` must outlive the result; `axis` is the encoder's. Bytes may be hostile: every length,
  // index and scale is checked. InvalidArgument says what was expected and found; for a value that
  // is not admissible as a gradient, InadmissibleElement has its place.
  virtual absl::StatusOr<std::shared_ptr<const EncodedChunk>> Open(const Chunk& chunk, Axis axis,
                                                                   Bytes bytes,
                                                                   Content content) const = 0;
  // `chunk` and what the options point to must outlive the encoder.
  virtual std::unique_ptr<TileEncoder> NewEncoder(const Chunk& chunk,
                                                  const EncodeOptions& options) const = 0;
  // How many elements of each of a tensor's chunks, which are given in row order, are among those
  // that are sent of the tensor: their EncodeOptions::count. `elements(i)`: what chunk i has to
  // encode, error feedback added, in chunk order, valid until the next call; asked for several
  // times. REQUIRES traits().whole_tensors.
  virtual std::vector<uint64_t> CountsOf(absl::Span<const Chunk> chunks,
                                         const std::function<const float*(size_t)>& elements) const;
};

// The codec of that name, parameters included ("mx6", "topk:0.01"), or InvalidArgument with the
// known names. Thread-safe; the same object for the same name.
absl::StatusOr<const Codec*> FindCodec(absl::string_view name);
// Whether `id` is the number of some codec of this build, whatever its parameters.
bool IsKnownCodec(CodecId id);
// Every registered name with its parameters as the user writes them ("topk:FRACTION"), by number.
std::vector<std::string> CodecNames();
// Complete names that exercise every registered codec and each of its parameters: for tests.
std::vector<std::string> CodecExamples();

// What a codec's folder says of it at start-up (docs/guides/add_a_codec.md):
//
//   const CodecRegistration kMx9({"mx9", CodecId{8}, "[:truncate]", {"mx9", "mx9:truncate"},
//   &New});
struct CodecFamily {
  std::string name;  // up to the first colon
  CodecId id = CodecId::kNone;
  std::string parameters;             // as CodecNames shows them, colon included
  std::vector<std::string> examples;  // for CodecExamples
  // `name` as given; `parameters`: its pieces behind the first colon. InvalidArgument says what is
  // wrong with them.
  std::function<absl::StatusOr<std::unique_ptr<Codec>>(absl::string_view name,
                                                       const std::vector<std::string>& parameters)>
      create;
};
struct CodecRegistration {
  // Two families with one name or number end the process.
  explicit CodecRegistration(CodecFamily family);
};

// Encodes a whole chunk that lies in memory as its segments in order, row-major (Segment::offset).
Bytes EncodeChunk(const Codec& codec, const Chunk& chunk, const EncodeOptions& options,
                  const float* elements);
// The inverse, for `elements` of chunk.elements floats.
void DecodeChunk(const EncodedChunk& encoded, const Chunk& chunk, float* elements);

}  // namespace eps

#endif  // EPS_COMPRESSION_CODEC_H_
