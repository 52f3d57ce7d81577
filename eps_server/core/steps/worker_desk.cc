#include "eps_server/core/steps/worker_desk.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "eps_server/core/steps/gate_table.h"

namespace eps {

WorkerDesk::WorkerDesk(const ShardFacts* facts, const DeskQueries* queries, Outbox* outbox)
    : facts_(*facts), queries_(*queries), outbox_(outbox) {}

// ---------------------------------------------------------------- begins

absl::Status WorkerDesk::CheckGenerations(const v1::BeginStepRequest& request) const {
  const auto& named = request.generations();
  if (!named.empty() && named.size() != request.parts_size()) {
    return absl::InvalidArgumentError(absl::StrCat("BeginStep: ", named.size(), " generations for ",
                                                   request.parts_size(),
                                                   " parts; send one for each"));
  }
  for (int i = 0; i < request.parts_size(); ++i) {
    EPS_RETURN_IF_ERROR(facts_.CheckGeneration("BeginStep", PartId(request.parts(i)),
                                               named.empty() ? 0 : named.Get(i)));
  }
  return absl::OkStatus();
}

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
  EPS_RETURN_IF_ERROR(facts_.CheckParts("BeginStep", request.parts()));
  EPS_RETURN_IF_ERROR(CheckGenerations(request));
  EPS_RETURN_IF_ERROR(queries_.CheckBegin(request));
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
  if (!e.request.generations().empty()) {
    internal_event::PartsSeen seen;
    for (int i = 0; i < e.request.parts_size(); ++i) {
      seen.parts.emplace_back(PartId(e.request.parts(i)), e.request.generations(i));
    }
    outbox_->Raise(seen);
  }
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
  return !facts_.IsGated(facts_.step) || facts_.state == v1::JOB_STATE_DONE;
}

void WorkerDesk::AnswerBegins() {
  std::deque<ParkedBegin> parked;
  parked.swap(begins_);
  for (ParkedBegin& begin : parked) {
    // Another process may hold the part meanwhile, and another step may be open.
    if (const absl::Status status = CheckBegin(begin.request); !status.ok()) {
      outbox_->Close(begin.stream, status);
    } else if (IsDue(begin.request)) {
      Answer(begin);
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
  std::vector<bool> hosted(facts_.job.spec.training.parts, false);
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
  for (const uint32_t part : request.parts()) begun.parts.push_back(PartId(part));
  outbox_->Raise(begun);
}

void WorkerDesk::On(const internal_event::GateMoved&) {
  owes_gate_set_ = true;
  AnswerGate();
  AnswerBegins();
}

void WorkerDesk::On(const internal_event::StepReady&) {
  AnswerGate();
  AnswerBegins();
}

// A shard that is not open knows no border: it would name one that the job may have passed.
void WorkerDesk::AnswerGate() {
  if (!owes_gate_set_ || facts_.WaitsForState()) return;
  owes_gate_set_ = false;
  v1::ShardMessage message = facts_.NewMessage();
  message.mutable_gate_set()->set_revision(facts_.hold.gate.revision());
  message.mutable_gate_set()->set_first_border(
      facts_.push_residuals.value_or(true) ? facts_.step : facts_.step + 1);
  outbox_->ToLead(std::move(message));
}

// ---------------------------------------------------------------- status and ends

void WorkerDesk::Closed(StreamId stream) {
  begins_.erase(std::remove_if(begins_.begin(), begins_.end(),
                               [stream](const ParkedBegin& b) { return b.stream == stream; }),
                begins_.end());
}

void WorkerDesk::EndWork(const absl::Status& why) {
  for (const ParkedBegin& begin : begins_) outbox_->Close(begin.stream, why);
  begins_.clear();
}

void WorkerDesk::Waits(WaitPage* page) const {
  for (const ParkedBegin& begin : begins_) {
    page->Add(absl::StrCat(begin.request.probe() ? "Probe" : "BeginStep ",
                           begin.request.probe() ? "" : absl::StrCat(begin.request.step()),
                           " of part ", begin.request.parts(0)),
              facts_.IsGated(begin.request.step()) ? GateText(facts_.hold.gate) : page->step(),
              begin.since_ms);
  }
}

}  // namespace eps
