#ifndef EPS_STORAGE_BACKENDS_NEAR_TESTING_TRAIN_SHARD_H_
#define EPS_STORAGE_BACKENDS_NEAR_TESTING_TRAIN_SHARD_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/job/layout/chunk_map.h"
#include "optimizer/update_request.h"
#include "storage/testing/shard_under_test.h"

namespace eps {

// Makes one step of a chunk, in mode sealed with a reduction before the update. Expects success.
// Returns the result of the update. For one thread.
UpdateResult TrainChunk(ShardUnderTest* shard, const Chunk& chunk, uint64_t step,
                        std::vector<UpdateRequest::Encode> encode = {});

// Updates a new chunk with one contribution in this codec, in mode sealed after its reduction.
// Expects success. Returns the state, and adds the contribution's bytes on a medium to *sent.
std::string UpdateWith(ShardUnderTest* shard, const Chunk& chunk, const std::string& codec,
                       uint64_t* sent);

// Initializes the shard and trains two steps, each of all chunks at the same time. Returns the sums
// of squares, the encoded weights and the whole state. For one thread.
std::string TrainShard(ShardUnderTest* shard);

}  // namespace eps

#endif  // EPS_STORAGE_BACKENDS_NEAR_TESTING_TRAIN_SHARD_H_
