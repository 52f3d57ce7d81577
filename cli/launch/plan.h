#ifndef EPS_CLI_LAUNCH_PLAN_H_
#define EPS_CLI_LAUNCH_PLAN_H_

// From a configuration to what is about to happen: model, data, job spec, and the figures that
// stand at the top of the output, so that what comes can be compared with what was predicted.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cli/launch/run_config.h"
#include "base/config/config.h"
#include "base/job/job_spec.h"

namespace eps {

// training.seq_len of a model of type eps-synthetic, if it is not set.
inline constexpr uint32_t kSyntheticSeqLen = 32;

struct TrainPlan {
  // As resolved: paths absolute, data files listed, parts as the spec has them, threads counted.
  Config config;
  JobSpec spec;
  std::string model_folder;     // where model.path's config.json lies; empty for the quickstart's
  std::string initial_weights;  // model.safetensors (.index.json) there; empty: the spec's values
  double unigram_entropy = 0;   // of the data in nats; 0 for a model without tokens
  uint64_t eval_samples = 0;    // held-out samples of an evaluation; 0: there is none
};

// Reads the model's config.json (model_type gpt2, or eps-synthetic with n_layer, n_embd, tied) and
// builds the spec of `run`, reading the data. Errors name the key and the file.
absl::StatusOr<TrainPlan> MakePlan(const RunConfig& run);

// The model that a config.json describes; `origin` stands in the errors.
absl::StatusOr<ModelSpec> ParseModel(absl::string_view json, const std::string& origin);
// The model of `model.path`: a folder with a config.json, or one; the quickstart's if it is empty.
absl::StatusOr<ModelSpec> ReadModel(const std::string& path);
// The config.json of a model; ParseModel reads it back.
std::string ModelToJson(const ModelSpec& model);

// `servers.addresses` is a number: that many are to be started. Else the addresses to attach to,
// each checked. An empty value means one server.
struct ServerChoice {
  uint32_t spawn = 0;
  std::vector<std::string> attach;
};
absl::StatusOr<ServerChoice> ChooseServers(const ServersConfig& config);

// The lines at the top of `eps train`. InvalidArgument if a server would hold nothing.
absl::StatusOr<std::string> PlanSummary(const TrainPlan& plan, uint32_t servers);

}  // namespace eps

#endif  // EPS_CLI_LAUNCH_PLAN_H_
