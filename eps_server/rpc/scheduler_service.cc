#include "eps_server/rpc/scheduler_service.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/bytes.h"
#include "eps_server/jobs/job_rules.h"
#include "eps_server/rpc/calls/caller_scope.h"
#include "eps_server/rpc/calls/stream_call.h"
#include "eps_server/rpc/calls/unary_call.h"
#include "wire/payload_message.h"

namespace eps {
namespace {

// The transport permits longer messages, for other services.
absl::Status CheckMessageSize(const google::protobuf::MessageLite& message) {
  const size_t size = message.ByteSizeLong();
  if (size <= kMaxMessageBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a message of ", size, " bytes; at most ", kMaxMessageBytes, " are allowed"));
}

// Scheduler.WatchJobs. While events wait for the client, it asks the desk for no more: the desk
// keeps them.
class WatchJobsCall final : public WriteCall, public JobWatcher {
 public:
  // One more event may follow that many bytes.
  static constexpr size_t kMaxQueuedBytes = size_t{64} << 10;

  explicit WatchJobsCall(JobDesk* desk) : desk_(desk), watch_(desk->NewWatch()) {}

  // Begins the watch, or ends the call with the error.
  void Start(grpc::CallbackServerContext* context, const ShellEnvironment& environment,
             absl::StatusOr<v1::WatchJobsRequest> request, CallLimit::Place place) {
    set_context(context);
    place_ = std::move(place);
    Adopt(nullptr);
    if (!request.ok()) return End(request.status());
    WatchReader(environment.timers, environment.unread_timeout);
    desk_->Watch(watch_, *std::move(request),
                 std::static_pointer_cast<WatchJobsCall>(shared_from_this()), ScopeOf(*context));
  }

  bool OnEvent(const v1::JobEvent& event) override {
    Write(JoinPayload(event, Bytes()));
    return queued_bytes() <= kMaxQueuedBytes;
  }
  void OnEnd(const absl::Status& status) override { End(status); }

 protected:
  void OnDrained() override { desk_->Continue(watch_); }
  void OnEnded() override { desk_->Unwatch(watch_); }
  std::string What() const override { return "WatchJobs"; }

 private:
  JobDesk* const desk_;
  const uint64_t watch_;
  CallLimit::Place place_;
};

}  // namespace

absl::Status SchedulerService::CheckIsLead() const {
  const std::shared_ptr<JobShell> job = host_->job();
  if (job == nullptr || job->is_lead()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrFormat("this server is shard %d of job %016x, and the board of jobs is at its lead, "
                      "%s: ask that one",
                      job->shard().value(), job->id().value(), job->servers()[0]));
}

template <class Request, class Reply>
grpc::ServerUnaryReactor* SchedulerService::Answer(
    const char* method, grpc::CallbackServerContext* context, const Request& request, Reply* reply,
    void (JobDesk::*function)(Request, JobDesk::Done<Reply>, CallerScope)) {
  auto call = UnaryCall<Reply>::New(method, request.request_id(), reply);
  CallLimit::Place place;
  absl::Status status = CheckMessageSize(request);
  if (status.ok()) status = CheckIsLead();
  if (status.ok()) status = calls_.Take(&place);
  if (!status.ok()) {
    call->Fail(status);
    return call.get();
  }
  (desk_->*function)(
      request,
      [call, place](absl::StatusOr<Reply> answer) {
        answer.ok() ? call->Succeed(*answer) : call->Fail(answer.status());
      },
      ScopeOf(*context));
  return call.get();
}

grpc::ServerUnaryReactor* SchedulerService::SubmitJob(grpc::CallbackServerContext* context,
                                                      const v1::SubmitJobRequest* request,
                                                      v1::SubmitJobReply* reply) {
  return Answer("SubmitJob", context, *request, reply, &JobDesk::Submit);
}

grpc::ServerUnaryReactor* SchedulerService::ListJobs(grpc::CallbackServerContext* context,
                                                     const v1::ListJobsRequest* request,
                                                     v1::ListJobsReply* reply) {
  return Answer("ListJobs", context, *request, reply, &JobDesk::List);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* SchedulerService::WatchJobs(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* raw) {
  const auto call = std::make_shared<WatchJobsCall>(desk_);
  v1::WatchJobsRequest request;
  CallLimit::Place place;
  absl::Status status = ParseMessage(*raw, &request);
  if (status.ok()) status = CheckWatch(request);
  if (status.ok()) status = CheckIsLead();
  if (status.ok()) status = watches_.Take(&place);
  call->Start(context, host_->environment(),
              status.ok() ? absl::StatusOr<v1::WatchJobsRequest>(std::move(request)) : status,
              std::move(place));
  return call.get();
}

grpc::ServerUnaryReactor* SchedulerService::UpdateJob(grpc::CallbackServerContext* context,
                                                      const v1::UpdateJobRequest* request,
                                                      v1::UpdateJobReply* reply) {
  return Answer("UpdateJob", context, *request, reply, &JobDesk::Update);
}

grpc::ServerUnaryReactor* SchedulerService::CheckpointJob(grpc::CallbackServerContext* context,
                                                          const v1::CheckpointJobRequest* request,
                                                          v1::CheckpointJobReply* reply) {
  return Answer("CheckpointJob", context, *request, reply, &JobDesk::Checkpoint);
}

grpc::ServerUnaryReactor* SchedulerService::RemoveJob(grpc::CallbackServerContext* context,
                                                      const v1::RemoveJobRequest* request,
                                                      v1::RemoveJobReply* reply) {
  return Answer("RemoveJob", context, *request, reply, &JobDesk::Remove);
}

grpc::ServerUnaryReactor* SchedulerService::ClaimJob(grpc::CallbackServerContext* context,
                                                     const v1::ClaimJobRequest* request,
                                                     v1::ClaimJobReply* reply) {
  return Answer("ClaimJob", context, *request, reply, &JobDesk::Claim);
}

grpc::ServerUnaryReactor* SchedulerService::ReportJob(grpc::CallbackServerContext* context,
                                                      const v1::ReportJobRequest* request,
                                                      v1::ReportJobReply* reply) {
  return Answer("ReportJob", context, *request, reply, &JobDesk::Report);
}

grpc::ServerUnaryReactor* SchedulerService::DrainWorker(grpc::CallbackServerContext* context,
                                                        const v1::DrainWorkerRequest* request,
                                                        v1::DrainWorkerReply* reply) {
  auto call = UnaryCall<v1::DrainWorkerReply>::New("DrainWorker", request->request_id(), reply);
  CallLimit::Place place;
  absl::Status status = CheckIsLead();
  if (status.ok()) status = calls_.Take(&place);
  if (!status.ok()) {
    call->Fail(status);
    return call.get();
  }
  v1::ListJobsRequest list;
  list.set_request_id(request->request_id());
  list.set_name(request->name());
  const auto drain_it = [call, place, job = host_->job(), drain = *request,
                         caller =
                             ScopeOf(*context)](const absl::StatusOr<v1::ListJobsReply>& listed) {
    if (!listed.ok()) return call->Fail(listed.status());
    const JobScope named = {drain.name(), listed->jobs().empty() ? 0 : listed->jobs(0).uid()};
    const absl::Status allowed = caller.Check(named);
    if (!allowed.ok()) return call->Fail(allowed);
    if (listed->jobs().empty()) return call->Fail(NoSuchJob(drain.name()));
    if (job == nullptr || JobId(listed->jobs(0).job_id()) != job->id()) {
      return call->Fail(absl::FailedPreconditionError(
          absl::StrCat("DrainWorker: the servers do not run job ", drain.name(), " now")));
    }
    job->Post(event::DrainWorker{drain.worker_nonce()});
    call->Succeed(v1::DrainWorkerReply());
  };
  // The list hides no job here: the caller's scope is checked with the job's uid above.
  desk_->List(list, drain_it, CallerScope());
  return call.get();
}

grpc::ServerUnaryReactor* SchedulerService::DrainServer(grpc::CallbackServerContext* context,
                                                        const v1::DrainServerRequest* request,
                                                        v1::DrainServerReply* reply) {
  auto call = UnaryCall<v1::DrainServerReply>::New("DrainServer", request->request_id(), reply);
  const absl::Status allowed = ScopeOf(*context).CheckUnlimited("a drain of a server");
  if (!allowed.ok()) {
    call->Fail(allowed);
    return call.get();
  }
  if (drain_ == nullptr) {
    call->Fail(absl::UnimplementedError("DrainServer: this process cannot end its server"));
    return call.get();
  }
  call->Succeed(v1::DrainServerReply());
  drain_();
  return call.get();
}

}  // namespace eps
