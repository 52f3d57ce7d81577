#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/job/optimizers.h"
#include "base/numerics/flush_denormals.h"
#include "base/status_macros.h"
#include "optimizer/plugin/eps_updater.h"
#include "optimizer/plugin/plugin_parameters.h"
#include "optimizer/plugin/updater_plugin.h"
#include "optimizer/update_rule.h"

namespace eps {
namespace {

static_assert(kMaxStateFields == EPS_UPDATER_MAX_FIELDS);
static_assert(kMaxPluginParameters == EPS_UPDATER_MAX_PARAMETERS);

// A function of an object with the numbers of one update of one group.
class PluginUpdate final : public PreparedUpdate {
 public:
  PluginUpdate(eps_updater_update* update, std::vector<double> parameters,
               const eps_updater_step& step)
      : update_(update), parameters_(std::move(parameters)), step_(step) {}

  void Run(size_t n, const float* grad, const TileState& state) const override {
    update_(&step_, parameters_.data(), n, grad, state.weight, state.field.data());
  }

 private:
  eps_updater_update* const update_;
  const std::vector<double> parameters_;
  const eps_updater_step step_;
};

// The rule of a loaded object.
class PluginRule final : public UpdateRule {
 public:
  PluginRule(eps_updater_update* update, const PluginSpec& spec) : update_(update) {
    for (const auto& parameter : spec.parameters) parameters_.push_back(parameter.second);
  }

  std::unique_ptr<const PreparedUpdate> Prepare(const StepScalars& step,
                                                const GroupScalars& group) const override {
    return std::make_unique<PluginUpdate>(
        update_, parameters_,
        eps_updater_step{step.update, step.lr * group.lr_multiplier, group.weight_decay,
                         step.grad_scale});
  }

  void Run(uint32_t rows, uint32_t cols, const float* grad, size_t grad_ld, const StepScalars& step,
           const GroupScalars& group, const TileState& state) const override {
    const std::unique_ptr<const PreparedUpdate> update = Prepare(step, group);
    ScopedFlushDenormals flush;
    TileState row = state;
    for (uint32_t r = 0; r < rows; ++r) {
      update->Run(cols, grad + r * grad_ld, row);
      row.weight += state.ld;
      for (float*& field : row.field) {
        if (field != nullptr) field += state.ld;
      }
    }
  }

 private:
  eps_updater_update* const update_;
  std::vector<double> parameters_;
};

// "loaded is a (SHA-256 ...)", or "none is loaded"
std::string LoadedText() {
  std::vector<std::string> loaded;
  for (const UpdaterPlugin* plugin : LoadedPlugins()) {
    loaded.push_back(absl::StrCat(plugin->name, " (SHA-256 ", plugin->sha256, ")"));
  }
  return loaded.empty() ? "none is loaded"
                        : absl::StrCat("loaded is ", absl::StrJoin(loaded, " and "));
}

absl::StatusOr<std::unique_ptr<UpdateRule>> NewPluginRule(const OptimizerSpec& spec,
                                                          Kernel kernel) {
  const UpdaterPlugin* const plugin = FindLoadedPlugin(spec.plugin.sha256);
  if (plugin == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("optimizer.plugin: the updater ", spec.plugin.name, " with SHA-256 ",
                     spec.plugin.sha256, " is not loaded here; ", LoadedText(),
                     ". Use storage.kind=csd, whose devices load it, or give eps serve that file "
                     "as optimizer.plugin and set servers.trust_plugins=true"));
  }
  EPS_RETURN_IF_ERROR(CheckDescribes(spec.plugin, *plugin));
  return std::make_unique<PluginRule>(
      kernel == Kernel::kReference ? plugin->reference : plugin->update, spec.plugin);
}

const RuleRegistration kPlugin(OptimizerName::kPlugin, NewPluginRule);

}  // namespace
}  // namespace eps
