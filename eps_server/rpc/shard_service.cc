#include "eps_server/rpc/shard_service.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "eps_server/rpc/unary_call.h"
#include "wire/payload_message.h"

namespace eps {

grpc::ServerUnaryReactor* ShardService::PrepareJob(grpc::CallbackServerContext*,
                                                   const v1::PrepareJobRequest* request,
                                                   v1::PrepareJobReply* reply) {
  auto call = UnaryCall<v1::PrepareJobReply>::New("PrepareJob", request->request_id(), reply);
  host_->PrepareJob(*request, [call](absl::StatusOr<v1::PrepareJobReply> r) {
    r.ok() ? call->Succeed(*r) : call->Fail(r.status());
  });
  return call.get();
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ShardService::Link(
    grpc::CallbackServerContext*) {
  return LinkCall::Start(this, host_);
}

void ShardService::SetCurrent(ShardId shard, const std::shared_ptr<LinkCall>& link) {
  std::shared_ptr<LinkCall> before;
  {
    MutexLock lock(&mu_);
    before = links_[shard].lock();
    links_[shard] = link;
  }
  if (before != nullptr && before != link) {
    before->End(absl::AbortedError("the shard has opened another link"));
  }
}

LinkCall* LinkCall::Start(ShardService* service, JobHost* host) {
  std::shared_ptr<LinkCall> call(new LinkCall(service, host));
  call->Adopt(nullptr);
  call->StartSendInitialMetadata();  // the shard waits for it before it uses the link
  call->ReadNext();
  return call.get();
}

absl::Status LinkCall::Open(const v1::ShardMessage& first) {
  const std::shared_ptr<JobShell> job = host_->job();
  if (job == nullptr || JobId(first.job_id()) != job->id()) {
    return absl::NotFoundError(
        absl::StrCat("Link: job ", absl::Hex(first.job_id()), " is not here"));
  }
  if (!job->is_lead()) {
    return absl::FailedPreconditionError(absl::StrCat("Link: this is shard ", job->shard().value(),
                                                      "; the lead is ", job->servers()[0]));
  }
  if (first.from() == 0 || first.from() >= job->servers().size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("Link: shard ", first.from(), " of ", job->servers().size(), " shards"));
  }
  if (!first.has_register_()) {
    return absl::InvalidArgumentError("Link: the first message is not Register");
  }
  const ShardId peer(first.from());
  const auto self = std::static_pointer_cast<LinkCall>(shared_from_this());
  service_->SetCurrent(peer, self);
  EPS_LOG_INFO("shard " << peer << " at " << job->servers()[peer.value()] << " is linked");
  job->Post(event::LinkUp{peer});
  const uint64_t ticket = job->mailbox(peer).Open(
      [weak = std::weak_ptr<LinkCall>(self)](const v1::ShardMessage& message) {
        if (auto link = weak.lock()) link->Write(JoinPayload(message, Bytes()));
      });
  const StreamId stream = job->AddStream(self);
  bool ended = false;
  {
    MutexLock lock(&mu_);
    ended = ended_;
    if (!ended) {
      link_job_ = job;
      peer_ = peer;
      stream_ = stream;
      ticket_ = ticket;
    }
  }
  if (!ended) return absl::OkStatus();
  job->RemoveStream(stream);
  if (job->mailbox(peer).Close(ticket)) job->Post(event::LinkDown{peer});
  return absl::CancelledError("Link: the shard went away");
}

bool LinkCall::OnMessage(const grpc::ByteBuffer& raw) {
  v1::ShardMessage message;
  absl::Status status = ParseMessage(raw, &message);
  if (status.ok() && !opened_) {
    status = Open(message);
    opened_ = true;
  }
  std::shared_ptr<JobShell> job;
  ShardId peer;
  {
    MutexLock lock(&mu_);
    job = link_job_;
    peer = peer_;
  }
  if (status.ok() && job == nullptr) return false;  // the link has ended
  if (status.ok() && (message.job_id() != job->id().value() || message.from() != peer.value())) {
    status = absl::InvalidArgumentError("Link: a message from another job or shard");
  }
  if (!status.ok()) {
    EPS_LOG_WARN("link refused: " << status.ToString());
    End(status);
    return false;
  }
  job->Post(event::FromShard{peer, std::move(message)});
  return true;
}

void LinkCall::OnEnded() {
  std::shared_ptr<JobShell> job;
  ShardId peer;
  StreamId stream;
  uint64_t ticket = 0;
  {
    MutexLock lock(&mu_);
    ended_ = true;
    job = std::move(link_job_);
    peer = peer_;
    stream = stream_;
    ticket = ticket_;
  }
  if (job == nullptr) return;
  job->RemoveStream(stream);
  if (!job->mailbox(peer).Close(ticket)) return;
  EPS_LOG_WARN("the link of shard " << peer << " is lost");
  job->Post(event::LinkDown{peer});
}

}  // namespace eps
