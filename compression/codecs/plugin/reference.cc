// The reference of a plug-in codec calls the object itself: nobody else knows its format. Only the
// handling of error feedback is written a second time.

#include <vector>

#include "base/check.h"
#include "base/numerics/flush_denormals.h"
#include "base/plugin/names.h"
#include "base/status_macros.h"
#include "compression/plugin/codec_plugin.h"
#include "compression/reference_codec.h"

namespace eps {
namespace {

// A plug-in that is loaded.
class PluginReference final : public ReferenceCodec {
 public:
  explicit PluginReference(const CodecPlugin* plugin) : plugin_(*plugin) {}

  std::string Encode(const Chunk& chunk, Axis /*axis*/, const float* elements,
                     float* residual_or_null) const override {
    const ScopedFlushDenormals flush;
    const std::vector<float> given(elements, elements + chunk.elements);
    std::vector<float> sum = given;
    if (residual_or_null != nullptr) {
      for (size_t i = 0; i < sum.size(); ++i) sum[i] = given[i] + residual_or_null[i];
    }
    std::string bytes(plugin_.MostBytes(sum.size()), '\0');
    if (!sum.empty()) {
      bytes.resize(
          plugin_.encode(sum.size(), sum.data(), reinterpret_cast<uint8_t*>(bytes.data())));
    }
    if (residual_or_null == nullptr) return bytes;
    std::vector<float> sent(sum.size());
    Decode(chunk, Axis::kRow, bytes, sent.data());
    for (size_t i = 0; i < sum.size(); ++i) residual_or_null[i] = sum[i] - sent[i];
    return bytes;
  }

  void Decode(const Chunk& chunk, Axis /*axis*/, absl::string_view bytes,
              float* elements) const override {
    const ScopedFlushDenormals flush;
    if (chunk.elements == 0) return;
    const int code = plugin_.decode(bytes.size(), reinterpret_cast<const uint8_t*>(bytes.data()),
                                    chunk.elements, elements);
    EPS_CHECK_MSG(code == 0, plugin_.path << ": decode refuses what encode wrote");
  }

 private:
  const CodecPlugin& plugin_;
};

absl::StatusOr<std::unique_ptr<ReferenceCodec>> New(const std::vector<std::string>& pieces) {
  EPS_ASSIGN_OR_RETURN(const CodecDescription description, ParseCodecName(pieces));
  EPS_ASSIGN_OR_RETURN(const CodecPlugin* const plugin, FindLoadedCodec(description));
  std::unique_ptr<ReferenceCodec> codec = std::make_unique<PluginReference>(plugin);
  return codec;
}

const ReferenceRegistration kPlugin(kPluginCodec, &New);

}  // namespace
}  // namespace eps
