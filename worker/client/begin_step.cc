#include "worker/client/begin_step.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/trace/span_names.h"
#include "eps/v1/control.grpc.pb.h"
#include "eps/v1/data.grpc.pb.h"
#include "grpcpp/client_context.h"
#include "wire/grpc_status.h"

namespace eps {
namespace {

using std::chrono::steady_clock;

// BeginStep on one shard: its calls, probes and pauses, one at a time. Methods require the lock.
class ShardBegin : public std::enable_shared_from_this<ShardBegin> {
 public:
  ShardBegin(std::shared_ptr<ClientCore> core, const JobView& job, const BeginTarget& target,
             const v1::BeginStepRequest& request)
      : core_(std::move(core)),
        address_(target.address),
        channel_(target.channel),
        trace_or_null_(target.trace_or_null),
        data_(v1::Data::NewStub(channel_)),
        control_(v1::Control::NewStub(channel_)),
        request_(request),
        waited_for_(absl::StrCat("BeginStep ", request.step(), " of job ", job.spec.name)),
        started_(steady_clock::now()) {}

  bool done() const { return state_ == State::kDone; }
  bool in_flight() const { return state_ == State::kCalling || state_ == State::kProbing; }
  const v1::BeginStepReply& reply() const { return reply_; }

  // Starts the calls and probes that are due; lowers `wake` to the time when to call it next.
  absl::Status Advance(TimePoint now, TimePoint* wake) EPS_REQUIRES(client_lock) {
    if (in_flight() && result_.has_value()) {
      const grpc::Status result = *std::exchange(result_, std::nullopt);
      const bool probe = state_ == State::kProbing;
      state_ = State::kIdle;
      EPS_RETURN_IF_ERROR(probe ? OnProbe(result) : OnReply(result));
    }
    if (state_ != State::kIdle) return absl::OkStatus();
    if (now >= next_call_) {
      Call();
    } else {
      *wake = std::min(*wake, next_call_);
    }
    return absl::OkStatus();
  }

  void Cancel() EPS_REQUIRES(client_lock) {
    if (in_flight()) context_->TryCancel();
  }
  bool settled() const EPS_REQUIRES(client_lock) { return !in_flight() || result_.has_value(); }

 private:
  enum class State { kIdle, kCalling, kProbing, kDone };

  void NewContext() {
    context_ = std::make_unique<grpc::ClientContext>();
    context_->set_deadline(std::chrono::system_clock::now() + core_->options.rpc_timeout);
  }

  void Call() EPS_REQUIRES(client_lock) {
    state_ = State::kCalling;
    NewContext();
    request_.set_request_id(core_->NextRequestId());
    reply_.Clear();
    // A repeated request brings no spans twice.
    request_.clear_trace();
    if (trace_or_null_ != nullptr) trace_or_null_->MoveTo(&request_);
    sent_ns_ = TraceNowNs();
    grpc::experimental::ChannelResetConnectionBackoff(channel_.get());
    data_->async()->BeginStep(context_.get(), &request_, &reply_, ResultTaker());
  }

  void Probe() EPS_REQUIRES(client_lock) {
    state_ = State::kProbing;
    NewContext();
    status_request_.set_request_id(core_->NextRequestId());
    status_request_.set_job_id(request_.job_id());
    control_->async()->Status(context_.get(), &status_request_, &status_reply_, ResultTaker());
  }

  // The returned function drops its reference to this before the waiting thread continues and
  // perhaps destroys the channel: the last reference to a channel must not be dropped on a gRPC
  // thread.
  std::function<void(grpc::Status)> ResultTaker() {
    return [self = shared_from_this(), core = core_](grpc::Status status) mutable {
      const int64_t now_ns = TraceNowNs();
      ClientLock lock(&core->mu);
      self->received_ns_ = now_ns;
      self->result_ = std::move(status);
      self.reset();
      core->changed.NotifyAll();
    };
  }

  absl::Status OnReply(const grpc::Status& result) EPS_REQUIRES(client_lock) {
    const absl::Status status =
        FromGrpc(result, absl::StrCat("BeginStep ", request_.step(), " on ", address_));
    if (status.ok()) {
      state_ = State::kDone;
      if (trace_or_null_ != nullptr) trace_or_null_->OnReply(reply_, sent_ns_, received_ns_);
      return absl::OkStatus();
    }
    if (!MayRepeat(status.code())) return status;
    if (status.code() == absl::StatusCode::kDeadlineExceeded) {
      Probe();  // asks whether the request is parked because others are slow, or the server is away
      return absl::OkStatus();
    }
    return Away(status);
  }

