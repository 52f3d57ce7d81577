#ifndef EPS_SERVER_RPC_DATA_SERVICE_H_
#define EPS_SERVER_RPC_DATA_SERVICE_H_

#include "eps/v1/data.grpc.pb.h"
#include "eps_server/rpc/process_info.h"
#include "eps_server/shell/job_host.h"

namespace eps {

namespace internal {
using DataBase = v1::Data::WithCallbackMethod_BeginStep<
    v1::Data::WithRawCallbackMethod_Fetch<v1::Data::WithRawCallbackMethod_Push<v1::Data::Service>>>;
}  // namespace internal

// Serves eps.v1.Data with gRPC's callback API. Handlers turn requests into events and never block.
// `host` and `process` must outlive the service.
class DataService final : public internal::DataBase {
 public:
  DataService(JobHost* host, const ProcessInfo* process) : host_(host), process_(process) {}

  grpc::ServerUnaryReactor* BeginStep(grpc::CallbackServerContext* context,
                                      const v1::BeginStepRequest* request,
                                      v1::BeginStepReply* reply) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Fetch(
      grpc::CallbackServerContext* context) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Push(
      grpc::CallbackServerContext* context) override;

 private:
  JobHost* const host_;
  const ProcessInfo* const process_;
};

}  // namespace eps

#endif  // EPS_SERVER_RPC_DATA_SERVICE_H_
