#ifndef EPS_VERIFY_RECORDED_ARRAY_H_
#define EPS_VERIFY_RECORDED_ARRAY_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/files/safetensors.h"
#include "base/ids.h"
#include "base/job/job_spec.h"
#include "base/job/models/model_family.h"

namespace eps {

// The weights of a checkpoint, or one array of its optimizer state: one open file. Immutable,
// thread-safe.
class RecordedArray {
 public:
  // Opens a file with exactly the tensors of the job, those of the weights (model.safetensors)
  // under the names and in the shapes that the model's family gives them. DataLoss names the file
  // and the tensor; other errors as SafetensorsReader::Open.
  static absl::StatusOr<RecordedArray> Open(const std::string& path, const JobSpec& spec,
                                            bool weights);

  // Reads all elements of a tensor. `out` has their number. A frozen tensor has no optimizer state.
  absl::Status Read(TensorId tensor, float* out) const;

 private:
  RecordedArray() = default;

  std::unique_ptr<SafetensorsReader> file_;
  std::vector<std::vector<FileTensor>> tensors_;  // by tensor
};

}  // namespace eps

#endif  // EPS_VERIFY_RECORDED_ARRAY_H_