  absl::Status OnProbe(const grpc::Status& result) EPS_REQUIRES(client_lock) {
    const absl::Status status = FromGrpc(result, absl::StrCat("Status on ", address_));
    if (status.ok() && status_reply_.state() == v1::JOB_STATE_FAILED) {
      return absl::FailedPreconditionError(absl::StrCat(
          "server ", address_, ": the job cannot continue: ", status_reply_.failure()));
    }
    if (!status.ok() && MayRepeat(status.code())) {
      return core_->Away(address_, started_, waited_for_, status);
    }
    away_since_.reset();
    attempt_ = 0;
    return absl::OkStatus();
  }

  absl::Status Away(const absl::Status& status) EPS_REQUIRES(client_lock) {
    const TimePoint now = steady_clock::now();
    if (!away_since_.has_value()) away_since_ = now;
    const TimePoint give_up = *away_since_ + core_->options.rpc_timeout;
    if (now >= give_up) return core_->Away(address_, *away_since_, waited_for_, status);
    next_call_ = std::min(give_up, now + core_->BackOff(attempt_++));
    return absl::OkStatus();
  }

  const std::shared_ptr<ClientCore> core_;
  const std::string address_;
  const std::shared_ptr<grpc::Channel> channel_;
  StepTrace* const trace_or_null_;
  const std::unique_ptr<v1::Data::Stub> data_;
  const std::unique_ptr<v1::Control::Stub> control_;
  v1::BeginStepRequest request_;
  const std::string waited_for_;
  const TimePoint started_;

  State state_ = State::kIdle;
  std::unique_ptr<grpc::ClientContext> context_;
  v1::BeginStepReply reply_;
  v1::StatusRequest status_request_;
  v1::StatusReply status_reply_;
  std::optional<grpc::Status> result_ EPS_GUARDED_BY(client_lock);
  int64_t sent_ns_ = 0;                                  // the last call
  int64_t received_ns_ EPS_GUARDED_BY(client_lock) = 0;  // its result
  TimePoint next_call_;  // initially long past, so the first call is due at once
  std::optional<TimePoint> away_since_;
  int attempt_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<v1::BeginStepReply>> BeginStepOnAll(
    const std::shared_ptr<ClientCore>& core, const JobView& job,
    const std::vector<BeginTarget>& targets, const v1::BeginStepRequest& request) {
  std::vector<std::shared_ptr<ShardBegin>> calls;
  for (const BeginTarget& target : targets) {
    calls.push_back(std::make_shared<ShardBegin>(core, job, target, request));
  }
  const TraceSpan span(request.report_only() ? kReportSpan : kBeginStepSpan,
                       {request.step() - (request.report_only() ? 1 : 0)});
  ClientLock lock(&core->mu);
  // A report must arrive, and after the last step only its completion is outstanding.
  const bool may_stop = !request.report_only() && request.step() <= job.spec.training.steps;
  // The step of a worker that leaves hands over its residuals, if it begins in time.
  const TimePoint stop_from =
      request.leaving() ? steady_clock::now() + core->options.rpc_timeout : TimePoint::min();
  ++core->work.waits;
  absl::Status status;
  for (;;) {
    status = core->failure;
    const TimePoint now = steady_clock::now();
    TimePoint wake = now + std::chrono::seconds(1);
    if (may_stop) {
      wake = now + kInterruptPoll;
      if (status.ok() && now >= stop_from && core->Leaves()) {
        status = absl::CancelledError("interrupted");
      }
    }
    bool done = true;
    for (const auto& call : calls) {
      if (!status.ok()) break;
      status = call->Advance(now, &wake);
      done = done && call->done();
    }
    if (!status.ok() || done) break;
    core->changed.WaitUntil(&core->mu, wake);
  }
  // The calls' arguments live in `calls`, so no call may be in flight when this returns.
  for (const auto& call : calls) call->Cancel();
  for (const auto& call : calls) {
    while (!call->settled()) core->changed.WaitFor(&core->mu, std::chrono::seconds(1));
  }
  --core->work.waits;
  if (!status.ok()) return status;
  std::vector<v1::BeginStepReply> replies;
  for (const auto& call : calls) replies.push_back(call->reply());
  return replies;
}

}  // namespace eps
