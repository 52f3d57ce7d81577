#include "eps_server/rpc/shard_service.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "eps_server/rpc/calls/unary_call.h"
#include "wire/channel.h"
#include "wire/payload_message.h"

namespace eps {

grpc::ServerUnaryReactor* ShardService::PrepareJob(grpc::CallbackServerContext*,
                                                   const v1::PrepareJobRequest* request,
                                                   v1::PrepareJobReply* reply) {
  auto call = UnaryCall<v1::PrepareJobReply>::New("PrepareJob", request->request_id(), reply);
  CallLimit::Place place;
  const absl::Status status = preparations_.Take(&place);
  if (!status.ok()) {
    call->Fail(status);
    return call.get();
  }
  host_->PrepareJob(*request, [call, place](absl::StatusOr<v1::PrepareJobReply> r) {
    r.ok() ? call->Succeed(*r) : call->Fail(r.status());
  });
  return call.get();
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ShardService::Link(
    grpc::CallbackServerContext*) {
  return LinkCall::Start(this, host_);
}

absl::Status ShardService::Claim(ShardId shard, const LinkCall* link) {
  MutexLock lock(&mu_);
  if (links_.emplace(shard, link).second) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("Link: a link of shard ", shard.value(),
                   " is open; if that shard was restarted, its old connection ends within ",
                   (kKeepAliveTimeMs + kKeepAliveTimeoutMs) / 1000, " s, and it can link then"));
}

void ShardService::Release(ShardId shard, const LinkCall* link) {
  MutexLock lock(&mu_);
  const auto it = links_.find(shard);
  if (it != links_.end() && it->second == link) links_.erase(it);
}

LinkCall* LinkCall::Start(ShardService* service, JobHost* host) {
  std::shared_ptr<LinkCall> call(new LinkCall(service));
  call->StartSendInitialMetadata();  // the shard waits for it before it uses the link
  const absl::Status status = service->link_calls_.Take(&call->place_);
  if (!status.ok()) {
    call->AdoptOrEnd(status);
    return call.get();
  }
  const std::shared_ptr<JobShell> job = host->job();
  if (job == nullptr) {
    call->AdoptOrEnd(absl::NotFoundError("Link: this server runs no job"));
    return call.get();
  }
  call->Adopt(job);
  call->ReadNext();
  job->timers()->Schedule(kRegisterTimeout, [weak = std::weak_ptr<LinkCall>(call)] {
    if (auto link = weak.lock()) link->EndIfSilent();
  });
  return call.get();
}

void LinkCall::EndIfSilent() {
  {
    MutexLock lock(&mu_);
    if (peer_.has_value()) return;
  }
  End(absl::DeadlineExceededError(
      absl::StrCat("Link: no Register has arrived in ", kRegisterTimeout.count(), " s")));
}

absl::Status LinkCall::Register(const v1::ShardMessage& first) {
  if (JobId(first.job_id()) != job()->id()) {
    return absl::NotFoundError(
        absl::StrCat("Link: job ", absl::Hex(first.job_id()), " is not here"));
  }
  if (!job()->is_lead()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "Link: this is shard ", job()->shard().value(), "; the lead is ", job()->servers()[0]));
  }
  if (first.from() == 0 || first.from() >= job()->servers().size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("Link: shard ", first.from(), " of ", job()->servers().size(), " shards"));
  }
  if (!first.has_register_()) {
    return absl::InvalidArgumentError("Link: the first message is not Register");
  }
  const ShardId peer(first.from());
  const auto self = std::static_pointer_cast<LinkCall>(shared_from_this());
  EPS_RETURN_IF_ERROR(service_->Claim(peer, this));
  EPS_LOG_INFO("shard " << peer << " at " << job()->servers()[peer.value()] << " is linked");
  job()->Post(event::LinkUp{peer});
  const uint64_t ticket = job()->mailbox(peer).Open(
      [weak = std::weak_ptr<LinkCall>(self)](const v1::ShardMessage& message) {
        if (auto link = weak.lock()) link->Write(JoinPayload(message, Bytes()));
      });
  bool ended = false;
  {
    MutexLock lock(&mu_);
    ended = ended_;
    if (!ended) {
      peer_ = peer;
      ticket_ = ticket;
    }
  }
  if (!ended) return absl::OkStatus();
  Disconnect(peer, ticket);
  return absl::CancelledError("Link: the shard went away");
}

bool LinkCall::OnMessage(const grpc::ByteBuffer& raw) {
  v1::ShardMessage message;
  absl::Status status = ParseMessage(raw, &message);
  std::optional<ShardId> peer;
  {
    MutexLock lock(&mu_);
    peer = peer_;
  }
  if (status.ok() && !peer.has_value()) {
    status = Register(message);
    peer = ShardId(message.from());
  }
  if (status.ok() && (message.job_id() != job()->id().value() || message.from() != peer->value())) {
    status = absl::InvalidArgumentError("Link: a message from another job or shard");
  }
  if (!status.ok()) {
    EPS_LOG_WARN("link refused: " << status.ToString());
    End(status);
    return false;
  }
  job()->Post(event::FromShard{*peer, std::move(message)});
  return true;
}

void LinkCall::OnEnded() {
  std::optional<ShardId> peer;
  uint64_t ticket = 0;
  {
    MutexLock lock(&mu_);
    ended_ = true;
    peer = peer_;
    ticket = ticket_;
  }
  if (peer.has_value()) Disconnect(*peer, ticket);
}

void LinkCall::Disconnect(ShardId peer, uint64_t ticket) {
  if (job()->mailbox(peer).Close(ticket)) {
    EPS_LOG_WARN("the link of shard " << peer << " is lost");
    job()->Post(event::LinkDown{peer});
  }
  service_->Release(peer, this);
}

}  // namespace eps
