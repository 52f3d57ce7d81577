#include "checkpoint/convert/optimizer_conversion.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/config/config.h"
#include "base/job/optimizers.h"
#include "base/status_macros.h"
#include "optimizer/rules/conversions.h"

namespace eps {
namespace {

// Reads the state of another job and converts it.
class ConvertedState final : public JobState {
 public:
  ConvertedState(JobStateHead head, std::unique_ptr<JobState> from, StateConversion conversion)
      : JobState(std::move(head)), from_(std::move(from)), conversion_(std::move(conversion)) {}

  absl::StatusOr<ChunkState> ReadChunk(ChunkId id) const override {
    EPS_ASSIGN_OR_RETURN(ChunkState state, from_->ReadChunk(id));
    const Chunk& chunk = chunks().chunk(id);
    // The weights come first. A field without an old one is zero, and zeros stay what they are.
    std::vector<float> floats(StateBytes(head().spec, chunk) / sizeof(float));
    const size_t bytes = floats.size() * sizeof(float);
    std::memcpy(floats.data(), state.data(), std::min(bytes, state.size()));
    for (size_t at = chunk.elements, i = 0; at < floats.size(); at += chunk.elements, ++i) {
      conversion_.fields[i].Apply(absl::MakeSpan(floats).subspan(at, chunk.elements));
    }
    return ChunkState(reinterpret_cast<const char*>(floats.data()), bytes);
  }
  absl::StatusOr<std::vector<CutResidual>> ReadResiduals(
      const std::vector<ChunkId>& chunks) const override {
    return from_->ReadResiduals(chunks);
  }
  std::string note() const override { return from_->note(); }

 private:
  const std::unique_ptr<JobState> from_;
  const StateConversion conversion_;
};

// The settings of the new optimizer; parameters that both have keep their values.
absl::StatusOr<OptimizerSettings> SettingsOf(const OptimizerSpec& from,
                                             const ConversionOptions& options) {
  OptimizerChoices choices;
  choices.name = options.optimizer;
  if (options.reset_state) return ResolveOptimizer(choices);
  for (const OptimizerParameter* const parameter : RowOf(options.optimizer).parameters) {
    if (!Has(from.name, *parameter)) continue;
    for (const OptimizerNumber& number : parameter->numbers) {
      choices.*number.choice = from.*number.value;
    }
    if (const OptimizerFlag* const flag = parameter->flag_or_null) {
      choices.*flag->choice = from.*flag->value;
    }
  }
  return ResolveOptimizer(choices);
}

absl::StatusOr<std::string> ConfigWith(const std::string& config, const OptimizerSpec& optimizer) {
  if (config.empty()) return config;
  Config changed;
  EPS_RETURN_IF_ERROR(changed.MergeYaml(config, "the job's config"));
  KeepSettings(optimizer, &changed.optimizer);
  changed.optimizer.lr = optimizer.lr;
  changed.optimizer.plugin.clear();
  changed.optimizer.plugin_parameters.clear();
  if (RowOf(optimizer.name).adapts) changed.training.mode = Mode::kSealed;
  return changed.ToYaml();
}

}  // namespace

absl::StatusOr<std::unique_ptr<JobState>> ConvertOptimizer(std::unique_ptr<JobState> from,
                                                           const ConversionOptions& options) {
  const OptimizerSpec& old = from->head().spec.optimizer;
  const std::string names = absl::StrCat(NameOf(old.name), " to ", NameOf(options.optimizer));
  if (old.name == options.optimizer) {
    return absl::InvalidArgumentError(
        absl::StrCat("--optimizer: the job has the optimizer ", NameOf(old.name), " already"));
  }
  if (options.optimizer == OptimizerName::kPlugin) {
    return absl::InvalidArgumentError(
        "--optimizer: no state is converted to that of a plug-in updater; begin a new job with the "
        "weights (eps checkpoint export)");
  }
  JobStateHead head = from->head();
  head.spec.optimizer.plugin = PluginSpec();
  EPS_ASSIGN_OR_RETURN(static_cast<OptimizerSettings&>(head.spec.optimizer),
                       SettingsOf(old, options));
  if (RowOf(options.optimizer).adapts) head.spec.training.mode = Mode::kSealed;
  StateConversion conversion = ZeroState(head.spec.optimizer);
  if (options.reset_state) {
    head.border.update = 0;
  } else {
    const std::optional<StateConversion> found = FindConversion(old, head.spec.optimizer);
    if (!found.has_value()) {
      return absl::FailedPreconditionError(
          absl::StrCat("the optimizer state cannot be converted from ", names,
                       "; --reset-state begins with a state of zeros"));
    }
    conversion = *found;
  }
  head.spec.optimizer.lr *= conversion.lr_scale;
  const absl::Status valid = head.spec.Validate();
  if (!valid.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(names, ": ", valid.message()));
  }
  EPS_ASSIGN_OR_RETURN(head.config, ConfigWith(head.config, head.spec.optimizer));
  return std::unique_ptr<JobState>(
      std::make_unique<ConvertedState>(std::move(head), std::move(from), std::move(conversion)));
}

}  // namespace eps
