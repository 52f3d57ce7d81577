#ifndef EPS_WORKER_CLIENT_JOIN_JOB_H_
#define EPS_WORKER_CLIENT_JOIN_JOB_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "eps/v1/control.pb.h"
#include "grpcpp/channel.h"
#include "worker/client/client_core.h"

namespace eps {

// Joins the job of the client's first server, over `channel`. Waits for the job's initial weights,
// which another client imports, as long as the server answers that it waits for them too.
// FailedPrecondition if the job has failed. For the thread that uses the client.
absl::StatusOr<v1::JoinReply> JoinWhenReady(const std::shared_ptr<ClientCore>& core,
                                            const std::shared_ptr<grpc::Channel>& channel,
                                            const JoinOptions& options);

// Fills *job, except its leases, with the job that `server` described, and loads its plug-in codec
// from the file `codec_plugin`. An error says what this worker cannot read or encode.
absl::Status TakeJob(const std::string& server, const v1::JoinReply& reply,
                     const std::string& codec_plugin, JobView* job);

}  // namespace eps

#endif  // EPS_WORKER_CLIENT_JOIN_JOB_H_
