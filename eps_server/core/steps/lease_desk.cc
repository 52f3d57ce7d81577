#include "eps_server/core/steps/lease_desk.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/checksum.h"
#include "base/exit_code.h"
#include "base/status_macros.h"

namespace eps {
namespace {

constexpr size_t kMaxProfileBytes = 1024;
constexpr size_t kMaxHostBytes = 255;
constexpr size_t kMaxProfiles = 64;  // that the status page names

LeaseTable::Limits LimitsOf(const JobFacts& job) {
  LeaseTable::Limits limits;
  limits.lease_ms = job.limits.worker_lease_ms;
  limits.close_grace_ms = job.limits.worker_close_grace_ms;
  if (limits.close_grace_ms == kAutoCloseGrace) {
    // Eager: a worker that takes over in the middle of a step may cost a return to the last cut.
    limits.close_grace_ms = job.sealed() ? 1000 : limits.lease_ms;
  }
  limits.stuck_ms = job.limits.worker_stuck_ms;
  return limits;
}

std::string NameOf(uint64_t nonce) { return absl::StrCat("worker ", absl::Hex(nonce)); }

}  // namespace

LeaseDesk::LeaseDesk(const ShardFacts* facts, const DeskQueries* queries, Outbox* outbox)
    : facts_(*facts),
      queries_(*queries),
      outbox_(outbox),
      limits_(LimitsOf(facts_.job)),
      table_(facts_.job.spec.training.parts, limits_),
      begun_(facts_.job.spec.training.parts, 0) {}

// ---------------------------------------------------------------- joins

void LeaseDesk::On(const event::Join& e) {
  if (facts_.WaitsForState()) {
    joins_.push_back(e);  // the first step is known when the weights are there
    return;
  }
  const absl::Status status = CheckJoin(e.request);
  if (!status.ok()) return outbox_->Close(e.stream, status);
  absl::StatusOr<std::vector<uint32_t>> wanted = WantedBy(e.request);
  if (!wanted.ok()) return outbox_->Close(e.stream, wanted.status());
  const uint64_t nonce = e.request.worker_nonce();
  table_.Advance(facts_.now_ms);
  Settle();
  if (!table_.Join(nonce, *std::move(wanted), facts_.now_ms)) {
    return outbox_->Close(e.stream, absl::ResourceExhaustedError(absl::StrCat(
                                        "Join: ", LeaseTable::kMaxStandbys,
                                        " workers wait for parts already; start fewer workers")));
  }
  workers_.emplace(nonce, Worker{e.request.compute_profile(), e.request.host()});
  Settle();
  v1::JoinReply reply;
  reply.set_spec_text(facts_.job.spec.ToText());
  reply.set_term(facts_.term.value());
  FillLeases(nonce, reply.mutable_leases());
  reply.set_lease_ms(static_cast<uint32_t>(limits_.lease_ms));
  for (const std::string& server : facts_.job.servers) reply.add_servers(server);
  reply.set_step(facts_.step);
  reply.set_state(facts_.state);
  outbox_->Emit(effect::Reply{e.stream, std::move(reply)});
}

absl::Status LeaseDesk::CheckJoin(const v1::JoinRequest& request) const {
  if (facts_.state == v1::JOB_STATE_FAILED) return facts_.FailedStatus();
  if (!request.spec_digest().empty()) {
    const Sha256Digest digest = facts_.job.spec.Digest();
    if (request.spec_digest() !=
        absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size())) {
      return absl::FailedPreconditionError(
          absl::StrCat("Join: another job spec; this job's digest is ", ToHex(digest)));
    }
  }
  if (request.worker_nonce() == 0) {
    return absl::InvalidArgumentError("Join: worker_nonce is 0; it must name the worker process");
  }
  if (request.host().size() > kMaxHostBytes) {
    return absl::InvalidArgumentError(absl::StrCat("Join: host: at most ", kMaxHostBytes,
                                                   " bytes, found ", request.host().size()));
  }
  if (request.compute_profile().size() > kMaxProfileBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("Join: a compute profile of ", request.compute_profile().size(),
                     " bytes; at most ", kMaxProfileBytes, " are allowed"));
  }
  return CheckProfile("Join", request.compute_profile());
}

