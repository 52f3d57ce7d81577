#include "eps_server/rpc/grpc_peers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "eps/v1/control.grpc.pb.h"
#include "wire/channel.h"
#include "wire/grpc_status.h"

namespace eps {
namespace {

std::chrono::system_clock::time_point ToSystem(PeerCaller::Clock::time_point deadline) {
  return std::chrono::system_clock::now() +
         std::chrono::duration_cast<std::chrono::system_clock::duration>(deadline -
                                                                         PeerCaller::Clock::now());
}

}  // namespace

// Sends Hello and then PrepareJob on a connection of its own.
struct GrpcPeers::PrepareCall {
  v1::PrepareJobRequest request;
  Clock::time_point deadline;
  Prepared done;
  std::unique_ptr<v1::Control::Stub> control;
  std::unique_ptr<v1::Shard::Stub> shard;
  grpc::ClientContext hello_context;
  v1::HelloRequest hello;
  v1::HelloReply hello_reply;
  grpc::ClientContext prepare_context;
  v1::PrepareJobReply reply;
};

GrpcPeers::GrpcPeers(std::vector<std::string> allowed) : allowed_(std::move(allowed)) {}

GrpcPeers::~GrpcPeers() { EPS_CHECK_MSG(in_work_ == 0, "calls to other servers are in work"); }

absl::Status GrpcPeers::CheckPeer(const std::string& address) const {
  const absl::Status valid = CheckAddress(address, /*allow_any_port=*/false);
  if (!valid.ok()) return valid;
  if (allowed_.empty() && IsLoopback(address)) return absl::OkStatus();
  const std::string any_port = absl::StrCat(address.substr(0, address.rfind(':')), ":0");
  for (const std::string& peer : allowed_) {
    if (peer == address || peer == any_port) return absl::OkStatus();
  }
  return absl::PermissionDeniedError(absl::StrCat(
      address,
      allowed_.empty() ? " is not a loopback address, and servers.peers of this server is empty"
                       : " is not in servers.peers of this server",
      "; if it is a server of yours, start this one with the addresses of all servers of the job "
      "in servers.peers"));
}

bool GrpcPeers::Begin() {
  MutexLock lock(&mu_);
  if (stopping_) return false;
  ++in_work_;
  return true;
}

void GrpcPeers::Over() {
  MutexLock lock(&mu_);
  if (--in_work_ == 0) idle_.NotifyAll();
}

void GrpcPeers::Prepare(const std::string& address, v1::PrepareJobRequest request,
                        Clock::time_point deadline, Prepared done) {
  const absl::Status allowed = CheckPeer(address);
  if (!allowed.ok()) return done(allowed);
  if (!Begin()) return done(absl::UnavailableError("this server is shutting down"));
  Sweep();
  auto owned = std::make_unique<PrepareCall>();
  PrepareCall* call = owned.get();
  call->request = std::move(request);
  call->deadline = deadline;
  call->done = std::move(done);
  const std::shared_ptr<grpc::Channel> channel = NewChannel(address);
  call->control = v1::Control::NewStub(channel);
  call->shard = v1::Shard::NewStub(channel);
  call->hello.set_request_id(call->request.request_id());
  call->hello.set_min_protocol(kProtocolVersion);
  call->hello.set_max_protocol(kProtocolVersion);
  call->hello.set_client("eps-server 0.1");
  call->hello_context.set_wait_for_ready(true);
  call->hello_context.set_deadline(
      ToSystem(std::min<Clock::time_point>(deadline, Clock::now() + kHelloTimeout)));
  {
    MutexLock lock(&mu_);
    calls_.emplace(call, std::move(owned));
    if (stopping_) {
      call->hello_context.TryCancel();
      call->prepare_context.TryCancel();
    }
  }
  call->control->async()->Hello(
      &call->hello_context, &call->hello, &call->hello_reply, [this, call](grpc::Status status) {
        if (status.ok()) return SendPrepare(call);
        absl::Status error = FromGrpc(status, "Hello");
        if (absl::IsDeadlineExceeded(error)) {
          error = absl::UnavailableError("no answer; is a server running there?");
        }
        Finish(call, error);
      });
}

void GrpcPeers::SendPrepare(PrepareCall* call) {
  call->prepare_context.set_deadline(ToSystem(call->deadline));
  call->shard->async()->PrepareJob(
      &call->prepare_context, &call->request, &call->reply, [this, call](grpc::Status status) {
        if (status.ok()) return Finish(call, call->reply);
        absl::Status error = FromGrpc(status, "PrepareJob");
        if (absl::IsDeadlineExceeded(error)) {
          error = absl::UnavailableError("the server did not prepare its shard in time");
        }
        Finish(call, error);
      });
}

void GrpcPeers::Finish(PrepareCall* call, absl::StatusOr<v1::PrepareJobReply> outcome) {
  Prepared done = std::move(call->done);
  {
    MutexLock lock(&mu_);
    const auto it = calls_.find(call);
    ended_calls_.push_back(std::move(it->second));
    calls_.erase(it);
  }
  done(std::move(outcome));
  done = nullptr;  // destroys its captures before Stop() can return
  Over();
}

void GrpcPeers::Sweep() {
  std::vector<std::unique_ptr<PrepareCall>> ended;
  MutexLock lock(&mu_);
  ended.swap(ended_calls_);
}

void GrpcPeers::OpenLink(std::shared_ptr<JobShell> job) {
  CloseLink();
  if (!Begin()) return;
  std::shared_ptr<LeadLink> link = LeadLink::Open(std::move(job), [this] { Over(); });
  bool stopping = false;
  {
    MutexLock lock(&mu_);
    link_ = std::move(link);
    stopping = stopping_;
  }
  if (stopping) CloseLink();
}

void GrpcPeers::CloseLink() {
  std::shared_ptr<LeadLink> link;
  {
    MutexLock lock(&mu_);
    link.swap(link_);
    if (link != nullptr) ended_links_.push_back(link);
  }
  if (link != nullptr) link->Stop();
}

void GrpcPeers::Stop() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    for (const auto& [call, owned] : calls_) {
      call->hello_context.TryCancel();
      call->prepare_context.TryCancel();
    }
  }
  CloseLink();
  const auto deadline = Clock::now() + std::chrono::seconds(60);
  std::vector<std::shared_ptr<LeadLink>> links;
  {
    MutexLock lock(&mu_);
    while (in_work_ > 0) {
      const bool in_time = idle_.WaitUntil(&mu_, deadline);
      EPS_CHECK_MSG(in_time || in_work_ == 0, in_work_ << " calls to other servers never ended");
    }
    links.swap(ended_links_);
  }
  Sweep();
}

}  // namespace eps
