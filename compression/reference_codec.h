#ifndef EPS_COMPRESSION_REFERENCE_CODEC_H_
#define EPS_COMPRESSION_REFERENCE_CODEC_H_

// Every codec a second time, in plain scalar C++ written from docs/formats/codecs.md: what the
// kernels, `eps verify` and the golden files are held against. Shares no code with the codecs but
// their names. Slow.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/job/chunk_map.h"

namespace eps {

// Immutable, thread-safe.
class ReferenceCodec {
 public:
  virtual ~ReferenceCodec() = default;
  // The encoded bytes of a chunk whose elements lie in chunk order (Segment::offset). Error
  // feedback as EncodeOptions::residual_or_null.
  virtual std::string Encode(const Chunk& chunk, Axis axis, const float* elements,
                             float* residual_or_null) const = 0;
  // The inverse. REQUIRES bytes that Encode gives for this chunk and axis.
  virtual void Decode(const Chunk& chunk, Axis axis, absl::string_view bytes,
                      float* elements) const = 0;
};

// The reference of the codec of that name (compression/codec.h), or InvalidArgument.
absl::StatusOr<std::unique_ptr<ReferenceCodec>> NewReferenceCodec(absl::string_view name);

// What a codec's folder says of its reference at start-up; `parameters` as in CodecFamily.
struct ReferenceRegistration {
  ReferenceRegistration(std::string family,
                        std::function<absl::StatusOr<std::unique_ptr<ReferenceCodec>>(
                            const std::vector<std::string>& parameters)>
                            create);
};

}  // namespace eps

#endif  // EPS_COMPRESSION_REFERENCE_CODEC_H_
