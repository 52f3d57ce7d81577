// The codecs whose encoded chunk is the sequence of its elements (docs/formats/codecs.md).

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "compression/codec.h"
#include "compression/codecs/floats/kernels.h"
#include "hwy/cache_control.h"

namespace eps {
namespace {

// The properties of one float format.
struct Fp32Format {
  static constexpr size_t kBytes = 4;
  static Codec::Traits Traits() {
    Codec::Traits traits;
    traits.id = CodecId::kFp32;
    traits.exact = true;
    traits.fixed_size = true;
    traits.bits_per_element = 32;
    return traits;
  }
  static constexpr char kName[] = "fp32";
  static constexpr auto kFirstInadmissible = float_kernels::FirstInadmissibleFp32;
  static constexpr auto kDecode = float_kernels::DecodeFp32;
  static constexpr auto kAccumulate = float_kernels::AccumulateFp32;
  static constexpr auto Encode = float_kernels::EncodeFp32;
};

// Returns the traits of a format that rounds.
Codec::Traits NarrowTraits(CodecId id, size_t bytes) {
  Codec::Traits traits;
  traits.id = id;
  traits.fixed_size = true;
  traits.bits_per_element = 8.0 * static_cast<double>(bytes);
  return traits;
}

// The properties of bf16.
struct Bf16Format {
  static constexpr size_t kBytes = 2;
  static Codec::Traits Traits() { return NarrowTraits(CodecId::kBf16, kBytes); }
  static constexpr char kName[] = "bf16";
  static constexpr auto kFirstInadmissible = float_kernels::FirstInadmissibleBf16;
  static constexpr auto kDecode = float_kernels::DecodeBf16;
  static constexpr auto kAccumulate = float_kernels::AccumulateBf16;
  static constexpr auto Encode = float_kernels::EncodeBf16;
};

// The properties of fp16.
struct Fp16Format {
  static constexpr size_t kBytes = 2;
  static Codec::Traits Traits() { return NarrowTraits(CodecId{3}, kBytes); }
  static constexpr char kName[] = "fp16";
  static constexpr auto kFirstInadmissible = float_kernels::FirstInadmissibleFp16;
  static constexpr auto kDecode = float_kernels::DecodeFp16;
  static constexpr auto kAccumulate = float_kernels::AccumulateFp16;
  static constexpr auto Encode = float_kernels::EncodeFp16;
};

// The properties of fp8_e4m3.
struct E4m3Format {
  static constexpr size_t kBytes = 1;
  static Codec::Traits Traits() { return NarrowTraits(CodecId{4}, kBytes); }
  static constexpr char kName[] = "fp8_e4m3";
  static constexpr auto kFirstInadmissible = float_kernels::FirstInadmissibleE4m3;
  static constexpr auto kDecode = float_kernels::DecodeE4m3;
  static constexpr auto kAccumulate = float_kernels::AccumulateE4m3;
  static constexpr auto Encode = float_kernels::EncodeE4m3;
};

// The properties of fp8_e5m2.
struct E5m2Format {
  static constexpr size_t kBytes = 1;
  static Codec::Traits Traits() { return NarrowTraits(CodecId{5}, kBytes); }
  static constexpr char kName[] = "fp8_e5m2";
  static constexpr auto kFirstInadmissible = float_kernels::FirstInadmissibleE5m2;
  static constexpr auto kDecode = float_kernels::DecodeE5m2;
  static constexpr auto kAccumulate = float_kernels::AccumulateE5m2;
  static constexpr auto Encode = float_kernels::EncodeE5m2;
};

// An opened chunk; borrows `chunk`.
template <class Format>
class FloatChunk final : public EncodedChunk {
 public:
  FloatChunk(const Codec* codec, const Chunk& chunk, Bytes bytes)
      : codec_(codec), chunk_(chunk), bytes_(std::move(bytes)) {}

  void Read(const Tile& tile, bool accumulate, size_t ld, float* out) const override {
    const Segment& s = chunk_.segments[tile.segment];
    EPS_DCHECK(tile.row + tile.rows <= s.rows && tile.col + tile.cols <= s.cols);
    const auto decode = accumulate ? Format::kAccumulate : Format::kDecode;
    decode(bytes_.data() + tile.offset(s) * Format::kBytes, s.cols, tile.rows, tile.cols, ld, out);
  }
  bool has_rows() const override { return true; }
  void ReadRow(const RowPiece& piece, float* out) const override {
    const Segment& s = chunk_.segments[piece.segment];
    EPS_DCHECK(piece.row < s.rows && piece.col + piece.cols <= s.cols);
    Format::kDecode(bytes_.data() + piece.offset(s) * Format::kBytes, piece.cols, 1, piece.cols,
                    piece.cols, out);
  }
  const Bytes& bytes() const override { return bytes_; }
  const Codec* codec() const override { return codec_; }
  CodecId in_place_format() const override {
    const CodecId id = Format::Traits().id;
    return id == CodecId::kFp32 || id == CodecId::kBf16 ? id : CodecId::kNone;
  }

