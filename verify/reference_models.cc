#include "verify/reference_models.h"

#include <algorithm>
#include <array>
#include <utility>

#include "ATen/Context.h"
#include "ATen/Parallel.h"
#include "ATen/TensorOperators.h"
#include "ATen/core/Tensor.h"
#include "ATen/ops/full.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/job/layout/model_layout.h"
#include "base/status_macros.h"
#include "worker/exec/torch_guard.h"

namespace eps {
namespace {

using at::Tensor;

// By ModelType; null without a reference. Complete before main: registrations are static objects of
// files that are always linked.
using Factories = std::array<ReferenceModelRegistration::Factory, kNames<ModelType>.size()>;

Factories& RegisteredReferences() {
  static Factories factories{};
  return factories;
}

// Returns null for fp32, which does not round.
absl::StatusOr<std::unique_ptr<ReferenceCodec>> StashReference(const std::string& name) {
  if (name == "fp32") return std::unique_ptr<ReferenceCodec>();
  for (const char* const known : {"bf16", "fp16", "fp8_e4m3", "fp8_e5m2"}) {
    if (name == known) return NewReferenceCodec(name);
  }
  return absl::UnimplementedError(
      absl::StrCat("the reference does not know how worker.stash_codec=", name, " rounds"));
}

// Uses of a stage are accessed by index, so the spec must have the layout of its model.
absl::Status CheckLayout(const JobSpec& spec) {
  JobSpec expected = spec;
  EPS_RETURN_IF_ERROR(BuildLayout(/*weight_decay=*/0, &expected));
  expected.groups = spec.groups;  // the job chooses them
  for (size_t t = 0; t < std::min(spec.tensors.size(), expected.tensors.size()); ++t) {
    expected.tensors[t].group = spec.tensors[t].group;
  }
  const std::string difference = FirstDifference(spec.ToText(), expected.ToText());
  if (difference.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("the tensors of the job are not those of its ",
                                                    NameOf(spec.model.type),
                                                    " model: ", difference));
}

// Starts LibTorch's threads. Returns whether every thread of a parallel operation flushes
// denormals.
bool PrepareLibTorch(int threads) {
  at::Context::setFlushDenormal(true);
  at::set_num_threads(threads);
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
  constexpr float kDenormal = 1e-40f;
  const Tensor smallest =
      at::full({int64_t{threads} << 16}, kDenormal, at::TensorOptions().dtype(at::kFloat));
  return (smallest + smallest).view(at::kInt).count_nonzero().item<int64_t>() == 0;
}

}  // namespace

ReferenceModelRegistration::ReferenceModelRegistration(ModelType type, Factory factory) {
  RegisteredReferences()[static_cast<size_t>(type)] = factory;
}

bool HasReferenceModel(ModelType type) {
  return RegisteredReferences()[static_cast<size_t>(type)] != nullptr;
}

std::vector<std::string> ReferenceModelTypes() {
  std::vector<std::string> types;
  for (size_t type = 0; type < RegisteredReferences().size(); ++type) {
    if (RegisteredReferences()[type] != nullptr) types.emplace_back(kNames<ModelType>[type]);
  }
  return types;
}

absl::StatusOr<std::unique_ptr<ReferenceModel>> NewReferenceModel(const JobSpec& spec,
                                                                  const ReferenceOptions& options) {
  if (!HasReferenceModel(spec.model.type)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the reference computes ", absl::StrJoin(ReferenceModelTypes(), " and "),
                     " models; the job's model.type is ", NameOf(spec.model.type),
                     ", which cannot be verified"));
  }
  EPS_RETURN_IF_ERROR(CheckLayout(spec));
  EPS_ASSIGN_OR_RETURN(std::unique_ptr<ReferenceCodec> stash, StashReference(spec.codecs.stash));
  bool all_flush = false;
  EPS_RETURN_IF_ERROR(CatchTorch("starting LibTorch's threads",
                                 [&] { all_flush = PrepareLibTorch(options.threads); }));
  if (!all_flush) {
    return absl::FailedPreconditionError(
        "LibTorch's threads do not flush denormals: they were started before the reference was "
        "created");
  }
  return RegisteredReferences()[static_cast<size_t>(spec.model.type)](
      spec, options.mask_stage_shift, std::move(stash));
}

}  // namespace eps
