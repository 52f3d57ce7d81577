#include "eps_server/rpc/calls/trace_call.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "eps_server/rpc/calls/caller_scope.h"
#include "wire/payload_message.h"
#include "wire/trace/trace_message.h"

namespace eps {
namespace {

constexpr size_t kMaxReportBytes = kMaxMessageBytes - 4096;

v1::TraceReply NewReply() {
  v1::TraceReply reply;
  reply.set_now_ns(TraceNowNs());
  return reply;
}

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* TraceCall::Start(grpc::CallbackServerContext* context,
                                                             JobHost* host, CallLimit* limit,
                                                             const grpc::ByteBuffer& raw) {
  CallLimit::Place place;
  const absl::Status taken = limit->Take(&place);
  std::shared_ptr<TraceCall> call(new TraceCall(host, std::move(place)));
  call->set_context(context);
  v1::TraceRequest request;
  absl::Status status = ParseMessage(raw, &request);
  if (status.ok() && (request.steps() < 1 || request.steps() > kMaxSteps)) {
    status = absl::InvalidArgumentError(
        absl::StrCat("Trace: ", request.steps(), " steps, expected 1 to ", kMaxSteps));
  }
  if (status.ok() && !taken.ok()) status = absl::ResourceExhaustedError(taken.message());
  absl::StatusOr<std::shared_ptr<JobShell>> job =
      status.ok() ? host->Find(request.job_id(), ScopeOf(*context)) : status;
  if (job.ok() && (*job)->state() == v1::JOB_STATE_DONE) {
    job = absl::NotFoundError("Trace: the job of this server is done; a trace needs one that runs");
  }
  call->AdoptOrEnd(job);
  if (call->job() != nullptr) call->Begin(request.steps());
  return call.get();
}

void TraceCall::Begin(uint32_t steps) {
  const uint32_t shard = job()->shard().value();
  process_ =
      absl::StrCat("server ", shard, " (", job()->servers()[shard], ", process ", getpid(), ")");
  {
    MutexLock lock(&trace_mu_);
    steps_ = steps;
    begun_.resize(job()->is_lead() ? job()->spec().training.parts : 0);
    recording_.emplace();
  }
  // The desk knows the call before its client has the first answer: a step that begins after the
  // answer is traced. `work_` sends what the desk reports in between after the answer.
  work_.Post([self = Self()] {
    self->job()->traces().Add(self);
    self->Write(JoinPayload(NewReply(), Bytes()));
    self->SendRegularly();
  });
}

void TraceCall::OnEnded() {
  {
    MutexLock lock(&trace_mu_);
    recording_.reset();
  }
  if (job() == nullptr) return;
  work_.Post([self = Self()] { self->job()->traces().Remove(self.get()); });
}

void TraceCall::SendRegularly() {
  // The timers keep the call alive for kInterval only.
  job()->timers()->Schedule(kInterval, [weak = std::weak_ptr<TraceCall>(Self())] {
    const std::shared_ptr<TraceCall> self = weak.lock();
    if (self == nullptr) return;
    self->work_.Post([self] {
      self->SendSpans();
      MutexLock lock(&self->trace_mu_);
      if (self->recording_.has_value()) self->SendRegularly();
    });
  });
}

void TraceCall::SendSpans() {
  if (queued_bytes() > kMaxQueuedBytes) return;  // the recording drops what finds no room
  v1::TraceReply reply = NewReply();
  TraceRecording::Taken taken;
  {
    MutexLock lock(&trace_mu_);
    if (!recording_.has_value()) return;
    taken = recording_->Take();
    taken.dropped += std::exchange(lost_, 0);
  }
  *reply.mutable_report() = ToTraceReport(process_, taken, 0, kMaxReportBytes);
  Write(JoinPayload(reply, Bytes()));
}

void TraceCall::OnStepOpened(uint64_t step, bool done) {
  bool complete = false;
  {
    MutexLock lock(&trace_mu_);
    if (end_ != 0) return;
    if (++opened_ <= steps_ && !done) return;
    end_ = step;
    complete = IsComplete();
  }
  if (complete) return Finish();
  job()->timers()->Schedule(kReportPatience, [weak = std::weak_ptr<TraceCall>(Self())] {
    if (const std::shared_ptr<TraceCall> self = weak.lock()) self->Finish();
  });
}

bool TraceCall::WantsSpans() {
  MutexLock lock(&trace_mu_);
  return end_ == 0;
}

void TraceCall::OnBegin(const v1::BeginStepRequest& request) {
  bool complete = false;
  const auto spans = static_cast<uint64_t>(request.trace().spans_size());
  const bool fits =
      request.trace().ByteSizeLong() <= kMaxWorkerReportBytes && queued_bytes() <= kMaxQueuedBytes;
  {
    MutexLock lock(&trace_mu_);
    for (const uint32_t part : request.parts()) {
      if (part < begun_.size()) begun_[part] = std::max(begun_[part], request.step());
    }
    if (!fits) lost_ += spans;
    complete = IsComplete();
  }
  if (request.has_trace() && fits) {
    v1::TraceReply reply = NewReply();
    *reply.mutable_report() = request.trace();
    work_.Post(
        [self = Self(), reply = std::move(reply)] { self->Write(JoinPayload(reply, Bytes())); });
  }
  if (complete) Finish();
}

bool TraceCall::IsComplete() const {
  return end_ != 0 &&
         std::all_of(begun_.begin(), begun_.end(),
                     [this](uint64_t step) EPS_REQUIRES(trace_mu_) { return step >= end_; });
}

void TraceCall::Finish() {
  work_.Post([self = Self()] {
    self->SendSpans();
    self->End(absl::OkStatus());
  });
}

}  // namespace eps
