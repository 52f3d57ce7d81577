#ifndef EPS_SERVER_RPC_SCHEDULER_SERVICE_H_
#define EPS_SERVER_RPC_SCHEDULER_SERVICE_H_

#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "eps/v1/scheduler.grpc.pb.h"
#include "eps_server/jobs/job_desk.h"
#include "eps_server/rpc/calls/call_limit.h"
#include "eps_server/shell/job_host.h"

namespace eps {

namespace internal {
using SchedulerWishes = v1::Scheduler::WithCallbackMethod_UpdateJob<
    v1::Scheduler::WithCallbackMethod_CheckpointJob<v1::Scheduler::Service>>;
using SchedulerChanges = v1::Scheduler::WithCallbackMethod_SubmitJob<
    v1::Scheduler::WithCallbackMethod_RemoveJob<SchedulerWishes>>;
using SchedulerDrains = v1::Scheduler::WithCallbackMethod_DrainWorker<
    v1::Scheduler::WithCallbackMethod_DrainServer<SchedulerChanges>>;
using SchedulerUnary =
    v1::Scheduler::WithCallbackMethod_ListJobs<v1::Scheduler::WithCallbackMethod_ClaimJob<
        v1::Scheduler::WithCallbackMethod_ReportJob<SchedulerDrains>>>;
using SchedulerBase = v1::Scheduler::WithRawCallbackMethod_WatchJobs<SchedulerUnary>;
}  // namespace internal

// Serves eps.v1.Scheduler with gRPC's callback API. Handlers hand requests to the desk and never
// block. A server that is another shard of a job refuses them and names the lead. `host` and `desk`
// must outlive the service. `drain` has the process end; null: it cannot.
class SchedulerService final : public internal::SchedulerBase {
 public:
  static constexpr int kMaxCalls = 256;   // each holds a request
  static constexpr int kMaxWatches = 64;  // each holds up to a few events

  SchedulerService(JobHost* host, JobDesk* desk, std::function<void()> drain)
      : host_(host), desk_(desk), drain_(std::move(drain)) {}

  grpc::ServerUnaryReactor* SubmitJob(grpc::CallbackServerContext* context,
                                      const v1::SubmitJobRequest* request,
                                      v1::SubmitJobReply* reply) override;
  grpc::ServerUnaryReactor* ListJobs(grpc::CallbackServerContext* context,
                                     const v1::ListJobsRequest* request,
                                     v1::ListJobsReply* reply) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* WatchJobs(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* UpdateJob(grpc::CallbackServerContext* context,
                                      const v1::UpdateJobRequest* request,
                                      v1::UpdateJobReply* reply) override;
  grpc::ServerUnaryReactor* CheckpointJob(grpc::CallbackServerContext* context,
                                          const v1::CheckpointJobRequest* request,
                                          v1::CheckpointJobReply* reply) override;
  grpc::ServerUnaryReactor* RemoveJob(grpc::CallbackServerContext* context,
                                      const v1::RemoveJobRequest* request,
                                      v1::RemoveJobReply* reply) override;
  grpc::ServerUnaryReactor* ClaimJob(grpc::CallbackServerContext* context,
                                     const v1::ClaimJobRequest* request,
                                     v1::ClaimJobReply* reply) override;
  grpc::ServerUnaryReactor* ReportJob(grpc::CallbackServerContext* context,
                                      const v1::ReportJobRequest* request,
                                      v1::ReportJobReply* reply) override;
  grpc::ServerUnaryReactor* DrainWorker(grpc::CallbackServerContext* context,
                                        const v1::DrainWorkerRequest* request,
                                        v1::DrainWorkerReply* reply) override;
  grpc::ServerUnaryReactor* DrainServer(grpc::CallbackServerContext* context,
                                        const v1::DrainServerRequest* request,
                                        v1::DrainServerReply* reply) override;

 private:
  // Calls `function` of the desk, for the jobs that the caller reaches, and answers with what it
  // returns.
  template <class Request, class Reply>
  grpc::ServerUnaryReactor* Answer(const char* method, grpc::CallbackServerContext* context,
                                   const Request& request, Reply* reply,
                                   void (JobDesk::*function)(Request, JobDesk::Done<Reply>,
                                                             CallerScope));
  // FailedPrecondition with the lead's address, unless this server is the lead or serves no job.
  absl::Status CheckIsLead() const;

  JobHost* const host_;
  JobDesk* const desk_;
  const std::function<void()> drain_;
  CallLimit calls_{"Scheduler", kMaxCalls};
  CallLimit watches_{"WatchJobs", kMaxWatches};
};

}  // namespace eps

#endif  // EPS_SERVER_RPC_SCHEDULER_SERVICE_H_
