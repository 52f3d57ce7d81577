// Imports on NVMe, whose states the disk takes from where they are.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/memory_account.h"
#include "gtest/gtest.h"
#include "storage/testing/durable_world.h"

namespace eps {
namespace {

using Call = SimulatedDisk::Call;
using Fault = SimulatedDisk::Fault;

TEST(NvmeImport, WritesAlignedStatesFromWhereTheyAre) {
  DurableWorld world(kOnNvme);
  DurableProcess process(&world);
  const Chunk& chunk = world.chunks.chunk(ChunkId(0));
  const std::string state = DurableProcess::SomeState(chunk, Version(1));
  ASSERT_GT(state.size(), kDiskBlock);
  const Bytes larger = Bytes::CopyOf(state + std::string(64, 'x') + state);
  // The second one does not begin at a block, so it is copied.
  uint64_t transfers = 2;
  for (const uint64_t at : {uint64_t{0}, 64 + uint64_t{state.size()}}) {
    const uint64_t writes = world.disk.calls(Call::kWrite);
    const OpId op =
        process.Submit(WriteStateRequest{chunk.id, Version(1), larger.Sub(at, state.size())});
    ASSERT_TRUE(process.Await(op).status.ok());
    EXPECT_EQ(world.disk.calls(Call::kWrite), writes + transfers--);
    const auto found = process.State(chunk.id, Version(1));
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_TRUE(*found == state);
  }
}

TEST(NvmeImport, StatesPrecedeTheChecksums) {
  DurableWorld world(kOnNvme);
  DurableProcess process(&world);
  world.executor.RunAll();
  const uint64_t writes = world.disk.calls(Call::kWrite);
  std::vector<OpId> ops;
  for (const Chunk& chunk : world.chunks.chunks()) {
    if (12 * chunk.elements < kDiskBlock || ops.size() == 2) continue;
    ops.push_back(process.Submit(DurableProcess::SomeWrite(chunk, Version(1))));
  }
  ASSERT_EQ(ops.size(), 2u);
  // Each chunk has a buffer; the tasks that compute checksums follow.
  for (size_t i = 0; i < ops.size(); ++i) world.executor.Run(0);
  EXPECT_EQ(world.disk.calls(Call::kWrite), writes + 2);
  for (const OpId op : ops) EXPECT_TRUE(process.Await(op).status.ok());
  EXPECT_EQ(world.disk.calls(Call::kWrite), writes + 4);
}

// The disk reads the state until both transfers have ended, in either order.
TEST(NvmeImport, HoldsTheStateUntilItIsWritten) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    DurableWorld world(kOnNvme, seed);
    DurableProcess process(&world);
    const Chunk& chunk = world.chunks.chunk(ChunkId(0));
    const std::string state = DurableProcess::SomeState(chunk, Version(1));
    Buffer buffer(state.size(), MemoryKind::kImport, &process.account());
    std::copy(state.begin(), state.end(), buffer.data());
    const OpId op =
        process.Submit(WriteStateRequest{chunk.id, Version(1), std::move(buffer).Freeze()});
    const auto written = [&world](const std::string& bytes) {
      for (const char* slot : {"/slot-0.eps", "/slot-1.eps"}) {
        if (world.disk.Contents(world.folder + slot).find(bytes) != std::string::npos) return true;
      }
      return false;
    };
    uint64_t draws = seed;
    while (!process.IsDone(op)) {
      const bool all = written(state) && written("EPSCHK01");
      if (!all) {
        EXPECT_EQ(process.account().live_bytes(MemoryKind::kImport), state.size());
      }
      ASSERT_FALSE(world.executor.empty());
      draws = draws * 6364136223846793005u + 1442695040888963407u;
      world.executor.Run((draws >> 33) % world.executor.size());
    }
    EXPECT_TRUE(written(state) && written("EPSCHK01")) << "seed " << seed;
    EXPECT_EQ(process.account().live_bytes(MemoryKind::kImport), 0u);
    world.executor.RunAll();
  }
}

// Either transfer of an import fails.
TEST(NvmeImport, FailureStopsTheBackend) {
  for (const Fault fault : {Fault::kIoError, Fault::kShortWrite}) {
    for (uint64_t n = 1; n <= 2; ++n) {
      DurableWorld world(kOnNvme);
      auto process = std::make_unique<DurableProcess>(&world);
      process->WriteAll(Version(1));
      ASSERT_TRUE(process->Cut(CutAt(1, 1, 1)).ok());
      world.disk.FailCall(Call::kWrite, n, fault);
      const Chunk& chunk = world.chunks.chunk(ChunkId(0));
      const std::string state = DurableProcess::SomeState(chunk, Version(2));
      const absl::Status status = process->Write(chunk.id, Version(2), state);
      EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << n << ": " << status;
      EXPECT_FALSE(process->State(chunk.id, Version(2)).ok()) << "not fail-stop";
      process.reset();
      DurableProcess next(&world);
      ASSERT_TRUE(next.Restore({Step(1), Term(1)}, Term(2)).ok());
      next.ExpectAll(Version(1));
    }
  }
}

}  // namespace
}  // namespace eps
