#ifndef EPS_BASE_CONFIG_HUB_CACHE_H_
#define EPS_BASE_CONFIG_HUB_CACHE_H_

// Models in the cache of the Hugging Face hub on this machine. `hf download` and transformers fill
// it: CACHE/models--ORG--NAME/refs/REVISION holds a commit, and snapshots/COMMIT links to the files
// of that commit. Nothing here downloads or writes anything. Thread-safe.
// python/eps_models/hub.py finds the same folders for the tools.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace eps {

// A model in the cache.
struct HubModel {
  std::string name;    // NAME@COMMIT, which does not depend on where the cache is
  std::string folder;  // its snapshot
};

// Returns the folder of the cache: HF_HUB_CACHE, else HF_HOME/hub, else the default of
// huggingface_hub. Empty if this process has no home.
std::string HubCacheFolder();

// Returns whether `text` can name a model of the hub: NAME or ORG/NAME, perhaps followed by
// @REVISION, a branch, tag or commit. Names of JSON files are none.
bool IsHubName(absl::string_view text);

// Returns the model that `name` names; without @REVISION, that of the branch main. REQUIRES
// IsHubName(name). NotFound with the command that downloads it, and, if files of the model or its
// weights are missing, with the first of them.
absl::StatusOr<HubModel> FindInHubCache(absl::string_view name);

}  // namespace eps

#endif  // EPS_BASE_CONFIG_HUB_CACHE_H_
