#include "eps_server/core/steps/step_desk.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "eps_server/core/replay/log_facts.h"

namespace eps {
namespace {

// Turns the sum over all tokens into their mean, and undoes the loss scale.
double MeanScale(int loss_scale_log2, uint64_t tokens) {
  return std::ldexp(1.0, loss_scale_log2) / static_cast<double>(std::max<uint64_t>(tokens, 1));
}

}  // namespace

StepDesk::StepDesk(const ShardFacts* facts, const DeskQueries* queries, Outbox* outbox)
    : facts_(*facts),
      queries_(*queries),
      outbox_(outbox),
      chunks_(facts_.owned.size()),
      sum_squares_(facts_.owned.size(), 0.0) {
  for (size_t i = 0; i < chunks_.size(); ++i) {
    chunks_[i].id = facts_.owned[i].id;
    if (!facts_.job.IsFrozen(chunks_[i].id)) ++trained_;
  }
}

// ---------------------------------------------------------------- gradients

void StepDesk::On(const internal_event::ChunkComplete& e) {
  Chunk& chunk = chunks_[facts_.local[e.chunk.value()]];
  chunk.complete = true;
  chunk.tokens = e.tokens;
  chunk.inputs = e.inputs;
  if (!e.tokens.has_value()) {
    return outbox_->Raise(internal_event::JobFailed{
        absl::StrCat("step ", facts_.step, ": the uses of chunk ", e.chunk.value(),
                     " count different numbers of tokens")});
  }
  if (e.nonfinite) {
    DropGradient(&chunk);
  } else if (facts_.job.sealed()) {
    StartReduction(&chunk);
  } else {
    MaybeStartUpdate(&chunk);
  }
  MaybeComplete();  // during a replay, a step that is skipped may end here
}

// A contribution to the chunk's gradient is not finite: there is nothing to sum. The lead learns of
// it from the statistics, and every shard skips the step.
void StepDesk::DropGradient(Chunk* chunk) {
  outbox_->Raise(internal_event::GradientUsed{chunk->id});
  chunk->nonfinite = true;
  nonfinite_chunk_ = std::max(nonfinite_chunk_.value_or(chunk->id), chunk->id);
  sum_squares_[IndexOf(*chunk)] = 0;
  if (++reduced_ < trained_) return;
  KeepStats(StatsOf(facts_.step));
  SendStats();
}

// Builds the request that consumes the gradient of a complete chunk. Its scale makes the sum of the
// contributions the mean over tokens.
UpdateRequest StepDesk::NewRequest(Chunk* chunk) const {
  const Version version = facts_.Owned(chunk->id)->version;
  UpdateRequest request;
  request.chunk = chunk->id;
  request.from = version;
  request.to = version.Next();
  request.parts = facts_.job.spec.training.parts;
  request.norm_scale = static_cast<float>(MeanScale(facts_.loss_scale_log2(), *chunk->tokens));
  request.reduced = chunk->reduced;
  request.inputs = std::move(chunk->inputs);
  return request;
}

void StepDesk::StartReduction(Chunk* chunk) {
  chunk->reducing = true;
  const OpId op = outbox_->StartOp(ReduceRequest{NewRequest(chunk)});
  ops_[op] = {Op::Kind::kReduction, chunk->id};
}

void StepDesk::OnReduced(Chunk* chunk, const BackendDone& done) {
  outbox_->Raise(internal_event::GradientUsed{chunk->id});
  if (!done.status.ok()) {
    return outbox_->Raise(internal_event::OpFailed{
        absl::StrCat("reduction of chunk ", chunk->id.value(), " at step ", facts_.step),
        done.status});
  }
  const UpdateResult& result = std::get<UpdateResult>(done.value);
  chunk->reducing = false;
  chunk->reduced = result.reduced;
  sum_squares_[IndexOf(*chunk)] = result.sum_squares;
  if (++reduced_ == trained_) {
    KeepStats(StatsOf(facts_.step));
    SendStats();
  }
  // During a replay the decision may be there before what it was made of.
  MaybeStartUpdate(chunk);
  MaybeComplete();
  outbox_->Raise(internal_event::MemoryFreed());
}

// ---------------------------------------------------------------- updates

void StepDesk::OnMessage(const v1::Decision& decision) {
  if (facts_.logging() && decision.step() >= facts_.step &&
      decisions_.count(decision.step()) == 0) {
    outbox_->Log(decision.step(), DecisionFact(decision));
  }
  On(internal_event::Decided{decision});
}

void StepDesk::On(const internal_event::Decided& e) {
  if (e.decision.step() < facts_.step || facts_.state == v1::JOB_STATE_FAILED) return;
  decisions_.emplace(e.decision.step(), e.decision);
  StartReadyUpdates();
}

void StepDesk::StartReadyUpdates() {
  for (Chunk& chunk : chunks_) MaybeStartUpdate(&chunk);
  MaybeComplete();  // a skipped step has no update whose end would complete it
}

void StepDesk::MaybeStartUpdate(Chunk* chunk) {
  const OwnedChunk& fact = *facts_.Owned(chunk->id);
  if (facts_.state != v1::JOB_STATE_RUNNING || fact.updating || chunk->reducing ||
      chunk->nonfinite || fact.version != Version(facts_.version) || !chunk->complete) {
    return;
  }
  if (facts_.border_readers > 0) return;        // an export reads the border
  if (facts_.cuts.pending.has_value()) return;  // the border's cut has to begin first
  const auto decision = decisions_.find(facts_.step);
  if (decision != decisions_.end() && !decision->second.skip()) {
    StartUpdate(chunk, decision->second);
  }
}

void StepDesk::StartUpdate(Chunk* chunk, const v1::Decision& decision) {
  if (decision.loss_scale_log2() != facts_.loss_scale_log2()) {
    return outbox_->Raise(internal_event::JobFailed{
        absl::StrCat("step ", facts_.step, ": the lead's decision has a loss scale of 2^",
                     -decision.loss_scale_log2(), ", this shard has 2^", -facts_.loss_scale_log2(),
                     "; resume from the latest checkpoint")});
  }
  UpdateRequest request = NewUpdate(chunk, decision);
  if (facts_.job.adapts()) {
    const v1::Trust* const trust = queries_.TrustOfOpenStep();
    if (trust == nullptr) {
      if (std::exchange(chunk->measuring, true)) return;
      return outbox_->Raise(internal_event::Measurable{request});
    }
    for (const Segment& segment : facts_.job.chunks.chunk(chunk->id).segments) {
      request.trust_ratios.push_back(trust->ratios(static_cast<int>(segment.tensor.value())));
    }
  }
  chunk->reduced.reset();
  for (const Axis axis : queries_.AxesForUpdate(chunk->id)) {
    request.encode.push_back({&facts_.job.codecs.weights(chunk->id), axis});
  }
  outbox_->Raise(internal_event::UpdateStarted{chunk->id});
  outbox_->Emit(facts_.Traced(TraceAction::Kind::kUpdateStarted, chunk->id.value(), request.from));
  const OpId op = outbox_->StartOp(std::move(request));
  ops_[op] = {Op::Kind::kUpdate, chunk->id};
}

// Builds the update of a complete chunk by a decision, without trust ratios and encodings.
UpdateRequest StepDesk::NewUpdate(Chunk* chunk, const v1::Decision& decision) const {
  UpdateRequest request = NewRequest(chunk);
  request.step.lr = decision.lr();
  request.step.update = decision.update();
  request.step.bias_correction1 = decision.bias_correction1();
  request.step.bias_correction2 = decision.bias_correction2();
  request.step.grad_scale = static_cast<float>(MeanScale(facts_.loss_scale_log2(), *chunk->tokens) *
                                               decision.clip_factor());
  return request;
}

void StepDesk::OnUpdated(Chunk* chunk, const BackendDone& done) {
  outbox_->Raise(internal_event::GradientUsed{chunk->id});
  if (!done.status.ok()) {
    return outbox_->Raise(internal_event::OpFailed{
        absl::StrCat("update of chunk ", chunk->id.value(), " at step ", facts_.step),
        done.status});
  }
  const UpdateResult& result = std::get<UpdateResult>(done.value);
  if (!facts_.job.sealed()) sum_squares_[IndexOf(*chunk)] = result.sum_squares;
  ++updated_;
  outbox_->Count("updates");
  outbox_->Emit(facts_.Traced(TraceAction::Kind::kUpdated, chunk->id.value(),
                              facts_.Owned(chunk->id)->version.Next()));
  outbox_->Raise(internal_event::ChunkUpdated{chunk->id, result.encoded});
  MaybeComplete();
  outbox_->Raise(internal_event::MemoryFreed());
}

bool StepDesk::On(const event::OpDone& e) {
  const auto it = ops_.find(e.done.op);
  if (it == ops_.end()) return false;
  const Op op = it->second;
  ops_.erase(it);
  Chunk* const chunk = &chunks_[facts_.local[op.chunk.value()]];
  if (op.kind == Op::Kind::kReduction) {
    OnReduced(chunk, e.done);
  } else {
    OnUpdated(chunk, e.done);
  }
  return true;
}

// ---------------------------------------------------------------- the end of a step

void StepDesk::MaybeComplete() {
  while (facts_.state == v1::JOB_STATE_RUNNING) {
    // A shard with nothing to train completes a step as soon as it is decided.
    const auto it = decisions_.find(facts_.step);
    if (it == decisions_.end()) return;
    const bool skip = it->second.skip();
    if (skip ? reduced_ < trained_ : updated_ < trained_) return;
    if (facts_.border_readers > 0) return;  // an export reads the border
    CloseStep(v1::Decision(it->second));
  }
}

void StepDesk::CloseStep(const v1::Decision& decision) {
  for (Chunk& chunk : chunks_) {
    chunk.complete = chunk.nonfinite = chunk.measuring = false;
    chunk.reduced.reset();  // of a skipped step, whose weights stay at the version that it read
  }
  if (decision.skip()) outbox_->Count("skipped_steps");
  outbox_->Emit(facts_.Traced(TraceAction::Kind::kStepComplete, 0,
                              Version(facts_.version + (decision.skip() ? 0 : 1))));
  decisions_.erase(decisions_.begin(), decisions_.upper_bound(facts_.step));
  const bool eager = !facts_.job.sealed();
  v1::Stats stats = StatsOf(facts_.step);
  updated_ = reduced_ = 0;
  nonfinite_chunk_.reset();
  outbox_->Raise(internal_event::StepComplete{decision});
  if (eager) KeepStats(std::move(stats));
  outbox_->Raise(internal_event::BorderReached());
  outbox_->Raise(internal_event::StepOpened());
  // The lead may decide on these statistics at once, so everything else has to be consistent.
  if (eager) SendStats();
  outbox_->Raise(internal_event::StepReady());
}

// ---------------------------------------------------------------- statistics

v1::Stats StepDesk::StatsOf(uint64_t step) const {
  v1::Stats stats;
  stats.set_step(step);
  stats.set_nonfinite(nonfinite_chunk_.has_value());
  if (nonfinite_chunk_.has_value()) stats.set_nonfinite_chunk(nonfinite_chunk_->value());
  for (size_t i = 0; i < chunks_.size(); ++i) {
    if (facts_.job.IsFrozen(chunks_[i].id)) continue;
    stats.add_chunks(chunks_[i].id.value());
    stats.add_sum_squares(sum_squares_[i]);
  }
  return stats;
}

void StepDesk::KeepStats(v1::Stats stats) {
  last_stats_.push_back(std::move(stats));
  if (last_stats_.size() > kStatsKept) last_stats_.pop_front();
}

// Sends the newest statistics.
void StepDesk::SendStats() {
  v1::ShardMessage message = facts_.NewMessage();
  *message.mutable_stats() = last_stats_.back();
  outbox_->ToLead(std::move(message));
}

void StepDesk::On(const internal_event::StepOpened&) {
  // A shard without chunks to train has nothing to reduce.
  if (!facts_.job.sealed() || trained_ > 0 || facts_.state != v1::JOB_STATE_RUNNING) return;
  KeepStats(StatsOf(facts_.step));
  SendStats();
}

void StepDesk::On(const internal_event::LeadReached&) {
  for (const v1::Stats& stats : last_stats_) {
    v1::ShardMessage message = facts_.NewMessage();
    *message.mutable_stats() = stats;
    outbox_->ToLead(std::move(message));
  }
}

// ---------------------------------------------------------------- the contribution log

void StepDesk::On(const internal_event::BorderOpened&) {
  for (const auto& [step, decision] : decisions_) outbox_->Log(step, DecisionFact(decision));
}

void StepDesk::On(const internal_event::SessionReplayed& e) {
  for (const v1::Stats& stats : e.session->stats()) {
    if (stats.step() >= facts_.step) continue;  // they follow from the other entries
    if (last_stats_.empty() || last_stats_.back().step() < stats.step()) KeepStats(stats);
  }
}

}  // namespace eps
