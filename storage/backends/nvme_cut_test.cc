#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/cuts/extents/extent_format.h"
#include "storage/cuts/extents/extents.h"
#include "storage/testing/durable_world.h"

namespace eps {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<CutId> IdsOf(const RecoveredState& state) {
  std::vector<CutId> ids;
  for (const CutBorder& border : state.cuts) ids.push_back(border.id);
  return ids;
}

// Replaces a whole file without the backend's knowledge.
void Overwrite(DurableWorld* world, const std::string& path, const std::string& content) {
  const auto file = world->disk.blocking()->Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const std::unique_ptr<uint8_t, void (*)(void*)> blocks(
      static_cast<uint8_t*>(std::aligned_alloc(kDiskBlock, content.size())), std::free);
  std::copy(content.begin(), content.end(), blocks.get());
  ASSERT_TRUE(
      WriteBlocking(file->get(), 0, absl::MakeConstSpan(blocks.get(), content.size())).ok());
}

// Returns a process that has cut version 1 as step 1, term 1.
std::unique_ptr<DurableProcess> CutOnce(DurableWorld* world) {
  auto process = std::make_unique<DurableProcess>(world);
  EXPECT_TRUE(process->status().ok()) << process->status();
  process->WriteAll(Version(1));
  CutRequest cut = CutAt(1, 1, 1);
  cut.content.residuals = SomeResiduals(7);
  cut.content.records = {"step 1", ""};
  const absl::Status status = process->Cut(cut);
  EXPECT_TRUE(status.ok()) << status;
  return process;
}

class Durable : public testing::TestWithParam<DurableKind> {};

TEST_P(Durable, AnotherProcessRestoresTheCut) {
  DurableWorld world(GetParam());
  CutOnce(&world);
  world.disk.CutPower(1);
  world.disk.PowerOn();
  DurableProcess next(&world);
  ASSERT_TRUE(next.status().ok()) << next.status();
  const auto found = next.Recover();
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_EQ(found->cuts.size(), 1u);
  EXPECT_EQ(found->cuts[0].id, (CutId{Step(1), Term(1)}));
  EXPECT_EQ(found->cuts[0].version, Version(1));
  EXPECT_EQ(found->cuts[0].update, 1u);
  EXPECT_EQ(found->cuts[0].lagged_norm, 0.5);
  EXPECT_THAT(std::string(next.State(ChunkId(0), Version(1)).status().message()),
              HasSubstr("it has no content yet"));
  const auto content = next.Restore(found->cuts[0].id, Term(2));
  ASSERT_TRUE(content.ok()) << content.status();
  const std::vector<CutResidual>* const residuals = &content->residuals;
  EXPECT_THAT(content->records, testing::ElementsAre("step 1", ""));
  const auto expected = SomeResiduals(7);
  ASSERT_EQ(residuals->size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ((*residuals)[i].chunk, expected[i].chunk);
    EXPECT_EQ((*residuals)[i].use, expected[i].use);
    EXPECT_EQ((*residuals)[i].part, expected[i].part);
    EXPECT_TRUE((*residuals)[i].bytes.view() == expected[i].bytes.view());
  }
  next.ExpectAll(Version(1));
  EXPECT_EQ(next.Recover()->promised, Term(2));
}

TEST_P(Durable, CutHoldsExactlyTheEarlierCalls) {
  DurableWorld world(GetParam());
  auto process = CutOnce(&world);
  // Submits everything at once: for each chunk an update to 2, the cut, and a later write.
  std::vector<OpId> late;
  for (const Chunk& c : world.chunks.chunks()) {
    process->Submit(DurableProcess::SomeWrite(c, Version(2)));
  }
  const OpId cut = process->Submit(CutAt(2, 1, 2));
  for (const Chunk& c : world.chunks.chunks()) {
    late.push_back(process->Submit(DurableProcess::SomeWrite(c, Version(3))));
  }
  const BackendDone done = process->Await(cut);
  EXPECT_TRUE(done.status.ok()) << done.status;
  // Writes to memory need no slot; on NVMe the cuts need both.
  for (const OpId op : late) EXPECT_EQ(process->IsDone(op), world.kind.in_dram);
  process->backend().Recycle({Step(2), Term(1)});
  for (const OpId op : late) EXPECT_TRUE(process->Await(op).status.ok());
  process->ExpectAll(Version(3));
  process.reset();
  DurableProcess next(&world);
  EXPECT_EQ(IdsOf(*next.Recover()), (std::vector<CutId>{{Step(2), Term(1)}}));
  ASSERT_TRUE(next.Restore({Step(2), Term(1)}, Term(2)).ok());
  next.ExpectAll(Version(2));
}

TEST_P(Durable, TwoCutsCanBeRestoredUntilRecycle) {
  for (const uint64_t base : {1u, 2u}) {
    DurableWorld world(GetParam());
    auto process = CutOnce(&world);
    process->WriteAll(Version(2));
    ASSERT_TRUE(process->Cut(CutAt(2, 1, 2)).ok());
    process.reset();
    {
      DurableProcess next(&world);
      EXPECT_EQ(IdsOf(*next.Recover()),
                (std::vector<CutId>{{Step(1), Term(1)}, {Step(2), Term(1)}}));
      ASSERT_TRUE(next.Restore({Step(base), Term(1)}, Term(2)).ok());
      next.ExpectAll(Version(base));
      if (base == 1) {
        // The other cut is discarded, and its slots are free.
        EXPECT_EQ(next.Restore({Step(2), Term(1)}, Term(3)).status().code(),
                  absl::StatusCode::kNotFound);
        next.WriteAll(Version(2));
        ASSERT_TRUE(next.Cut(CutAt(2, 2, 2)).ok());
      }
    }
    DurableProcess last(&world);
    EXPECT_EQ(IdsOf(*last.Recover()),
              (std::vector<CutId>{{Step(1), Term(1)}, {Step(2), Term(base == 1 ? 2 : 1)}}));
  }
}

// A process restores its own cut, including the records.
TEST_P(Durable, CutReturnsRecordsToItsOwnProcess) {
  DurableWorld world(GetParam());
  auto process = CutOnce(&world);
  process->WriteAll(Version(2));
  CutRequest second = CutAt(2, 1, 2);
  second.content.records = {"step 2"};
  ASSERT_TRUE(process->Cut(second).ok());
  ASSERT_TRUE(process->Quiesce().ok());
  const auto content = process->Restore({Step(2), Term(1)}, Term(2));
  ASSERT_TRUE(content.ok()) << content.status();
  EXPECT_THAT(content->records, testing::ElementsAre("step 1", "", "step 2"));
}

// Two imports that some shard did not finish leave a cut in each slot and nothing to restore.
TEST_P(Durable, AbandonedCutFreesItsSlots) {
  DurableWorld world(GetParam());
  auto process = CutOnce(&world);
  process->WriteAll(Version(1));
  ASSERT_TRUE(process->Cut(CutAt(1, 2, 1)).ok());
  process.reset();
  DurableProcess next(&world);
  EXPECT_EQ(next.Recover()->cuts.size(), 2u);
  const OpId op = next.Submit(RestoreRequest{std::nullopt, Term(3)});
  ASSERT_TRUE(next.Await(op).status.ok());
  EXPECT_EQ(next.Recover()->promised, Term(3));
  EXPECT_TRUE(next.Recover()->cuts.empty());
  next.WriteAll(Version(1));
  next.ExpectAll(Version(1));
}

// Slots that are freed and written while a scrub reads them are not damaged.
TEST_P(Durable, ScrubReadsEveryChunkAndToleratesWrites) {
  uint64_t passes = 0;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    DurableWorld world(GetParam(), seed);
    world.residual_bytes = 100000;
    auto process = CutOnce(&world);
    uint64_t draws = seed;
    for (uint64_t version = 2; version < 8; ++version) {
      std::vector<OpId> ops, scrubs;
      const auto run = [&](size_t tasks) {
        for (; tasks > 0 && !world.executor.empty(); --tasks) {
          draws = draws * 6364136223846793005u + 1442695040888963407u;
          world.executor.Run((draws >> 33) % world.executor.size());
        }
      };
      for (const Chunk& c : world.chunks.chunks()) {
        ops.push_back(process->Submit(DurableProcess::SomeWrite(c, Version(version))));
      }
      CutRequest cut = CutAt(version, 1, version);
      if (version % 3 != 0) {
        cut.content.residuals = SomeResiduals(seed + version);
        // Residuals of several pieces, so that one of two reads in flight may be out of date.
        const size_t more = version == 4 ? 60000 : 0;
        cut.content.residuals.push_back(
            {ChunkId(3), StageId(0), PartId(0), Bytes::CopyOf(SomeBytes(version, more))});
      }
      ops.push_back(process->Submit(std::move(cut)));
      // The writes wait for the slots that the scrub reads.
      const size_t reads = 1 + (seed + version) % (2 * world.owned.size());
      for (size_t i = 0; i < reads; ++i) {
        scrubs.push_back(process->Submit(ScrubRequest{}));
      }
      run(seed % 12);
      process->backend().Recycle({Step(version - 1), Term(1)});
      run(SIZE_MAX);
      for (const OpId op : ops) EXPECT_TRUE(process->Take(op).status.ok());
      for (const OpId op : scrubs) {
        const BackendDone done = process->Take(op);
        ASSERT_TRUE(done.status.ok()) << "seed " << seed << ": " << done.status;
        passes += std::get<ScrubResult>(done.value).ends_pass;
      }
    }
  }
  EXPECT_GT(passes, 30u);
}

