#ifndef EPS_OPTIMIZER_PLUGIN_CHECK_CHECKS_H_
#define EPS_OPTIMIZER_PLUGIN_CHECK_CHECKS_H_

// The checks of a plug-in, as functions. Each returns its finding, or an empty text if the plug-in
// keeps the contract. A plug-in that breaks it grossly ends the process instead.

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/plugin/check/call_threads.h"
#include "optimizer/plugin/check/trial.h"

namespace eps {

// The things that checks need and a fenced process cannot create.
struct CheckTools {
  std::unique_ptr<TrialArrays> arrays;
  std::unique_ptr<TrialArrays> other_arrays;  // for calls between those of a trial
  std::unique_ptr<CallThreads> threads;       // kTrialCallers of them

  // Internal if the kernel refuses.
  static absl::StatusOr<CheckTools> New(const UpdaterPlugin* plugin);
};

// Each array ends right before an inaccessible page, then begins right after one. Says before each
// call where it is (report_lines.h).
std::string CheckBounds(CheckTools* tools);
// The bits do not depend on the pieces, nor on their order.
std::string CheckSplits(CheckTools* tools);
// The bits are the same at every alignment of 4 bytes.
std::string CheckAlignment(CheckTools* tools);
// The bits do not depend on other calls, before or at the same time.
std::string CheckThreads(CheckTools* tools);
// `update` and `reference` give the same bits for all kinds of values, and finite ones for finite
// ones.
std::string CheckValues(CheckTools* tools);
// `update` and `reference` give the same bits at the ends of all parameters' ranges.
std::string CheckParameters(CheckTools* tools);
// The floating-point control and the signal mask stay as they are.
std::string CheckMode(CheckTools* tools);

}  // namespace eps

#endif  // EPS_OPTIMIZER_PLUGIN_CHECK_CHECKS_H_
