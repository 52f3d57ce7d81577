#include "worker/models/model_stages.h"

#include <array>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "worker/exec/torch_stage.h"

namespace eps {
namespace {

// By ModelType; null without a program. Complete before main: registrations are static objects of
// files that are always linked.
using Programs = std::array<TorchStageFactory, kNames<ModelType>.size()>;

Programs& RegisteredPrograms() {
  static Programs programs{};
  return programs;
}

}  // namespace

ProgramRegistration::ProgramRegistration(ModelType type, TorchStageFactory new_stage) {
  RegisteredPrograms()[static_cast<size_t>(type)] = new_stage;
}

absl::StatusOr<std::unique_ptr<TorchStage>> NewModelStage(const JobSpec& spec, StageId stage) {
  const Programs& programs = RegisteredPrograms();
  const TorchStageFactory new_stage = programs[static_cast<size_t>(spec.model.type)];
  if (new_stage != nullptr) return new_stage(spec, stage);
  std::vector<std::string> known;
  for (size_t type = 0; type < programs.size(); ++type) {
    if (programs[type] != nullptr) known.emplace_back(kNames<ModelType>[type]);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the LibTorch runtime computes ", absl::StrJoin(known, " and "), " models; ",
                   "the job's model.type is ", NameOf(spec.model.type)));
}

}  // namespace eps
