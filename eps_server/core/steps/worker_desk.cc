#include "eps_server/core/steps/worker_desk.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/checksum.h"
#include "base/status_macros.h"

namespace eps {

WorkerDesk::WorkerDesk(const ShardFacts* facts, const DeskQueries* queries, Outbox* outbox)
    : facts_(*facts), queries_(*queries), outbox_(outbox), parts_(facts_.job.spec.training.parts) {}

// ---------------------------------------------------------------- joins

void WorkerDesk::On(const event::Join& e) {
  if (facts_.job.is_lead() && facts_.WaitsForState()) {
    joins_.push_back(e);  // the first step is known when the weights are there
    return;
  }
  const absl::Status status = CheckJoin(e.request);
  if (!status.ok()) return outbox_->Close(e.stream, status);
  const absl::StatusOr<std::vector<uint32_t>> parts = PartsOf(e.request);
  if (!parts.ok()) return outbox_->Close(e.stream, parts.status());
  joined_.insert(e.request.worker_nonce());
  v1::JoinReply reply;
  reply.set_spec_text(facts_.job.spec.ToText());
  reply.set_term(facts_.term.value());
  for (const uint32_t part : *parts) reply.add_parts(part);
  for (const std::string& server : facts_.job.servers) reply.add_servers(server);
  reply.set_step(facts_.step);
  reply.set_state(facts_.state);
  outbox_->Emit(effect::Reply{e.stream, std::move(reply)});
}

// Takes over the compute profile of the first worker of a strict job.
absl::Status WorkerDesk::CheckJoin(const v1::JoinRequest& request) {
  if (!facts_.job.is_lead()) {
    return absl::FailedPreconditionError(
        absl::StrCat("Join: this is shard ", facts_.job.shard.value(), "; join at shard 0, ",
                     facts_.job.servers[0]));
  }
  if (facts_.state == v1::JOB_STATE_FAILED) return facts_.FailedStatus();
  if (!request.spec_digest().empty()) {
    const Sha256Digest digest = facts_.job.spec.Digest();
    if (request.spec_digest() !=
        absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size())) {
      return absl::FailedPreconditionError(
          absl::StrCat("Join: another job spec; this job's digest is ", ToHex(digest)));
    }
  }
  if (facts_.job.spec.training.determinism != Determinism::kStrict) return absl::OkStatus();
  if (compute_profile_.empty()) {
    compute_profile_ = request.compute_profile();
    outbox_->Raise(internal_event::SessionChanged());
  }
  if (compute_profile_ == request.compute_profile()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("Join: training.determinism is strict and this worker computes with \"",
                   request.compute_profile(), "\", the job with \"", compute_profile_,
                   "\"; set training.determinism=relaxed to mix"));
}

// Returns the parts that a worker hosts: those that it asks for, or else its share by rank, or all.
absl::StatusOr<std::vector<uint32_t>> WorkerDesk::PartsOf(const v1::JoinRequest& request) const {
  const uint32_t parts = facts_.job.spec.training.parts;
  EPS_RETURN_IF_ERROR(CheckParts("Join", request.parts()));
  std::vector<uint32_t> hosted(request.parts().begin(), request.parts().end());
  if (hosted.empty() && request.worker_count() > 0) {
    if (request.worker_count() > parts || request.worker_rank() >= request.worker_count()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "Join: worker ", request.worker_rank(), " of ", request.worker_count(), " in a job of ",
          parts, " parts; raise training.parts or start fewer workers"));
    }
    const uint64_t count = request.worker_count();
    const uint64_t rank = request.worker_rank();
    for (uint64_t p = rank * parts / count; p < (rank + 1) * parts / count; ++p) {
      hosted.push_back(static_cast<uint32_t>(p));
    }
  }
  if (hosted.empty()) {
    for (uint32_t p = 0; p < parts; ++p) hosted.push_back(p);
  }
  return hosted;
}

// Checks the parts that a request names: each is a part of the job, and none is named twice.
absl::Status WorkerDesk::CheckParts(absl::string_view rpc, absl::Span<const uint32_t> parts) const {
  std::vector<bool> named(parts_.size(), false);
  for (const uint32_t part : parts) {
    if (part >= parts_.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat(rpc, ": part ", part, " of a job of ", parts_.size(), " parts"));
    }
    if (named[part]) {
      return absl::InvalidArgumentError(absl::StrCat(rpc, ": part ", part, " is named twice"));
    }
    named[part] = true;
  }
  return absl::OkStatus();
}

void WorkerDesk::On(const internal_event::StepOpened&) {
  std::vector<event::Join> joins;
  joins.swap(joins_);
  for (const event::Join& join : joins) On(join);
}

// ---------------------------------------------------------------- begins