TEST_P(Durable, ScrubFindsDamageInResiduals) {
  DurableWorld world(GetParam());
  world.residual_bytes = 300000;
  DurableProcess process(&world);
  process.WriteAll(Version(1));
  CutRequest cut = CutAt(1, 1, 1);
  const uint64_t residual_bytes = 200000;
  cut.content.residuals = {
      {ChunkId(0), StageId(0), PartId(0), Bytes::CopyOf(SomeBytes(1, residual_bytes))}};
  ASSERT_TRUE(process.Cut(cut).ok());
  const ExtentLayout layout(world.chunks, world.owned, /*arrays=*/3, world.residual_bytes,
                            world.spec.training.parts);
  // Runs one pass. Sets its status and returns the bytes of residuals that it read.
  const auto pass = [&](absl::Status* status) {
    uint64_t of_residuals = 0;
    for (size_t i = 0; i < world.owned.size() + 100; ++i) {
      const OpId op = process.Submit(ScrubRequest{});
      const BackendDone done = process.Await(op);
      const ScrubResult& result = std::get<ScrubResult>(done.value);
      *status = result.damage;
      if (!status->ok()) return of_residuals;
      EXPECT_LE(result.bytes, layout.largest_area_bytes());
      if (i >= world.owned.size()) of_residuals += result.bytes;
      if (result.ends_pass) return of_residuals;
    }
    ADD_FAILURE() << "a pass without an end";
    return of_residuals;
  };
  absl::Status status;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(pass(&status), residual_bytes + extent_format::residual::kHeadBytes);
    ASSERT_TRUE(status.ok()) << status;
  }
  const std::string slot = world.folder + "/slot-0.eps";
  world.disk.FlipBit(slot, layout.residual_offset() + residual_bytes / 2, 5);
  pass(&status);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(slot + ": residuals at offset " + std::to_string(layout.residual_offset()) +
                        ": CRC32C "));
}

