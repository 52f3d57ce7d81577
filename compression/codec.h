#ifndef EPS_COMPRESSION_CODEC_H_
#define EPS_COMPRESSION_CODEC_H_

// A codec defines the encoding of a chunk's weights or gradient on the wire. The contract is
// tile-wise, so any codec can be combined with any update rule in the first-level cache, and fused
// kernels are only an optimization. The encoded formats are in docs/formats/codecs.md.

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
#include "base/job/layout/chunk_map.h"
#include "base/numerics/rng.h"
#include "compression/sparse.h"

namespace eps {

// Values of this magnitude or more, and NaN, are refused when a gradient is opened. With at most
// 2^10 parts, sums of smaller values and the squares of those sums stay finite in FP32.
inline constexpr float kMaxGradient = 1125899906842624.0f;  // 2^50

// A codec's number on the wire, defined in the codec's folder and never reused. It identifies the
// format; the parameters are part of the name, which the job spec holds.
enum class CodecId : uint16_t { kNone = 0, kFp32 = 1, kBf16 = 2 };

// A piece of one row of a segment, across tiles: it begins at the first column of a tile and ends
// at the last column of one. Memory is read and written fastest row by row.
struct RowPiece {
  uint32_t segment = 0;
  uint32_t row = 0;  // within the segment
  uint32_t col = 0;  // a multiple of kTileCols
  uint32_t cols = 0;

  // Element offset of the piece's first element within its chunk.
  uint64_t offset(const Segment& s) const { return s.offset + uint64_t{row} * s.cols + col; }
};

class Codec;

// An encoded chunk whose bytes have been checked. Immutable, thread-safe, random access by tile.
class EncodedChunk {
 public:
  virtual ~EncodedChunk() = default;
  // Decodes a tile to out[row * ld + col], or with `accumulate` adds it: out + value, in that
  // order. Every tile of the grid can be read; absent elements are +0.0, which is added like any
  // other value.
  virtual void Read(const Tile& tile, bool accumulate, size_t ld, float* out) const = 0;
  // Returns whether ReadRow may be used: rows do not depend on each other.
  virtual bool has_rows() const { return false; }
  // Decodes a piece of a row to out[0 … piece.cols), as Read. REQUIRES has_rows().
  virtual void ReadRow(const RowPiece& piece, float* out) const;
  // Returns the bytes as received, for redo logs and for passing them to a device.
  virtual const Bytes& bytes() const = 0;
  // Returns the codec that opens bytes() along rows as this chunk again. Null is always correct and
  // means that the bytes are of no use elsewhere.
  virtual const Codec* codec() const { return nullptr; }
  // Returns kFp32 or kBf16 if bytes() are the chunk's elements in that codec, contiguous and in
  // chunk order, so that a kernel may read them in place. kNone is always correct and means that
  // only Read may be used.
  virtual CodecId in_place_format() const { return CodecId::kNone; }
  // Returns the elements in sparse form, valid as long as this object. Null is always correct and
  // means that only Read may be used.
  virtual const SparseElements* sparse_elements() const { return nullptr; }
};

// Encodes one chunk. Not thread-safe. Write every tile exactly once, in grid order, or if
// takes_rows() every element exactly once, by tiles or pieces of rows.
class TileEncoder {
 public:
  virtual ~TileEncoder() = default;
  // Encodes in[row * ld + col].
  virtual void Write(const Tile& tile, size_t ld, const float* in) = 0;
  // Returns whether WriteRow may be used: rows do not depend on each other.
  virtual bool takes_rows() const { return false; }
  // Encodes a piece of a row, in[0 … piece.cols). REQUIRES takes_rows().
  virtual void WriteRow(const RowPiece& piece, const float* in);
  // Finishes the chunk and returns its bytes: at most MaxEncodedSize, exactly that many if the
  // codec is fixed_size. Call once.
  virtual Bytes Finish() = 0;
};

// The content of a chunk. A gradient's values must be admissible: |x| < kMaxGradient, no NaN.
enum class Content { kWeights, kGradient };

// If `status` is Open's refusal of well-formed bytes because of an inadmissible gradient, returns
// the index of that element in its chunk; otherwise nothing. The index is a payload of the status
// and stays within the process.
absl::optional<uint64_t> InadmissibleElement(const absl::Status& status);
// Returns that refusal for an element of `chunk` and its value.
absl::Status InadmissibleGradient(absl::string_view codec, const Chunk& chunk, uint64_t element,
                                  float value);

// The options of encoding one chunk.
struct EncodeOptions {
  // The axis along which blocks run; for block codecs only.
  Axis axis = Axis::kRow;
  // The key of stochastic rounding; equal keys give equal bytes.
  RngKey rng;
  // Error feedback: an FP32 array of the chunk's elements. It is added to the values given to
  // Write, and after Finish it holds what the encoded bytes omit. If null, omitted values are lost.
  // Only for codecs with uses_residual.
  float* residual_or_null = nullptr;
  // For codecs with whole_tensors: the number of elements to send, from CountsOf. If absent, the
  // chunk is its whole tensor.
  absl::optional<uint64_t> count;
  // The account and the kind that the encoded bytes are charged to; the account may be null.
  MemoryKind kind = MemoryKind::kScratch;
  MemoryAccount* account = nullptr;
};

// An encoding of chunks with fixed parameters. Stateless, immutable, thread-safe; owned by the
// registry for the life of the process.
class Codec {
 public:
  // The constant properties of a codec.
  struct Traits {
    CodecId id = CodecId::kNone;
    bool exact = false;           // decode(encode(x)) == x for every float except NaN
    bool fixed_size = false;      // chunks of equal shape and axis have equal encoded sizes
    bool uses_residual = false;   // omits elements, so it is for gradients only
    bool whole_tensors = false;   // selects elements among all chunks of a tensor; see CountsOf
    uint32_t block = 1;           // elements that share a scale
    double bits_per_element = 0;  // for a large tensor; an expectation unless fixed_size
  };

