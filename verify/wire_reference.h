#ifndef EPS_VERIFY_WIRE_REFERENCE_H_
#define EPS_VERIFY_WIRE_REFERENCE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"
#include "compression/reference_codec.h"
#include "verify/reference_model.h"

namespace eps {

// One array of values per tensor of the spec, in spec order, row-major.
using TensorValues = std::vector<std::vector<float>>;

// Computes weights and gradients as they are after a trip over the wire: passes every chunk through
// the reference of the codec that the spec selects, and then through the conversions of the worker
// (docs/quantization.md). It shares only the tables of base/job/layout/codec_table.h with a run.
// Thread-compatible.
class WireReference {
 public:
  // Borrows its arguments; they must outlive the object. Returns Unimplemented, naming the key, for
  // a codec without a reference.
  static absl::StatusOr<std::unique_ptr<WireReference>> New(const JobSpec& spec,
                                                            const ChunkMap& chunks);

  // Returns the weights as seen by the passes that receive them along `axis`. Tensors that no pass
  // receives along that axis are empty.
  TensorValues Weights(const TensorValues& weights, Axis axis) const;

  // Replaces the gradient of a part by the values that the servers decode. The residuals of its
  // codecs are held back until KeepResiduals or DropResiduals. The gradient is that of the loss
  // times 2^-loss_scale_log2, the residuals are those of the loss.
  void PassGradient(Step step, uint32_t part, int loss_scale_log2, UseGradients* gradient);
  // Returns the residuals of a part, keyed as in its checkpoint file (docs/formats/checkpoint.md):
  // arrays of whole tensors, without arrays of zeros.
  std::map<std::string, std::vector<float>> Residuals(uint32_t part) const;
  // Call after a step that updated: the new residuals are added to the gradients of the next step.
  void KeepResiduals();
  // Call after a skipped step: the residuals stay as they were before it.
  void DropResiduals() { waiting_.clear(); }

 private:
  using ResidualKey = std::tuple<uint32_t, StageId, ChunkId>;  // part, use, chunk

  WireReference(const JobSpec& spec, const ChunkMap& chunks);

  absl::Status AddCodec(const std::string& key, const std::string& name);
  // Encodes and decodes in place; `residual_or_null` as in ReferenceCodec::Encode.
  void Pass(const std::string& codec, const Chunk& chunk, Axis axis, std::vector<float>* elements,
            std::vector<float>* residual_or_null) const;
  // Splits the common residual of `chunks` by chunk and stores it in waiting_.
  void Keep(const std::vector<float>& residual, absl::Span<const Chunk> chunks, uint32_t part,
            StageId use);

  const JobSpec& spec_;
  const ChunkMap& chunks_;
  std::map<std::string, std::unique_ptr<ReferenceCodec>> codecs_;  // by name
  std::map<Axis, std::vector<bool>> seen_;  // tensors that a pass receives along the axis
  std::map<ResidualKey, std::vector<float>> residuals_;  // without residuals of zeros
  std::map<ResidualKey, std::vector<float>> waiting_;
};

}  // namespace eps

#endif  // EPS_VERIFY_WIRE_REFERENCE_H_