TEST_P(Durable, CutsWithoutNewVersionsNeedNoSlot) {
  DurableWorld world(GetParam());
  auto process = CutOnce(&world);
  for (uint64_t step = 2; step <= 4; ++step) ASSERT_TRUE(process->Cut(CutAt(step, 1, 1)).ok());
  process->WriteAll(Version(2));
  process->ExpectAll(Version(2));
  process.reset();
  DurableProcess next(&world);
  EXPECT_EQ(next.Recover()->cuts.size(), 4u);
  ASSERT_TRUE(next.Restore({Step(3), Term(1)}, Term(5)).ok());
  next.ExpectAll(Version(1));
}

TEST_P(Durable, CutRefusesWrongVersionsAndOlderCuts) {
  DurableWorld world(GetParam());
  auto process = CutOnce(&world);
  ASSERT_TRUE(process
                  ->Write(ChunkId(1), Version(2),
                          DurableProcess::SomeState(world.chunks.chunk(ChunkId(1)), Version(2)))
                  .ok());
  const absl::Status refused = process->Cut(CutAt(2, 1, 1));
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("cut of step 2, term 1: chunk 1: version 1 wanted, version 2 is here"));
  process->WriteAll(Version(2));
  EXPECT_EQ(process->Cut(CutAt(1, 1, 2)).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(process->Cut(CutAt(2, 1, 2)).ok()) << "a refusal is no failure";
}

