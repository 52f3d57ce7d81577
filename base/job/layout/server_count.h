#ifndef EPS_BASE_JOB_LAYOUT_SERVER_COUNT_H_
#define EPS_BASE_JOB_LAYOUT_SERVER_COUNT_H_

#include <cstdint>

#include "absl/status/status.h"
#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"

namespace eps {

// InvalidArgument, with both figures and the keys to change, if so many servers cannot run the job:
// in mode eager each needs a chunk that is trained, because its contributions keep the server from
// running ahead (docs/protocol.md, "Frozen chunks"). Pure.
absl::Status CheckServerCount(const JobSpec& spec, const ChunkMap& chunks, uint32_t servers);

}  // namespace eps

#endif  // EPS_BASE_JOB_LAYOUT_SERVER_COUNT_H_