absl::Status WorkerDesk::CheckBegin(const v1::BeginStepRequest& request) const {
  if (JobId(request.job_id()) != facts_.job.id) {
    return absl::NotFoundError(absl::StrCat("BeginStep: job ", absl::Hex(request.job_id()),
                                            "; this server runs ",
                                            absl::Hex(facts_.job.id.value())));
  }
  if (facts_.state == v1::JOB_STATE_FAILED) return facts_.FailedStatus();
  if (Term(request.term()) != facts_.term) {
    return absl::AbortedError(absl::StrCat("BeginStep: term ", request.term(),
                                           " is over; the job is at term ", facts_.term.value(),
                                           " step ", facts_.step));
  }
  if (request.parts().empty()) return absl::InvalidArgumentError("BeginStep: no parts");
  EPS_RETURN_IF_ERROR(CheckParts("BeginStep", request.parts()));
  const int parts = static_cast<int>(facts_.job.spec.training.parts);
  if (request.losses_size() > parts || request.evaluations_size() > parts) {
    return absl::InvalidArgumentError(absl::StrCat(
        "BeginStep: ", request.losses_size(), " losses and ", request.evaluations_size(),
        " evaluations; at most one of each per part, ", parts, ", is allowed"));
  }
  if (request.probe()) return absl::OkStatus();
  if (facts_.step == 0) return absl::OkStatus();  // importing: the border is not known yet
  if (request.step() < facts_.step) {
    return absl::AbortedError(absl::StrCat("BeginStep: step ", request.step(),
                                           " is complete; the job is at term ", facts_.term.value(),
                                           " step ", facts_.step));
  }
  if (request.step() > facts_.step + 1 || request.step() > facts_.job.spec.training.steps + 1) {
    return absl::FailedPreconditionError(
        absl::StrCat("BeginStep: step ", request.step(), " while step ", facts_.step, " is open"));
  }
  return absl::OkStatus();
}

void WorkerDesk::On(const event::BeginStep& e) {
  const absl::Status status = CheckBegin(e.request);
  if (!status.ok()) return outbox_->Close(e.stream, status);
  for (const uint32_t part : e.request.parts()) On(internal_event::PartSeen{PartId(part)});
  outbox_->Raise(internal_event::LossesReported{&e.request});
  if (e.request.report_only()) {
    outbox_->Emit(effect::Reply{e.stream, NewReply()});
  } else {
    begins_.push_back(ParkedBegin{e.stream, e.request, facts_.now_ms});
    AnswerBegins();
  }
  outbox_->Raise(internal_event::EvaluationsReported{&e.request});
}

bool WorkerDesk::IsDue(const v1::BeginStepRequest& request) const {
  if (facts_.WaitsForState()) return false;
  if (request.probe()) return true;
  if (request.step() != facts_.step) return false;
  return facts_.gate_step == 0 || facts_.step <= facts_.gate_step ||
         facts_.state == v1::JOB_STATE_DONE;
}

void WorkerDesk::AnswerBegins() {
  std::deque<ParkedBegin> parked;
  parked.swap(begins_);
  for (ParkedBegin& begin : parked) {
    if (IsDue(begin.request)) {
      Answer(begin);
    } else if (const absl::Status status = CheckBegin(begin.request); !status.ok()) {
      outbox_->Close(begin.stream, status);
    } else {
      begins_.push_back(std::move(begin));
    }
  }
}

v1::BeginStepReply WorkerDesk::NewReply() const {
  v1::BeginStepReply reply;
  reply.set_term(facts_.term.value());
  reply.set_step(facts_.step);
  reply.set_version(facts_.version);
  reply.set_done(facts_.state == v1::JOB_STATE_DONE);
  return reply;
}

void WorkerDesk::Answer(const ParkedBegin& begin) {
  v1::BeginStepReply reply = NewReply();
  std::vector<bool> hosted(parts_.size(), false);
  for (const uint32_t part : begin.request.parts()) hosted[part] = true;
  if (!begin.request.probe()) Begin(begin.request);
  if (!reply.done()) {
    for (v1::Have& have : queries_.Counted(hosted)) *reply.add_have() = std::move(have);
    for (const OwnedChunk& chunk : facts_.owned) {
      v1::ChunkCodecs* codecs = reply.add_codecs();
      codecs->set_chunk(chunk.id.value());
      const auto weights = static_cast<uint32_t>(facts_.job.codecs.weights(chunk.id).traits().id);
      const Codec& gradient = facts_.job.codecs.gradient(chunk.id, Step(facts_.step));
      codecs->set_forward_weights(weights);
      codecs->set_backward_weights(weights);
      codecs->set_gradient(static_cast<uint32_t>(gradient.traits().id));
    }
    reply.set_push_residuals(facts_.PushResiduals());
  }
  outbox_->Emit(effect::Reply{begin.stream, std::move(reply)});
}

