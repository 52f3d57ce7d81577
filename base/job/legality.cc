#include "base/job/legality.h"

#include "absl/strings/str_cat.h"
#include "base/job/names.h"

namespace eps {
namespace {

// One column of the table "Modes". The rows stand in the order in which `auto` tries them.
struct ModeRules {
  Mode mode;
  bool clip_none, clip_lagged, clip_exact;
  bool nonfinite_skip;
};
constexpr ModeRules kModes[] = {
    {Mode::kEager, true, true, false, false},
    {Mode::kSealed, true, true, true, true},
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

absl::Status Check(Mode mode, Clip clip, Nonfinite nonfinite) {
  const ModeRules& rules = RulesOf(mode);
  if (!Allows(rules, clip)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "training.mode=", NameOf(mode), " and training.clip=", NameOf(clip),
        " exclude each other: an eager update cannot wait for the norm of the whole gradient; set "
        "training.clip=lagged (the norm of the step before) or none, or training.mode=sealed"));
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

absl::StatusOr<Mode> ResolveMode(Auto<Mode> mode, Clip clip, Nonfinite nonfinite) {
  Mode resolved = mode.value_or(Mode::kEager);
  if (!mode.has_value()) {
    for (const ModeRules& rules : kModes) {
      resolved = rules.mode;
      if (Allows(rules, clip) && Allows(rules, nonfinite)) break;
    }
  }
  if (absl::Status status = Check(resolved, clip, nonfinite); !status.ok()) return status;
  return resolved;
}

absl::Status CheckLegal(const TrainingSpec& training) {
  return Check(training.mode, training.clip, training.nonfinite);
}

}  // namespace eps
