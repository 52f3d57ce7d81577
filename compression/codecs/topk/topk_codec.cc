// The codec that sends the elements of a gradient with the largest magnitude
// (docs/formats/codecs.md).

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "compression/codec.h"
#include "compression/codecs/floats/kernels.h"
#include "compression/codecs/topk/index.h"
#include "compression/codecs/topk/kernels.h"
#include "compression/codecs/topk/parameters.h"
#include "compression/codecs/topk/selection.h"

namespace eps {
namespace {

using topk::BitmapWords;
using topk::IndexFormat;
using topk::IndexSize;
using topk::Parameters;
using topk::Selection;

static_assert(topk_kernels::kMaxCols >= kTileCols);

constexpr CodecId kTopkId{32};
constexpr uint64_t kMaxElements = uint64_t{1} << 32;  // indexes of elements have 32 bits

// The bytes before the index.
struct Header {
  static constexpr size_t kBytes = 12;
  uint32_t count = 0;
  uint8_t format = 0;
  uint8_t zero[3] = {0, 0, 0};
  uint32_t index_bytes = 0;
};
static_assert(sizeof(Header) == Header::kBytes);

// Holds the bytes as received and, for random access, the index as a bitmap and the number of set
// bits before each of its words: 3/16 of a byte per element of the chunk.
class TopkChunk final : public EncodedChunk {
 public:
  TopkChunk(const Codec* codec, size_t value_bytes, const Chunk& chunk, Bytes bytes)
      : codec_(codec),
        chunk_(chunk),
        bytes_(std::move(bytes)),
        words_(bytes_.NewBeside(BitmapWords(chunk.elements) * sizeof(uint64_t))),
        before_(bytes_.NewBeside(BitmapWords(chunk.elements) * sizeof(uint32_t))) {
    sparse_.value_bytes = value_bytes;
  }

  // Checks the bytes. Call once, before any other method. The error lacks the chunk's name.
  absl::Status Parse() {
    const uint64_t n = chunk_.elements;
    if (n > kMaxElements) return absl::InvalidArgumentError("expected 2^32 elements at most");
    Header header;
    if (bytes_.size() < Header::kBytes) {
      return absl::InvalidArgumentError(absl::StrCat("expected a header of ", Header::kBytes,
                                                     " bytes, found ", bytes_.size(), " bytes"));
    }
    std::memcpy(&header, bytes_.data(), Header::kBytes);
    if (header.count > n) {
      return absl::InvalidArgumentError(
          absl::StrCat("it holds ", header.count, " elements, expected ", n, " at most"));
    }
    if (header.zero[0] != 0 || header.zero[1] != 0 || header.zero[2] != 0) {
      return absl::InvalidArgumentError("bytes 5 to 7 of its header are not zero");
    }
    const uint64_t expected =
        Header::kBytes + uint64_t{header.index_bytes} + sparse_.value_bytes * header.count;
    if (bytes_.size() != expected) {
      return absl::InvalidArgumentError(absl::StrCat(
          "expected ", expected, " bytes for ", header.count, " elements and an index of ",
          header.index_bytes, " bytes, found ", bytes_.size()));
    }
    const uint8_t* const index = bytes_.data() + Header::kBytes;
    EPS_RETURN_IF_ERROR(
        topk::ReadIndex(header.format, index, header.index_bytes, header.count, n, words()));
    const uint64_t set = topk_kernels::CountBits(words(), BitmapWords(n),
                                                 reinterpret_cast<uint32_t*>(before_.data()));
    if (set != header.count) {
      return absl::InvalidArgumentError(
          absl::StrCat("the index has ", set, " elements, expected ", header.count));
    }
    sparse_.words = words();
    sparse_.before = reinterpret_cast<const uint32_t*>(before_.data());
    sparse_.values = index + header.index_bytes;
    sparse_.count = header.count;
    return absl::OkStatus();
  }

  absl::Status CheckGradient(absl::string_view codec) const {
    const auto first_inadmissible = sparse_.value_bytes == sizeof(float)
                                        ? float_kernels::FirstInadmissibleFp32
                                        : float_kernels::FirstInadmissibleBf16;
    const size_t i = first_inadmissible(sparse_.values, sparse_.count);
    if (i == sparse_.count) return absl::OkStatus();
    const uint64_t element = ElementOfValue(i);
    float value = 0;
    topk_kernels::Expand(sparse_, element, 1, 1, 1, 1, &value);
    return InadmissibleGradient(codec, chunk_, element, value);
  }

