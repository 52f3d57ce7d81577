#ifndef EPS_OPTIMIZER_PLUGIN_UPDATER_PLUGIN_H_
#define EPS_OPTIMIZER_PLUGIN_UPDATER_PLUGIN_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "optimizer/plugin/eps_updater.h"

namespace eps {

// A number of a plug-in that the user may choose, finite and in a range that holds its usual value.
struct PluginParameter {
  std::string name;
  double usual = 0;
  double least = 0;
  double most = 0;
};

// The checked description of a plug-in updater (optimizer/plugin/eps_updater.h).
struct PluginDescription {
  std::string sha256;  // of the file's bytes, 64 hexadecimal digits
  std::string name;
  std::vector<std::string> fields;
  std::vector<PluginParameter> parameters;
};

// A plug-in updater that is loaded into this process, and stays loaded until the process ends.
// Immutable, thread-safe.
struct UpdaterPlugin : PluginDescription {
  std::string path;
  eps_updater_update* update = nullptr;
  eps_updater_update* reference = nullptr;
};

// Loads the object in the file `path`, unless its bytes are loaded already. This runs code of the
// object, with all rights of this process. The file is read once: what is loaded is what was
// hashed, even if the file changes meanwhile. With an `expected_sha256` (64 hexadecimal digits), no
// code of a file with another digest runs. Thread-safe.
//
// Errors begin with the path. NotFound or PermissionDenied for the file; InvalidArgument if it is
// no shared object for this machine, does not export eps_updater_v1, has another version of the
// interface, or describes itself in a way that the interface forbids; FailedPrecondition, with both
// digests, if it is not the expected file.
absl::StatusOr<const UpdaterPlugin*> LoadUpdaterPlugin(const std::string& path,
                                                       absl::string_view expected_sha256 = "");

// Returns the loaded plug-in of this digest; null if there is none.
const UpdaterPlugin* FindLoadedPlugin(absl::string_view sha256);
// All that are loaded, in the order in which they were.
std::vector<const UpdaterPlugin*> LoadedPlugins();

}  // namespace eps

#endif  // EPS_OPTIMIZER_PLUGIN_UPDATER_PLUGIN_H_
