// Reduced gradients that wait on the disk for their update.

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "base/testing/test_specs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/testing/durable_world.h"
#include "storage/testing/shard_under_test.h"

namespace eps {
namespace {

using ::testing::HasSubstr;

using Reduced = std::shared_ptr<const ReducedGradient>;

// The backend that keeps its state on a disk.
BackendUnderTest OnDisk() { return BackendsUnderTest().back(); }

JobSpec SealedSpec() {
  JobSpec spec = RaggedSpec();
  spec.training.mode = Mode::kSealed;
  return spec;
}

// How a gradient arrives.
struct Arrival {
  const char* name;
  const char* codec;
  uint32_t parts;
};
void PrintTo(const Arrival& arrival, std::ostream* out) { *out << arrival.name; }

class StoredGradientTest : public testing::TestWithParam<Arrival> {
 protected:
  // Returns the request of a step, with the gradients as this arrival's codec decodes them.
  UpdateRequest RequestFor(ShardUnderTest* shard, const Chunk& chunk, Gradients* gradients,
                           uint64_t step) {
    UpdateRequest request = RequestOf(shard, chunk, *gradients, step, Merging::kNone);
    for (UpdateInput& input : request.inputs) {
      std::vector<float>& values = (*gradients)[input.use][input.parts.first];
      input.data = shard->Encode(chunk, values, GetParam().codec);
      DecodeChunk(*input.data, chunk, values.data());
    }
    return request;
  }
};

TEST_P(StoredGradientTest, UpdatesEqualPlainLoops) {
  ShardUnderTest shard(OnDisk(), SealedSpec(), 2);
  ASSERT_TRUE(shard.status().ok()) << shard.status();
  shard.InitializeAll();
  std::vector<PlainState> references;
  for (const Chunk& c : shard.chunks().chunks()) {
    references.emplace_back(*shard.State(c.id, Version(0)), c.elements);
  }
  for (uint64_t step = 1; step <= 2; ++step) {
    std::vector<UpdateRequest> updates;
    std::vector<double> sums;
    std::vector<OpId> ops;
    for (const Chunk& c : shard.chunks().chunks()) {
      Gradients gradients = GradientsOf(c, step, GetParam().parts);
      ops.push_back(shard.Submit(ReduceRequest{RequestFor(&shard, c, &gradients, step)}));
      updates.push_back(RequestFor(&shard, c, &gradients, step));
      updates.back().inputs.clear();
      sums.push_back(references[c.id.value()].Update(shard.spec(), c, gradients, StepAt(step)));
    }
    for (size_t i = 0; i < ops.size(); ++i) {
      const BackendDone done = shard.completions().Take(ops[i]);
      ASSERT_TRUE(done.status.ok()) << done.status;
      EXPECT_EQ(std::get<UpdateResult>(done.value).sum_squares, sums[i]) << "chunk " << i;
      updates[i].reduced = std::get<UpdateResult>(done.value).reduced;
      EXPECT_FALSE(updates[i].reduced->in_memory()) << "chunk " << i;
    }
    EXPECT_EQ(shard.account().live_bytes(MemoryKind::kContribution), 0u);
    for (size_t i = 0; i < ops.size(); ++i) {
      ASSERT_TRUE(shard.Await(std::move(updates[i])).status.ok());
      const ChunkId id(static_cast<uint32_t>(i));
      EXPECT_TRUE(*shard.State(id, Version(step)) == references[i].Bytes()) << "chunk " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Arrivals, StoredGradientTest,
                         testing::Values(Arrival{"Fp32", "fp32", 1}, Arrival{"Bf16", "bf16", 1},
                                         Arrival{"Mx9", "mx9", 1}, Arrival{"TopK", "topk:0.1", 1},
                                         Arrival{"Fp32Parts", "fp32", 3},
                                         Arrival{"Bf16Parts", "bf16", 4}),
                         testing::PrintToStringParamName());

TEST(StoredGradient, EagerJobsAndMemoryStoreNone) {
  JobSpec eager = SealedSpec();
  eager.training.mode = Mode::kEager;
  const std::vector<std::tuple<BackendUnderTest, JobSpec>> cases = {
      {OnDisk(), eager},
      {BackendsUnderTest()[0], SealedSpec()},
      {BackendsUnderTest()[1], SealedSpec()}};
  for (const auto& [kind, spec] : cases) {
    ShardUnderTest shard(kind, spec, 1);
    const Chunk& chunk = shard.chunks().chunk(ChunkId(0));
    BackendDone done = shard.Await(
        ReduceRequest{RequestOf(&shard, chunk, GradientsOf(chunk, 1, 2), 1, Merging::kNone)});
    ASSERT_TRUE(done.status.ok()) << done.status;
    EXPECT_TRUE(std::get<UpdateResult>(done.value).reduced->in_memory()) << kind.name;
  }
}

// Processes on a simulated disk.
class StoredGradientOnDisk : public testing::Test {
 protected:
  StoredGradientOnDisk() { world_.spec.training.mode = Mode::kSealed; }

  const Chunk& first() const { return world_.chunks.chunk(ChunkId(0)); }
  // Starts a process whose chunks are at version 1.
  std::unique_ptr<DurableProcess> Start() {
    auto process = std::make_unique<DurableProcess>(&world_);
    EXPECT_TRUE(process->status().ok()) << process->status();
    if (process->status().ok()) process->WriteAll(Version(1));
    return process;
  }
  BackendDone Reduce(DurableProcess* process, uint64_t seed) {
    return process->Await(process->Submit(ReduceRequest{SomeUpdate(first(), Version(1), seed)}));
  }
  Reduced ReduceOk(DurableProcess* process, uint64_t seed) {
    BackendDone done = Reduce(process, seed);
    EXPECT_TRUE(done.status.ok()) << done.status;
    return std::get<UpdateResult>(std::move(done.value)).reduced;
  }
  absl::Status Update(DurableProcess* process, Reduced reduced) {
    UpdateRequest request = SomeUpdate(first(), Version(1), 0);
    request.inputs.clear();
    request.reduced = std::move(reduced);
    return process->Await(process->Submit(std::move(request))).status;
  }

  DurableWorld world_{kOnNvme};
  const std::string file_ = world_.folder + "/gradients.eps";
};

TEST_F(StoredGradientOnDisk, DamageIsNamedAndEndsTheBackend) {
  auto process = Start();
  Reduced reduced = ReduceOk(process.get(), 5);
  world_.disk.FlipBit(file_, 100, 3);
  const absl::Status status = Update(process.get(), std::move(reduced));
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(file_ + ": the gradient of chunk 0 at offset 0: CRC32C "));
  EXPECT_EQ(process->State(ChunkId(1), Version(1)).status(), status) << "nothing begins any more";
}

TEST_F(StoredGradientOnDisk, FailingTransfersEndTheBackend) {
  for (const DiskCall call : {DiskCall::kRead, DiskCall::kWrite}) {
    auto process = Start();
    Reduced reduced;
    if (call == DiskCall::kRead) reduced = ReduceOk(process.get(), 5);
    world_.disk.FailCall(call, 1, DiskFault::kIoError);
    const absl::Status status = call == DiskCall::kRead ? Update(process.get(), std::move(reduced))
                                                        : Reduce(process.get(), 5).status;
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(file_));
    EXPECT_EQ(process->State(ChunkId(1), Version(1)).status(), status);
  }
}

TEST_F(StoredGradientOnDisk, AnOlderGradientKeepsItsPlace) {
  auto process = Start();
  Reduced first = ReduceOk(process.get(), 5);
  Reduced second = ReduceOk(process.get(), 6);
  EXPECT_FALSE(first->in_memory());
  EXPECT_TRUE(second->in_memory());
  second = nullptr;
  ASSERT_TRUE(Update(process.get(), std::move(first)).ok());
  const std::string stored = *process->State(ChunkId(0), Version(2));
  EXPECT_FALSE(ReduceOk(process.get(), 7)->in_memory()) << "the update has freed the place";
  // The same with the gradient in memory.
  ASSERT_TRUE(
      process->Write(ChunkId(0), Version(1), DurableProcess::SomeState(this->first(), Version(1)))
          .ok());
  UpdateRequest direct = SomeUpdate(this->first(), Version(1), 5);
  ASSERT_TRUE(process->Await(process->Submit(std::move(direct))).status.ok());
  EXPECT_TRUE(*process->State(ChunkId(0), Version(2)) == stored);
}

TEST_F(StoredGradientOnDisk, HandlesOutliveTheirBackend) {
  auto process = Start();
  Reduced reduced = ReduceOk(process.get(), 5);
  ASSERT_TRUE(process->Cut(CutAt(1, 1, 1)).ok());
  process.reset();
  auto next = std::make_unique<DurableProcess>(&world_);
  ASSERT_TRUE(next->Restore({Step(1), Term(1)}, Term(2)).ok());
  EXPECT_FALSE(ReduceOk(next.get(), 6)->in_memory()) << "another backend has its own places";
  next.reset();
  reduced = nullptr;
}

TEST_F(StoredGradientOnDisk, AFileOfAnotherSizeIsReplaced) {
  ASSERT_TRUE(Start()->Cut(CutAt(1, 1, 1)).ok());
  const size_t size = world_.disk.Contents(file_).size();
  for (const uint64_t wrong : {uint64_t{0}, uint64_t{kDiskBlock}}) {
    ASSERT_TRUE(world_.disk.Remove(file_).ok());
    if (wrong > 0) {
      ASSERT_TRUE(world_.disk.CreateFile(file_, wrong).ok());
    }
    DurableProcess process(&world_);
    ASSERT_TRUE(process.status().ok()) << process.status();
    EXPECT_EQ(world_.disk.Contents(file_).size(), size);
    ASSERT_TRUE(process.Restore({Step(1), Term(1)}, Term(2 + wrong)).ok());
    EXPECT_FALSE(ReduceOk(&process, 6)->in_memory());
  }
}

TEST_F(StoredGradientOnDisk, AFullDiskIsExplained) {
  world_.other_jobs = "; other jobs hold 7 bytes";
  ASSERT_TRUE(Start()->Cut(CutAt(1, 1, 1)).ok());
  ASSERT_TRUE(world_.disk.Remove(file_).ok());
  world_.disk.set_capacity_bytes(world_.disk.used_bytes() + kDiskBlock);
  const DurableProcess process(&world_);
  EXPECT_TRUE(absl::IsResourceExhausted(process.status())) << process.status();
  EXPECT_THAT(std::string(process.status().message()),
              testing::AllOf(HasSubstr(file_), HasSubstr("; other jobs hold 7 bytes")));
}

// All reductions of a step wait for the memory of one chunk.
TEST_F(StoredGradientOnDisk, NeedsTheMemoryOfOneChunk) {
  uint64_t largest = 0;
  for (const Chunk& c : world_.chunks.chunks()) largest = std::max(largest, c.elements);
  world_.staging_bytes = 12 * largest + 4 * largest + 3 * kDiskBlock;
  auto process = Start();
  std::vector<OpId> ops;
  for (const Chunk& c : world_.chunks.chunks()) {
    ops.push_back(process->Submit(ReduceRequest{SomeUpdate(c, Version(1), 5)}));
  }
  world_.executor.RunAll();
  for (const OpId op : ops) EXPECT_TRUE(process->Take(op).status.ok());
  EXPECT_LE(process->account().peak_bytes(MemoryKind::kContribution), 4 * largest);
}

}  // namespace
}  // namespace eps
