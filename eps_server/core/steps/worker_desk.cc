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
  for (int i = 0; i < request.parts_size(); ++i) {
    EPS_RETURN_IF_ERROR(facts_.CheckGeneration("BeginStep", PartId(request.parts(i)),
                                               named.empty() ? 0 : named.Get(i)));
  }
  return absl::OkStatus();
}

// Whether the lead may have granted a lease of the request without this shard having heard of it
// yet: the worker has the lead's answer, but each comes on its own connection.
bool WorkerDesk::AwaitsGrant(const v1::BeginStepRequest& request) const {
  if (facts_.job.is_lead()) return false;
  for (int i = 0; i < request.generations_size(); ++i) {
    if (request.generations(i) > facts_.parts[request.parts(i)].granted) return true;
  }
  return false;
}

// Checks the job, the term, and that the parts and their generations can be looked up.
absl::Status WorkerDesk::CheckNames(const v1::BeginStepRequest& request) const {
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
  const int generations = request.generations_size();
  if (generations != 0 && generations != request.parts_size()) {
    return absl::InvalidArgumentError(absl::StrCat("BeginStep: ", generations, " generations for ",
                                                   request.parts_size(),
                                                   " parts; send one for each"));
  }
  return facts_.CheckParts("BeginStep", request.parts());
}

absl::Status WorkerDesk::CheckBegin(const v1::BeginStepRequest& request) const {
  EPS_RETURN_IF_ERROR(CheckNames(request));
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
  const absl::Status status = CheckNames(e.request);
  if (!status.ok()) return outbox_->Close(e.stream, status);
  const ParkedBegin begin{e.stream, e.request, facts_.now_ms};
  if (!AwaitsGrant(e.request)) return Admit(begin);
  ungranted_.emplace(outbox_->StartTimer(facts_.job.limits.worker_lease_ms), begin);
}

void WorkerDesk::On(const internal_event::LeasesChanged&) {
  std::map<TimerId, ParkedBegin> waiting;
  waiting.swap(ungranted_);
  for (const auto& [timer, begin] : waiting) {
    if (AwaitsGrant(begin.request)) {
      ungranted_.emplace(timer, begin);
      continue;
    }
    outbox_->Emit(effect::ClearTimer{timer});
    Admit(begin);
  }
}

void WorkerDesk::On(const event::Timer& e) {
  const auto it = ungranted_.find(e.id);
  if (it == ungranted_.end()) return;
  const ParkedBegin begin = it->second;
  ungranted_.erase(it);
  const absl::Status status = CheckGenerations(begin.request);
  if (absl::IsAborted(status)) return outbox_->Close(begin.stream, status);
  outbox_->Close(begin.stream,
                 absl::UnavailableError(absl::StrCat(
                     status.message(), "; the lead at ", facts_.job.servers[0],
                     " has granted no later one for ", facts_.job.limits.worker_lease_ms,
                     " ms (servers.worker_lease)")));
}

// Takes a request whose leases were granted.
void WorkerDesk::Admit(const ParkedBegin& begin) {
  const v1::BeginStepRequest& request = begin.request;
  const absl::Status status = CheckBegin(request);
  if (!status.ok()) return outbox_->Close(begin.stream, status);
  if (!request.generations().empty()) {
    internal_event::PartsSeen seen;
    for (int i = 0; i < request.parts_size(); ++i) {
      seen.parts.emplace_back(PartId(request.parts(i)), request.generations(i));
    }
    outbox_->Raise(seen);
  }
  outbox_->Raise(internal_event::LossesReported{&request});
  if (request.report_only()) {
    outbox_->Emit(effect::Reply{begin.stream, NewReply()});
  } else {
    begins_.push_back(begin);
    AnswerBegins();
  }
  outbox_->Raise(internal_event::EvaluationsReported{&request});
}

// Whether a gate withholds the step of the request, or the word of the driver is missing.
bool WorkerDesk::IsHeld(const v1::BeginStepRequest& request) const {
  if (facts_.IsGated(request.step())) return true;
  return request.awaits_driver() && !facts_.hold.gate.driver_spoke();
}

bool WorkerDesk::IsDue(const v1::BeginStepRequest& request) const {
  if (facts_.WaitsForState()) return false;
  if (request.probe()) return true;
  if (request.step() != facts_.step) return false;
  return !IsHeld(request) || facts_.state == v1::JOB_STATE_DONE;
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
  reply.set_loss_scale_log2(facts_.loss_scale_log2());
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
    reply.set_push_residuals(facts_.PushResiduals(PartId(begin.request.parts(0))));
  }
  outbox_->Emit(effect::Reply{begin.stream, std::move(reply)});
}

void WorkerDesk::Begin(const v1::BeginStepRequest& request) {
  internal_event::PartsBegun begun;
  begun.nonce = request.worker_nonce();
  begun.leaving = request.leaving();
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
      facts_.open.push_residuals.value_or(true) ? facts_.step : facts_.step + 1);
  outbox_->ToLead(std::move(message));
}

// ---------------------------------------------------------------- status and ends

void WorkerDesk::Closed(StreamId stream) {
  begins_.erase(std::remove_if(begins_.begin(), begins_.end(),
                               [stream](const ParkedBegin& b) { return b.stream == stream; }),
                begins_.end());
  for (auto it = ungranted_.begin(); it != ungranted_.end();) {
    if (it->second.stream != stream) {
      ++it;
      continue;
    }
    outbox_->Emit(effect::ClearTimer{it->first});
    it = ungranted_.erase(it);
  }
}

void WorkerDesk::EndWork(const absl::Status& why) {
  for (const ParkedBegin& begin : begins_) outbox_->Close(begin.stream, why);
  begins_.clear();
  for (const auto& [timer, begin] : ungranted_) {
    outbox_->Emit(effect::ClearTimer{timer});
    outbox_->Close(begin.stream, why);
  }
  ungranted_.clear();
}

std::string WorkerDesk::WaitsFor(const v1::BeginStepRequest& request, WaitPage* page) const {
  if (facts_.IsGated(request.step())) return GateText(facts_.hold.gate);
  const bool is_open = request.step() == facts_.step && !facts_.WaitsForState();
  if (is_open && IsHeld(request)) return "the program that drives the job (eps train)";
  return page->step();
}

void WorkerDesk::Waits(WaitPage* page) const {
  for (const ParkedBegin& begin : begins_) {
    page->Add(absl::StrCat(begin.request.probe() ? "Probe" : "BeginStep ",
                           begin.request.probe() ? "" : absl::StrCat(begin.request.step()),
                           " of part ", begin.request.parts(0)),
              WaitsFor(begin.request, page), begin.since_ms);
  }
  for (const auto& [timer, begin] : ungranted_) {
    page->Add(
        absl::StrCat("BeginStep of part ", begin.request.parts(0)),
        absl::StrCat("the lead at ", facts_.job.servers[0], " to say that it has granted the part"),
        begin.since_ms);
  }
}

}  // namespace eps
