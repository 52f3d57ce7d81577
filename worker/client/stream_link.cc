#include "worker/client/stream_link.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "wire/channel.h"
#include "wire/grpc_status.h"

namespace eps {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::chrono::seconds kIdleTick{10};

// A stream that stays open for this long counts as reached even if nothing arrived on it: the
// server may have parked the requests.
milliseconds SettleTime(milliseconds rpc_timeout) {
  return std::clamp(rpc_timeout / 10, milliseconds(10), milliseconds(1000));
}

milliseconds AtLeastOneMs(steady_clock::duration d) {
  return std::max(std::chrono::duration_cast<milliseconds>(d), milliseconds(1));
}

}  // namespace

StreamLink::StreamLink(std::shared_ptr<ClientCore> core, std::string address,
                       std::shared_ptr<grpc::Channel> channel, std::string method, uint64_t job_id,
                       StreamHandler* handler)
    : core_(std::move(core)),
      address_(std::move(address)),
      channel_(std::move(channel)),
      method_(std::move(method)),
      job_id_(job_id),
      control_(v1::Control::NewStub(channel_)),
      handler_(handler) {}

void StreamLink::Ensure() {
  if (state_ != State::kClosed || stopped_ || !core_->failure.ok()) return;
  SayHello();
}

void StreamLink::Write(grpc::ByteBuffer message) {
  if (state_ == State::kOpen) stream_->Write(std::move(message));
}

void StreamLink::SayHello() {
  state_ = State::kHello;
  auto call = std::make_shared<Call>();
  hello_ = call;
  call->hello.set_request_id(core_->NextRequestId());
  call->hello.set_min_protocol(kProtocolVersion);
  call->hello.set_max_protocol(kProtocolVersion);
  call->hello.set_client(core_->options.client_name);
  hello_at_ = steady_clock::now();
  const TimePoint give_up = away_since_.value_or(hello_at_) + core_->options.rpc_timeout;
  call->context.set_deadline(std::chrono::system_clock::now() + AtLeastOneMs(give_up - hello_at_));
  grpc::experimental::ChannelResetConnectionBackoff(channel_.get());
  core_->RpcStarted();
  control_->async()->Hello(&call->context, &call->hello, &call->hello_reply,
                           [this, core = core_, call](grpc::Status answer) mutable {
                             absl::Status status =
                                 FromGrpc(answer, absl::StrCat("Hello on ", address_));
                             if (status.ok()) status = handler_->OnHello(call->hello_reply);
                             ClientLock lock(&core_->mu);
                             OnHello(status);
                             call.reset();  // it holds the channel, which RpcDone may destroy
                             core_->RpcDone();
                           });
}

void StreamLink::OnHello(const absl::Status& status) {
  hello_.reset();
  if (status.ok() && !stopped_ && core_->failure.ok()) return OpenStream();
  Broken(status, hello_at_);
}

void StreamLink::OpenStream() {
  state_ = State::kOpen;
  opened_at_ = heard_at_ = steady_clock::now();
  core_->RpcStarted();
  // Both callbacks run on gRPC's threads, never within Open.
  stream_ = ByteStream::Open(
      channel_, method_,
      [this, core = core_](const grpc::ByteBuffer& message) {
        {
          ClientLock lock(&core_->mu);
          heard_at_ = steady_clock::now();
          Reached();
          if (stopped_) return;
        }
        handler_->OnMessage(message);
      },
      [this, core = core_](const grpc::Status& status) {
        ClientLock lock(&core_->mu);
        OnStreamDone(status);
        core_->RpcDone();
      });
  handler_->OnOpen();
  core_->timer.NotifyAll();  // the supervisor must watch the new stream for silence
}