absl::Status LeaseDesk::CheckProfile(const char* rpc, const std::string& profile) const {
  if (compute_profile_.empty() || compute_profile_ == profile) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      rpc, ": training.determinism is strict and this worker computes with \"", profile,
      "\", the job with \"", compute_profile_, "\"; set training.determinism=relaxed to mix"));
}

// Returns the parts that a worker wants: those that it asks for, or else its share by rank. Empty:
// whatever is free.
absl::StatusOr<std::vector<uint32_t>> LeaseDesk::WantedBy(const v1::JoinRequest& request) const {
  const uint32_t parts = facts_.job.spec.training.parts;
  EPS_RETURN_IF_ERROR(facts_.CheckParts("Join", request.parts()));
  std::vector<uint32_t> wanted(request.parts().begin(), request.parts().end());
  std::sort(wanted.begin(), wanted.end());
  if (!wanted.empty() || request.worker_count() == 0) return wanted;
  if (request.worker_count() > parts || request.worker_rank() >= request.worker_count()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Join: worker ", request.worker_rank(), " of ", request.worker_count(), " in a job of ",
        parts, " parts; raise training.parts or start fewer workers"));
  }
  const uint64_t count = request.worker_count();
  const uint64_t rank = request.worker_rank();
  for (uint64_t p = rank * parts / count; p < (rank + 1) * parts / count; ++p) {
    wanted.push_back(static_cast<uint32_t>(p));
  }
  return wanted;
}

void LeaseDesk::On(const internal_event::StepOpened&) {
  if (!is_open_) table_.Open(facts_.now_ms);
  is_open_ = true;
  std::vector<event::Join> joins;
  joins.swap(joins_);
  for (const event::Join& join : joins) On(join);
}

// ---------------------------------------------------------------- sessions

absl::Status LeaseDesk::CheckBeat(const event::Beat& e) const {
  if (JobId(e.beat.job_id()) != facts_.job.id) {
    return absl::NotFoundError(absl::StrCat("Session: job ", absl::Hex(e.beat.job_id()),
                                            "; this server runs ",
                                            absl::Hex(facts_.job.id.value())));
  }
  if (facts_.state == v1::JOB_STATE_FAILED) return facts_.FailedStatus();
  if (Term(e.beat.term()) != facts_.term) {
    return absl::AbortedError(absl::StrCat("Session: term ", e.beat.term(),
                                           " is over; the job is at term ", facts_.term.value(),
                                           " step ", facts_.step, "; join again"));
  }
  const auto session = sessions_.find(e.stream);
  if (session != sessions_.end() && session->second.nonce != e.beat.worker_nonce()) {
    return absl::InvalidArgumentError(
        absl::StrCat("Session: ", NameOf(e.beat.worker_nonce()), " on the stream of ",
                     NameOf(session->second.nonce), "; open a stream for each worker"));
  }
  return absl::OkStatus();
}

void LeaseDesk::On(const event::Beat& e) {
  if (const absl::Status status = CheckBeat(e); !status.ok()) {
    outbox_->Close(e.stream, status);
    return Closed(e.stream);
  }
  const uint64_t nonce = e.beat.worker_nonce();
  const bool had_session = sessions_.count(e.stream) > 0;
  table_.Advance(facts_.now_ms);
  Settle();
  if (had_session && sessions_.count(e.stream) == 0) return;  // its lease ended, and the stream
  if (e.beat.leave()) {
    table_.Leave(nonce, facts_.now_ms);
    sessions_.erase(e.stream);
    Settle();
    return outbox_->Close(e.stream, absl::OkStatus());
  }
  if (!table_.Knows(nonce)) {
    return outbox_->Close(e.stream, absl::AbortedError(absl::StrCat(
                                        "Session: ", NameOf(nonce), " holds no lease of term ",
                                        facts_.term.value(), " and waits for none; join again")));
  }
  Session* const session = OpenSession(e.stream, nonce);
  table_.Beat(nonce, e.beat.visits(), e.beat.waits(), facts_.now_ms);
  Settle();
  if (!session->told) SendNotice(e.stream, session);
}

