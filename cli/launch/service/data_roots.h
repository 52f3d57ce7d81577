#ifndef EPS_CLI_LAUNCH_SERVICE_DATA_ROOTS_H_
#define EPS_CLI_LAUNCH_SERVICE_DATA_ROOTS_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/config/config.h"

namespace eps {

// The folders below which a submitted job may read files. Without them, whoever may submit a job
// could read every file of the driver's user. Immutable; thread-safe.
class DataRoots {
 public:
  // NotFound names a root that is no folder. Without roots, the working folder is the only one.
  static absl::StatusOr<DataRoots> Open(const std::vector<std::string>& roots);

  // PermissionDenied, with the key, the path and the roots, unless everything that the
  // configuration names is below a root after links are resolved: files, and folders with all that
  // is in them. A path that does not exist must be below a root, too.
  absl::Status Check(const Config& config) const;

 private:
  explicit DataRoots(std::vector<std::string> roots) : roots_(std::move(roots)) {}
  // `key` begins the error: "data.path: ".
  absl::Status CheckPath(const std::string& key, const std::string& path) const;
  // Checks the links in a folder, and if `deep` in the folders below it.
  absl::Status CheckLinks(const std::string& key, const std::string& folder, bool deep) const;
  absl::Status Refuse(const std::string& key, const std::string& path,
                      const std::string& target) const;
  bool Holds(const std::string& resolved) const;

  std::vector<std::string> roots_;  // resolved
};

}  // namespace eps

#endif  // EPS_CLI_LAUNCH_SERVICE_DATA_ROOTS_H_
