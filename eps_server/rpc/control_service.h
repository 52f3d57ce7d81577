#ifndef EPS_SERVER_RPC_CONTROL_SERVICE_H_
#define EPS_SERVER_RPC_CONTROL_SERVICE_H_

#include <functional>

#include "eps/v1/control.grpc.pb.h"
#include "eps_server/rpc/calls/call_limit.h"
#include "eps_server/rpc/calls/gate_numbers.h"
#include "eps_server/rpc/process_info.h"
#include "eps_server/shell/job_host.h"

namespace eps {

namespace internal {
using ControlUnary = v1::Control::WithCallbackMethod_Hello<
    v1::Control::WithCallbackMethod_CreateJob<v1::Control::WithCallbackMethod_Join<
        v1::Control::WithCallbackMethod_Status<v1::Control::WithCallbackMethod_Gate<
            v1::Control::WithCallbackMethod_GetJob<v1::Control::Service>>>>>>;
using ControlLooks =
    v1::Control::WithRawCallbackMethod_Trace<v1::Control::WithRawCallbackMethod_WatchSteps<
        v1::Control::WithRawCallbackMethod_Session<ControlUnary>>>;
using ControlBase = v1::Control::WithRawCallbackMethod_ImportState<
    v1::Control::WithRawCallbackMethod_ExportState<ControlLooks>>;
}  // namespace internal

// Serves eps.v1.Control with gRPC's callback API. Handlers turn requests into events and never
// block. `host` and `process` must outlive the service.
class ControlService final : public internal::ControlBase {
 public:
  // The most calls that may be open at a time. A job has one client that imports, exports and
  // watches, and a few that look on.
  static constexpr int kMaxCreations = 16;  // each holds a spec of up to 16 MiB
  static constexpr int kMaxImports = 16;    // each holds up to two chunks
  static constexpr int kMaxExports = 16;    // each holds a chunk
  static constexpr int kMaxWatches = 64;    // each holds up to WatchCall::kMaxQueuedBytes
  static constexpr int kMaxTraces = 4;      // each holds up to TraceCall::kMaxQueuedBytes

  ControlService(JobHost* host, const ProcessInfo* process) : host_(host), process_(process) {}

  grpc::ServerUnaryReactor* Hello(grpc::CallbackServerContext* context,
                                  const v1::HelloRequest* request, v1::HelloReply* reply) override;
  grpc::ServerUnaryReactor* CreateJob(grpc::CallbackServerContext* context,
                                      const v1::CreateJobRequest* request,
                                      v1::CreateJobReply* reply) override;
  grpc::ServerUnaryReactor* GetJob(grpc::CallbackServerContext* context,
                                   const v1::GetJobRequest* request,
                                   v1::GetJobReply* reply) override;
  grpc::ServerUnaryReactor* Join(grpc::CallbackServerContext* context,
                                 const v1::JoinRequest* request, v1::JoinReply* reply) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Session(
      grpc::CallbackServerContext* context) override;
  grpc::ServerReadReactor<grpc::ByteBuffer>* ImportState(grpc::CallbackServerContext* context,
                                                         grpc::ByteBuffer* reply) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* ExportState(grpc::CallbackServerContext* context,
                                                          const grpc::ByteBuffer* request) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* WatchSteps(grpc::CallbackServerContext* context,
                                                         const grpc::ByteBuffer* request) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Trace(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* Status(grpc::CallbackServerContext* context,
                                   const v1::StatusRequest* request,
                                   v1::StatusReply* reply) override;
  grpc::ServerUnaryReactor* Gate(grpc::CallbackServerContext* context,
                                 const v1::GateRequest* request, v1::GateReply* reply) override;

  // Calls `done`, on any thread, with the status of the process and of its job if there is one.
  void GetStatus(std::function<void(v1::StatusReply)> done);

 private:
  JobHost* const host_;
  const ProcessInfo* const process_;
  CallLimit creations_{"CreateJob", kMaxCreations};
  CallLimit imports_{"ImportState", kMaxImports};
  CallLimit exports_{"ExportState", kMaxExports};
  CallLimit watches_{"WatchSteps", kMaxWatches};
  CallLimit traces_{"Trace", kMaxTraces};
  GateNumbers gate_numbers_;
};

}  // namespace eps

#endif  // EPS_SERVER_RPC_CONTROL_SERVICE_H_
