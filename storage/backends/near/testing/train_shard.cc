#include "storage/backends/near/testing/train_shard.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/bytes.h"
#include "base/ids.h"
#include "base/job/job_spec.h"
#include "base/job/optimizers.h"
#include "compression/codec.h"
#include "gtest/gtest.h"
#include "optimizer/trust_ratio.h"
#include "storage/disk/block_bytes.h"
#include "storage/disk/disk.h"
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

std::string UpdateWith(ShardUnderTest* shard, const Chunk& chunk, const std::string& codec,
                       uint64_t* sent) {
  const Gradients gradients = GradientsOf(chunk, 1, 1);
  UpdateRequest request = RequestOf(shard, chunk, gradients, 1, Merging::kNone);
  request.inputs.front().data = shard->Encode(chunk, gradients[0][0], codec);
  *sent += RoundUpTo(request.inputs.front().data->bytes().size(), kDiskBlock);
  if (shard->spec().training.mode == Mode::kSealed) {
    const BackendDone reduced = shard->Await(ReduceRequest{request});
    EXPECT_TRUE(reduced.status.ok()) << reduced.status;
    request.inputs.clear();
    request.reduced = std::get<UpdateResult>(reduced.value).reduced;
  }
  const BackendDone updated = shard->Await(std::move(request));
  EXPECT_TRUE(updated.status.ok()) << updated.status;
  return *shard->State(chunk.id, Version(1));
}

namespace {

// Carries out all requests at the same time. Returns their results in order; expects success.
std::vector<UpdateResult> AwaitAll(ShardUnderTest* shard, std::vector<Request> requests) {
  std::vector<OpId> ops;
  for (Request& request : requests) ops.push_back(shard->Submit(std::move(request)));
  std::vector<UpdateResult> results;
  for (const OpId op : ops) {
    const BackendDone done = shard->completions().Take(op);
    EXPECT_TRUE(done.status.ok()) << done.status;
    results.push_back(done.status.ok() ? std::get<UpdateResult>(done.value) : UpdateResult());
  }
  return results;
}

// Measures the chunk of an update, if the optimizer adapts, and gives each segment a trust ratio of
// its own. Returns the sums; expects success.
std::string Measure(ShardUnderTest* shard, UpdateRequest* update) {
  if (!RowOf(shard->spec().optimizer.name).adapts) return "";
  const BackendDone done = shard->Await(MeasureRequest{*update});
  EXPECT_TRUE(done.status.ok()) << done.status;
  if (!done.status.ok()) return "";
  std::string sums;
  for (const SegmentSquares& segment : std::get<MeasureResult>(done.value).segments) {
    absl::StrAppend(&sums, absl::StrFormat("%a %a\n", segment.weights, segment.steps));
    update->trust_ratios.push_back(TrustRatio(segment));
  }
  EXPECT_FALSE(sums.empty());
  return sums;
}

}  // namespace

std::string TrainShard(ShardUnderTest* shard) {
  shard->InitializeAll();
  const bool sealed = shard->spec().training.mode == Mode::kSealed;
  std::string state;
  for (uint64_t step = 1; step <= 2; ++step) {
    std::vector<Request> reduces;
    std::vector<UpdateRequest> updates;
    for (const Chunk& chunk : shard->chunks().chunks()) {
      if (chunk.frozen) continue;
      updates.push_back(RequestOf(shard, chunk, GradientsOf(chunk, step, 2), step, Merging::kNone));
      if (sealed) reduces.emplace_back(ReduceRequest{updates.back()});
      updates.back().encode = {{*FindCodec("bf16"), Axis::kRow}};
    }
    const std::vector<UpdateResult> reduced = AwaitAll(shard, std::move(reduces));
    for (size_t i = 0; i < reduced.size(); ++i) {
      updates[i].inputs.clear();
      updates[i].reduced = reduced[i].reduced;
      state += Measure(shard, &updates[i]);
    }
    std::vector<Request> requests;
    for (UpdateRequest& update : updates) requests.emplace_back(std::move(update));
    for (const UpdateResult& result : AwaitAll(shard, std::move(requests))) {
      absl::StrAppend(&state, result.sum_squares, "\n");
      for (const Bytes& bytes : result.encoded) absl::StrAppend(&state, bytes.view());
    }
  }
  for (const Chunk& chunk : shard->chunks().chunks()) {
    state += *shard->State(chunk.id, Version(2));
  }
  return state;
}

}  // namespace eps
