#ifndef EPS_STORAGE_CUTS_RESIDUAL_BUDGET_H_
#define EPS_STORAGE_CUTS_RESIDUAL_BUDGET_H_

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"

namespace eps {

// Returns the maximum bytes of residuals that a shard with the chunks `owned` holds between two
// steps. It holds them if quantization.residual_home is server, and in every durable job, because
// cuts contain them. REQUIRES that the codecs of `spec` exist.
uint64_t ResidualBudget(const JobSpec& spec, const ChunkMap& chunks,
                        const std::vector<ChunkId>& owned, bool durable);

}  // namespace eps

#endif  // EPS_STORAGE_CUTS_RESIDUAL_BUDGET_H_
