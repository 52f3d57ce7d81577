#include "worker/exec/stash/stash_tiers.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/job/layout/step_memory.h"
#include "base/job/models/model_family.h"
#include "base/job/models/model_program.h"

namespace eps {
namespace {

constexpr uint64_t kWeightSlots = 3;
constexpr uint64_t kLeavingGradients = 2;
constexpr double kActivationMargin = 1.25;

}  // namespace

StashSizes StashSizesOf(const JobSpec& spec, const StashCodec& codec) {
  const ModelSpec& model = spec.model;
  uint64_t tokens = spec.training.seq_len;
  if (model.program != nullptr && model.program->tokens > 0) {
    tokens = static_cast<uint64_t>(model.program->tokens);
  }
  const uint64_t elements =
      spec.training.micro_batch_size * tokens * FamilyOf(model.type).width(model);
  StashSizes sizes;
  sizes.gradient = elements * (spec.training.precision == Precision::kFp32 ? 4 : 2);
  sizes.input = codec.exact() ? sizes.gradient : elements * codec.bytes_per_element();
  return sizes;
}

uint64_t DeviceBytesWithoutStash(const JobSpec& spec, uint64_t largest_stage) {
  const uint64_t stages = kWeightSlots + SummedGradients(spec.training) + kLeavingGradients;
  return stages * largest_stage + static_cast<uint64_t>(kActivationMargin * ActivationBytes(spec));
}

absl::Status StashTiers::Begin(uint64_t bytes) {
  stashed_ = 0;
  on_device_ = std::min(bytes, rooms_.device);
  const uint64_t below = bytes - on_device_;
  on_host_ = std::min(below, rooms_.host);
  in_file_ = below - on_host_;
  if (in_file_ == 0 || rooms_.file) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the stash of a step takes ", bytes, " bytes: ", rooms_.device,
      " fit on the device (worker.device_memory), ", rooms_.host,
      " into host memory (worker.stash_host), and ", in_file_,
      " are left; name a folder for them (worker.stash_path), raise worker.stash_host, choose a "
      "worker.stash_codec of fewer bytes, or lower training.micro_batches or micro_batch_size"));
}

StashTier StashTiers::Next(uint64_t bytes) {
  const uint64_t before = stashed_;
  stashed_ += bytes;
  if (before < in_file_) return StashTier::kFile;
  if (before < in_file_ + on_host_) return StashTier::kHost;
  return rooms_.device > 0 ? StashTier::kDevice : StashTier::kHost;
}

}  // namespace eps
