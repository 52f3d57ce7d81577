#ifndef EPS_VERIFY_RUN_FOLDER_H_
#define EPS_VERIFY_RUN_FOLDER_H_

// The output folder of a run (docs/formats/checkpoint.md), read for a comparison.

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
#include "verify/reference_training.h"

namespace eps {

// The arrays of a checkpoint, in the order in which they are compared: "weights", then the state
// fields of the job's optimizer, "exp_avg", "exp_avg_sq".
std::vector<std::string> StateArrayNames(const JobSpec& spec);

// One opened file per name, each with exactly the tensors of the spec.
using RecordedState = std::vector<std::unique_ptr<SafetensorsReader>>;

// Immutable, thread-safe.
class RunFolder {
 public:
  // Reads job spec and configuration of checkpoint-1, and metrics.jsonl. NotFound names the file
  // that is missing and the key that makes a run write it; DataLoss a file that is malformed.
  static absl::StatusOr<RunFolder> Open(const std::string& path);

  const std::string& path() const { return path_; }
  const JobSpec& spec() const { return spec_; }
  // What the run was started with: data, model, threads. Defaults if it did not write it down.
  const Config& config() const { return config_; }

  // checkpoint-<step>. NotFound and DataLoss as Open; DataLoss too if it belongs to another job.
  absl::StatusOr<RecordedState> OpenState(uint64_t step) const;
  // What a part has left out at the end of a step (eps/residual-<part>.safetensors); null if the
  // checkpoint has no such file. DataLoss as Open.
  absl::StatusOr<std::unique_ptr<SafetensorsReader>> OpenResiduals(uint64_t step,
                                                                   uint32_t part) const;
  // The line of metrics.jsonl for `step`. DataLoss if there is none.
  absl::StatusOr<StepFigures> Figures(uint64_t step) const;

 private:
  std::string path_;
  std::string spec_text_;
  JobSpec spec_;
  Config config_;
  std::map<uint64_t, StepFigures> figures_;
};

// The weights of a model.safetensors or of an index of shards, by tensor of `spec`; names may lack
// the "transformer." that GPT-2 files on the Hub leave out. NotFound or DataLoss with file and
// tensor.
absl::StatusOr<TensorValues> ReadWeights(const std::string& path, const JobSpec& spec);

// The file whose weights a run of this configuration begins with: model.safetensors beside
// model.path's config.json, else an index of shards. Empty if there is none: the spec's initial
// values.
std::string InitialWeightsFile(const Config& config);

}  // namespace eps

#endif  // EPS_VERIFY_RUN_FOLDER_H_
