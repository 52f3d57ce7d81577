#ifndef EPS_OPTIMIZER_PLUGIN_CHECK_SPEED_H_
#define EPS_OPTIMIZER_PLUGIN_CHECK_SPEED_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "optimizer/plugin/updater_plugin.h"

namespace eps {

// Times the `update` of a plug-in over arrays larger than the caches. Create it before the process
// is fenced. Thread-compatible.
class SpeedTrial {
 public:
  // Null if `elements` is 0, or if there is no memory for the arrays.
  static std::unique_ptr<SpeedTrial> New(const UpdaterPlugin* plugin, uint64_t elements);
  SpeedTrial(const SpeedTrial&) = delete;
  SpeedTrial& operator=(const SpeedTrial&) = delete;

  // Measures in turn with a plain loop, and writes the lines `speed` and `round`
  // (report_lines.h).
  void RunAndReport();

 private:
  SpeedTrial(const UpdaterPlugin* plugin, size_t elements) : plugin_(plugin), elements_(elements) {}
  // Returns seconds.
  double TimeUpdate(uint64_t update);
  double TimePlainLoop();

  const UpdaterPlugin* const plugin_;
  const size_t elements_;
  std::vector<float*> arrays_;  // gradients, weights, fields; mapped
};

}  // namespace eps

#endif  // EPS_OPTIMIZER_PLUGIN_CHECK_SPEED_H_
