#include "base/machine/python_tools.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace eps {
namespace {

namespace fs = std::filesystem;

constexpr char kPackages[] = "python";  // in the source tree, with eps_models/
constexpr char kWitness[] = "python/eps_models/data/__main__.py";
constexpr char kEnvironment[] = "third_party/.oracles";

std::string Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Returns the source tree in which `path` lies, or an empty path. A build's folder of links to the
// tree counts as the tree.
fs::path TreeAbove(const std::string& path) {
  std::error_code error;
  for (fs::path above = path; !above.empty(); above = above.parent_path()) {
    const fs::path witness = fs::canonical(above / kWitness, error);
    if (!error) return witness.parent_path().parent_path().parent_path().parent_path();
    if (above == above.parent_path()) break;
  }
  return {};
}

std::string Before(const std::string& first, const std::string& rest) {
  return rest.empty() ? first : absl::StrCat(first, ":", rest);
}

}  // namespace

PythonPlaces PythonPlaces::Current() {
  std::error_code error;
  PythonPlaces places;
  places.program = fs::read_symlink("/proc/self/exe", error).string();
  places.folder = fs::current_path(error).string();
  places.eps_python = Variable("EPS_PYTHON");
  places.python_path = Variable("PYTHONPATH");
  places.library_path = Variable("LD_LIBRARY_PATH");
  return places;
}

absl::StatusOr<PythonTools> FindPythonTools(const PythonPlaces& places) {
  fs::path tree = TreeAbove(places.program);
  if (tree.empty()) tree = TreeAbove(places.folder);
  PythonTools tools;
  if (!tree.empty()) {
    tools.environment.push_back(
        absl::StrCat("PYTHONPATH=", Before((tree / kPackages).string(), places.python_path)));
  }
  if (!places.eps_python.empty()) {
    tools.interpreter = places.eps_python;
    return tools;
  }
  const fs::path installed = tree / kEnvironment;
  std::error_code error;
  if (!tree.empty() && fs::exists(installed / ".complete", error)) {
    tools.interpreter = (installed / "bin/python").string();
    tools.environment.push_back(absl::StrCat(
        "LD_LIBRARY_PATH=", Before((installed / "stub_libs").string(), places.library_path)));
    return tools;
  }
  return absl::NotFoundError(absl::StrCat(
      "no Python for the tools: run third_party/install/setup_oracles.sh in the source tree",
      tree.empty() ? "" : absl::StrCat(" (", tree.string(), ")"),
      ", or set EPS_PYTHON to a Python that has their packages"));
}

absl::Status BecomePythonTool(const PythonTools& tools, const std::string& module,
                              const std::vector<std::string>& arguments) {
  for (const std::string& variable : tools.environment) {
    const size_t equals = variable.find('=');
    setenv(variable.substr(0, equals).c_str(), variable.substr(equals + 1).c_str(),
           /*overwrite=*/1);
  }
  std::vector<std::string> words = {tools.interpreter, "-m", module};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  return absl::NotFoundError(
      absl::StrCat("cannot run ", tools.interpreter, ": ", std::strerror(errno),
                   "; set EPS_PYTHON to a Python that has the packages of the tools"));
}

}  // namespace eps
