#ifndef EPS_COMPRESSION_REFERENCE_CODEC_H_
#define EPS_COMPRESSION_REFERENCE_CODEC_H_

// A second implementation of every codec in plain scalar C++, written from docs/formats/codecs.md.
// The kernels, `eps verify` and the golden files are compared with it. It shares no code with the
// codecs except their names. Slow.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/job/layout/chunk_map.h"

namespace eps {

// The reference of one codec. Immutable, thread-safe.
class ReferenceCodec {
 public:
  virtual ~ReferenceCodec() = default;
  // Returns the encoded bytes of a chunk whose elements are in chunk order (Segment::offset).
  // Handles error feedback as EncodeOptions::residual_or_null does.
  virtual std::string Encode(const Chunk& chunk, Axis axis, const float* elements,
                             float* residual_or_null) const = 0;
  // Decodes `bytes` to `elements`. REQUIRES bytes that Encode returns for this chunk and axis.
  virtual void Decode(const Chunk& chunk, Axis axis, absl::string_view bytes,
                      float* elements) const = 0;
};

// Returns the reference of the codec of that name (compression/codec.h), or InvalidArgument.
absl::StatusOr<std::unique_ptr<ReferenceCodec>> NewReferenceCodec(absl::string_view name);

// Registers the reference of a codec family; define one at namespace scope. `parameters` are as in
// CodecFamily.
struct ReferenceRegistration {
  ReferenceRegistration(std::string family,
                        std::function<absl::StatusOr<std::unique_ptr<ReferenceCodec>>(
                            const std::vector<std::string>& parameters)>
                            create);
};

}  // namespace eps

#endif  // EPS_COMPRESSION_REFERENCE_CODEC_H_
