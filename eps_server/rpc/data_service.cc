#include "eps_server/rpc/data_service.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/trace/trace_log.h"
#include "eps_server/rpc/calls/caller_scope.h"
#include "eps_server/rpc/calls/fetch_call.h"
#include "eps_server/rpc/calls/push_call.h"
#include "eps_server/rpc/calls/unary_call.h"
#include "wire/payload_message.h"

namespace eps {

grpc::ServerUnaryReactor* DataService::BeginStep(grpc::CallbackServerContext* context,
                                                 const v1::BeginStepRequest* request,
                                                 v1::BeginStepReply* reply) {
  auto call = UnaryCall<v1::BeginStepReply>::New("BeginStep", request->request_id(), reply);
  absl::Status status;
  if (request->ByteSizeLong() > kMaxMessageBytes) {
    status = absl::InvalidArgumentError(
        absl::StrCat("a message of more than ", kMaxMessageBytes, " bytes"));
  }
  if (!status.ok()) {
    call->Fail(status);
    return call.get();
  }
  auto job = host_->Find(request->job_id(), ScopeOf(*context));
  if (job.ok()) {
    const StreamId id = call->Attach(*job);
    v1::BeginStepRequest begin = *request;
    begin.clear_trace();  // the core has no use for it
    if ((*job)->is_lead() && !begin.probe() && !begin.report_only()) {
      (*job)->traces().OnBegin(*request);
      call->BeforeReply([job = *job, received_ns = TraceNowNs()](v1::BeginStepReply* message) {
        job->traces().Order(received_ns, message);
      });
    }
    (*job)->Post(event::BeginStep{id, std::move(begin)});
  } else {
    call->Fail(job.status());
  }
  return call.get();
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* DataService::Fetch(
    grpc::CallbackServerContext* context) {
  return FetchCall::Start(context, host_, process_->shm_or_null);
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* DataService::Push(
    grpc::CallbackServerContext* context) {
  return PushCall::Start(context, host_, process_->shm_or_null);
}

}  // namespace eps
