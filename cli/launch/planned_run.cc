#include "cli/launch/planned_run.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/config/config.h"
#include "base/config/spec_builder.h"
#include "base/files/files.h"
#include "base/job/job_spec.h"
#include "base/status_macros.h"
#include "cli/launch/plan.h"
#include "cli/launch/plugin/chosen_plugin.h"
#include "cli/launch/run_config.h"

namespace eps {
namespace {

// A plan reads no data and assumes that there is enough.
constexpr uint64_t kPlannedTokens = uint64_t{1} << 40;
constexpr char kAnyMachine[] = "two_core_box";  // with disks

// Returns the spec that eps train would build from the configuration, except for the steps of
// training.epochs, which depend on the data. No plan depends on the steps.
absl::StatusOr<JobSpec> SpecOf(Config config, uint32_t workers) {
  if (!config.training.steps.has_value()) config.training.epochs = 0;
  EPS_ASSIGN_OR_RETURN(const ModelSpec model, ReadModel(config.model.path));
  DataSpec data;
  data.tokens = kPlannedTokens;
  data.sha256 = std::string(64, '0');
  EPS_ASSIGN_OR_RETURN(const JobPlugins plugins, ChoosePlugins(config));
  return BuildJobSpec(config, model, data, workers, StartWeights::kNew, plugins);
}

}  // namespace

absl::StatusOr<planner::Plan> PlanCommandLine(const planner::Hardware& hardware,
                                              const CommandLine& line) {
  EPS_ASSIGN_OR_RETURN(const RunConfig run, ResolveConfig(line, ProcessEnvironment()));
  const uint32_t workers = planner::ShapeOf(run.config, hardware).workers;
  EPS_ASSIGN_OR_RETURN(const JobSpec spec, SpecOf(run.config, workers));
  return planner::MakePlan(run.config, spec, hardware);
}

absl::StatusOr<std::vector<std::pair<std::string, double>>> PlannedServerMemory(
    const Config& config, const JobSpec& spec) {
  EPS_ASSIGN_OR_RETURN(const planner::Hardware hardware, ReadHardware(kAnyMachine));
  EPS_ASSIGN_OR_RETURN(const planner::Plan plan, planner::MakePlan(config, spec, hardware));
  std::vector<std::pair<std::string, double>> planned;
  for (const planner::TierUse& tier : plan.tiers) {
    if (tier.tier != planner::Tier::kServerMemory) continue;
    for (const planner::MemoryUse& use : tier.uses) {
      planned.emplace_back(use.kind, use.bytes.value());
    }
  }
  return planned;
}

absl::StatusOr<planner::Hardware> ReadHardware(const std::string& name) {
  if (name.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--hardware is missing: a file (eps bench calibrate --out=FILE writes one of "
                     "this machine), or one of the examples ",
                     absl::StrJoin(planner::HardwareExamples(), ", ")));
  }
  std::error_code error;
  if (std::filesystem::exists(name, error)) {
    EPS_ASSIGN_OR_RETURN(const std::string yaml, ReadTextFile(name));
    return planner::ParseHardware(yaml, name);
  }
  EPS_ASSIGN_OR_RETURN(const std::string yaml, planner::HardwareExample(name));
  return planner::ParseHardware(yaml, absl::StrCat("example ", name));
}

absl::StatusOr<planner::StorageDevices> ReadUpdatingStorage(const std::string& name) {
  EPS_ASSIGN_OR_RETURN(const planner::Hardware hardware, ReadHardware(name));
  if (hardware.has_updating_storage()) return *hardware.servers.front().storage;
  return absl::InvalidArgumentError(
      absl::StrCat(name,
                   " has no storage of kind csd, which storage.csd.rates (and --hardware of "
                   "`eps updater check`) needs"));
}

}  // namespace eps