  void Read(const Tile& tile, bool accumulate, size_t ld, float* out) const override {
    const Segment& s = chunk_.segments[tile.segment];
    EPS_DCHECK(tile.row + tile.rows <= s.rows && tile.col + tile.cols <= s.cols);
    const auto expand = accumulate ? topk_kernels::ExpandAdd : topk_kernels::Expand;
    expand(sparse_, tile.offset(s), s.cols, tile.rows, tile.cols, ld, out);
  }
  const Bytes& bytes() const override { return bytes_; }
  const Codec* codec() const override { return codec_; }
  const SparseElements* sparse_elements() const override { return &sparse_; }

 private:
  uint64_t* words() { return reinterpret_cast<uint64_t*>(words_.data()); }

  // Returns the element of the chunk that value i belongs to: the position of set bit number i.
  uint64_t ElementOfValue(size_t i) const {
    const uint32_t* const end = sparse_.before + BitmapWords(chunk_.elements);
    const size_t w = std::upper_bound(sparse_.before, end, i) - sparse_.before - 1;
    uint64_t word = sparse_.words[w];
    for (size_t before = sparse_.before[w]; before < i; ++before) word &= word - 1;
    return 64 * w + static_cast<uint64_t>(__builtin_ctzll(word));
  }

  const Codec* const codec_;
  const Chunk& chunk_;
  const Bytes bytes_;
  Buffer words_;
  Buffer before_;
  SparseElements sparse_{};
};

// Collects the chunk's elements until Finish. With error feedback it adds them to the residual in
// place, so that Finish only has to subtract the values that are sent.
class TopkEncoder final : public TileEncoder {
 public:
  TopkEncoder(const Parameters& parameters, const Chunk& chunk, const EncodeOptions& options)
      : parameters_(parameters), chunk_(chunk), options_(options) {
    EPS_CHECK_MSG(chunk.elements <= kMaxElements, "chunk " << chunk.id << " is too large");
    EPS_CHECK_MSG(
        !options.count.has_value() || (parameters.tensor && *options.count <= chunk.elements),
        "chunk " << chunk.id << ": " << *options.count << " of " << chunk.elements);
    elements_ = options.residual_or_null;
    if (feedback()) return;
    buffer_ = Buffer(chunk.elements * sizeof(float), MemoryKind::kScratch, options.account);
    elements_ = buffer_.floats();
  }

  void Write(const Tile& tile, size_t ld, const float* in) override {
    const Segment& s = chunk_.segments[tile.segment];
    EPS_DCHECK(tile.row + tile.rows <= s.rows && tile.col + tile.cols <= s.cols);
    const auto keep = feedback() ? topk_kernels::AddRows : topk_kernels::CopyRows;
    keep(in, ld, tile.rows, tile.cols, s.cols, elements_ + tile.offset(s));
    written_ += uint64_t{tile.rows} * tile.cols;
  }

  Bytes Finish() override {
    const uint64_t n = chunk_.elements;
    EPS_CHECK_MSG(written_ == n,
                  "chunk " << chunk_.id << ": " << written_ << " of " << n << " elements written");
    const Selection chosen = Select();
    const IndexSize index = parameters_.raw32
                                ? topk::Raw32Index(chosen.count)
                                : topk::ShortestIndex(chosen.indexes(), chosen.count, n);
    Header header;
    header.count = static_cast<uint32_t>(chosen.count);
    header.format = static_cast<uint8_t>(index.format);
    header.index_bytes = static_cast<uint32_t>(index.bytes);
    const size_t value_bytes = parameters_.value_bytes();
    Buffer bytes(Header::kBytes + index.bytes + value_bytes * chosen.count, options_.kind,
                 options_.account);
    std::memcpy(bytes.data(), &header, Header::kBytes);
    uint8_t* const index_bytes = bytes.data() + Header::kBytes;
    uint8_t* const values = index_bytes + index.bytes;
    topk::WriteIndex(index.format, chosen.indexes(), chosen.count, n, index_bytes);
    if (feedback()) {
      topk_kernels::EncodeAndSubtractChosen(elements_, chosen.indexes(), chosen.count, value_bytes,
                                            values);
    } else {
      topk_kernels::EncodeChosen(elements_, chosen.indexes(), chosen.count, value_bytes, values);
    }
    return std::move(bytes).Freeze();
  }

 private:
  bool feedback() const { return options_.residual_or_null != nullptr; }

  Selection Select() const {
    const uint64_t n = chunk_.elements;
    if (n == 0) return Selection();
    if (!parameters_.sampled) {
      const uint64_t k = options_.count.value_or(parameters_.Fraction(n));
      return topk::SelectLargest(elements_, n, k, options_.account);
    }
    const uint64_t sample = (n + topk::kSampleStride - 1) / topk::kSampleStride;
    return topk::SelectSampled(elements_, n, parameters_.Fraction(sample), parameters_.MaxCount(n),
                               options_.account);
  }

