#include "wire/scheduler_client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "grpcpp/client_context.h"
#include "wire/channel.h"
#include "wire/client_calls.h"
#include "wire/grpc_status.h"

namespace eps {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kCallTimeout{10};
constexpr std::chrono::seconds kWatchTimeout{600};
constexpr int kMaxUpdates = 100;  // of one job that others change all the time

}  // namespace

std::shared_ptr<v1::Scheduler::Stub> SchedulerClient::stub() {
  MutexLock lock(&mu_);
  return stub_;
}

void SchedulerClient::Replace(const std::shared_ptr<v1::Scheduler::Stub>& failed) {
  MutexLock lock(&mu_);
  if (stub_ == failed) stub_ = v1::Scheduler::NewStub(NewChannel(lead_));
}

// Makes a unary call. `name` is that of the RPC. gRPC waits longer and longer before it connects a
// channel again; a driver has no such time, so that each call to a server that was away gets a new
// channel.
template <class Request, class Reply>
absl::StatusOr<Reply> SchedulerClient::Call(
    grpc::Status (v1::Scheduler::Stub::*rpc)(grpc::ClientContext*, const Request&, Reply*),
    absl::string_view name, Request request) {
  grpc::ClientContext context;
  SetCallTimeout(&context, kCallTimeout);
  request.set_request_id(NewRequestId(name));
  Reply reply;
  const std::shared_ptr<v1::Scheduler::Stub> stub = this->stub();
  const absl::Status status = FromGrpc((stub.get()->*rpc)(&context, request, &reply),
                                       absl::StrCat(name, " on server ", lead_));
  if (IsAway(status)) Replace(stub);
  EPS_RETURN_IF_ERROR(status);
  return reply;
}

absl::StatusOr<std::unique_ptr<SchedulerClient>> SchedulerClient::Connect(
    const std::string& lead, Clock::time_point deadline) {
  EPS_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel,
                       ConnectToServer(lead, deadline));
  return std::unique_ptr<SchedulerClient>(
      new SchedulerClient(lead, v1::Scheduler::NewStub(channel)));
}

absl::StatusOr<v1::Job> SchedulerClient::Submit(v1::SubmitJobRequest request) {
  EPS_ASSIGN_OR_RETURN(v1::SubmitJobReply reply,
                       Call(&v1::Scheduler::Stub::SubmitJob, "SubmitJob", std::move(request)));
  return std::move(*reply.mutable_job());
}

absl::StatusOr<v1::ListJobsReply> SchedulerClient::List() {
  return Call(&v1::Scheduler::Stub::ListJobs, "ListJobs", v1::ListJobsRequest());
}

absl::StatusOr<v1::Job> SchedulerClient::Get(const std::string& name) {
  v1::ListJobsRequest request;
  request.set_name(name);
  EPS_ASSIGN_OR_RETURN(v1::ListJobsReply reply,
                       Call(&v1::Scheduler::Stub::ListJobs, "ListJobs", std::move(request)));
  for (v1::Job& job : *reply.mutable_jobs()) {
    if (job.name() == name) return std::move(job);
  }
  return absl::NotFoundError(
      absl::StrCat("there is no job \"", name, "\" on the board of server ", lead_));
}

absl::StatusOr<v1::Job> SchedulerClient::Change(v1::UpdateJobRequest request) {
  absl::Status last;
  for (int i = 0; i < kMaxUpdates; ++i) {
    EPS_ASSIGN_OR_RETURN(const v1::Job job, Get(request.name()));
    request.set_expected_generation(job.generation());
    absl::StatusOr<v1::UpdateJobReply> reply =
        Call(&v1::Scheduler::Stub::UpdateJob, "UpdateJob", request);
    if (reply.ok()) return std::move(*reply->mutable_job());
    if (!absl::IsAborted(reply.status())) return reply.status();
    last = reply.status();
  }
  return absl::UnavailableError(
      absl::StrCat(last.message(), "; others changed the job ", kMaxUpdates, " times meanwhile"));
}

absl::StatusOr<v1::Job> SchedulerClient::Update(const std::string& name, v1::Desired desired) {
  v1::UpdateJobRequest request;
  request.set_name(name);
  request.set_desired(desired);
  return Change(std::move(request));
}

absl::StatusOr<v1::Job> SchedulerClient::Scale(const std::string& name, uint32_t workers) {
  v1::UpdateJobRequest request;
  request.set_name(name);
  request.set_workers(workers);
  return Change(std::move(request));
}

absl::Status SchedulerClient::DrainWorker(const std::string& name, uint64_t worker) {
  v1::DrainWorkerRequest request;
  request.set_name(name);
  request.set_worker_nonce(worker);
  return Call(&v1::Scheduler::Stub::DrainWorker, "DrainWorker", std::move(request)).status();
}

absl::Status SchedulerClient::DrainServer() {
  return Call(&v1::Scheduler::Stub::DrainServer, "DrainServer", v1::DrainServerRequest()).status();
}

absl::StatusOr<v1::Job> SchedulerClient::Checkpoint(const std::string& name) {
  v1::CheckpointJobRequest request;
  request.set_name(name);
  EPS_ASSIGN_OR_RETURN(v1::CheckpointJobReply reply, Call(&v1::Scheduler::Stub::CheckpointJob,
                                                          "CheckpointJob", std::move(request)));
  return std::move(*reply.mutable_job());
}

absl::Status SchedulerClient::Remove(const std::string& name) {
  v1::RemoveJobRequest request;
  request.set_name(name);
  return Call(&v1::Scheduler::Stub::RemoveJob, "RemoveJob", std::move(request)).status();
}

absl::StatusOr<v1::ClaimJobReply> SchedulerClient::Claim(v1::ClaimJobRequest request) {
  return Call(&v1::Scheduler::Stub::ClaimJob, "ClaimJob", std::move(request));
}

absl::StatusOr<v1::ReportJobReply> SchedulerClient::Report(v1::ReportJobRequest request) {
  return Call(&v1::Scheduler::Stub::ReportJob, "ReportJob", std::move(request));
}

absl::Status SchedulerClient::Watch(uint64_t board, uint64_t revision, const std::string& name,
                                    const std::function<bool(const v1::JobEvent&)>& on_event) {
  for (;;) {
    grpc::ClientContext context;
    SetCallTimeout(&context, kWatchTimeout);
    v1::WatchJobsRequest request;
    request.set_request_id(NewRequestId("WatchJobs"));
    request.set_board(board);
    request.set_from_revision(revision);
    request.set_name(name);
    const std::shared_ptr<v1::Scheduler::Stub> stub = this->stub();
    const auto reader = stub->WatchJobs(&context, request);
    v1::JobEvent event;
    bool received = false;
    bool goes_on = true;
    while (goes_on && reader->Read(&event)) {
      received = true;
      revision = std::max(revision, event.revision());
      goes_on = on_event(event);
    }
    if (!goes_on) context.TryCancel();
    const absl::Status status =
        FromGrpc(reader->Finish(), absl::StrCat("WatchJobs on server ", lead_));
    if (absl::IsUnavailable(status)) Replace(stub);
    if (!goes_on) return absl::OkStatus();
    // The server ends a watch that reads too slowly with RESOURCE_EXHAUSTED.
    const bool repeat = absl::IsDeadlineExceeded(status) ||
                        (received && (status.ok() || absl::IsResourceExhausted(status)));
    if (repeat) continue;
    if (!status.ok()) return status;
    return absl::UnavailableError(
        absl::StrCat("WatchJobs on server ", lead_, ": the server ended the watch"));
  }
}

}  // namespace eps