void StreamLink::OnStreamDone(const grpc::Status& status) {
  stream_.reset();
  if (!stopped_ && handler_->OnEnd(status)) {
    state_ = State::kClosed;
    return Reached();
  }
  if (!stopped_) ++core_->stats.reconnects;
  const TimePoint now = steady_clock::now();
  if (now >= opened_at_ + SettleTime(core_->options.rpc_timeout)) Reached();
  const std::string context = absl::StrCat(method_, " on ", address_);
  Broken(status.ok()
             ? absl::UnavailableError(absl::StrCat(context, ": the server ended the stream"))
             : FromGrpc(status, context),
         now);
}

void StreamLink::Reached() {
  away_since_.reset();
  last_error_ = absl::OkStatus();
  attempt_ = 0;
}

void StreamLink::Broken(const absl::Status& status, TimePoint since) {
  state_ = State::kClosed;
  if (stopped_ || !core_->failure.ok()) return;
  if (!MayRepeat(status.code())) return core_->Fail(status);
  const std::string waiting_for = handler_->WaitingFor();
  if (waiting_for.empty()) return Reached();  // the server is not needed until the next Ensure
  if (!away_since_.has_value()) away_since_ = since;
  // The last attempt may have been cut short by the remaining time; its error explains nothing.
  if (last_error_.ok() || !absl::IsDeadlineExceeded(status)) last_error_ = status;
  const TimePoint now = steady_clock::now();
  if (now >= *away_since_ + core_->options.rpc_timeout) {
    return core_->Fail(core_->Away(address_, *away_since_, waiting_for, last_error_));
  }
  state_ = State::kBackOff;
  next_attempt_ =
      std::min(now + core_->BackOff(attempt_++), *away_since_ + core_->options.rpc_timeout);
  core_->timer.NotifyAll();
}

TimePoint StreamLink::Tick(TimePoint now) {
  if (stopped_ || !core_->failure.ok()) return now + kIdleTick;
  if (state_ == State::kBackOff) {
    if (now < next_attempt_) return next_attempt_;
    SayHello();
  }
  if (state_ != State::kOpen) return now + kIdleTick;
  const bool waiting = !handler_->WaitingFor().empty();
  if (!waiting) heard_at_ = now;
  const TimePoint silent = heard_at_ + core_->options.rpc_timeout;
  if (now < silent) return silent;
  if (probe_ == nullptr) Probe();
  return now + core_->options.rpc_timeout;
}

void StreamLink::Probe() {
  auto call = std::make_shared<Call>();
  probe_ = call;
  call->status.set_request_id(core_->NextRequestId());
  call->status.set_job_id(job_id_);
  call->context.set_deadline(std::chrono::system_clock::now() + core_->options.rpc_timeout);
  core_->RpcStarted();
  control_->async()->Status(&call->context, &call->status, &call->status_reply,
                            [this, core = core_, call](grpc::Status status) mutable {
                              ClientLock lock(&core_->mu);
                              OnProbe(*call, status);
                              call.reset();  // it holds the channel, which RpcDone may destroy
                              core_->RpcDone();
                            });
}

void StreamLink::OnProbe(const Call& call, const grpc::Status& status) {
  probe_.reset();
  if (stopped_ || !core_->failure.ok()) return;
  if (call.status_reply.state() == v1::JOB_STATE_FAILED) {
    return core_->Fail(absl::FailedPreconditionError(absl::StrCat(
        "server ", address_, ": the job cannot continue: ", call.status_reply.failure())));
  }
  const absl::Status answer = FromGrpc(status, absl::StrCat("Status on ", address_));
  const std::string waiting_for = handler_->WaitingFor();
  // The stream itself detects a broken connection; here only silence ends the wait.
  if (answer.ok() || state_ != State::kOpen || waiting_for.empty() || !MayRepeat(answer.code())) {
    heard_at_ = steady_clock::now();
    return;
  }
  core_->Fail(core_->Away(address_, heard_at_, waiting_for, answer));
}

void StreamLink::Stop() {
  stopped_ = true;
  if (stream_ != nullptr) stream_->Cancel();
  if (hello_ != nullptr) hello_->context.TryCancel();
  if (probe_ != nullptr) probe_->context.TryCancel();
}

}  // namespace eps
