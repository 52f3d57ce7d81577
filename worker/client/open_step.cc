#include "worker/client/open_step.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace eps {

absl::StatusOr<v1::BeginStepReply> OpenStep::TakeProbes(
    const std::vector<v1::BeginStepReply>& replies) {
  open_.clear();
  const v1::BeginStepReply* lowest = &replies[0];
  for (size_t i = 0; i < replies.size(); ++i) {
    EPS_RETURN_IF_ERROR(CheckTerm("Probe", i, replies[i]));
    open_.push_back(Step(replies[i].step()));
    if (replies[i].step() < lowest->step()) lowest = &replies[i];
  }
  return *lowest;
}

std::vector<size_t> OpenStep::ShardsToAsk(Step step) const {
  std::vector<size_t> shards;
  for (size_t i = 0; i < open_.size(); ++i) {
    if (open_[i] <= step) shards.push_back(i);
  }
  return shards;
}

absl::StatusOr<StepStart> OpenStep::TakeReplies(Step step, const std::vector<size_t>& asked,
                                                const std::vector<v1::BeginStepReply>& replies) {
  const v1::BeginStepReply& first = replies[0];
  counted_.clear();
  for (size_t i = 0; i < replies.size(); ++i) {
    const v1::BeginStepReply& reply = replies[i];
    const std::string call = absl::StrCat("BeginStep ", step.value());
    EPS_RETURN_IF_ERROR(CheckTerm(call, asked[i], reply));
    const std::string context = absl::StrCat(call, " on ", job_->servers[asked[i]], ": ");
    if (Step(reply.step()) != step || reply.version() != first.version() ||
        reply.done() != first.done() || reply.loss_scale_log2() != first.loss_scale_log2()) {
      return absl::InternalError(absl::StrCat(
          context, "step ", reply.step(), " version ", reply.version(), " loss scale 2^",
          reply.loss_scale_log2(), reply.done() ? " done" : "", ", but ", job_->servers[asked[0]],
          " says step ", first.step(), " version ", first.version(), " loss scale 2^",
          first.loss_scale_log2(), first.done() ? " done" : ""));
    }
    EPS_RETURN_IF_ERROR(CheckCodecs(reply));
    for (const v1::Have& have : reply.have()) {
      for (const PartId part : parts_) {
        if (part.value() - have.part_first() >= have.part_count()) continue;
        counted_.emplace(have.use_stage(), part.value(), have.chunk());
      }
    }
  }
  step_ = step;
  loss_scale_log2_ = first.loss_scale_log2();
  CountCompleteShards();
  StepStart start;
  start.done = first.done();
  start.counted = !start.done && AllCounted();
  start.step = step;
  start.version = Version(first.version());
  start.loss_scale_log2 = first.loss_scale_log2();
  return start;
}

bool OpenStep::IsCounted(StageId use, PartId part, ChunkId chunk) const {
  return counted_.count({use.value(), part.value(), chunk.value()}) > 0;
}

void OpenStep::CountCompleteShards() {
  for (uint32_t use = 0; use < job_->spec.stages.size(); ++use) {
    for (const ChunkId chunk : job_->chunks.ChunksOfStage(StageId(use))) {
      if (job_->chunks.chunk(chunk).frozen) continue;
      if (open_[job_->placement[chunk.value()].value()] <= step_) continue;
      for (const PartId part : parts_) counted_.emplace(use, part.value(), chunk.value());
    }
  }
}

bool OpenStep::AllCounted() const {
  size_t contributions = 0;
  for (uint32_t use = 0; use < job_->spec.stages.size(); ++use) {
    for (const ChunkId chunk : job_->chunks.ChunksOfStage(StageId(use))) {
      if (!job_->chunks.chunk(chunk).frozen) contributions += parts_.size();
    }
  }
  return counted_.size() == contributions;
}

absl::Status OpenStep::CheckTerm(absl::string_view call, size_t shard,
                                 const v1::BeginStepReply& reply) const {
  if (Term(reply.term()) == job_->term) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat(call, " on ", job_->servers[shard],
                                         ": the job's term moved from ", job_->term.value(), " to ",
                                         reply.term(), ": its state was rolled back; join again"));
}

absl::Status OpenStep::CheckCodecs(const v1::BeginStepReply& reply) const {
  for (const v1::ChunkCodecs& codecs : reply.codecs()) {
    const size_t count = job_->chunks.chunks().size();
    if (codecs.chunk() >= count) {
      return absl::InternalError(absl::StrCat("BeginStep ", reply.step(), ": codecs for chunk ",
                                              codecs.chunk(), " of ", count));
    }
    const ChunkId chunk(codecs.chunk());
    const Codec& weights = job_->codecs->weights(chunk);
    const Codec& gradient = job_->codecs->gradient(chunk, Step(reply.step()));
    const auto weights_id = static_cast<uint32_t>(weights.traits().id);
    const auto gradient_id = static_cast<uint32_t>(gradient.traits().id);
    if (codecs.forward_weights() != weights_id || codecs.backward_weights() != weights_id ||
        codecs.gradient() != gradient_id) {
      return absl::InternalError(absl::StrCat(
          "BeginStep ", reply.step(), ": chunk ", codecs.chunk(), ": the server's codecs are ",
          codecs.forward_weights(), " forward, ", codecs.backward_weights(), " backward, ",
          codecs.gradient(), " for gradients; the job spec says ", weights_id, " (", weights.name(),
          ") and ", gradient_id, " (", gradient.name(), ")"));
    }
  }
  return absl::OkStatus();
}

}  // namespace eps
