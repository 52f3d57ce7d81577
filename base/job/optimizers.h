#ifndef EPS_BASE_JOB_OPTIMIZERS_H_
#define EPS_BASE_JOB_OPTIMIZERS_H_

// The optimizers: their names, parameters with their defaults, and state fields, one row each. To
// add one, add an enumerator, its name and a row in optimizers.cc
// (docs/guides/add_an_optimizer.md); a parameter that no other optimizer has also needs a field of
// OptimizerSettings and of OptimizerChoices. Keys, canonical text, ranges, defaults and refusals
// follow from the rows. The tables live as long as the process.

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/job/key_rules.h"
#include "base/job/names.h"
#include "base/job/plugin_spec.h"

namespace eps {

enum class OptimizerName {
  kAdamW,
  kSgd,
  kAdam,
  kAdagrad,
  kLion,
  kAdamWSqrtV,
  kSgdSmartInfinity,
  kAdagradSmartInfinity,
  kLamb,
  kPlugin,  // the last: no rule of this tree
};
template <>
inline constexpr std::array<const char*, 10> kNames<OptimizerName> = {"adamw",
                                                                      "sgd",
                                                                      "adam",
                                                                      "adagrad",
                                                                      "lion",
                                                                      "adamw_sqrtv",
                                                                      "sgd_smartinfinity",
                                                                      "adagrad_smartinfinity",
                                                                      "lamb",
                                                                      "plugin"};

// The settings of an optimizer that are never open. The numbers that are not parameters of `name`
// keep the values here, so that equal text means equal specs.
struct OptimizerSettings {
  OptimizerName name = OptimizerName::kAdamW;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double momentum = 0.0;      // 0 keeps no momentum buffer
  double dampening = 0.0;     // of the gradient, as it enters the momentum buffer
  bool nesterov = false;      // looks one step of momentum ahead
  double lr_decay = 0.0;      // update t has the rate lr / (1 + (t - 1) * lr_decay)
  bool always_adapt = false;  // gives trust ratios also to groups without weight decay
};

// The settings of an optimizer as they are chosen: open ones become the defaults of `name`.
struct OptimizerChoices {
  OptimizerName name = OptimizerName::kAdamW;
  std::optional<double> beta1;
  std::optional<double> beta2;
  std::optional<double> eps;
  std::optional<double> momentum;
  std::optional<double> dampening;
  std::optional<bool> nesterov;
  std::optional<double> lr_decay;
  std::optional<bool> always_adapt;
};

// The learning rates of jobs that name none: of new weights, and of given ones.
inline constexpr double kLrOfNewWeights = 1e-3;
inline constexpr double kLrOfGivenWeights = 5e-5;

// The optimizer of a job, with nothing left open.
struct OptimizerSpec : OptimizerSettings {
  double lr = kLrOfNewWeights;
  PluginSpec plugin;  // of optimizer.name=plugin alone
};

// A value of a parameter, and its line in the canonical text.
template <class T>
struct OptimizerValue {
  const char* line;
  T OptimizerSettings::*value;
  std::optional<T> OptimizerChoices::*choice;
};
using OptimizerNumber = OptimizerValue<double>;
using OptimizerFlag = OptimizerValue<bool>;

// Whether a line of the canonical text is left out for the value of OptimizerSettings(). Lines of
// parameters that an optimizer got after its first release are, so that older texts stay as they
// are.
enum class OptimizerLine { kAlways, kUnlessUsual };

// A key of the configuration that sets one number, a list of several, or a flag.
struct OptimizerParameter {
  const char* key;
  const char* help;
  Reals range;  // of each number
  absl::Span<const OptimizerNumber> numbers;
  const OptimizerFlag* flag_or_null = nullptr;  // if there are no numbers
  OptimizerLine line = OptimizerLine::kAlways;
};

// The facts about one optimizer. All state fields begin at zero.
struct OptimizerRow {
  OptimizerName name;
  OptimizerSettings defaults;
  absl::Span<const OptimizerParameter* const> parameters;  // in the order of the canonical text
  const char* weight_decay;                                // how it applies it, for help texts
  // Names of the state fields, as torch's state_dict has them.
  absl::Span<const char* const> (*fields)(const OptimizerSpec& spec);
  // Refuses combinations of parameters that are in their ranges; null if there are none.
  absl::Status (*check_or_null)(const OptimizerSpec& spec) = nullptr;
  // Whether the step of a tensor is scaled by its trust ratio, which is made of norms of the whole
  // tensor. An update then waits for all gradients of its step: training.mode=sealed.
  bool adapts = false;
};

// One row per optimizer of this tree, in the order of the enumerators. kPlugin is not among them.
absl::Span<const OptimizerRow> Optimizers();
// The row of any name; that of kPlugin has no parameters.
const OptimizerRow& RowOf(OptimizerName name);
// The settings of an optimizer of which nothing else is said.
const OptimizerSettings& DefaultsOf(OptimizerName name);

// The state fields that a job's optimizer keeps, FP32 arrays of the size of the weights, in the
// order in which a chunk's state has them, after the weights.
std::vector<std::string> StateFields(const OptimizerSpec& spec);

// All parameters, each once, in the order of the configuration.
absl::Span<const OptimizerParameter* const> OptimizerParameters();
bool Has(OptimizerName name, const OptimizerParameter& parameter);
// Names of the optimizers that have it.
std::vector<std::string> OwnersOf(const OptimizerParameter& parameter);

// How the optimizers apply weight decay: "decoupled from the gradient: adamw, …; part of …".
std::string WeightDecayHelp();

// The choices, with defaults in place of the open ones. InvalidArgument names a parameter of other
// optimizers, those optimizers, and the parameters that this one has. The usual value of
// OptimizerSettings is accepted and ignored: printed configurations used to hold all keys.
absl::StatusOr<OptimizerSettings> ResolveOptimizer(const OptimizerChoices& choices);
// Sets the choices to the parameters of `settings.name`; all others are open.
void KeepSettings(const OptimizerSettings& settings, OptimizerChoices* choices);

// InvalidArgument names a number that is out of range, one that the optimizer does not have and
// that differs from its usual value: it would not be part of the text, or two that exclude each
// other.
absl::Status ValidateOptimizer(const OptimizerSpec& spec);

}  // namespace eps

#endif  // EPS_BASE_JOB_OPTIMIZERS_H_
