#include "eps_server/rpc/control_service.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "compression/codec.h"
#include "eps_server/core/steps/gate_table.h"
#include "eps_server/rpc/calls/caller_scope.h"
#include "eps_server/rpc/calls/session_call.h"
#include "eps_server/rpc/calls/state_calls.h"
#include "eps_server/rpc/calls/trace_call.h"
#include "eps_server/rpc/calls/unary_call.h"
#include "wire/channel.h"
#include "wire/payload_message.h"

namespace eps {
namespace {

constexpr const char* kServerName = "eps-server 0.1";
// The optional features that this build supports.
constexpr v1::Feature kFeatures[] = {v1::FEATURE_MERGED_PARTS};
// The most time that CreateJob gives the other shards to prepare, even if the caller's deadline is
// later. They fill their slots, which takes hours on a large, slow disk. The caller watches their
// progress and gives up earlier if there is none.
constexpr std::chrono::hours kPrepareTimeout{7 * 24};

// Limits requests other than CreateJob and PrepareJob, which may be longer.
absl::Status CheckSize(const google::protobuf::MessageLite& message) {
  const size_t size = message.ByteSizeLong();
  if (size <= kMaxMessageBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a message of ", size, " bytes; at most ", kMaxMessageBytes, " are allowed"));
}

JobHost::Clock::time_point DeadlineOf(const grpc::CallbackServerContext& context) {
  const auto now = std::chrono::system_clock::now();
  const auto left =
      std::max<std::chrono::nanoseconds>(context.deadline() - now, std::chrono::nanoseconds(0));
  return JobHost::Clock::now() + std::min<std::chrono::nanoseconds>(left, kPrepareTimeout);
}

// Fills in the protocol version and the features that both sides support.
absl::Status Negotiate(const v1::HelloRequest& request, v1::HelloReply* reply) {
  if (request.min_protocol() > kProtocolVersion || request.max_protocol() < kProtocolVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("this server (", kServerName, ") speaks protocol ", kProtocolVersion,
                     ", the client (", request.client().substr(0, 64), ") ", request.min_protocol(),
                     " to ", request.max_protocol(), "; install the same release on both sides"));
  }
  reply->set_protocol(kProtocolVersion);
  for (const v1::Feature feature : kFeatures) {
    const auto& theirs = request.features();
    if (std::find(theirs.begin(), theirs.end(), feature) != theirs.end()) {
      reply->add_features(feature);
    }
  }
  return absl::OkStatus();
}

}  // namespace

grpc::ServerUnaryReactor* ControlService::Hello(grpc::CallbackServerContext*,
                                                const v1::HelloRequest* request,
                                                v1::HelloReply* reply) {
  auto call = UnaryCall<v1::HelloReply>::New("Hello", request->request_id(), reply);
  v1::HelloReply answer;
  const absl::Status status = Negotiate(*request, &answer);
  if (!status.ok()) {
    call->Fail(status);
    return call.get();
  }
  answer.set_server(kServerName);
  answer.set_incarnation(process_->incarnation);
  for (const std::string& codec : CodecNames()) answer.add_codecs(codec);
  if (process_->shm_or_null != nullptr) {
    *answer.mutable_shared_memory() = process_->shm_or_null->offer();
  }
  call->Succeed(answer);
  return call.get();
}

grpc::ServerUnaryReactor* ControlService::CreateJob(grpc::CallbackServerContext* context,
                                                    const v1::CreateJobRequest* request,
                                                    v1::CreateJobReply* reply) {
  auto call = UnaryCall<v1::CreateJobReply>::New("CreateJob", request->request_id(), reply);
  CallLimit::Place place;
  const absl::Status status = creations_.Take(&place);
  if (!status.ok()) {
    call->Fail(status);
    return call.get();
  }
  host_->CreateJob(*request, ScopeOf(*context), DeadlineOf(*context),
                   [this, call, place](absl::StatusOr<v1::CreateJobReply> r) {
                     if (!r.ok()) return call->Fail(r.status());
                     r->set_gate_number(gate_numbers_.NextRange());
                     call->Succeed(*r);
                   });
  return call.get();
}

grpc::ServerUnaryReactor* ControlService::GetJob(grpc::CallbackServerContext* context,
                                                 const v1::GetJobRequest* request,
                                                 v1::GetJobReply* reply) {
  auto call = UnaryCall<v1::GetJobReply>::New("GetJob", request->request_id(), reply);
  const absl::StatusOr<std::shared_ptr<JobShell>> job =
      host_->Find(request->job_id(), ScopeOf(*context));
  if (!job.ok()) {
    call->Fail(job.status());
    return call.get();
  }
  v1::GetJobReply answer;
  answer.set_job_id((*job)->id().value());
  answer.set_spec_text((*job)->spec_text());
  for (const std::string& server : (*job)->servers()) answer.add_servers(server);
  answer.set_config(host_->config());
  call->Succeed(answer);
  return call.get();
}

grpc::ServerUnaryReactor* ControlService::Join(grpc::CallbackServerContext* context,
                                               const v1::JoinRequest* request,
                                               v1::JoinReply* reply) {
  auto call = UnaryCall<v1::JoinReply>::New("Join", request->request_id(), reply);
  absl::Status status = host_->CheckNotDraining();
  if (status.ok()) status = CheckSize(*request);
  if (status.ok() && host_->job() == nullptr) {
    // Workers may start before the job is created. They retry UNAVAILABLE.
    status = absl::UnavailableError("Join: no job was created on this server yet");
  }
  if (!status.ok()) {
    call->Fail(status);
    return call.get();
  }
  auto job = host_->Find(request->job_id(), ScopeOf(*context));
  if (job.ok()) {
    const StreamId id = call->Attach(*job);
    (*job)->Post(event::Join{id, *request});
  } else {
    call->Fail(job.status());
  }
  return call.get();
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ControlService::Session(
    grpc::CallbackServerContext* context) {
  return SessionCall::Start(host_, ScopeOf(*context));
}

grpc::ServerReadReactor<grpc::ByteBuffer>* ControlService::ImportState(
    grpc::CallbackServerContext* context, grpc::ByteBuffer* reply) {
  return ImportCall::Start(host_, ScopeOf(*context), &imports_, reply);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* ControlService::ExportState(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  return ExportCall::Start(context, host_, &exports_, *request);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* ControlService::WatchSteps(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  return WatchCall::Start(context, host_, &watches_, *request);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* ControlService::Trace(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  return TraceCall::Start(context, host_, &traces_, *request);
}

void ControlService::GetStatus(std::function<void(v1::StatusReply)> done) {
  const auto complete = [process = process_, done = std::move(done)](v1::StatusReply status) {
    process->FillStatus(&status);
    done(std::move(status));
  };
  if (const std::shared_ptr<JobShell> job = host_->job()) return job->GetStatus(complete);
  complete(v1::StatusReply());
}

grpc::ServerUnaryReactor* ControlService::Status(grpc::CallbackServerContext* context,
                                                 const v1::StatusRequest* request,
                                                 v1::StatusReply* reply) {
  auto call = UnaryCall<v1::StatusReply>::New("Status", request->request_id(), reply);
  const CallerScope caller = ScopeOf(*context);
  const std::shared_ptr<JobShell> job = host_->job();
  if (job != nullptr && !caller.Reaches(host_->scope())) {
    v1::StatusReply stranger;
    stranger.set_server(process_->address);
    stranger.set_incarnation(process_->incarnation);
    call->Succeed(stranger);
  } else if (request->job_id() != 0 && (job == nullptr || JobId(request->job_id()) != job->id())) {
    call->Fail(job == nullptr ? absl::NotFoundError("this server runs no job")
                              : host_->Find(request->job_id(), caller).status());
  } else {
    GetStatus([call](v1::StatusReply status) { call->Succeed(status); });
  }
  return call.get();
}

grpc::ServerUnaryReactor* ControlService::Gate(grpc::CallbackServerContext* context,
                                               const v1::GateRequest* request,
                                               v1::GateReply* reply) {
  auto call = UnaryCall<v1::GateReply>::New("Gate", request->request_id(), reply);
  auto job = host_->Find(request->job_id(), ScopeOf(*context));
  if (job.ok() && request->number() == 0) {
    job = absl::InvalidArgumentError("Gate: the request has no number; a holder counts from 1");
  }
  if (job.ok()) {
    if (request->holder() == kDriverHolder) gate_numbers_.Saw(request->number());
    const StreamId id = call->Attach(*job);
    (*job)->Post(event::Gate{
        id, request->holder(),
        request->has_step() ? std::make_optional(request->step()) : std::nullopt, request->lapses(),
        ToDriverLease(request->lease()), request->outlives_driver(), request->number()});
  } else {
    call->Fail(job.status());
  }
  return call.get();
}

}  // namespace eps
