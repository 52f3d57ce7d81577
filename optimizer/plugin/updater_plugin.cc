#include "optimizer/plugin/updater_plugin.h"

#include <cmath>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/plugin/shared_object.h"
#include "base/status_macros.h"

namespace eps {
namespace {

// The plug-ins of this process. None is ever unloaded: updates on other threads may use it.
struct Loaded {
  Mutex mu;
  std::vector<std::unique_ptr<const UpdaterPlugin>> plugins EPS_GUARDED_BY(mu);
};

Loaded* TheLoaded() {
  static Loaded* const loaded = new Loaded;
  return loaded;
}

absl::StatusOr<std::vector<std::string>> CheckFields(const std::string& path,
                                                     const eps_updater& updater) {
  if (updater.field_count > EPS_UPDATER_MAX_FIELDS) {
    return InvalidPlugin(path, "has ", updater.field_count, " state fields; expected at most ",
                         EPS_UPDATER_MAX_FIELDS);
  }
  if (updater.field_count > 0 && updater.fields == nullptr) {
    return InvalidPlugin(path, "fields is null");
  }
  std::vector<std::string> fields;
  for (uint32_t i = 0; i < updater.field_count; ++i) {
    EPS_ASSIGN_OR_RETURN(fields.emplace_back(),
                         CopyPluginName(path, absl::StrCat("state field ", i), updater.fields[i]));
  }
  if (std::set<std::string>(fields.begin(), fields.end()).size() < fields.size()) {
    return InvalidPlugin(path, "two state fields have the same name");
  }
  return fields;
}

absl::StatusOr<std::vector<PluginParameter>> CheckParameters(const std::string& path,
                                                             const eps_updater& updater) {
  if (updater.parameter_count > EPS_UPDATER_MAX_PARAMETERS) {
    return InvalidPlugin(path, "has ", updater.parameter_count, " parameters; expected at most ",
                         EPS_UPDATER_MAX_PARAMETERS);
  }
  if (updater.parameter_count > 0 && updater.parameters == nullptr) {
    return InvalidPlugin(path, "parameters is null");
  }
  std::set<std::string> names;
  std::vector<PluginParameter> parameters;
  for (uint32_t i = 0; i < updater.parameter_count; ++i) {
    const eps_updater_parameter& from = updater.parameters[i];
    PluginParameter& to = parameters.emplace_back();
    EPS_ASSIGN_OR_RETURN(to.name, CopyPluginName(path, absl::StrCat("parameter ", i), from.name));
    to.usual = from.usual;
    to.least = from.least;
    to.most = from.most;
    if (!std::isfinite(to.least) || !std::isfinite(to.most) ||
        !(to.least <= to.usual && to.usual <= to.most)) {
      return InvalidPlugin(path, "parameter ", to.name,
                           ": expected finite numbers with least <= usual <= most, found ",
                           to.least, ", ", to.usual, " and ", to.most);
    }
    if (!names.insert(to.name).second)
      return InvalidPlugin(path, "two parameters are called ", to.name);
  }
  return parameters;
}

absl::StatusOr<UpdaterPlugin> CheckUpdater(const std::string& path, const eps_updater* updater) {
  if (updater == nullptr) return InvalidPlugin(path, EPS_UPDATER_SYMBOL, "() returned null");
  if (updater->abi != EPS_UPDATER_ABI) {
    return InvalidPlugin(path, "has version ", updater->abi, " of the interface; expected ",
                         EPS_UPDATER_ABI);
  }
  UpdaterPlugin plugin;
  plugin.path = path;
  EPS_ASSIGN_OR_RETURN(plugin.name, CopyPluginName(path, "the updater", updater->name));
  EPS_ASSIGN_OR_RETURN(plugin.fields, CheckFields(path, *updater));
  EPS_ASSIGN_OR_RETURN(plugin.parameters, CheckParameters(path, *updater));
  if (updater->update == nullptr) return InvalidPlugin(path, "update is null");
  if (updater->reference == nullptr) return InvalidPlugin(path, "reference is null");
  plugin.update = updater->update;
  plugin.reference = updater->reference;
  return plugin;
}

}  // namespace

absl::StatusOr<const UpdaterPlugin*> LoadUpdaterPlugin(const std::string& path,
                                                       absl::string_view expected_sha256) {
  EPS_ASSIGN_OR_RETURN(const PluginFile file, ReadPluginFile(path, "updater", expected_sha256));
  if (const UpdaterPlugin* const loaded = FindLoadedPlugin(file.sha256)) return loaded;
  EPS_ASSIGN_OR_RETURN(void* const entry, LoadPluginSymbol(file, EPS_UPDATER_SYMBOL,
                                                           "optimizer/plugin/eps_updater.h"));
  EPS_ASSIGN_OR_RETURN(UpdaterPlugin plugin,
                       CheckUpdater(path, reinterpret_cast<eps_updater_entry*>(entry)()));
  plugin.sha256 = file.sha256;
  Loaded* const loaded = TheLoaded();
  MutexLock lock(&loaded->mu);
  return loaded->plugins.emplace_back(std::make_unique<const UpdaterPlugin>(std::move(plugin)))
      .get();
}

const UpdaterPlugin* FindLoadedPlugin(absl::string_view sha256) {
  Loaded* const loaded = TheLoaded();
  MutexLock lock(&loaded->mu);
  for (const auto& plugin : loaded->plugins) {
    if (plugin->sha256 == sha256) return plugin.get();
  }
  return nullptr;
}

std::vector<const UpdaterPlugin*> LoadedPlugins() {
  Loaded* const loaded = TheLoaded();
  MutexLock lock(&loaded->mu);
  std::vector<const UpdaterPlugin*> plugins;
  for (const auto& plugin : loaded->plugins) plugins.push_back(plugin.get());
  return plugins;
}

}  // namespace eps
