#ifndef EPS_OPTIMIZER_PLUGIN_CHECK_TRIAL_H_
#define EPS_OPTIMIZER_PLUGIN_CHECK_TRIAL_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/plugin/check/guarded_array.h"
#include "base/plugin/check/trial_values.h"
#include "optimizer/plugin/eps_updater.h"
#include "optimizer/plugin/updater_plugin.h"

namespace eps {

// The most elements of a trial.
inline constexpr size_t kMostTrialElements = 4096 + 3;
// Gradients, weights and the fields.
inline constexpr size_t kMostTrialArrays = 2 + EPS_UPDATER_MAX_FIELDS;

// Some updates of some elements, whose fields are 0 at first. The same trial always has the same
// numbers.
struct Trial {
  size_t n = 0;  // at most kMostTrialElements
  uint64_t seed = 0;
  uint64_t updates = 3;
  uint64_t first_update = 1;
  TrialValues values = TrialValues::kUsual;  // of the gradients
  double lr = 1e-3;
  double weight_decay = 0.01;
  float grad_scale = 0.5F;
  std::vector<double> parameters;
};

// Elements that one call updates.
struct TrialPiece {
  size_t begin = 0;
  size_t size = 0;
};

// Where arrays lie between their inaccessible pages: they end right before one, or begin `first`
// elements after one.
struct TrialPlacement {
  bool at_end = true;
  std::array<size_t, kMostTrialArrays> first = {};
};

// The arrays of trials, between inaccessible pages. The gradients, the step, the parameters and the
// pointers to the fields are read-only for the plug-in. Create it before the process is fenced.
// Thread-compatible; Call is thread-safe for different callers and pieces.
class TrialArrays {
 public:
  // Internal if the kernel refuses.
  static absl::StatusOr<std::unique_ptr<TrialArrays>> New(const UpdaterPlugin* plugin);

  // Sets weights and fields to what they are before the first update.
  void Begin(const Trial& trial, const TrialPlacement& place);
  // Sets step and gradients of the update `index` of the trial, from 0.
  void SetUpdate(uint64_t index);
  // Calls the function with denormals flushed, and restores the mode of the calling thread.
  void Call(eps_updater_update* function, const TrialPiece& piece, size_t caller) const;
  // The same in the mode of the calling thread, which keeps the one that the function leaves.
  void CallOnly(eps_updater_update* function, const TrialPiece& piece, size_t caller) const;
  // Returns the weights, then each field.
  std::vector<float> State() const;
  // Returns whether the memory around weights and fields is as Begin has left it.
  bool SurroundingsAreUntouched() const;

  // All of it: returns the state after all updates, each made in these pieces.
  std::vector<float> Run(const Trial& trial, eps_updater_update* function,
                         const TrialPlacement& place, const std::vector<TrialPiece>& pieces);
  // The same with whole arrays that end right before an inaccessible page.
  std::vector<float> Run(const Trial& trial, eps_updater_update* function);

  // Describes the first element whose bits differ, apart from those of NaN; empty if there is none.
  // The states must have the same size.
  std::string Difference(const std::vector<float>& found, const std::vector<float>& expected) const;
  // Describes the first value that is infinite or NaN; empty if there is none.
  std::string NonFinite(const std::vector<float>& state) const;

  const UpdaterPlugin& plugin() const { return *plugin_; }

 private:
  explicit TrialArrays(const UpdaterPlugin* plugin) : plugin_(plugin) {}
  // Returns the array's first element in the arrays' own view, or as the plug-in sees it.
  float* Own(size_t array) const;
  float* Shown(size_t array) const;
  size_t OffsetOf(size_t array) const;  // in elements
  std::string NameOf(const std::vector<float>& state, size_t index) const;

  const UpdaterPlugin* const plugin_;
  std::vector<GuardedArray> arrays_;
  std::vector<GuardedArray> field_pointers_;  // one for each caller
  std::vector<GuardedArray> numbers_;         // the step, the parameters
  Trial trial_;
  TrialPlacement place_;
};

}  // namespace eps

#endif  // EPS_OPTIMIZER_PLUGIN_CHECK_TRIAL_H_