TEST_P(Durable, CutWaitsForItsResidualSlot) {
  DurableWorld world(GetParam());
  auto process = CutOnce(&world);
  CutRequest request = CutAt(2, 1, 1);
  request.content.residuals = SomeResiduals(8);
  ASSERT_TRUE(process->Cut(request).ok());
  request.border.id.step = Step(3);
  const OpId third = process->Submit(request);
  world.executor.RunAll();
  EXPECT_FALSE(process->IsDone(third));
  process->backend().Recycle({Step(9), Term(1)});  // an unknown cut frees nothing
  world.executor.RunAll();
  EXPECT_FALSE(process->IsDone(third));
  process->backend().Recycle({Step(2), Term(1)});
  EXPECT_TRUE(process->Await(third).status.ok());
  request.border.id.step = Step(4);
  request.content.residuals = {
      {ChunkId(0), StageId(0), PartId(0), Bytes::CopyOf(std::string(20000, 'x'))}};
  const absl::Status refused = process->Cut(request);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("residuals of 20024 bytes, and room for "));
}

TEST_P(Durable, QuiesceCancelsWaitingAndAwaitsRunningOperations) {
  DurableWorld world(GetParam());
  auto process = CutOnce(&world);
  process->WriteAll(Version(2));
  ASSERT_TRUE(process->Cut(CutAt(2, 1, 2)).ok());
  // On NVMe the updates wait for a slot and the cut for the updates; in DRAM the reverse.
  const Version here(world.kind.in_dram ? 3 : 2);
  if (world.kind.in_dram) process->WriteAll(here);
  const OpId cut = process->Next();
  if (world.kind.in_dram) process->backend().Submit(cut, CutAt(3, 1, 3));
  std::vector<OpId> parked;
  for (const Chunk& c : world.chunks.chunks()) {
    parked.push_back(process->Submit(SomeUpdate(c, here, 5)));
  }
  if (!world.kind.in_dram) process->backend().Submit(cut, CutAt(3, 1, 3));
  world.executor.RunAll();
  EXPECT_FALSE(process->IsDone(cut));
  // Of the version after the update, so the read waits.
  const OpId read = process->Submit(ReadStateRequest{ChunkId(0), here});
  ASSERT_TRUE(process->Quiesce().ok());
  for (const OpId op : parked) {
    EXPECT_EQ(process->Take(op).status.code(), absl::StatusCode::kCancelled);
  }
  EXPECT_EQ(process->Take(cut).status.code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(process->Take(read).status.ok());
  ASSERT_TRUE(process->Restore({Step(1), Term(1)}, Term(2)).ok());
  process->ExpectAll(Version(1));
  process->WriteAll(Version(2));
  EXPECT_TRUE(process->Cut(CutAt(2, 2, 2)).ok());
}

TEST_P(Durable, RestoreNamesPromisedTermAndMissingCut) {
  DurableWorld world(GetParam());
  auto process = CutOnce(&world);
  const OpId promise = process->Submit(PromiseRequest{Term(5)});
  EXPECT_TRUE(process->Await(promise).status.ok());
  const OpId earlier = process->Submit(PromiseRequest{Term(4)});
  EXPECT_EQ(process->Await(earlier).status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(process->Restore({Step(1), Term(1)}, Term(4)).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(process->Restore({Step(7), Term(1)}, Term(6)).status().message()),
              HasSubstr("this shard has no cut of step 7, term 1"));
  EXPECT_TRUE(process->Restore({Step(1), Term(1)}, Term(6)).ok());
  EXPECT_EQ(process->Recover()->promised, Term(6));
}

TEST_P(Durable, OpenRefusesForeignAndCopiedFolders) {
  DurableWorld world(GetParam());
  world.shards = 2;
  CutOnce(&world);
  world.shard = ShardId(1);
  const absl::Status other = DurableProcess(&world).status();
  EXPECT_EQ(other.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(other.message()),
              AllOf(HasSubstr("shard 1 of 2 expected, shard 0 of 2 found"),
                    HasSubstr("storage.path"), HasSubstr("/state/extents")));
  world.shards = 3;
  const absl::Status more = DurableProcess(&world).status();
  EXPECT_EQ(more.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(more.message()),
              AllOf(HasSubstr("was made for 2 servers, and the job has 3"),
                    HasSubstr("eps checkpoint reshard STATE --servers=3")));
  world.shard = ShardId(0);
  world.shards = 2;
  // The same job on another disk: its extents have another nonce.
  DurableWorld twin(GetParam());
  twin.shards = 2;
  CutOnce(&twin);
  for (const char* name : {"/slot-0.eps", "/slot-1.eps"}) {
    Overwrite(&world, world.folder + name, twin.disk.Contents(world.folder + name));
  }
  const absl::Status copied = DurableProcess(&world).status();
  EXPECT_EQ(copied.code(), absl::StatusCode::kFailedPrecondition) << copied;
  EXPECT_THAT(std::string(copied.message()), HasSubstr("/state/extents/slot-0.eps: nonce "));
}

TEST_P(Durable, OpenRecreatesFilesAfterAnEarlyCrash) {
  DurableWorld world(GetParam());
  ASSERT_TRUE(world.disk.CreateFolder(world.folder).ok());
  ASSERT_TRUE(world.disk.CreateFile(world.folder + "/slot-0.eps", kDiskBlock).ok());
  auto process = CutOnce(&world);
  process->ExpectAll(Version(1));
}

TEST_P(Durable, OpenNamesTheMissingDiskSpace) {
  DurableWorld world(GetParam());
  world.disk.set_capacity_bytes((1 << 20) + 100000);  // the catalogue's log takes 1 MiB
  const absl::Status refused = DurableProcess(&world).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  EXPECT_THAT(refused.message(), AllOf(HasSubstr("are missing"), HasSubstr("storage.path")));
  world.other_jobs = "; other jobs hold much";
  const absl::Status named = DurableProcess(&world).status();
  EXPECT_EQ(named.message(), absl::StrCat(refused.message(), world.other_jobs));
  // The error is different if memory does not suffice.
  world.staging_bytes = 1;
  EXPECT_THAT(DurableProcess(&world).status().message(), Not(HasSubstr(world.other_jobs)));
}

TEST_P(Durable, MemoryIsStagingAndDramState) {
  for (const uint64_t buffers : {1u, 4u}) {
    DurableWorld world(GetParam());
    uint64_t largest = 0;
    for (const Chunk& c : world.chunks.chunks()) largest = std::max(largest, c.elements);
    const uint64_t area = (12 * largest + 4095) / 4096 * 4096 + 4096;
    const uint64_t resident = world.kind.in_dram ? 12 * world.spec.total_elements() : 0;
    world.staging_bytes = buffers * area + 100;
    world.residual_bytes = 0;
    DurableProcess process(&world);
    ASSERT_TRUE(process.status().ok()) << process.status();
    EXPECT_EQ(process.account().live_bytes(), resident + buffers * area);
    std::vector<OpId> ops;
    for (uint64_t version = 1; version <= 3; ++version) {
      for (const Chunk& c : world.chunks.chunks()) {
        ops.push_back(process.Submit(DurableProcess::SomeWrite(c, Version(version))));
      }
      ops.push_back(process.Submit(CutAt(version, 1, version)));
      world.executor.RunAll();
      process.backend().Recycle(CutAt(version, 1, version).border.id);
    }
    world.executor.RunAll();
    for (const OpId op : ops) EXPECT_TRUE(process.Take(op).status.ok());
    process.ExpectAll(Version(3));
    EXPECT_EQ(process.account().peak_bytes(MemoryKind::kScratch), buffers * area);
    world.staging_bytes = area - 1;
    DurableWorld other(GetParam());
    other.staging_bytes = area - 1;
    const absl::Status refused = DurableProcess(&other).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(refused.message()),
                AllOf(HasSubstr("storage.staging"), HasSubstr(std::to_string(area))));
  }
}

TEST_P(Durable, DamageIsLocatedAndStopsTheBackend) {
  DurableWorld world(GetParam());
  CutOnce(&world);
  const std::string slot0 = world.folder + "/slot-0.eps";
  const std::string content = world.disk.Contents(slot0);
  const uint64_t size = content.size();
  const uint64_t used = content.find_last_not_of('\0') + 1;  // residuals come last
  int found = 0;
  for (uint64_t at = 0; at < size; at += 331) {
    const std::string path = slot0;
    world.disk.FlipBit(path, at, static_cast<int>(at % 8));
    {
      DurableProcess process(&world);
      absl::Status status = process.status();
      if (status.ok()) {
        status = process.Recover().status();
        if (status.ok()) status = process.Restore({Step(1), Term(1)}, Term(1)).status();
        if (!status.ok()) {
          EXPECT_EQ(process.Recover().status(), status) << "not fail-stop";
          EXPECT_EQ(process.State(ChunkId(0), Version(1)).status(), status);
        }
      }
      if (!status.ok()) {
        ++found;
        EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
        EXPECT_THAT(std::string(status.message()),
                    AllOf(HasSubstr(slot0), HasSubstr("at offset "), HasSubstr("expected"),
                          HasSubstr("found")));
      } else {
        EXPECT_GE(at, used) << "a flipped bit at offset " << at << " was not found";
      }
    }
    world.disk.FlipBit(path, at, static_cast<int>(at % 8));
  }
  EXPECT_GT(found, 250);
}

// Footers and data are intact and have the right version, but come from an older write.
TEST_P(Durable, RestoreFindsALostWrite) {
  DurableWorld world(GetParam());
  const std::string slot0 = world.folder + "/slot-0.eps";
  DurableProcess process(&world);
  process.WriteAll(Version(1));
  ASSERT_TRUE(process.Cut(CutAt(1, 1, 1)).ok());
  const Chunk& chunk = world.chunks.chunk(ChunkId(1));
  std::string before;
  for (const uint64_t step : {2u, 3u}) {  // the chunk moves to slot 1 and back
    before = world.disk.Contents(slot0);
    const std::string state = DurableProcess::SomeState(chunk, Version(7 + step));
    ASSERT_TRUE(process.Write(chunk.id, Version(1), state).ok());
    ASSERT_TRUE(process.Cut(CutAt(step, 1, 1)).ok());
    process.backend().Recycle({Step(step), Term(1)});
    world.executor.RunAll();
  }
  Overwrite(&world, slot0, before);
  const absl::Status found = process.Recover().status();
  EXPECT_EQ(found.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(found.message()),
              AllOf(HasSubstr(slot0), HasSubstr("footers of cut of step 3, term 1: CRC32C ")));
}

TEST(Nvme, ReadFindsALostWrite) {
  DurableWorld world(kOnNvme);
  const std::string slot0 = world.folder + "/slot-0.eps";
  DurableProcess stale(&world);
  stale.WriteAll(Version(1));
  const std::string old = world.disk.Contents(slot0);
  const Chunk& chunk = world.chunks.chunk(ChunkId(1));
  ASSERT_TRUE(stale.Write(chunk.id, Version(1), DurableProcess::SomeState(chunk, Version(9))).ok());
  Overwrite(&world, slot0, old);
  EXPECT_THAT(std::string(stale.State(chunk.id, Version(1)).status().message()),
              AllOf(HasSubstr(slot0), HasSubstr("as written last expected")));
}

TEST_P(Durable, TransferFaultsLeaveTheLastCut) {
  using Call = SimulatedDisk::Call;
  for (const Call call : {Call::kRead, Call::kWrite, Call::kSync}) {
    int failed = 0;
    for (uint64_t n = 1; n < 200; ++n) {
      DurableWorld world(GetParam());
      auto process = CutOnce(&world);
      world.disk.FailCall(call, n, SimulatedDisk::Fault::kIoError);
      std::vector<OpId> ops;
      for (const Chunk& c : world.chunks.chunks()) {
        ops.push_back(process->Submit(SomeUpdate(c, Version(1), 3)));
      }
      ops.push_back(process->Submit(CutAt(2, 1, 2)));
      world.executor.RunAll();
      bool any = false;
      for (const OpId op : ops) {
        const absl::Status status = process->Take(op).status;
        any = any || !status.ok();
        EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kInternal) << status;
      }
      if (!any) break;  // the fault has not happened yet
      ++failed;
      EXPECT_FALSE(process->State(ChunkId(0), Version(2)).ok()) << "not fail-stop";
      process.reset();
      DurableProcess next(&world);
      const std::vector<CutId> ids = IdsOf(*next.Recover());
      EXPECT_EQ(ids.front(), (CutId{Step(1), Term(1)}));
      ASSERT_TRUE(next.Restore(ids.front(), Term(2)).ok());
      next.ExpectAll(Version(1));
    }
    // With the state in DRAM neither an update nor a cut reads from the disk.
    const bool never = GetParam().in_dram && call == Call::kRead;
    EXPECT_GE(failed, never ? 0 : call == Call::kSync ? 2 : 4);
    EXPECT_LT(failed, 199);
  }
}

