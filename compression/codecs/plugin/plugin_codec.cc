// The codec of a plug-in (compression/plugin/eps_codec.h). The job's name of the codec describes
// it; the object itself is needed only to encode and to decode.

#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/numerics/flush_denormals.h"
#include "base/plugin/names.h"
#include "base/status_macros.h"
#include "compression/codec.h"
#include "compression/plugin/codec_plugin.h"

namespace eps {
namespace {

constexpr CodecId kPluginId{33};

// Holds the bytes as received, and all elements, decoded, as a chunk of the codec fp32.
class PluginChunk final : public EncodedChunk {
 public:
  PluginChunk(const Codec* codec, Bytes bytes, std::shared_ptr<const EncodedChunk> decoded)
      : codec_(codec), bytes_(std::move(bytes)), decoded_(std::move(decoded)) {}

  void Read(const Tile& tile, bool accumulate, size_t ld, float* out) const override {
    decoded_->Read(tile, accumulate, ld, out);
  }
  bool has_rows() const override { return decoded_->has_rows(); }
  void ReadRow(const RowPiece& piece, float* out) const override { decoded_->ReadRow(piece, out); }
  const Bytes& bytes() const override { return bytes_; }
  const Codec* codec() const override { return codec_; }

 private:
  const Codec* const codec_;
  const Bytes bytes_;
  const std::shared_ptr<const EncodedChunk> decoded_;
};

// Collects the chunk's elements until Finish. With error feedback it adds them to the residual in
// place.
class PluginEncoder final : public TileEncoder {
 public:
  PluginEncoder(const CodecPlugin& plugin, const Chunk& chunk, const EncodeOptions& options)
      : plugin_(plugin), chunk_(chunk), options_(options) {
    elements_ = options.residual_or_null;
    if (elements_ != nullptr) return;
    buffer_ = NewArray();
    elements_ = buffer_.floats();
  }

  void Write(const Tile& tile, size_t ld, const float* in) override {
    const ScopedFlushDenormals flush;
    const Segment& s = chunk_.segments[tile.segment];
    EPS_DCHECK(tile.row + tile.rows <= s.rows && tile.col + tile.cols <= s.cols);
    for (size_t r = 0; r < tile.rows; ++r) {
      const float* const from = in + r * ld;
      float* const to = elements_ + tile.offset(s) + r * s.cols;
      if (options_.residual_or_null == nullptr) {
        std::memcpy(to, from, tile.cols * sizeof(float));
      } else {
        for (size_t c = 0; c < tile.cols; ++c) to[c] = from[c] + to[c];
      }
    }
    written_ += uint64_t{tile.rows} * tile.cols;
  }

  Bytes Finish() override {
    const ScopedFlushDenormals flush;
    const uint64_t n = chunk_.elements;
    EPS_CHECK_MSG(written_ == n,
                  "chunk " << chunk_.id << ": " << written_ << " of " << n << " elements written");
    const uint64_t most = plugin_.MostBytes(n);
    Buffer bytes(most, options_.kind, options_.account);
    const size_t size = n == 0 ? 0 : plugin_.encode(n, elements_, bytes.data());
    EPS_CHECK_MSG(size <= most, plugin_.path << ": encode wrote " << size << " bytes for " << n
                                             << " elements, expected at most " << most
                                             << "; see eps codec check");
    if (options_.residual_or_null != nullptr && n > 0) KeepOmitted(bytes.data(), size);
    return std::move(bytes).Freeze(size);
  }

 private:
  Buffer NewArray() const {
    return Buffer(chunk_.elements * sizeof(float), MemoryKind::kScratch, options_.account);
  }

  void KeepOmitted(const uint8_t* bytes, size_t size) {
    const uint64_t n = chunk_.elements;
    Buffer sent = NewArray();
    const int code = plugin_.decode(size, bytes, n, sent.floats());
    EPS_CHECK_MSG(code == 0, plugin_.path << ": decode refuses what encode wrote, with code "
                                          << code << "; see eps codec check");
    for (uint64_t i = 0; i < n; ++i) elements_[i] -= sent.floats()[i];
  }

