#ifndef EPS_BASE_JOB_PLUGIN_SPEC_H_
#define EPS_BASE_JOB_PLUGIN_SPEC_H_

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace eps {

inline constexpr size_t kMaxStateFields = 4;
inline constexpr size_t kMaxPluginParameters = 16;

// The plug-in updater of a job (docs/guides/write_an_updater.md), as the job's text and digest have
// it. The object itself is on the machines that run it. Empty for the optimizers that are built in.
struct PluginSpec {
  std::string name;
  std::string sha256;               // of the object's file, 64 digits of lower-case hexadecimal
  std::vector<std::string> fields;  // names of the state fields
  // Names and values of all parameters, in the order of the object.
  std::vector<std::pair<std::string, double>> parameters;

  bool operator==(const PluginSpec& other) const {
    return name == other.name && sha256 == other.sha256 && fields == other.fields &&
           parameters == other.parameters;
  }
  bool operator!=(const PluginSpec& other) const { return !(*this == other); }
};

// InvalidArgument, with the line of the job's text, for what no object can say of itself.
absl::Status ValidatePlugin(const PluginSpec& plugin);

}  // namespace eps

#endif  // EPS_BASE_JOB_PLUGIN_SPEC_H_