TEST_P(Durable, OpensStateOfTheOtherKind) {
  DurableWorld world(GetParam());
  CutOnce(&world);
  world.kind = world.kind.in_dram ? kOnNvme : kInDram;
  DurableProcess next(&world);
  ASSERT_TRUE(next.Restore({Step(1), Term(1)}, Term(2)).ok());
  next.ExpectAll(Version(1));
  next.WriteAll(Version(2));
  EXPECT_TRUE(next.Cut(CutAt(2, 2, 2)).ok());
}

INSTANTIATE_TEST_SUITE_P(Kinds, Durable, testing::Values(kInDram, kOnNvme),
                         [](const testing::TestParamInfo<DurableKind>& info) {
                           return info.param.name;
                         });

// Returns the number of chunks in a slot file.
int StoredIn(DurableWorld* world, const std::string& file) {
  const std::string content = world->disk.Contents(world->folder + file);
  int stored = 0;
  for (size_t at = content.find("EPSCHK01"); at != std::string::npos;
       at = content.find("EPSCHK01", at + 1)) {
    ++stored;
  }
  return stored;
}

TEST(DurableDram, UpdatesWaitForTheirCopy) {
  DurableWorld world(kInDram);
  world.staging_bytes = 24576;  // one chunk at a time
  auto process = CutOnce(&world);
  const auto chunks = static_cast<int>(world.owned.size());
  ASSERT_EQ(StoredIn(&world, "/slot-0.eps"), chunks);
  process->WriteAll(Version(2));
  const OpId cut = process->Submit(CutAt(2, 1, 2));
  const Chunk& last = world.chunks.chunk(world.owned.back());
  const OpId read = process->Submit(ReadStateRequest{last.id, Version(2)});
  const OpId update = process->Submit(SomeUpdate(last, Version(2), 3));
  const OpId after = process->Submit(ReadStateRequest{last.id, Version(3)});
  while (!process->IsDone(read)) {
    ASSERT_FALSE(world.executor.empty());
    world.executor.Run(0);
  }
  EXPECT_EQ(StoredIn(&world, "/slot-1.eps"), 0);
  while (!process->IsDone(update)) {
    ASSERT_FALSE(world.executor.empty());
    world.executor.Run(0);
  }
  EXPECT_FALSE(process->IsDone(cut));
  EXPECT_LE(StoredIn(&world, "/slot-1.eps"), 2) << "of " << chunks;
  EXPECT_TRUE(process->Await(cut).status.ok());
  EXPECT_TRUE(process->Take(update).status.ok());
  EXPECT_TRUE(process->Take(after).status.ok());
  EXPECT_EQ(StoredIn(&world, "/slot-1.eps"), chunks);
  ASSERT_TRUE(process->Restore({Step(2), Term(1)}, Term(2)).ok());
  process->ExpectAll(Version(2));
}

TEST(DurableDram, ConcurrentCutsHoldTheirOwnBorders) {
  for (const uint64_t base : {1u, 2u}) {
    DurableWorld world(kInDram);
    world.staging_bytes = 2 * 24576;
    DurableProcess process(&world);
    std::vector<OpId> ops;
    for (const uint64_t version : {1u, 2u, 3u}) {
      for (const Chunk& c : world.chunks.chunks()) {
        ops.push_back(process.Submit(DurableProcess::SomeWrite(c, Version(version))));
      }
      if (version == 3) continue;
      ops.push_back(process.Submit(CutAt(version, 1, version)));
    }
    world.executor.RunAll();
    for (const OpId op : ops) EXPECT_TRUE(process.Take(op).status.ok());
    process.ExpectAll(Version(3));
    ASSERT_TRUE(process.Restore({Step(base), Term(1)}, Term(2)).ok());
    process.ExpectAll(Version(base));
  }
}

}  // namespace
}  // namespace eps
