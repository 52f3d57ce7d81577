#ifndef EPS_WORKER_RELAY_TESTING_SEND_STAGE_H_
#define EPS_WORKER_RELAY_TESTING_SEND_STAGE_H_

// For tests only: the servers' ends of a fetch and of a push.

#include "absl/status/status.h"
#include "base/ids.h"
#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"
#include "base/job/layout/visits.h"
#include "worker/client/stages/gradient_source.h"
#include "worker/client/stages/stage_sink.h"
#include "worker/relay/testing/plain_loop.h"

namespace eps {

// The codecs on the wire: all fp32, or those of the job in step 1.
enum class Wire { kFp32, kOfJob };

// Gives the weights of a visit to `sink`: every chunk of the stage from `first` (by tensor), and
// from `second` where the job's codec has a second copy. Stops at the first error.
absl::Status SendStage(const JobSpec& spec, const ChunkMap& chunks, Wire wire, const Visit& visit,
                       const Tensors& first, const Tensors& second, StageSink* sink);

// Returns the gradient of a stage by use, as the servers decode it. A frozen tensor has none.
Tensors ReceiveGradient(const JobSpec& spec, const ChunkMap& chunks, Wire wire, StageId stage,
                        const GradientSource& gradient);

}  // namespace eps

#endif  // EPS_WORKER_RELAY_TESTING_SEND_STAGE_H_
