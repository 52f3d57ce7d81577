#ifndef EPS_OPTIMIZER_PLUGIN_CHECK_PLUGIN_CHECK_H_
#define EPS_OPTIMIZER_PLUGIN_CHECK_PLUGIN_CHECK_H_

// Checks whether a plug-in updater keeps the contract of optimizer/plugin/eps_updater.h
// (base/plugin/check/plugin_check.h says how).

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/plugin/check/plugin_check.h"
#include "optimizer/plugin/updater_plugin.h"

namespace eps {

// The speed of `update` on one thread, over arrays larger than the caches, and that of a loop that
// reads and writes as many arrays and does next to nothing; measured in turn.
struct PluginSpeed {
  uint64_t elements = 0;           // of each array
  uint64_t bytes_per_element = 0;  // read or written
  PluginRate update;               // GB/s
  PluginRate plain;                // GB/s
  PluginRate ratio;                // of the update's speed to the other one's, in each round
};

// All that the child has said of a plug-in.
struct PluginReport : PluginDescription {
  std::vector<PluginCheck> checks;   // all of them, in their order
  std::optional<PluginSpeed> speed;  // none if a check failed, or without memory for it

  bool ok() const { return AllPassed(checks); }
};

// Loads the object `path` in a child process, which must call RunPluginCheckChild (check_child.h),
// and runs all checks. A plug-in that fails one is no
// error: see the report. Errors begin with the path: those of LoadUpdaterPlugin; InvalidArgument if
// the object ends the process, or hangs, while it is loaded; Internal if no child can be started.
// Thread-safe.
absl::StatusOr<PluginReport> CheckPlugin(const std::string& path,
                                         const PluginCheckOptions& options);

// The same without the checks: returns what the object says of itself.
absl::StatusOr<PluginReport> DescribePlugin(const std::string& path,
                                            const PluginCheckOptions& options);

}  // namespace eps

#endif  // EPS_OPTIMIZER_PLUGIN_CHECK_PLUGIN_CHECK_H_
