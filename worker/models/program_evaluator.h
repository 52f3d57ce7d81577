#ifndef EPS_WORKER_MODELS_PROGRAM_EVALUATOR_H_
#define EPS_WORKER_MODELS_PROGRAM_EVALUATOR_H_

// Runs the calls of one stage through LibTorch's dispatcher. Under autograd the calls record a
// graph, so that the backward pass needs no code of its own.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "base/job/models/model_program.h"
#include "c10/core/Device.h"
#include "worker/models/program_ops.h"

namespace eps {

// A weight for a run, in the shape that the program sees.
struct ProgramWeight {
  at::Tensor value;
  // If defined, products with the weight compute the gradient of their input with it
  // (docs/quantization.md).
  at::Tensor for_input_gradient;
  // If set, products with the weight, a matrix, add its gradient here in FP32, in place where
  // something is there, and autograd sees no gradient.
  at::Tensor* gradient_sum = nullptr;
};

// Returns x times the mask of a dropout site, in the type of x; not called for a probability of 0.
using DropSource = std::function<at::Tensor(uint16_t site, double p, const at::Tensor& x)>;

// The inputs of one run.
struct ProgramInputs {
  at::Tensor activation;  // undefined for the first stage
  std::vector<ProgramWeight> weights;
  std::vector<at::Tensor> constants;
  std::vector<at::Tensor> columns;  // by CallList::inputs
  DropSource drop;                  // empty: nothing is dropped
  c10::Device device = c10::kCPU;
};

// The calls of one stage, converted. Immutable, thread-safe.
class ProgramEvaluator {
 public:
  // InvalidArgument names `stage` and the call. `calls` need not outlive it.
  static absl::StatusOr<std::unique_ptr<const ProgramEvaluator>> Create(const CallList& calls,
                                                                        const std::string& stage);

  // Returns the output, perhaps one of the inputs or a part of one. Releases the value of each slot
  // after its last use. Throws what LibTorch throws; the message names the call.
  at::Tensor Run(const ProgramInputs& inputs) const;

  // Returns whether all calls that read a weight multiply by it, so that for_input_gradient and
  // gradient_sum of the weight have their meaning. Run throws if it gets the former for another.
  bool IsMultipliedOnly(size_t weight) const { return multiplied_only_[weight]; }
  // Returns whether a caller may overwrite the output before the backward pass, which does not read
  // it.
  bool output_is_free() const { return output_is_free_; }

 private:
  // A converted call, and its part in the stage.
  struct Call {
    Op op;
    int weight = -1;  // by which this call multiplies
    bool out_in = false;
    uint16_t site = 0;                // of a dropout
    std::vector<uint32_t> last_uses;  // slots that no later call reads
  };
  using Slots = std::vector<c10::IValue>;

  ProgramEvaluator() = default;
  void FindProducts(const CallList& calls);
  void FindLastUses(const CallList& calls);
  std::string InCall(size_t k) const;
  void Fill(const ProgramInputs& inputs, Slots* slots) const;
  c10::IValue Compute(const Call& call, const ProgramInputs& inputs, const Slots& slots,
                      std::vector<c10::IValue>* stack) const;

  uint32_t first_weight_ = 0, first_call_ = 0, output_ = 0;
  std::vector<Call> calls_;
  std::vector<bool> multiplied_only_;
  bool output_is_free_ = false;
};

}  // namespace eps

#endif  // EPS_WORKER_MODELS_PROGRAM_EVALUATOR_H_