LeaseDesk::Session* LeaseDesk::OpenSession(StreamId stream, uint64_t nonce) {
  const auto known = sessions_.find(stream);
  if (known != sessions_.end()) return &known->second;
  if (const std::optional<StreamId> before = StreamOf(nonce)) {
    sessions_.erase(*before);
    outbox_->Close(*before, absl::CancelledError(absl::StrCat(
                                "Session: ", NameOf(nonce), " opened it again on another stream")));
  }
  Session* const session = &sessions_[stream];
  session->nonce = nonce;
  return session;
}

std::optional<StreamId> LeaseDesk::StreamOf(uint64_t nonce) const {
  for (const auto& [stream, session] : sessions_) {
    if (session.nonce == nonce) return stream;
  }
  return std::nullopt;
}

void LeaseDesk::FillLeases(uint64_t nonce,
                           google::protobuf::RepeatedPtrField<v1::Lease>* leases) const {
  for (const uint32_t part : table_.PartsOf(nonce)) {
    v1::Lease* const lease = leases->Add();
    lease->set_part(part);
    lease->set_generation(table_.parts()[part].generation);
  }
}

void LeaseDesk::SendNotice(StreamId stream, Session* session) {
  session->told = true;
  v1::Notice notice;
  notice.set_term(facts_.term.value());
  FillLeases(session->nonce, notice.mutable_leases());
  notice.set_lease_ms(static_cast<uint32_t>(limits_.lease_ms));
  notice.set_done(IsDone());
  const auto worker = workers_.find(session->nonce);
  if (worker != workers_.end() && worker->second.ends) {
    notice.set_wish(v1::Notice::WISH_END);
  } else if (table_.Yields(session->nonce)) {
    notice.set_wish(v1::Notice::WISH_REJOIN);
  }
  outbox_->Emit(effect::Reply{stream, std::move(notice)});
}

// The job is at its end when every shard has completed the last step.
bool LeaseDesk::IsDone() const {
  return facts_.state == v1::JOB_STATE_DONE &&
         queries_.RecordedStep() >= facts_.job.spec.training.steps;
}

void LeaseDesk::On(const internal_event::RecordsUpToDate&) {
  if (is_done_ || !IsDone()) return;
  is_done_ = true;
  for (auto& [stream, session] : sessions_) SendNotice(stream, &session);
}

void LeaseDesk::Settle() {
  std::vector<std::pair<StreamId, absl::Status>> over;
  std::vector<uint64_t> told;
  bool leases_changed = false;
  for (const LeaseTable::Change& change : table_.TakeChanges()) {
    leases_changed |= !change.parts.empty();
    if (!change.end.has_value()) {
      outbox_->Count("leases_granted", change.parts.size());
      told.push_back(change.nonce);
      continue;
    }
    outbox_->Count("leases_ended", change.parts.size());
    workers_.erase(change.nonce);
    for (const uint32_t part : change.parts) {
      if (*change.end != LeaseTable::End::kLeft) {
        lost_[part] = std::max(lost_[part], begun_[part]);
      }
      begun_[part] = 0;
    }
    const std::optional<StreamId> stream = StreamOf(change.nonce);
    if (!stream.has_value()) continue;
    sessions_.erase(*stream);
    if (*change.end == LeaseTable::End::kLeft) {
      over.emplace_back(*stream, absl::OkStatus());
    } else {
      over.emplace_back(*stream, absl::AbortedError(absl::StrCat(
                                     "Session: the lease of ", NameOf(change.nonce),
                                     " is over: ", TextOf(*change.end, limits_), "; join again")));
    }
  }
  if (leases_changed) {
    internal_event::LeasesChanged changed;
    for (const LeaseTable::Part& part : table_.parts()) changed.granted.push_back(part.generation);
    outbox_->Raise(changed);
    outbox_->ToOthers(GrantsMessage());
  }
  for (const auto& [stream, status] : over) outbox_->Close(stream, status);
  for (const uint64_t nonce : told) {
    const std::optional<StreamId> stream = StreamOf(nonce);
    if (stream.has_value()) SendNotice(*stream, &sessions_[*stream]);
  }
  Arm();
}

// ---------------------------------------------------------------- shards

v1::ShardMessage LeaseDesk::GrantsMessage() const {
  v1::ShardMessage message = facts_.NewMessage();
  for (const LeaseTable::Part& part : table_.parts()) {
    message.mutable_granted()->add_generations(part.generation);
  }
  return message;
}

