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
#include "compression/reference_codec.h"
#include "base/job/chunk_map.h"
#include "base/job/job_spec.h"
#include "verify/reference_model.h"

namespace eps {

// One array of values per tensor of the spec, in its order, row-major.
using TensorValues = std::vector<std::vector<float>>;

// What is left of weights and gradients after a trip over the wire: every chunk through the
// reference of the codec that the spec gives it, and what the worker makes of it
// (docs/quantization.md). Shares with the run the tables of base/job/codec_table.h, nothing else.
// Thread-compatible.
class WireReference {
 public:
  // Borrowed; they outlive it. Unimplemented names the key of a codec without a reference.
  static absl::StatusOr<std::unique_ptr<WireReference>> New(const JobSpec& spec,
                                                            const ChunkMap& chunks);

  // The weights as passes see them that get them along `axis`. Tensors that no pass gets along it
  // are empty.
  TensorValues Weights(const TensorValues& weights, Axis axis) const;

  // Turns the gradient of a part into what the servers decode. What its codecs left out waits for
  // KeepResiduals.
  void PassGradient(Step step, uint32_t part, UseGradients* gradient);
  // What a part has left out, by the names of its file in a checkpoint
  // (docs/formats/checkpoint.md): arrays of whole tensors, without those of zeros.
  std::map<std::string, std::vector<float>> Residuals(uint32_t part) const;
  // The step was done: what waits is added to the gradients of the next one.
  void KeepResiduals();
  // The step was skipped: the residuals stay as they were before it.
  void DropResiduals() { waiting_.clear(); }

 private:
  using ResidualKey = std::tuple<uint32_t, StageId, ChunkId>;  // part, use, chunk

  WireReference(const JobSpec& spec, const ChunkMap& chunks);

  absl::Status AddCodec(const std::string& key, const std::string& name);
  // Encodes and decodes; `residual_or_null` as in ReferenceCodec::Encode.
  void Pass(const std::string& codec, const Chunk& chunk, Axis axis, std::vector<float>* elements,
            std::vector<float>* residual_or_null) const;
  // What was left out of `chunks` together waits for KeepResiduals, chunk by chunk.
  void Keep(const std::vector<float>& residual, absl::Span<const Chunk> chunks, uint32_t part,
            StageId use);

  const JobSpec& spec_;
  const ChunkMap& chunks_;
  std::map<std::string, std::unique_ptr<ReferenceCodec>> codecs_;  // by name
  std::map<Axis, std::vector<bool>> seen_;                         // whether a pass gets the tensor
  std::map<ResidualKey, std::vector<float>> residuals_;            // all zeros: not there
  std::map<ResidualKey, std::vector<float>> waiting_;
};

}  // namespace eps

#endif  // EPS_VERIFY_WIRE_REFERENCE_H_