void WorkerDesk::Begin(const v1::BeginStepRequest& request) {
  internal_event::PartsBegun begun;
  begun.nonce = request.worker_nonce();
  for (const uint32_t part : request.parts()) {
    parts_[part].begun_step = facts_.step;
    begun.parts.push_back(PartId(part));
  }
  outbox_->Raise(begun);
}

void WorkerDesk::On(const event::Gate& e) {
  const bool changes = facts_.gate_step != e.step;
  outbox_->Raise(internal_event::GateMoved{e.step});
  if (changes) outbox_->Raise(internal_event::SessionChanged());
  v1::GateReply reply;
  reply.set_step(facts_.push_residuals.value_or(true) ? facts_.step : facts_.step + 1);
  outbox_->Emit(effect::Reply{e.stream, std::move(reply)});
  AnswerBegins();
}

// ---------------------------------------------------------------- parts

void WorkerDesk::On(const internal_event::PartSeen& e) {
  Part& part = parts_[e.part.value()];
  if (!part.lost_timer.has_value()) return;
  outbox_->Emit(effect::ClearTimer{*part.lost_timer});
  part.lost_timer.reset();
}

void WorkerDesk::On(const internal_event::PartPushes& e) {
  parts_[e.part.value()].push_stream = e.stream;
}

void WorkerDesk::StartLostTimer(Part* part) {
  part->lost_timer = outbox_->StartTimer(facts_.job.limits.part_timeout_ms);
}

void WorkerDesk::On(const event::Timer& e) {
  for (uint32_t p = 0; p < parts_.size(); ++p) {
    if (parts_[p].lost_timer != e.id) continue;
    parts_[p].lost_timer.reset();
    // Sealed: nothing was updated, and a replacement sends what is missing, however late.
    if (facts_.state != v1::JOB_STATE_RUNNING || facts_.job.sealed()) return;
    if (facts_.job.durable()) return outbox_->Raise(internal_event::RollBack());
    return outbox_->Raise(internal_event::JobFailed{
        absl::StrCat("part ", p, " was lost in step ", facts_.step,
                     " (its worker went away and none took over within ",
                     facts_.job.limits.part_timeout_ms / 1000,
                     " s), and training.mode eager with training.replay rollback keeps "
                     "no older weights to repeat the step")});
  }
}

// ---------------------------------------------------------------- the contribution log and terms

void WorkerDesk::On(const internal_event::SessionReplayed& e) {
  compute_profile_ = e.session->compute_profile();
}

void WorkerDesk::On(const internal_event::ReplayEnded&) {
  if (facts_.state != v1::JOB_STATE_RUNNING) return;
  for (Part& part : parts_) StartLostTimer(&part);
}

void WorkerDesk::Continue(WorkerDesk* before) {
  compute_profile_ = std::move(before->compute_profile_);
  joins_ = std::move(before->joins_);
}

// ---------------------------------------------------------------- status and ends

void WorkerDesk::Closed(StreamId stream) {
  begins_.erase(std::remove_if(begins_.begin(), begins_.end(),
                               [stream](const ParkedBegin& b) { return b.stream == stream; }),
                begins_.end());
  joins_.erase(std::remove_if(joins_.begin(), joins_.end(),
                              [stream](const event::Join& j) { return j.stream == stream; }),
               joins_.end());
  for (Part& part : parts_) {
    if (part.push_stream != stream) continue;
    part.push_stream.reset();
    if (facts_.state == v1::JOB_STATE_RUNNING && !part.lost_timer.has_value()) {
      StartLostTimer(&part);
    }
  }
}

void WorkerDesk::RefuseJoins(const absl::Status& why) {
  for (const event::Join& join : joins_) outbox_->Close(join.stream, why);
  joins_.clear();
}

void WorkerDesk::EndWork(const absl::Status& why) {
  for (const ParkedBegin& begin : begins_) outbox_->Close(begin.stream, why);
  begins_.clear();
}

void WorkerDesk::EndTerm(const absl::Status& why) {
  for (const Part& part : parts_) {
    if (part.push_stream.has_value()) outbox_->Close(*part.push_stream, why);
    if (part.lost_timer.has_value()) outbox_->Emit(effect::ClearTimer{*part.lost_timer});
  }
}

void WorkerDesk::Waits(WaitPage* page) const {
  for (const event::Join& join : joins_) {
    page->Add(absl::StrCat("Join of worker ", join.request.worker_rank()), page->step(),
              page->now_ms());
  }
  for (const ParkedBegin& begin : begins_) {
    const bool gated = facts_.gate_step != 0 && begin.request.step() > facts_.gate_step;
    page->Add(absl::StrCat(begin.request.probe() ? "Probe" : "BeginStep ",
                           begin.request.probe() ? "" : absl::StrCat(begin.request.step()),
                           " of part ", begin.request.parts(0)),
              gated ? absl::StrCat("the gate at step ", facts_.gate_step) : page->step(),
              begin.since_ms);
  }
}

}  // namespace eps
