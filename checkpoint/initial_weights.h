#ifndef EPS_CHECKPOINT_INITIAL_WEIGHTS_H_
#define EPS_CHECKPOINT_INITIAL_WEIGHTS_H_

// Reads the weights of a new job from a folder that Hugging Face's libraries or an earlier run
// wrote.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/files/safetensors_folder.h"
#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"
#include "checkpoint/weights/weight_layout.h"
#include "wire/control_client.h"

namespace eps {

class ModelFamily;  // base/job/models/model_family.h

// Weights without optimizer state, which starts at zero. Immutable, thread-safe.
//
// Reads F32, BF16 and F16, in one file or in shards. The model's family says where a tensor is in
// the files, which prefix of names may be missing, which tensors of old files the reader skips
// silently, and which copy of a tied tensor must be equal to it bit for bit; transformers silently
// unties a copy that differs. A new tensor that the files lack begins with the values that the spec
// gives it. The reader skips any other tensor that the model does not have with a note.
class WeightsReader {
 public:
  // Opens a folder as SafetensorsFolder::Open and checks it against `spec`. NotFound names the
  // missing tensors. DataLoss names a tensor with another shape, a dtype that is not a float type,
  // two names for one tensor, or a head that differs from the tied embedding.
  static absl::StatusOr<std::unique_ptr<WeightsReader>> Open(const std::string& path,
                                                             const JobSpec& spec);

  // The file or index.
  const std::string& path() const { return folder_->path(); }
  // Notes to the user about tensors that were not used; lines without their end.
  const std::vector<std::string>& notes() const { return notes_; }
  // Reads `count` elements of a tensor of the spec from `first` on.
  absl::Status Read(TensorId tensor, uint64_t first, size_t count, float* out) const;
  // Returns the state of a chunk, with optimizer state of zeros.
  absl::StatusOr<ChunkState> ReadChunk(const JobSpec& spec, const Chunk& chunk) const;

 private:
  using Tensor = SafetensorsFolder::Tensor;

  explicit WeightsReader(const JobSpec& spec) : spec_(spec), layout_(spec) {}
  absl::Status Take(const ModelFamily& family, const FileTensor& expected,
                    std::vector<std::string>* missing);
  absl::Status PassOverTheRest();
  absl::Status CheckTied(const Tensor& copy, TensorId original) const;

  const JobSpec spec_;
  const WeightLayout layout_;
  std::unique_ptr<SafetensorsFolder> folder_;
  std::vector<std::optional<Tensor>> tensors_;  // by entry of layout_; empty if it is new
  std::vector<std::string> notes_;
};

}  // namespace eps

#endif  // EPS_CHECKPOINT_INITIAL_WEIGHTS_H_
