#include "worker/client/worker_session.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "wire/payload_message.h"

namespace eps {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr char kSessionMethod[] = "/eps.v1.Control/Session";
constexpr int kBeatsPerLease = 5;

}  // namespace

absl::StatusOr<Leases> ReadLeases(const google::protobuf::RepeatedPtrField<v1::Lease>& leases,
                                  uint32_t parts) {
  Leases read;
  for (const v1::Lease& lease : leases) {
    if (lease.part() >= parts || lease.generation() == 0) {
      return absl::InternalError(absl::StrCat("a lease of part ", lease.part(), ", generation ",
                                              lease.generation(), ", in a job of ", parts,
                                              " parts; generations begin at 1"));
    }
    read[PartId(lease.part())] = lease.generation();
  }
  return read;
}

WorkerSession::WorkerSession(std::shared_ptr<ClientCore> core, const JobView* job,
                             std::shared_ptr<grpc::Channel> channel, Leases leases,
                             milliseconds lease)
    : core_(std::move(core)),
      job_(job),
      address_(job->servers[0]),
      link_(core_, address_, std::move(channel), kSessionMethod, job->id.value(), this),
      leases_(std::move(leases)),
      lease_(lease) {}

void WorkerSession::Leave(bool job_over) {
  leaving_ = true;
  job_over_ = job_over;
  if (link_.is_open()) {
    SendBeat();
  } else if (job_over_) {
    left_ = true;
  }
}

TimePoint WorkerSession::Tick(TimePoint now) {
  const TimePoint link = link_.Tick(now);
  if (!link_.is_open() || leaving_) return link;
  if (now >= next_beat_) SendBeat();
  return std::min(link, next_beat_);
}

void WorkerSession::OnOpen() { SendBeat(); }

void WorkerSession::SendBeat() {
  v1::Beat beat;
  beat.set_job_id(job_->id.value());
  beat.set_worker_nonce(core_->nonce);
  beat.set_term(job_->term.value());
  beat.set_step(core_->work.step.value());
  beat.set_visits(core_->work.visits);
  beat.set_waits(core_->work.waits > 0);
  beat.set_leave(leaving_);
  link_.Write(JoinPayload(beat, Bytes()));
  next_beat_ = steady_clock::now() + std::max(lease_ / kBeatsPerLease, milliseconds(1));
}

void WorkerSession::OnMessage(const grpc::ByteBuffer& message) {
  v1::Notice notice;
  std::vector<grpc::Slice> none;
  const absl::Status status = SplitPayload(message, &notice, &none);
  ClientLock lock(&core_->mu);
  if (status.ok()) return OnNotice(notice);
  core_->Fail(
      absl::Status(status.code(), absl::StrCat("Session on ", address_, ": ", status.message())));
}

void WorkerSession::OnNotice(const v1::Notice& notice) {
  if (leaving_ || !core_->failure.ok()) return;
  const std::string context = absl::StrCat("Session on ", address_, ": ");
  const absl::StatusOr<Leases> leases = ReadLeases(notice.leases(), job_->spec.training.parts);
  if (!leases.ok()) {
    return core_->Fail(absl::InternalError(absl::StrCat(context, leases.status().message())));
  }
  if (Term(notice.term()) != job_->term) {
    return core_->Fail(absl::AbortedError(absl::StrCat(context, "the job's term moved from ",
                                                       job_->term.value(), " to ", notice.term(),
                                                       ": its state was rolled back; join again")));
  }
  if (notice.lease_ms() > 0) lease_ = milliseconds(notice.lease_ms());
  done_ = done_ || notice.done();
  if (notice.wish() == v1::Notice::WISH_END) core_->wish = WorkerWish::kEnd;
  if (notice.wish() == v1::Notice::WISH_REJOIN && core_->wish == WorkerWish::kNone) {
    core_->wish = WorkerWish::kRejoin;
  }
  if (leases_.empty()) leases_ = *leases;
  for (const auto& [part, generation] : leases_) {
    const auto it = leases->find(part);
    if (done_ || (it != leases->end() && it->second == generation)) continue;
    return core_->Fail(
        absl::AbortedError(absl::StrCat(context, "the lease of part ", part.value(),
                                        ", generation ", generation, ", is over; join again")));
  }
  core_->changed.NotifyAll();
  core_->timer.NotifyAll();  // the lease may be shorter now
}

bool WorkerSession::OnEnd(const grpc::Status& status) {
  if (!leaving_) return false;
  // ABORTED: the lead has no lease of this worker any more, perhaps because the answer to an
  // earlier Beat of this kind was lost.
  left_ = status.ok() || status.error_code() == grpc::StatusCode::ABORTED || job_over_;
  if (left_) core_->changed.NotifyAll();
  return left_;
}

std::string WorkerSession::WaitingFor() const {
  if (left_) return "";
  if (leaving_) return "the end of this worker's session";
  return leases_.empty() ? "a lease for this standby"
                         : "the session that keeps this worker's leases";
}

}  // namespace eps
