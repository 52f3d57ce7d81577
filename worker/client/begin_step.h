#ifndef EPS_WORKER_CLIENT_BEGIN_STEP_H_
#define EPS_WORKER_CLIENT_BEGIN_STEP_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "eps/v1/data.pb.h"
#include "grpcpp/channel.h"
#include "worker/client/client_core.h"

namespace eps {

// Sends `request` (without request_id) to every shard at once and waits for all replies, in shard
// order. A shard that parks the request is asked for its status every rpc_timeout and asked again
// as long as it answers; one that is away for rpc_timeout, or refuses, ends the call with an error
// that names it. So does a failure of the client. The calling thread drives it; takes core->mu.
absl::StatusOr<std::vector<v1::BeginStepReply>> BeginStepOnAll(
    const std::shared_ptr<ClientCore>& core, const JobView& job,
    const std::vector<std::shared_ptr<grpc::Channel>>& channels,
    const v1::BeginStepRequest& request);

}  // namespace eps

#endif  // EPS_WORKER_CLIENT_BEGIN_STEP_H_