void LeaseDesk::On(const internal_event::ShardReached& e) {
  if (e.shard == facts_.job.shard) return;
  outbox_->Emit(effect::ToShard{e.shard, GrantsMessage()});
}

// ---------------------------------------------------------------- steps

void LeaseDesk::On(const internal_event::PartsBegun& e) {
  bool holds = false;
  for (const PartId part : e.parts) {
    if (table_.parts()[part.value()].holder != e.nonce || e.nonce == 0) continue;
    holds = true;
    begun_[part.value()] = facts_.step;
  }
  const auto worker = workers_.find(e.nonce);
  if (!holds || worker == workers_.end() || worker->second.profile.empty()) return;
  if (computed_.size() < kMaxProfiles) computed_.insert(worker->second.profile);
  if (!IsStrict() || !compute_profile_.empty()) return;
  compute_profile_ = worker->second.profile;
  outbox_->Raise(internal_event::SessionChanged());
}

absl::Status LeaseDesk::CheckBegin(const v1::BeginStepRequest& request) const {
  const auto worker = workers_.find(request.worker_nonce());
  if (request.probe() || request.report_only() || worker == workers_.end()) {
    return absl::OkStatus();
  }
  return CheckProfile("BeginStep", worker->second.profile);
}

// ---------------------------------------------------------------- what people want

void LeaseDesk::On(const event::Standing& e) {
  table_.SetTarget(e.workers, facts_.now_ms);
  Settle();
}

void LeaseDesk::On(const event::DrainWorker& e) {
  const auto worker = workers_.find(e.nonce);
  if (worker == workers_.end()) return;
  worker->second.ends = true;
  const std::optional<StreamId> stream = StreamOf(e.nonce);
  if (stream.has_value()) SendNotice(*stream, &sessions_[*stream]);
}

// ---------------------------------------------------------------- time

void LeaseDesk::On(const event::Timer& e) {
  if (timer_ != e.id) return;
  timer_.reset();
  if (facts_.state == v1::JOB_STATE_FAILED) return;
  table_.Advance(facts_.now_ms);
  Settle();
  FailIfLost();
}

// A worker that was lost in the middle of an eager step took with it what no other process can
// compute again, unless the state is durable. A worker that left had nothing open.
uint64_t LeaseDesk::FailAt() const {
  uint64_t at = LeaseTable::kNever;
  if (facts_.job.sealed() || facts_.job.durable()) return at;
  for (const auto& [part, step] : lost_) {
    const LeaseTable::Part& lease = table_.parts()[part];
    if (lease.holder != 0 || step <= queries_.RecordedStep()) continue;
    at = std::min(at, lease.free_since_ms + facts_.job.limits.part_timeout_ms);
  }
  return at;
}

void LeaseDesk::FailIfLost() {
  if (facts_.now_ms < FailAt()) return;
  for (const auto& [part, step] : lost_) {
    const LeaseTable::Part& lease = table_.parts()[part];
    if (lease.holder != 0 || step <= queries_.RecordedStep() ||
        facts_.now_ms < lease.free_since_ms + facts_.job.limits.part_timeout_ms) {
      continue;
    }
    return outbox_->Raise(internal_event::JobFailed{
        absl::StrCat("part ", part, " was lost in step ", step,
                     " (its worker went away: ", TextOf(lease.ended, limits_),
                     "; and none took over within ", facts_.job.limits.part_timeout_ms / 1000,
                     " s), and training.mode eager with training.replay rollback keeps "
                     "no older weights to repeat the step"),
        ExitCode::kUnavailable});
  }
}

// Keeps one timer, for the time before which nothing ends. Beats move that time on; the timer finds
// out when it expires.
void LeaseDesk::Arm() {
  const uint64_t at = std::min(table_.NextDeadline(), FailAt());
  if (at == LeaseTable::kNever || facts_.state == v1::JOB_STATE_FAILED) return;
  if (timer_.has_value() && timer_at_ms_ <= at) return;
  if (timer_.has_value()) outbox_->Emit(effect::ClearTimer{*timer_});
  timer_ = outbox_->StartTimer(at - std::min(at, facts_.now_ms));
  timer_at_ms_ = at;
}

// ---------------------------------------------------------------- the contribution log and terms