  virtual ~Codec() = default;
  // Returns the name with its parameters, as FindCodec accepts it: "topk:0.01".
  virtual absl::string_view name() const = 0;
  virtual const Traits& traits() const = 0;
  // Returns OK if this process can encode and decode. FailedPrecondition or InvalidArgument of a
  // plug-in says which object is missing; then do not call NewEncoder, and Open returns the same.
  virtual absl::Status Ready() const { return absl::OkStatus(); }
  virtual size_t MaxEncodedSize(const Chunk& chunk, Axis axis) const = 0;
  // Returns the bytes that an open chunk holds in addition to the encoded ones; they are charged to
  // the same account.
  virtual size_t IndexSize(const Chunk& /*chunk*/) const { return 0; }
  // Checks and opens encoded bytes. `chunk` must outlive the result; `axis` must be the encoder's.
  // The bytes may be hostile: every length, index and scale is checked. InvalidArgument says what
  // was expected and what was found; for a value that is inadmissible in a gradient,
  // InadmissibleElement returns its place.
  virtual absl::StatusOr<std::shared_ptr<const EncodedChunk>> Open(const Chunk& chunk, Axis axis,
                                                                   Bytes bytes,
                                                                   Content content) const = 0;
  // Returns an encoder. `chunk` and everything that the options point to must outlive it.
  virtual std::unique_ptr<TileEncoder> NewEncoder(const Chunk& chunk,
                                                  const EncodeOptions& options) const = 0;
  // Returns for each chunk of a tensor how many of its elements are among those that the whole
  // tensor sends, to be passed as EncodeOptions::count. `chunks` are in row order. `elements(i)`
  // returns the values that chunk i has to encode, error feedback added, in chunk order. It is
  // called several times per chunk; its array must stay valid until the next call. REQUIRES
  // traits().whole_tensors.
  virtual std::vector<uint64_t> CountsOf(absl::Span<const Chunk> chunks,
                                         const std::function<const float*(size_t)>& elements) const;
};

// Returns the codec of a name with its parameters ("mx6", "topk:0.01"), or InvalidArgument with the
// known names. Thread-safe; returns the same object for the same name.
absl::StatusOr<const Codec*> FindCodec(absl::string_view name);
// Returns true if `id` is the number of a codec in this build, with any parameters.
bool IsKnownCodec(CodecId id);
// Returns every registered name with the syntax of its parameters ("topk:FRACTION"), ordered by
// number.
std::vector<std::string> CodecNames();
// Returns complete names that exercise every registered codec and each of its parameters, for
// tests.
std::vector<std::string> CodecExamples();

// The entry that a codec's folder registers at start-up (docs/guides/add_a_codec.md):
//
//   const CodecRegistration kMx9(
//       {"mx9", CodecId{8}, "[:truncate]", {"mx9", "mx9:truncate"}, &New});
struct CodecFamily {
  std::string name;  // the name up to the first colon
  CodecId id = CodecId::kNone;
  std::string parameters;             // the syntax that CodecNames shows, colon included
  std::vector<std::string> examples;  // returned by CodecExamples
  // Creates the codec of a complete name; `parameters` are its pieces after the first colon.
  // InvalidArgument says what is wrong with them.
  std::function<absl::StatusOr<std::unique_ptr<Codec>>(absl::string_view name,
                                                       const std::vector<std::string>& parameters)>
      create;
};
// Registers a family; define one at namespace scope.
struct CodecRegistration {
  // Ends the process if the name or the number is already registered.
  explicit CodecRegistration(CodecFamily family);
};

// Returns whether the rows of a segment are long enough to be visited one by one; shorter ones cost
// less tile by tile.
inline bool HasLongRows(const Segment& segment) { return segment.cols >= kTileCols; }

// Encodes a whole chunk whose segments are in memory in order, row-major (Segment::offset).
Bytes EncodeChunk(const Codec& codec, const Chunk& chunk, const EncodeOptions& options,
                  const float* elements);
// Decodes a whole chunk into `elements`, an array of chunk.elements floats.
void DecodeChunk(const EncodedChunk& encoded, const Chunk& chunk, float* elements);

}  // namespace eps

#endif  // EPS_COMPRESSION_CODEC_H_
