#include "storage/backends/near/testing/train_shard.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "storage/requests.h"

namespace eps {

UpdateResult TrainChunk(ShardUnderTest* shard, const Chunk& chunk, uint64_t step,
                        std::vector<UpdateRequest::Encode> encode) {
  UpdateRequest request =
      RequestOf(shard, chunk, GradientsOf(chunk, step, 2), step, Merging::kNone);
  UpdateRequest update = request;
  update.encode = std::move(encode);
  double sum_squares = 0;
  if (shard->spec().training.mode == Mode::kSealed) {
    const BackendDone reduced = shard->Await(ReduceRequest{std::move(request)});
    EXPECT_TRUE(reduced.status.ok()) << reduced.status;
    update.inputs.clear();
    update.reduced = std::get<UpdateResult>(reduced.value).reduced;
    sum_squares = std::get<UpdateResult>(reduced.value).sum_squares;
  }
  const BackendDone updated = shard->Await(std::move(update));
  EXPECT_TRUE(updated.status.ok()) << updated.status;
  UpdateResult result = std::get<UpdateResult>(updated.value);
  if (shard->spec().training.mode == Mode::kSealed) {
    EXPECT_EQ(result.sum_squares, sum_squares);
  }
  return result;
}

std::string TrainShard(ShardUnderTest* shard) {
  shard->InitializeAll();
  std::string state;
  for (uint64_t step = 1; step <= 2; ++step) {
    for (const Chunk& chunk : shard->chunks().chunks()) {
      if (chunk.frozen) continue;
      absl::StrAppend(&state, TrainChunk(shard, chunk, step).sum_squares, "\n");
    }
  }
  for (const Chunk& chunk : shard->chunks().chunks()) {
    state += *shard->State(chunk.id, Version(2));
  }
  return state;
}

}  // namespace eps
