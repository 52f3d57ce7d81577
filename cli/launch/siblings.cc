#include "cli/launch/siblings.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace eps {
namespace {

// Returns the folder of a program in the build tree: "eps-worker" is built in worker/.
std::string RoomOf(const std::string& name) {
  return name == "eps-csd" ? "storage/csd/process" : name.substr(name.find('-') + 1);
}

}  // namespace

std::string OwnPath() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).string();
}

absl::StatusOr<std::string> FindSibling(const std::string& name) {
  const std::string self = OwnPath();
  const std::string folder = std::filesystem::path(self).parent_path().string();
  const std::vector<std::string> places = {
      absl::StrCat(folder, "/", name),
      absl::StrCat(folder, "/../", RoomOf(name), "/", name),
      absl::StrCat(self, ".runfiles/eps/", RoomOf(name), "/", name),
  };
  for (const std::string& place : places) {
    if (access(place.c_str(), X_OK) == 0) return place;
  }
  return absl::NotFoundError(absl::StrCat("program ", name, " is missing; looked for it at ",
                                          absl::StrJoin(places, ", "),
                                          " (bazel build //cli:eps builds it too)"));
}

absl::Status BecomeSibling(const std::string& name, const std::vector<std::string>& arguments) {
  EPS_ASSIGN_OR_RETURN(const std::string path, FindSibling(name));
  std::vector<char*> argv = {const_cast<char*>(path.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execv(path.c_str(), argv.data());
  return absl::InternalError(absl::StrCat("cannot run ", path, ": ", std::strerror(errno)));
}

}  // namespace eps
