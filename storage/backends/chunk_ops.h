#ifndef EPS_STORAGE_BACKENDS_CHUNK_OPS_H_
#define EPS_STORAGE_BACKENDS_CHUNK_OPS_H_

// Implements the chunk requests of storage/requests.h for every backend that computes on the host.

#include "base/ids.h"
#include "base/job/layout/chunk_map.h"
#include "optimizer/chunk_compute.h"
#include "storage/requests.h"
#include "storage/tier.h"

namespace eps {

ChunkId ChunkOf(const ChunkRequest& request);

// Returns the operation that performs `request` on `chunk`, without its index. `compute` and
// `chunk` must outlive it. The operation holds the only reference to the request's contributions.
ChunkOp NewChunkOp(const ChunkCompute& compute, const Chunk& chunk, ChunkRequest request);

}  // namespace eps

#endif  // EPS_STORAGE_BACKENDS_CHUNK_OPS_H_
