#ifndef EPS_CLI_LAUNCH_PLAN_H_
#define EPS_CLI_LAUNCH_PLAN_H_

// Turns a configuration into a run: model, data and job spec. Also prints a prediction before the
// run starts.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/config/config.h"
#include "base/job/job_spec.h"
#include "cli/launch/run_config.h"

namespace eps {

// Everything that `eps train` needs to start a run.
struct TrainPlan {
  // Resolved: absolute paths, data files listed, open settings as in the spec, threads counted.
  Config config;
  JobSpec spec;
  std::string model_folder;  // of the model's description; empty for the quickstart's model
  std::map<std::string, std::string> model_files;  // to write beside weights; see FilesOfModel
  std::string
      initial_weights;         // model.safetensors (.index.json) there; empty for the spec's values
  double unigram_entropy = 0;  // of the data, in nats; 0 for a model without tokens
  uint64_t eval_samples = 0;   // held-out samples of an evaluation; 0 if there are none
};

// Reads the model (base/config/model_folder.h; also model_type eps-synthetic with n_layer, n_embd,
// tied) and builds the spec of `run`, for which it reads the data. A run that resumes takes the
// program of an exported model from its checkpoint. Errors name the key and the file.
absl::StatusOr<TrainPlan> MakePlan(const RunConfig& run);

// Reads the model of `model.path` (base/config/model_folder.h). Empty gives the quickstart's model.
absl::StatusOr<ModelSpec> ReadModel(const std::string& path);

// Reads `servers.addresses`: a number of servers to start, or checked addresses to attach to. An
// empty value starts one server.
struct ServerChoice {
  uint32_t spawn = 0;
  std::vector<std::string> attach;
};
absl::StatusOr<ServerChoice> ChooseServers(const ServersConfig& config);

// Returns the first lines that `eps train` prints. InvalidArgument if a server would hold nothing.
absl::StatusOr<std::string> PlanSummary(const TrainPlan& plan, uint32_t servers);

}  // namespace eps

#endif  // EPS_CLI_LAUNCH_PLAN_H_
