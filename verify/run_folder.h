#ifndef EPS_VERIFY_RUN_FOLDER_H_
#define EPS_VERIFY_RUN_FOLDER_H_

// Reads the output folder of a run (docs/formats/checkpoint.md) for a comparison.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/config/config.h"
#include "base/files/safetensors.h"
#include "base/job/job_spec.h"
#include "verify/recorded_array.h"
#include "verify/reference_training.h"

namespace eps {

// Names the arrays of a checkpoint in the order of comparison: "weights", then the state fields of
// the job's optimizer, such as "exp_avg" and "exp_avg_sq".
std::vector<std::string> StateArrayNames(const JobSpec& spec);

// One array for each name.
using RecordedState = std::vector<RecordedArray>;

// The records and checkpoints of one run. Immutable, thread-safe.
class RunFolder {
 public:
  // Reads the job spec and configuration of checkpoint-1, and metrics.jsonl. Returns NotFound,
  // naming the missing file and the options that make a run write it, or DataLoss for a malformed
  // file.
  static absl::StatusOr<RunFolder> Open(const std::string& path);

  const std::string& path() const { return path_; }
  const JobSpec& spec() const { return spec_; }
  // The configuration of the run: data, model, threads. Holds defaults if the run did not record
  // it.
  const Config& config() const { return config_; }

  // Opens checkpoint-<step>. Errors as for Open, and DataLoss if it belongs to another job.
  absl::StatusOr<RecordedState> OpenState(uint64_t step) const;
  // Opens the residuals of a part at the end of a step (eps/residual-<part>.safetensors). Returns
  // null if the checkpoint has no such file, and DataLoss as Open does.
  absl::StatusOr<std::unique_ptr<SafetensorsReader>> OpenResiduals(uint64_t step,
                                                                   uint32_t part) const;
  // Returns how the workers computed up to the end of a step, one profile each
  // (TorchComputeProfile); empty if checkpoint-<step> does not say (eps/compute_profiles.txt).
  absl::StatusOr<std::vector<std::string>> ComputeProfiles(uint64_t step) const;
  // Returns the record of `step` in metrics.jsonl, or DataLoss if there is none.
  absl::StatusOr<StepFigures> Figures(uint64_t step) const;

 private:
  std::string path_;
  std::string spec_text_;
  JobSpec spec_;
  Config config_;
  std::map<uint64_t, StepFigures> figures_;
};

// Reads the weights of a model.safetensors, or of the shards that an index names, by tensor of
// `spec`, where the model's family says that they are; the names may lack its optional prefix.
// Returns NotFound or DataLoss with file and tensor.
absl::StatusOr<TensorValues> ReadWeights(const std::string& path, const JobSpec& spec);

// Returns the file of initial weights of a run with this configuration: model.safetensors in the
// folder of model.path, else an index of shards there. Empty if there is none, so that the run
// starts from the spec's initial values.
std::string InitialWeightsFile(const Config& config);

}  // namespace eps

#endif  // EPS_VERIFY_RUN_FOLDER_H_
