// `eps data`: makes, shows, checks and splits data files. It is the Python program
// python/eps_models/data, which this process becomes.

#include <string>
#include <vector>

#include "base/machine/python_tools.h"
#include "base/status_macros.h"

namespace eps {

absl::Status RunData(const std::vector<std::string>& arguments) {
  EPS_ASSIGN_OR_RETURN(const PythonTools tools, FindPythonTools(PythonPlaces::Current()));
  return BecomePythonTool(tools, "eps_models.data", arguments);
}

}  // namespace eps
