#ifndef EPS_COMPRESSION_CODEC_TABLE_H_
#define EPS_COMPRESSION_CODEC_TABLE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"
#include "base/job/layout/codec_table.h"
#include "compression/codec.h"

namespace eps {

// Loads the plug-in codec that the job names, if any, from the file `path`; no code of another file
// runs. Errors as LoadCodecOf (compression/plugin/codec_plugin.h).
absl::Status LoadPluginCodecs(const JobSpec& spec, const std::string& path);

// The codecs of a job's chunks, looked up by the names of base/job/layout/codec_table.h. Immutable,
// thread-safe; `spec` and `chunks` must outlive it.
class CodecTable {
 public:
  // Returns InvalidArgument with the key of a codec that is unknown or unsuitable for its use, and
  // with the known names. REQUIRES spec.Validate().ok(); `chunks` must be built from `spec`.
  static absl::StatusOr<CodecTable> Build(const JobSpec& spec, const ChunkMap& chunks);

  const Codec& weights(ChunkId chunk) const { return *weights_[chunk.value()]; }
  // Gradients are always encoded along Axis::kRow.
  const Codec& gradient(ChunkId chunk, Step step) const {
    return *(step.value() > warmup_steps_ ? gradients_ : warmup_gradients_)[chunk.value()];
  }
  // Returns the codec of the residual that the gradient's codec leaves; null if no residual is
  // kept, as of a frozen chunk.
  const Codec* residual_or_null(ChunkId chunk, Step step) const {
    const bool leaves = gradient(chunk, step).traits().uses_residual;
    return keeps_residuals_ && leaves && !chunks_->chunk(chunk).frozen ? residual_ : nullptr;
  }
  // Returns OK if this process can encode and decode with all of them (Codec::Ready).
  absl::Status Ready() const;
  // Returns the axes along which a stage receives the weights of one of its chunks. There is a
  // second copy only if the codec has blocks, whose values depend on the axis.
  WeightAxes axes(StageId stage, ChunkId chunk, bool backward) const;

 private:
  CodecTable() = default;

  const JobSpec* spec_ = nullptr;
  const ChunkMap* chunks_ = nullptr;
  std::vector<const Codec*> weights_;  // by chunk
  std::vector<const Codec*> gradients_;
  std::vector<const Codec*> warmup_gradients_;
  const Codec* residual_ = nullptr;
  bool keeps_residuals_ = false;
  uint64_t warmup_steps_ = 0;
};

}  // namespace eps

#endif  // EPS_COMPRESSION_CODEC_TABLE_H_
