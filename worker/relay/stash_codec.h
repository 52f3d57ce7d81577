#ifndef EPS_WORKER_RELAY_STASH_CODEC_H_
#define EPS_WORKER_RELAY_STASH_CODEC_H_

// The encoding of stage inputs in the stash (worker.stash_codec): one of the float codecs of
// docs/formats/codecs.md, applied element by element.

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace eps {

// Immutable and thread-safe; objects that Find returns are never destroyed.
class StashCodec {
 public:
  enum class Format { kFp32, kBf16, kFp16, kE4m3, kE5m2 };

  // Returns InvalidArgument with worker.stash_codec and the known names if `name` is unknown.
  static absl::StatusOr<const StashCodec*> Find(absl::string_view name);

  Format format() const { return format_; }
  // Whether stage inputs stay as they are; do not call Encode or Decode then.
  bool exact() const { return format_ == Format::kFp32; }
  size_t bytes_per_element() const { return bytes_per_element_; }

  // `n` elements. Decoding and encoding again yields the same bytes for everything but NaN.
  void Encode(const float* in, size_t n, uint8_t* out) const {
    encode_(in, n, 1, n, n, /*past_caches=*/false, out);
  }
  void Decode(const uint8_t* in, size_t n, float* out) const { decode_(in, n, 1, n, n, out); }

 private:
  // As in compression/codecs/floats/kernels.h.
  using EncodeFn = void (*)(const float* in, size_t ld, size_t rows, size_t cols, size_t out_ld,
                            bool past_caches, uint8_t* out);
  using DecodeFn = void (*)(const uint8_t* in, size_t in_ld, size_t rows, size_t cols, size_t ld,
                            float* out);

  StashCodec(const char* name, Format format, size_t bytes_per_element, EncodeFn encode,
             DecodeFn decode)
      : name_(name),
        format_(format),
        bytes_per_element_(bytes_per_element),
        encode_(encode),
        decode_(decode) {}

  const char* const name_;
  const Format format_;
  const size_t bytes_per_element_;
  const EncodeFn encode_;
  const DecodeFn decode_;
};

}  // namespace eps

#endif  // EPS_WORKER_RELAY_STASH_CODEC_H_
