#ifndef EPS_CHECKPOINT_INITIAL_WEIGHTS_H_
#define EPS_CHECKPOINT_INITIAL_WEIGHTS_H_

// Where a new job's weights come from when they are not drawn: a folder that Hugging Face's
// libraries or an earlier run wrote.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "wire/control_client.h"
#include "base/files/safetensors_folder.h"
#include "base/job/chunk_map.h"
#include "base/job/job_spec.h"

namespace eps {

// Weights alone; the optimizer's state is zero. Immutable, thread-safe.
//
// F32, BF16 and F16 are read, in one file or in shards. The "transformer." in front of GPT-2's
// names may be missing, as in files on the Hub. Matrices are [in, out], as transformers' Conv1D
// stores them. The buffers attn.bias and attn.masked_bias of old files are passed over, any other
// tensor that the model does not have with a note. A tied model may come with a lm_head.weight if
// it is bit for bit the embedding; transformers would quietly untie another one.
class WeightsReader {
 public:
  // As SafetensorsFolder::Open, and checked against `spec`. NotFound names the tensors that are
  // missing; DataLoss names the tensor with another shape, a dtype that is no float, two names for
  // one tensor, or a head that is not the tied embedding.
  static absl::StatusOr<std::unique_ptr<WeightsReader>> Open(const std::string& path,
                                                             const JobSpec& spec);

  // The file or index that is read.
  const std::string& path() const { return folder_->path(); }
  // What a user should know of what was not used; whole lines without the end of line.
  const std::vector<std::string>& notes() const { return notes_; }
  // `tensor` of the spec, from element `first` on.
  absl::Status Read(TensorId tensor, uint64_t first, size_t count, float* out) const {
    return tensors_[tensor.value()].Read(first, count, out);
  }
  absl::StatusOr<ChunkState> ReadChunk(const JobSpec& spec, const Chunk& chunk) const;

 private:
  using Tensor = SafetensorsFolder::Tensor;

  WeightsReader() = default;
  absl::Status Take(const SafetensorsEntry& expected, std::vector<std::string>* missing);
  absl::Status PassOverTheRest(const JobSpec& spec);
  absl::Status CheckTiedHead(const Tensor& head, const Tensor& embedding) const;

  std::unique_ptr<SafetensorsFolder> folder_;
  std::vector<Tensor> tensors_;  // by tensor id
  std::vector<std::string> notes_;
};

}  // namespace eps

#endif  // EPS_CHECKPOINT_INITIAL_WEIGHTS_H_
