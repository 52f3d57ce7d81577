#ifndef EPS_VERIFY_RELAXED_COMPARISON_H_
#define EPS_VERIFY_RELAXED_COMPARISON_H_

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/job/job_spec.h"
#include "verify/reference_training.h"
#include "verify/run_folder.h"

namespace eps {

// The largest relative errors between a run and a reference whose bits differ.
struct RelaxedBounds {
  double loss = 0;
  double gradient = 0;  // of each tensor, and of the norm
};
// Returns those of a job: 1e-5 and 1e-4 if it computes and travels in FP32, else 2e-3 and 2e-2.
RelaxedBounds RelaxedBoundsOf(const JobSpec& spec);

// Returns Unimplemented if the steps of a job cannot be compared one by one: some of what they
// depend on is not in the checkpoints, as with residuals of sparse gradients.
absl::Status CheckRelaxed(const JobSpec& spec);

// Compares a reference with a run whose workers computed with other bits. Each step starts from the
// run's own state, so that errors do not add up. The gradient of a tensor is judged by the state
// field that follows from it first (the first moment; the weights if the optimizer has no state):
// by the error of its change in this step, relative to that change, or to a hundredth of the
// root mean square over all tensors where that is larger. A step takes the memory of the state
// twice more. Thread-compatible.
class RelaxedComparison {
 public:
  // Borrows all arguments.
  RelaxedComparison(const RunFolder& run, uint64_t steps, std::ostream* out);

  // Compares the step that the reference has run with `expected`, prints its largest errors, and
  // gives the reference the run's state. Returns whether the step is within the bounds. DataLoss
  // for a malformed file. REQUIRES that `before` is the state before the step.
  absl::StatusOr<bool> CompareStep(const std::vector<TensorValues>& before,
                                   const StepFigures& expected, ReferenceTraining* reference);

 private:
  void Judge(const std::string& what, double error, double bound);
  void CompareFigures(const StepFigures& expected, const StepFigures& found);
  void CompareGradients(const TensorValues& before, const TensorValues& expected,
                        const TensorValues& found);

  const RunFolder& run_;
  const JobSpec& spec_;
  const RelaxedBounds bounds_;
  const uint64_t steps_;
  std::ostream& out_;
  std::vector<std::string> differences_;  // of the step
  double worst_gradient_ = 0;             // of the step
  std::string worst_tensor_;
};

}  // namespace eps

#endif  // EPS_VERIFY_RELAXED_COMPARISON_H_
