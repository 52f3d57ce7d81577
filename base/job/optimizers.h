#ifndef EPS_BASE_JOB_OPTIMIZERS_H_
#define EPS_BASE_JOB_OPTIMIZERS_H_

// The optimizers: their names, parameters and state fields, one row each. To add one, add an
// enumerator, its name and a row in optimizers.cc (docs/guides/extend.md); a parameter that no
// other optimizer has also needs a field of OptimizerSettings. Keys, canonical text, ranges and
// refusals follow from the rows. The tables live as long as the process.

#include <array>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/job/key_rules.h"
#include "base/job/names.h"

namespace eps {

enum class OptimizerName { kAdamW, kSgd };
template <>
inline constexpr std::array<const char*, 2> kNames<OptimizerName> = {"adamw", "sgd"};

// The settings of an optimizer that are never open. The numbers that are not parameters of `name`
// keep their defaults, so that equal text means equal specs.
struct OptimizerSettings {
  OptimizerName name = OptimizerName::kAdamW;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double momentum = 0.0;  // 0 keeps no momentum buffer
};

// The learning rates of jobs that name none: of new weights, and of given ones.
inline constexpr double kLrOfNewWeights = 1e-3;
inline constexpr double kLrOfGivenWeights = 5e-5;

// The optimizer of a job, with nothing left open.
struct OptimizerSpec : OptimizerSettings {
  double lr = kLrOfNewWeights;
};

// One number of a parameter, and its line in the canonical text.
struct OptimizerNumber {
  const char* line;
  double OptimizerSettings::*value;
};

// A key of the configuration that sets one number, or a list of several.
struct OptimizerParameter {
  const char* key;
  const char* help;
  Reals range;  // of each number
  absl::Span<const OptimizerNumber> numbers;
};

// The facts about one optimizer.
struct OptimizerRow {
  OptimizerName name;
  absl::Span<const OptimizerParameter* const> parameters;  // in the order of the canonical text
  const char* weight_decay;                                // how it applies it, for help texts
  // Names of the state fields, as torch's state_dict has them.
  absl::Span<const char* const> (*fields)(const OptimizerSpec& spec);
};

// One row per optimizer, in the order of the enumerators.
absl::Span<const OptimizerRow> Optimizers();
const OptimizerRow& RowOf(OptimizerName name);

// The state fields that a job's optimizer keeps, FP32 arrays of the size of the weights, in the
// order in which a chunk's state has them, after the weights.
absl::Span<const char* const> StateFields(const OptimizerSpec& spec);

// All parameters, each once, in the order of the configuration.
absl::Span<const OptimizerParameter* const> OptimizerParameters();
bool Has(OptimizerName name, const OptimizerParameter& parameter);
// Names of the optimizers that have it.
std::vector<std::string> OwnersOf(const OptimizerParameter& parameter);

// How each optimizer applies weight decay: "adamw: decoupled from the gradient; sgd: …".
std::string WeightDecayHelp();

// InvalidArgument names a number that is out of range, or one that the optimizer does not have and
// that differs from its default: it would not be part of the text.
absl::Status ValidateOptimizer(const OptimizerSpec& spec);

}  // namespace eps

#endif  // EPS_BASE_JOB_OPTIMIZERS_H_
