#ifndef EPS_WORKER_CLIENT_BEGIN_STEP_H_
#define EPS_WORKER_CLIENT_BEGIN_STEP_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "eps/v1/data.pb.h"
#include "grpcpp/channel.h"
#include "worker/client/client_core.h"
#include "worker/client/trace/step_trace.h"

namespace eps {

// A server to ask.
struct BeginTarget {
  std::string address;
  std::shared_ptr<grpc::Channel> channel;
  StepTrace* trace_or_null = nullptr;  // of the lead
};

// Sends `request` (without request_id) to all targets at once, waits for all replies and returns
// them in the same order. If a shard parks the request, asks for its status every rpc_timeout, and
// repeats the request as long as the shard answers. A shard that is away for rpc_timeout or refuses
// ends the call with an error that names it, and so does a failure of the client. An interrupt ends
// it with Cancelled, except a report or the step after the last one; a request of a worker that
// leaves ends so after rpc_timeout. Runs on the calling thread; acquires core->mu.
absl::StatusOr<std::vector<v1::BeginStepReply>> BeginStepOnAll(
    const std::shared_ptr<ClientCore>& core, const JobView& job,
    const std::vector<BeginTarget>& targets, const v1::BeginStepRequest& request);

}  // namespace eps

#endif  // EPS_WORKER_CLIENT_BEGIN_STEP_H_