  const CodecPlugin& plugin_;
  const Chunk& chunk_;
  const EncodeOptions options_;
  Buffer buffer_;              // empty with error feedback
  float* elements_ = nullptr;  // in chunk order
  uint64_t written_ = 0;
};

// A plug-in codec as its name describes it.
class PluginCodec final : public Codec {
 public:
  PluginCodec(absl::string_view name, CodecDescription description)
      : name_(name), description_(std::move(description)) {
    traits_.id = kPluginId;
    traits_.uses_residual = description_.error_feedback;
    traits_.bits_per_element = 8.0 * description_.bytes_per_1024 / 1024;
  }

  absl::string_view name() const override { return name_; }
  const Traits& traits() const override { return traits_; }
  absl::Status Ready() const override { return FindLoadedCodec(description_).status(); }

  size_t MaxEncodedSize(const Chunk& chunk, Axis /*axis*/) const override {
    return description_.MostBytes(chunk.elements);
  }
  size_t IndexSize(const Chunk& chunk) const override { return chunk.elements * sizeof(float); }

  absl::StatusOr<std::shared_ptr<const EncodedChunk>> Open(const Chunk& chunk, Axis axis,
                                                           Bytes bytes,
                                                           Content content) const override {
    const ScopedFlushDenormals flush;
    EPS_ASSIGN_OR_RETURN(const CodecPlugin* const plugin, FindLoadedCodec(description_));
    const uint64_t n = chunk.elements;
    if (bytes.size() > description_.MostBytes(n)) {
      return Refuse(chunk, absl::StrCat("expected at most ", description_.MostBytes(n),
                                        " bytes, found ", bytes.size()));
    }
    Buffer decoded = bytes.NewBeside(n * sizeof(float));
    const int code = n == 0 ? 0 : plugin->decode(bytes.size(), bytes.data(), n, decoded.floats());
    if (code != 0) {
      return Refuse(
          chunk, absl::StrCat("its decoder refuses the ", bytes.size(), " bytes with code ", code));
    }
    const Bytes elements = std::move(decoded).Freeze();
    EPS_ASSIGN_OR_RETURN(const Codec* const fp32, FindCodec("fp32"));
    const auto opened = fp32->Open(chunk, axis, elements, content);
    if (const auto element = InadmissibleElement(opened.status()); element.has_value()) {
      float value = 0;
      std::memcpy(&value, elements.data() + *element * sizeof(float), sizeof(value));
      return InadmissibleGradient(name_, chunk, *element, value);
    }
    EPS_RETURN_IF_ERROR(opened.status());
    return std::shared_ptr<const EncodedChunk>(
        std::make_shared<PluginChunk>(this, std::move(bytes), *opened));
  }

  std::unique_ptr<TileEncoder> NewEncoder(const Chunk& chunk,
                                          const EncodeOptions& options) const override {
    const absl::StatusOr<const CodecPlugin*> plugin = FindLoadedCodec(description_);
    EPS_CHECK_MSG(plugin.ok(), plugin.status().message());
    return std::make_unique<PluginEncoder>(**plugin, chunk, options);
  }

 private:
  absl::Status Refuse(const Chunk& chunk, const std::string& why) const {
    return absl::InvalidArgumentError(absl::StrCat(
        "chunk ", chunk.id.value(), " of ", chunk.elements, " elements, codec ", name_, ": ", why));
  }

  const std::string name_;
  const CodecDescription description_;
  Traits traits_;
};

absl::StatusOr<std::unique_ptr<Codec>> New(absl::string_view name,
                                           const std::vector<std::string>& pieces) {
  EPS_ASSIGN_OR_RETURN(CodecDescription description, ParseCodecName(pieces));
  std::unique_ptr<Codec> codec = std::make_unique<PluginCodec>(name, std::move(description));
  return codec;
}

// No examples: without its object, the codec encodes nothing.
const CodecRegistration kPlugin(
    {kPluginCodec, kPluginId, ":NAME:SHA256:HEAD_BYTES:BYTES_PER_1024[:feedback]", {}, &New});

}  // namespace
}  // namespace eps
