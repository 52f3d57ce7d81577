#ifndef EPS_COMPRESSION_PLUGIN_CHECK_CODEC_TRIAL_H_
#define EPS_COMPRESSION_PLUGIN_CHECK_CODEC_TRIAL_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/plugin/check/guarded_array.h"
#include "base/plugin/check/trial_values.h"
#include "compression/plugin/codec_plugin.h"

namespace eps {

// The most elements of a trial.
inline constexpr size_t kMostCodecElements = 4096 + 3;

// Where arrays lie between their inaccessible pages: they end right before one, or begin some
// elements and bytes after one.
struct CodecPlacement {
  bool at_end = true;
  size_t elements = 0;
  size_t bytes = 0;
};

// The outcome of one call of `encode`.
struct Encoding {
  size_t size = 0;             // as returned
  std::vector<uint8_t> bytes;  // so many, but no more than the description allows
};

// The outcome of one call of `decode`.
struct Decoding {
  int code = 0;
  std::vector<float> elements;
};

// The arrays of one caller, between inaccessible pages. The elements of `encode` and the bytes of
// `decode` are read-only for the plug-in; `encode` has exactly as much room as the description
// says, and `decode` exactly the bytes that it gets. Create it before the process is fenced.
// Thread-compatible.
class CodecArrays {
 public:
  // Internal if the kernel refuses.
  static absl::StatusOr<CodecArrays> New(const CodecPlugin* plugin);

  // Call the function with denormals flushed. The rest of the memory has the byte `fill` before.
  Encoding Encode(const std::vector<float>& elements, const CodecPlacement& place = {},
                  uint8_t fill = 0xa5);
  Decoding Decode(const std::vector<uint8_t>& bytes, size_t n, const CodecPlacement& place = {},
                  uint8_t fill = 0xa5);

  // Call the function once more with the arrays of the last call, in the mode of the calling
  // thread, which keeps the one that the function leaves.
  void EncodeOnly() { size_ = plugin_->encode(n_, shown_elements_, shown_bytes_); }
  void DecodeOnly() { code_ = plugin_->decode(size_, shown_bytes_, n_, shown_elements_); }

  // Returns whether the memory around the arrays that the last call could write to is as it was.
  bool SurroundingsAreUntouched() const;

  const CodecPlugin& plugin() const { return *plugin_; }

 private:
  // Bytes of an array between inaccessible pages that one call may use.
  struct Span {
    const GuardedArray* array;
    size_t begin;
    size_t size;

    uint8_t* own() const { return array->own() + begin; }
    uint8_t* shown() const { return array->shown() + begin; }
  };

  CodecArrays(const CodecPlugin* plugin, std::vector<GuardedArray> arrays)
      : plugin_(plugin), arrays_(std::move(arrays)) {}
  Span PlaceBytes(size_t array, size_t size, const CodecPlacement& place) const;
  Span PlaceElements(size_t array, size_t n, const CodecPlacement& place) const;
  // Fills the array to which the next call writes.
  void Fill(const Span& written, uint8_t fill);

  const CodecPlugin* plugin_;
  std::vector<GuardedArray> arrays_;
  Span written_ = {};
  uint8_t fill_ = 0;
  // The arguments of the last call, and its results.
  size_t n_ = 0;
  float* shown_elements_ = nullptr;
  uint8_t* shown_bytes_ = nullptr;
  size_t size_ = 0;
  int code_ = 0;
};

// Returns n elements, the same for the same seed.
std::vector<float> TrialElements(TrialValues values, size_t n, uint64_t seed);

// Describes the first element whose bits differ, apart from those of NaN; empty if there is none.
std::string ElementDifference(const std::vector<float>& found, const std::vector<float>& expected);
// The same for the codes of two decodings, and for the elements if both are 0.
std::string DecodingDifference(const Decoding& found, const Decoding& expected);
// The same for the size and the bytes.
std::string EncodingDifference(const Encoding& found, const Encoding& expected);

// Whether a server accepts the element of a gradient.
bool IsAdmissible(float element);

}  // namespace eps

#endif  // EPS_COMPRESSION_PLUGIN_CHECK_CODEC_TRIAL_H_
