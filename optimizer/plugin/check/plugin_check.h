#ifndef EPS_OPTIMIZER_PLUGIN_CHECK_PLUGIN_CHECK_H_
#define EPS_OPTIMIZER_PLUGIN_CHECK_PLUGIN_CHECK_H_

// Checks whether a plug-in updater keeps the contract of optimizer/plugin/eps_updater.h. The code
// of the plug-in runs in a child process only, inside fences (base/process/fence.h). The checks
// find defence against an author who means harm: loading an object runs its constructors with all
// rights of the user.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "optimizer/plugin/updater_plugin.h"

namespace eps {

// Returns a number of elements whose arrays together are larger than the caches: 16 Mi, or on a
// machine with a larger cache as many as fill half of it, but at most 64 Mi.
uint64_t ElementsBeyondCaches();

// How to check a plug-in.
struct PluginCheckOptions {
  // The program and the first arguments of the child, which must call RunPluginCheckChild
  // (check_child.h) with the arguments that follow.
  std::vector<std::string> child;
  // The time for loading, all checks and the measurement; then the child is killed.
  std::chrono::milliseconds deadline{60000};
  // The elements whose updates are timed; 0 disables the measurement.
  uint64_t speed_elements = ElementsBeyondCaches();
};

// The outcome of one check.
struct PluginCheck {
  enum class Outcome { kPassed, kFailed, kNotRun };

  std::string name;
  Outcome outcome = Outcome::kNotRun;
  std::string finding;  // one line; empty unless it failed
};

// A figure of several rounds.
struct PluginRate {
  double least = 0;
  double median = 0;
  double most = 0;
};

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

  bool ok() const;
};

// Loads the object `path` in a child process and runs all checks. A plug-in that fails one is no
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