void LeaseDesk::FillSession(v1::LoggedSession* session) const {
  session->set_compute_profile(compute_profile_);
  for (uint32_t p = 0; p < table_.parts().size(); ++p) {
    const LeaseTable::Part& part = table_.parts()[p];
    if (part.generation == 0) continue;
    v1::LoggedLease* const lease = session->add_leases();
    lease->set_part(p);
    lease->set_generation(part.generation);
    lease->set_worker_nonce(part.holder);
    const auto worker = workers_.find(part.holder);
    if (worker != workers_.end() && worker->second.profile != compute_profile_) {
      lease->set_compute_profile(worker->second.profile);
    }
  }
}

void LeaseDesk::On(const internal_event::SessionReplayed& e) {
  compute_profile_ = e.session->compute_profile();
  if (!compute_profile_.empty()) computed_.insert(compute_profile_);
  workers_.clear();
  for (const v1::LoggedLease& lease : e.session->leases()) {
    if (lease.part() >= begun_.size()) continue;
    const uint64_t nonce = lease.worker_nonce();
    table_.Restore(lease.part(), lease.generation(), nonce);
    if (nonce == 0) continue;
    const std::string& own = lease.compute_profile();
    workers_[nonce].profile = own.empty() ? compute_profile_ : own;
  }
}

void LeaseDesk::On(const internal_event::ReplayEnded&) {
  table_.Open(facts_.now_ms);
  Arm();
}

void LeaseDesk::Continue(LeaseDesk* before) {
  compute_profile_ = std::move(before->compute_profile_);
  computed_ = std::move(before->computed_);
  joins_ = std::move(before->joins_);
  table_.SetTarget(before->table_.target(), facts_.now_ms);
}

// ---------------------------------------------------------------- status and ends

void LeaseDesk::FillStatus(v1::StatusReply* status) const {
  for (const std::string& profile : computed_) status->add_compute_profiles(profile);
  for (const auto& [nonce, worker] : workers_) {
    v1::WorkerStatus* const shown = status->add_workers();
    shown->set_worker_nonce(nonce);
    shown->set_host(worker.host);
    for (const uint32_t part : table_.PartsOf(nonce)) shown->add_parts(part);
  }
}

void LeaseDesk::Closed(StreamId stream) {
  joins_.erase(std::remove_if(joins_.begin(), joins_.end(),
                              [stream](const event::Join& j) { return j.stream == stream; }),
               joins_.end());
  const auto it = sessions_.find(stream);
  if (it == sessions_.end()) return;
  const uint64_t nonce = it->second.nonce;
  sessions_.erase(it);
  table_.CloseSession(nonce, facts_.now_ms);
  Settle();
}

void LeaseDesk::RefuseJoins(const absl::Status& why) {
  for (const event::Join& join : joins_) outbox_->Close(join.stream, why);
  joins_.clear();
}

void LeaseDesk::EndTerm(const absl::Status& why) {
  for (const auto& [stream, session] : sessions_) outbox_->Close(stream, why);
  sessions_.clear();
  if (timer_.has_value()) outbox_->Emit(effect::ClearTimer{*timer_});
  timer_.reset();
}

void LeaseDesk::Waits(WaitPage* page) const {
  for (const event::Join& join : joins_) {
    page->Add(absl::StrCat("Join of worker ", join.request.worker_rank()), page->step(),
              page->now_ms());
  }
  if (facts_.state != v1::JOB_STATE_RUNNING) return;
  for (uint32_t p = 0; p < table_.parts().size(); ++p) {
    const LeaseTable::Part& part = table_.parts()[p];
    if (part.holder != 0) continue;
    std::string waits_for = "a worker that joins";
    if (part.last_holder != 0) {
      absl::StrAppend(&waits_for, "; ", NameOf(part.last_holder),
                      " held it last: ", TextOf(part.ended, limits_));
    }
    page->Add(absl::StrCat("part ", p, ": no worker holds it"), std::move(waits_for),
              part.free_since_ms);
  }
  for (const uint64_t nonce : table_.standbys()) {
    page->Add(absl::StrCat(NameOf(nonce), ": standby"), "parts that other workers hold",
              table_.JoinedAt(nonce));
  }
}

}  // namespace eps
