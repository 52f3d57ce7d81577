#include "base/job/legality.h"

#include "absl/strings/str_cat.h"
#include "base/job/key_rules.h"
#include "base/job/models/gpt2.h"
#include "base/job/models/model_program.h"
#include "base/job/names.h"

namespace eps {
namespace {

// One column of the table "Modes". The rows stand in the order in which `auto` tries them.
struct ModeRules {
  Mode mode;
  bool clip_none, clip_lagged, clip_exact;
  bool nonfinite_skip;
  bool adapts;  // allows optimizers with trust ratios
};
constexpr ModeRules kModes[] = {
    {Mode::kEager, true, true, false, false, false},
    {Mode::kSealed, true, true, true, true, true},
};

bool Allows(const ModeRules& rules, Clip clip) {
  switch (clip) {
    case Clip::kNone:
      return rules.clip_none;
    case Clip::kLagged:
      return rules.clip_lagged;
    case Clip::kExact:
      return rules.clip_exact;
  }
  return false;
}

bool Allows(const ModeRules& rules, Nonfinite nonfinite) {
  return nonfinite == Nonfinite::kHalt || rules.nonfinite_skip;
}

const ModeRules& RulesOf(Mode mode) {
  for (const ModeRules& rules : kModes) {
    if (rules.mode == mode) return rules;
  }
  return kModes[0];
}

bool Allows(const ModeRules& rules, OptimizerName optimizer) {
  return !RowOf(optimizer).adapts || rules.adapts;
}

absl::Status Check(Mode mode, const TrainingSettings& settings, OptimizerName optimizer) {
  const Clip clip = settings.clip;
  const Nonfinite nonfinite = settings.nonfinite;
  const ModeRules& rules = RulesOf(mode);
  if (settings.precision == Precision::kCmp) {
    if (mode == Mode::kEager) {
      return absl::InvalidArgumentError(
          "training.mode=eager and training.precision=cmp exclude each other: a step that "
          "overflows is left out, and an eager server has updated a part of it by then; set "
          "training.mode=sealed, or training.precision=bf16, which needs no loss scale");
    }
    if (nonfinite != Nonfinite::kSkip) {
      return absl::InvalidArgumentError(
          "training.precision=cmp needs training.nonfinite=skip: the loss scale falls after steps "
          "that overflow");
    }
  }
  if (!Allows(rules, clip)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "training.mode=", NameOf(mode), " and training.clip=", NameOf(clip),
        " exclude each other: an eager update cannot wait for the norm of the whole gradient; set "
        "training.clip=lagged (the norm of the step before) or none, or training.mode=sealed"));
  }
  if (!Allows(rules, optimizer)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "training.mode=", NameOf(mode), " and optimizer.name=", NameOf(optimizer),
        " exclude each other: an eager update cannot wait for the norms of whole tensors; set "
        "training.mode=sealed, or another optimizer"));
  }
  if (!Allows(rules, nonfinite)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "training.mode=", NameOf(mode), " and training.nonfinite=", NameOf(nonfinite),
        " exclude each other: an eager update is done before the last gradient of its step is "
        "known to be finite, and cannot be undone; set training.nonfinite=halt, or "
        "training.mode=sealed"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Mode> ResolveMode(Auto<Mode> mode, const TrainingSettings& settings,
                                 OptimizerName optimizer) {
  Mode resolved = mode.value_or(Mode::kEager);
  if (!mode.has_value()) {
    for (const ModeRules& rules : kModes) {
      resolved = rules.mode;
      if (Allows(rules, settings.clip) && Allows(rules, settings.nonfinite) &&
          Allows(rules, optimizer)) {
        break;
      }
    }
  }
  if (absl::Status status = Check(resolved, settings, optimizer); !status.ok()) return status;
  return resolved;
}

absl::Status CheckLegal(const TrainingSpec& training, OptimizerName optimizer) {
  return Check(training.mode, training, optimizer);
}

ElementType ElementTypeOf(Precision precision) {
  switch (precision) {
    case Precision::kFp32:
      break;
    case Precision::kBf16:
      return ElementType::kBfloat16;
    case Precision::kCmp:
      return ElementType::kFloat16;
  }
  return ElementType::kFloat32;
}

absl::Status CheckPrecision(Precision precision, const ModelSpec& model) {
  constexpr char kKey[] = "training.precision";
  if (HasEveryPrecision(model)) return absl::OkStatus();
  if (model.type != ModelType::kProgram) {
    if (precision == Precision::kFp32) return absl::OkStatus();
    return Refuse(kKey, "is ", NameOf(precision), ", but a model of type ", NameOf(model.type),
                  " computes in fp32; set training.precision=fp32");
  }
  const ElementType wanted = ElementTypeOf(precision);
  if (model.program->type == wanted) return absl::OkStatus();
  for (const Precision other : {Precision::kFp32, Precision::kBf16, Precision::kCmp}) {
    if (ElementTypeOf(other) != model.program->type) continue;
    return Refuse(kKey, "is ", NameOf(precision), ", but the program of the model computes in ",
                  NameOf(model.program->type), "; set training.precision=", NameOf(other),
                  ", or export the model with `eps model export FOLDER --dtype=", NameOf(wanted),
                  "`");
  }
  return Refuse("model.program", "computes in ", NameOf(model.program->type),
                ", expected float32, bfloat16 or float16");
}

}  // namespace eps
