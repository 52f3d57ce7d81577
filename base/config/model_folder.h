#ifndef EPS_BASE_CONFIG_MODEL_FOLDER_H_
#define EPS_BASE_CONFIG_MODEL_FOLDER_H_

// The folder of a model (model.path): the file that describes it, and the files that belong beside
// its weights.

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "base/job/models/model_spec.h"

namespace eps {

// The model that model.path names: a folder or file on this machine, or a model in the cache of the
// Hugging Face hub (hub_cache.h).
struct ModelPlace {
  std::string path;  // absolute
  std::string name;  // for the configuration: `path`, or NAME@COMMIT of a model of the hub
};

// Finds what `path` names. A file or folder wins over a model of the hub. A path that is neither
// there nor the name of a model is returned as it is. Errors are those of FindInHubCache.
absl::StatusOr<ModelPlace> FindModel(const std::string& path);

// Reads the model of a folder, or of the file in it that describes it. In a folder, the program of
// an exported model (docs/formats/model_program.md) wins over its config.json. Errors name the key
// and the file; for a model that is not built in, the message says how to export it. Here and
// below, `path` is what FindModel takes.
absl::StatusOr<ModelSpec> ReadModelFolder(const std::string& path);

// Returns whether `path` names the folder of a model that ReadModelFolder refuses because it is
// neither built in nor exported.
bool IsUnknownModel(const std::string& path);

// Returns whether the folder holds an exported model.
bool HoldsExportedModel(const std::string& folder);

// Returns the folder that `path` names, or whose description it names; `path` itself if it cannot
// be found.
std::string FolderOfModel(const std::string& path);

// Returns, by name, the configuration, tokenizer and templates that libraries look for beside the
// weights; nothing else of the folder. In config.json the type of the weights becomes float32, the
// type in which EPS writes them: a loader would round them to another one. Skips files of more than
// 64 MiB and those that cannot be read.
std::map<std::string, std::string> FilesOfModel(const std::string& folder);

}  // namespace eps

#endif  // EPS_BASE_CONFIG_MODEL_FOLDER_H_
