// The durable backends on real files and several threads, compared with the DRAM backend.

#include <cstdlib>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/backends/dram_backend.h"
#include "storage/backends/durable_backend.h"
#include "storage/testing/backend_harness.h"
#include "storage/testing/catalogue_samples.h"
#include "storage/testing/durable_world.h"

namespace eps {
namespace {

class DurableRealTest : public testing::TestWithParam<std::tuple<bool, DurableKind>> {
 protected:
  DurableRealTest() : spec_(SmallSpec()), chunks_(ChunkMap::Build(spec_)), pool_(4) {
    DiskOptions disk;
    disk.allow_io_uring = std::get<bool>(GetParam());
    disk_ = NewRealDisk(disk);
    for (const Chunk& c : chunks_.chunks()) owned_.push_back(c.id);
    std::string folder = testing::TempDir() + "/durable-XXXXXX";
    EXPECT_NE(mkdtemp(folder.data()), nullptr);
    options_.disk = disk_.get();
    options_.catalogue = &catalogue_;
    options_.folder = folder + "/job/extents";
    for (uint32_t drive = 0; drive < std::get<DurableKind>(GetParam()).drives; ++drive) {
      options_.drive_folders.push_back(folder + "/drive-" + std::to_string(drive));
    }
    options_.staging_bytes = 4 * 24576;
    options_.residual_bytes = 10000;
  }

  std::unique_ptr<StateBackend> Open() {
    auto backend = std::get<DurableKind>(GetParam())
                       .make(spec_, chunks_, owned_, ShardId(0), 1, &pool_, &account_, options_,
                             durable_.Sink());
    EXPECT_TRUE(backend.ok()) << backend.status();
    return std::move(*backend);
  }
  static std::string State(StateBackend* backend, Completions* completions, ChunkId id,
                           Version version) {
    const OpId op = completions->Next();
    backend->Submit(op, ReadStateRequest{id, version});
    const BackendDone done = completions->Take(op);
    EXPECT_TRUE(done.status.ok()) << done.status;
    return std::string(std::get<Bytes>(done.value).view());
  }
  UpdateRequest RequestOf(const Chunk& chunk, uint64_t version) const {
    UpdateRequest request = SomeUpdate(chunk, Version(version - 1), version * 100);
    request.encode = {{*FindCodec("mx9"), Axis::kRow}};
    return request;
  }

  const JobSpec spec_;
  const ChunkMap chunks_;
  std::vector<ChunkId> owned_;
  std::unique_ptr<Disk> disk_;
  MapStore store_;
  Catalogue catalogue_{&store_};
  DurableOptions options_;
  MemoryAccount account_;
  Completions dram_, durable_;
  ThreadPool pool_;
};

TEST_P(DurableRealTest, MatchesDramAndKeepsItsBits) {
  MemoryAccount dram_account;
  auto dram = *NewDramBackend(spec_, chunks_, owned_, &pool_, &dram_account, dram_.Sink());
  auto durable = Open();
  for (const ChunkId id : owned_) {
    dram->Submit(dram_.Next(), InitializeRequest{id});
    durable->Submit(durable_.Next(), InitializeRequest{id});
  }
  constexpr uint64_t kSteps = 6;
  OpId cut;
  for (uint64_t step = 1; step <= kSteps; ++step) {
    std::vector<std::pair<OpId, OpId>> updates;
    for (const ChunkId id : owned_) {
      updates.emplace_back(dram_.Next(), durable_.Next());
      dram->Submit(updates.back().first, RequestOf(chunks_.chunk(id), step));
      durable->Submit(updates.back().second, RequestOf(chunks_.chunk(id), step));
    }
    // Submitted while the previous cut is in progress, the updates wait for the slots it frees.
    if (step > 1) {
      EXPECT_TRUE(durable_.Take(cut).status.ok());
      durable->Recycle({Step(step - 1), Term(1)});
    }
    for (const auto& ops : updates) {
      const BackendDone a = dram_.Take(ops.first);
      const BackendDone b = durable_.Take(ops.second);
      ASSERT_TRUE(a.status.ok()) << a.status;
      ASSERT_TRUE(b.status.ok()) << b.status;
      const auto& x = std::get<UpdateResult>(a.value);
      const auto& y = std::get<UpdateResult>(b.value);
      EXPECT_EQ(x.sum_squares, y.sum_squares);
      ASSERT_EQ(y.encoded.size(), 1u);
      EXPECT_TRUE(x.encoded[0].view() == y.encoded[0].view());
    }
    cut = durable_.Next();
    CutRequest request = CutAt(step, 1, step);
    request.content.residuals = SomeResiduals(step);
    durable->Submit(cut, request);
  }
  EXPECT_TRUE(durable_.Take(cut).status.ok());
  durable = nullptr;
  durable = Open();
  OpId op = durable_.Next();
  durable->Submit(op, RecoverRequest{});
  const auto found = *std::get<std::shared_ptr<const RecoveredState>>(durable_.Take(op).value);
  ASSERT_EQ(found.cuts.size(), 2u);
  op = durable_.Next();
  durable->Submit(op, RestoreRequest{found.cuts.back().id, Term(2)});
  const BackendDone restored = durable_.Take(op);
  ASSERT_TRUE(restored.status.ok()) << restored.status;
  EXPECT_EQ(std::get<std::shared_ptr<const CutContent>>(restored.value)->residuals.size(), 3u);
  for (const ChunkId id : owned_) {
    EXPECT_TRUE(State(durable.get(), &durable_, id, Version(kSteps)) ==
                State(dram.get(), &dram_, id, Version(kSteps)))
        << "chunk " << id;
  }
}

// Half of SmallSpec is in memory.
constexpr DurableKind kInDramAndOnNvme = {"DramAndNvme", false, &NewNvmeBackend, 0, 0, {}, 20'000};

INSTANTIATE_TEST_SUITE_P(Queues, DurableRealTest,
                         testing::Combine(testing::Values(true, false),
                                          testing::Values(kInDram, kOnNvme, kOnDrives,
                                                          kInDramAndOnNvme)),
                         [](const testing::TestParamInfo<std::tuple<bool, DurableKind>>& info) {
                           return std::string(std::get<DurableKind>(info.param).name) +
                                  (std::get<bool>(info.param) ? "Uring" : "Threads");
                         });

}  // namespace
}  // namespace eps