  const Parameters& parameters_;
  const Chunk& chunk_;
  const EncodeOptions options_;
  Buffer buffer_;              // empty with error feedback
  float* elements_ = nullptr;  // in chunk order
  uint64_t written_ = 0;
};

// Returns the expected bits per element of a chunk of 1 Mi elements with selected elements at
// random positions.
double ExpectedBitsPerElement(const Parameters& parameters) {
  const double n = 1 << 20;
  const double density = static_cast<double>(parameters.Fraction(1 << 20)) / n;
  // A gap is at least `escape` with probability (1 - density)^escape, and likewise for each further
  // escape.
  const auto delta_bits = [density](double word_bits, double escape) {
    return word_bits * density / (1 - std::pow(1 - density, escape));
  };
  const double index =
      parameters.raw32 ? 32 * density : std::min({delta_bits(8, 255), delta_bits(16, 65535), 1.0});
  return 8 * Header::kBytes / n + index +
         8 * static_cast<double>(parameters.value_bytes()) * density;
}

// Top-k with fixed parameters.
class TopkCodec final : public Codec {
 public:
  TopkCodec(absl::string_view name, const Parameters& parameters)
      : name_(name), parameters_(parameters) {
    traits_.id = kTopkId;
    traits_.uses_residual = true;
    traits_.whole_tensors = parameters.tensor;
    traits_.bits_per_element = ExpectedBitsPerElement(parameters);
  }

  absl::string_view name() const override { return name_; }
  const Traits& traits() const override { return traits_; }

  size_t MaxEncodedSize(const Chunk& chunk, Axis /*axis*/) const override {
    const uint64_t count = parameters_.MaxCount(chunk.elements);
    const uint64_t index = parameters_.raw32 ? topk::Raw32Index(count).bytes
                                             : topk::MaxShortestIndex(count, chunk.elements);
    return Header::kBytes + index + parameters_.value_bytes() * count;
  }

  size_t IndexSize(const Chunk& chunk) const override {
    return BitmapWords(chunk.elements) * (sizeof(uint64_t) + sizeof(uint32_t));
  }

  absl::StatusOr<std::shared_ptr<const EncodedChunk>> Open(const Chunk& chunk, Axis /*axis*/,
                                                           Bytes bytes,
                                                           Content content) const override {
    auto opened =
        std::make_shared<TopkChunk>(this, parameters_.value_bytes(), chunk, std::move(bytes));
    const absl::Status status = opened->Parse();
    if (!status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("chunk ", chunk.id.value(), " of ",
                                                     chunk.elements, " elements, codec ", name_,
                                                     ": ", status.message()));
    }
    if (content == Content::kGradient) EPS_RETURN_IF_ERROR(opened->CheckGradient(name_));
    return std::shared_ptr<const EncodedChunk>(std::move(opened));
  }

  std::unique_ptr<TileEncoder> NewEncoder(const Chunk& chunk,
                                          const EncodeOptions& options) const override {
    return std::make_unique<TopkEncoder>(parameters_, chunk, options);
  }

  std::vector<uint64_t> CountsOf(
      absl::Span<const Chunk> chunks,
      const std::function<const float*(size_t)>& elements) const override {
    EPS_CHECK(parameters_.tensor);
    std::vector<uint64_t> sizes;
    uint64_t total = 0;
    for (const Chunk& chunk : chunks) {
      sizes.push_back(chunk.elements);
      total += chunk.elements;
    }
    return topk::CountLargest(sizes, parameters_.Fraction(total), elements);
  }

 private:
  const std::string name_;
  const Parameters parameters_;
  Traits traits_;
};

absl::StatusOr<std::unique_ptr<Codec>> New(absl::string_view name,
                                           const std::vector<std::string>& pieces) {
  EPS_ASSIGN_OR_RETURN(const Parameters parameters, topk::ParseParameters(pieces));
  std::unique_ptr<Codec> codec = std::make_unique<TopkCodec>(name, parameters);
  return codec;
}

const CodecRegistration kTopk(
    {"topk",
     kTopkId,
     ":FRACTION[:raw32][:fp32][:sampled|:tensor]",
     {"topk:0.01", "topk:0.1", "topk:0.01:raw32", "topk:0.05:sampled", "topk:0.1:raw32:sampled",
      "topk:0.05:tensor", "topk:0.01:raw32:fp32", "topk:0.1:fp32:sampled", "topk:0.05:fp32:tensor"},
     &New});

}  // namespace
}  // namespace eps
