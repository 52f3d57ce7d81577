#include "eps_server/rpc/calls/session_call.h"

#include <utility>

#include "wire/payload_message.h"

namespace eps {

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* SessionCall::Start(
    JobHost* host, CallerScope caller) {
  std::shared_ptr<SessionCall> call(new SessionCall(host, std::move(caller)));
  call->AdoptOrEnd(host->Find(0, call->caller_));
  call->ReadNext();
  return call.get();
}

bool SessionCall::OnMessage(const grpc::ByteBuffer& message) {
  v1::Beat beat;
  absl::Status status = ParseMessage(message, &beat);
  if (status.ok()) status = host_->Find(beat.job_id(), caller_).status();
  if (!status.ok()) {
    End(status);
    return false;
  }
  job()->Post(event::Beat{id(), std::move(beat)});
  job()->Run([self = Self()] { self->ReadNext(); });
  return false;
}

void SessionCall::OnReply(const effect::ReplyMessage& message) {
  {
    MutexLock lock(&mu_);
    if (writing_) {
      pending_ = std::get<v1::Notice>(message);
      return;
    }
    writing_ = true;
  }
  Write(JoinPayload(std::get<v1::Notice>(message), Bytes()));
}

void SessionCall::OnDrained() {
  std::optional<v1::Notice> next;
  {
    MutexLock lock(&mu_);
    next.swap(pending_);
    writing_ = next.has_value();
  }
  if (next.has_value()) Write(JoinPayload(*next, Bytes()));
}

}  // namespace eps