 private:
  const Codec* const codec_;
  const Chunk& chunk_;
  const Bytes bytes_;
};

// Encodes each tile into its place in the buffer.
template <class Format>
class FloatEncoder final : public TileEncoder {
 public:
  FloatEncoder(const Chunk& chunk, MemoryKind kind, MemoryAccount* account)
      : chunk_(chunk), buffer_(chunk.elements * Format::kBytes, kind, account) {}

  void Write(const Tile& tile, size_t ld, const float* in) override {
    const Segment& s = chunk_.segments[tile.segment];
    EPS_DCHECK(tile.row + tile.rows <= s.rows && tile.col + tile.cols <= s.cols);
    Format::Encode(in, ld, tile.rows, tile.cols, s.cols, /*past_caches=*/true,
                   buffer_.data() + tile.offset(s) * Format::kBytes);
    written_ += uint64_t{tile.rows} * tile.cols;
  }
  bool takes_rows() const override { return true; }
  void WriteRow(const RowPiece& piece, const float* in) override {
    const Segment& s = chunk_.segments[piece.segment];
    EPS_DCHECK(piece.row < s.rows && piece.col + piece.cols <= s.cols);
    Format::Encode(in, piece.cols, 1, piece.cols, piece.cols, /*past_caches=*/true,
                   buffer_.data() + piece.offset(s) * Format::kBytes);
    written_ += piece.cols;
  }

  Bytes Finish() override {
    EPS_CHECK_MSG(written_ == chunk_.elements, "chunk " << chunk_.id << ": " << written_ << " of "
                                                        << chunk_.elements << " elements written");
    hwy::FlushStream();
    return std::move(buffer_).Freeze();
  }

 private:
  const Chunk& chunk_;
  Buffer buffer_;
  uint64_t written_ = 0;
};

// The codec of one format.
template <class Format>
class FloatCodec final : public Codec {
 public:
  absl::string_view name() const override { return Format::kName; }
  const Traits& traits() const override { return traits_; }
  size_t MaxEncodedSize(const Chunk& chunk, Axis /*axis*/) const override {
    return chunk.elements * Format::kBytes;
  }

  absl::StatusOr<std::shared_ptr<const EncodedChunk>> Open(const Chunk& chunk, Axis axis,
                                                           Bytes bytes,
                                                           Content content) const override {
    const size_t expected = MaxEncodedSize(chunk, axis);
    if (bytes.size() != expected) {
      return absl::InvalidArgumentError(
          absl::StrCat("chunk ", chunk.id.value(), " of ", chunk.elements, " elements, codec ",
                       Format::kName, ": expected ", expected, " bytes, found ", bytes.size()));
    }
    if (content == Content::kGradient) {
      const uint64_t index = Format::kFirstInadmissible(bytes.data(), chunk.elements);
      if (index < chunk.elements) {
        float value = 0;
        Format::kDecode(bytes.data() + index * Format::kBytes, 1, 1, 1, 1, &value);
        return InadmissibleGradient(Format::kName, chunk, index, value);
      }
    }
    std::shared_ptr<const EncodedChunk> opened =
        std::make_shared<FloatChunk<Format>>(this, chunk, std::move(bytes));
    return opened;
  }

  std::unique_ptr<TileEncoder> NewEncoder(const Chunk& chunk,
                                          const EncodeOptions& options) const override {
    return std::make_unique<FloatEncoder<Format>>(chunk, options.kind, options.account);
  }

 private:
  const Traits traits_ = Format::Traits();
};

template <class Format>
absl::StatusOr<std::unique_ptr<Codec>> New(absl::string_view /*name*/,
                                           const std::vector<std::string>& parameters) {
  if (!parameters.empty()) return absl::InvalidArgumentError("it has no parameters");
  std::unique_ptr<Codec> codec = std::make_unique<FloatCodec<Format>>();
  return codec;
}

template <class Format>
CodecFamily Family() {
  return {Format::kName, Format::Traits().id, "", {Format::kName}, &New<Format>};
}

const CodecRegistration kFp32(Family<Fp32Format>());
const CodecRegistration kBf16(Family<Bf16Format>());
const CodecRegistration kFp16(Family<Fp16Format>());
const CodecRegistration kE4m3(Family<E4m3Format>());
const CodecRegistration kE5m2(Family<E5m2Format>());

}  // namespace
}  // namespace eps
