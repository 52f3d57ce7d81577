#include "eps_server/core/trust/trust_desk.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "eps_server/core/replay/log_facts.h"

namespace eps {

TrustDesk::TrustDesk(const ShardFacts* facts, Outbox* outbox) : facts_(*facts), outbox_(outbox) {
  for (const OwnedChunk& chunk : facts_.owned) trained_ += facts_.job.IsFrozen(chunk.id) ? 0 : 1;
  if (facts_.job.is_lead() && facts_.job.adapts()) {
    fold_.emplace(facts_.job.spec, facts_.job.chunks);
  }
}

// ---------------------------------------------------------------- norms

void TrustDesk::On(const internal_event::Measurable& e) {
  const OpId op = outbox_->StartOp(MeasureRequest{e.request});
  ops_[op] = {e.request.chunk, facts_.step};
}

bool TrustDesk::On(const event::OpDone& e) {
  const auto it = ops_.find(e.done.op);
  if (it == ops_.end()) return false;
  const Op op = it->second;
  ops_.erase(it);
  // A replay may know the ratios before it has measured, and be done with the step by now.
  if (op.step != facts_.step) return true;
  if (!e.done.status.ok()) {
    outbox_->Raise(internal_event::OpFailed{
        absl::StrCat("norms of chunk ", op.chunk.value(), " at step ", op.step), e.done.status});
    return true;
  }
  norms_[op.chunk] = std::get<MeasureResult>(e.done.value);
  if (norms_.size() == trained_) SendNorms();
  return true;
}

void TrustDesk::SendNorms() {
  v1::ShardMessage message = facts_.NewMessage();
  v1::TensorNorms* const norms = message.mutable_tensor_norms();
  norms->set_step(facts_.step);
  for (const auto& [chunk, measured] : norms_) {
    norms->add_chunks(chunk.value());
    for (const SegmentSquares& segment : measured.segments) {
      norms->add_weight_squares(segment.weights);
      norms->add_step_squares(segment.steps);
    }
  }
  outbox_->ToLead(std::move(message));
}

void TrustDesk::On(const internal_event::StepOpened&) {
  norms_.clear();
  trusts_.erase(trusts_.begin(), trusts_.lower_bound(facts_.step));
}

void TrustDesk::On(const internal_event::LeadReached&) {
  const bool measured = trained_ > 0 && norms_.size() == trained_;
  if (measured && OfOpenStep() == nullptr) SendNorms();
}

// ---------------------------------------------------------------- the lead

void TrustDesk::On(const internal_event::Decided& e) {
  if (!fold_.has_value() || e.decision.skip() || e.decision.step() <= fold_->step()) return;
  fold_->Begin(e.decision.step());
}

void TrustDesk::OnMessage(const v1::TensorNorms& norms) {
  if (!fold_.has_value()) return;
  const absl::Status status = fold_->OnNorms(norms);
  if (!status.ok()) {
    return outbox_->Raise(internal_event::JobFailed{std::string(status.message())});
  }
  Pump();
}

void TrustDesk::Pump() {
  if (!fold_.has_value() || facts_.replays() || facts_.state == v1::JOB_STATE_FAILED) return;
  if (last_.has_value() && last_->step() >= fold_->step()) return;
  std::optional<v1::Trust> trust = fold_->Fold();
  if (!trust.has_value()) return;
  if (facts_.logging()) outbox_->Log(trust->step(), TrustFact(*trust));
  last_ = *std::move(trust);
  v1::ShardMessage message = facts_.NewMessage();
  *message.mutable_trust() = *last_;
  outbox_->ToOthers(message);
  Take(*last_);
}

void TrustDesk::On(const internal_event::ShardReached& e) {
  if (!last_.has_value()) return;
  v1::ShardMessage message = facts_.NewMessage();
  *message.mutable_trust() = *last_;
  outbox_->Emit(effect::ToShard{e.shard, std::move(message)});
}

// ---------------------------------------------------------------- ratios

void TrustDesk::OnMessage(const v1::Trust& trust) {
  if (trust.step() < facts_.step || trusts_.count(trust.step()) > 0) return;
  if (facts_.logging()) outbox_->Log(trust.step(), TrustFact(trust));
  Take(trust);
}

void TrustDesk::Replay(const v1::Trust& trust) {
  if (fold_.has_value()) last_ = trust;
  if (trust.step() >= facts_.step) Take(trust);
}

void TrustDesk::Take(const v1::Trust& trust) {
  const size_t tensors = facts_.job.spec.tensors.size();
  if (static_cast<size_t>(trust.ratios_size()) != tensors) {
    return outbox_->Raise(internal_event::JobFailed{
        absl::StrCat("step ", trust.step(), ": the lead sends ", trust.ratios_size(),
                     " trust ratios, the job has ", tensors, " tensors")});
  }
  trusts_[trust.step()] = trust;
  outbox_->Raise(internal_event::Trusted());
}

const v1::Trust* TrustDesk::OfOpenStep() const {
  const auto it = trusts_.find(facts_.step);
  return it == trusts_.end() ? nullptr : &it->second;
}

std::string TrustDesk::WaitsFor() const {
  if (norms_.size() < trained_) {
    return absl::StrCat("the norms of ", trained_ - norms_.size(), " chunks of step ", facts_.step);
  }
  if (!fold_.has_value()) return absl::StrCat("the lead's trust ratios of step ", facts_.step);
  const std::optional<ChunkId> missing = fold_->Missing();
  if (!missing.has_value()) return "";
  return absl::StrCat("the norms of chunk ", missing->value(), " at step ", facts_.step);
}

}  // namespace eps
