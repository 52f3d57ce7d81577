#include "storage/testing/simulated_disk.h"

#include <algorithm>
#include <set>

#include "base/testing/manual_executor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using testing::ElementsAre;
using Call = SimulatedDisk::Call;
using Fault = SimulatedDisk::Fault;

constexpr size_t kSize = 4 * kDiskBlock;

struct alignas(kDiskBlock) Page {
  uint8_t bytes[kSize];
  absl::Span<uint8_t> span(size_t size = kSize) { return {bytes, size}; }
};

Page Filled(uint8_t value) {
  Page page;
  std::fill(std::begin(page.bytes), std::end(page.bytes), value);
  return page;
}

absl::Status Now(const std::function<void(AsyncFile::Done)>& call) {
  absl::Status status = absl::UnknownError("not complete");
  call([&](absl::Status done) { status = std::move(done); });
  return status;
}
absl::Status Write(AsyncFile* file, Page* page) {
  return Now([&](AsyncFile::Done done) { file->Write(0, page->span(), std::move(done)); });
}
absl::Status Sync(AsyncFile* file) {
  return Now([&](AsyncFile::Done done) { file->Sync(std::move(done)); });
}

SimulatedDisk::Options Over(Executor* executor, uint64_t seed = 0) {
  SimulatedDisk::Options options;
  options.executor = executor;
  options.seed = seed;
  return options;
}

std::unique_ptr<AsyncFile> NewFile(Disk* disk, const std::string& path = "f") {
  EXPECT_EQ(disk->CreateFile(path, kSize), absl::OkStatus());
  return *disk->Open(path);
}

TEST(SimulatedDisk, PowerCutTearsUnsyncedSectors) {
  int kept = 0;
  int lost = 0;
  int torn = 0;
  std::set<std::string> outcomes;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SimulatedDisk disk(Over(nullptr));
    const auto file = NewFile(&disk);
    Page old = Filled(1);
    ASSERT_EQ(Write(file.get(), &old), absl::OkStatus());
    ASSERT_EQ(Sync(file.get()), absl::OkStatus());
    Page fresh = Filled(2);
    ASSERT_EQ(Write(file.get(), &fresh), absl::OkStatus());
    EXPECT_EQ(disk.Contents("f"), std::string(kSize, '\2'));
    disk.CutPower(seed);
    const std::string left = disk.Contents("f");
    outcomes.insert(left);
    for (size_t at = 0; at < kSize; at += SimulatedDisk::kSector) {
      const std::string sector = left.substr(at, SimulatedDisk::kSector);
      const size_t whole = sector.find_first_not_of('\2');
      ASSERT_TRUE(whole == std::string::npos ||
                  sector.find_first_not_of('\1', whole) == std::string::npos);
      ++(whole == std::string::npos ? kept : whole == 0 ? lost : torn);
    }
  }
  EXPECT_GT(kept, 1000);
  EXPECT_GT(lost, 1000);
  EXPECT_GT(torn, 100);
  EXPECT_GT(outcomes.size(), 80u);
}

TEST(SimulatedDisk, WhatIsSyncedSurvives) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SimulatedDisk disk(Over(nullptr));
    const auto file = NewFile(&disk);
    for (uint8_t value = 1; value < 4; ++value) {
      Page page = Filled(value);
      ASSERT_EQ(Write(file.get(), &page), absl::OkStatus());
    }
    ASSERT_EQ(Sync(file.get()), absl::OkStatus());
    disk.CutPower(seed);
    EXPECT_EQ(disk.Contents("f"), std::string(kSize, '\3'));
  }
}

TEST(SimulatedDisk, SyncCoversOnlyCompletedWrites) {
  bool lost = false;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    ManualExecutor executor;
    SimulatedDisk disk(Over(&executor));
    const auto file = NewFile(&disk);
    Page page = Filled(1);
    int done = 0;
    const auto count = [&](const absl::Status& status) { done += status.ok(); };
    file->Write(0, page.span(), count);
    file->Sync(count);
    EXPECT_EQ(done, 0) << "completed on the caller's stack";
    executor.RunAll();
    ASSERT_EQ(done, 2);
    disk.CutPower(seed);
    lost |= disk.Contents("f") != std::string(kSize, '\1');
  }
  EXPECT_TRUE(lost);
}

std::vector<int> OrderOf(uint64_t seed) {
  ManualExecutor executor;
  SimulatedDisk disk(Over(&executor, seed));
  const auto file = NewFile(&disk);
  Page page = Filled(0);
  std::vector<int> order;
  for (int i = 0; i < 6; ++i) {
    file->Read(0, page.span(), [&order, i](const absl::Status&) { order.push_back(i); });
  }
  executor.RunAll();
  return order;
}

TEST(SimulatedDisk, TheOrderIsDrawnFromTheSeed) {
  EXPECT_THAT(OrderOf(0), ElementsAre(0, 1, 2, 3, 4, 5));
  std::set<std::vector<int>> orders;
  for (uint64_t seed = 1; seed < 20; ++seed) {
    EXPECT_EQ(OrderOf(seed), OrderOf(seed));
    orders.insert(OrderOf(seed));
  }
  EXPECT_GT(orders.size(), 10u);
}

TEST(SimulatedDisk, NothingCompletesAfterACut) {
  std::set<std::string> outcomes;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    ManualExecutor executor;
    SimulatedDisk disk(Over(&executor));
    const auto file = NewFile(&disk);
    const auto blocking = *disk.blocking()->Open("f");
    auto page = std::make_unique<Page>(Filled(1));
    bool done = false;
    file->Write(0, page->span(), [&](const absl::Status&) { done = true; });
    page.reset();  // the process that wrote is gone
    disk.CutPower(seed);
    Page later = Filled(2);
    file->Write(0, later.span(), [&](const absl::Status&) { done = true; });
    EXPECT_EQ(Write(blocking.get(), &later).code(), absl::StatusCode::kInternal);
    EXPECT_EQ(disk.List(".").status().code(), absl::StatusCode::kInternal);
    EXPECT_FALSE(disk.on());
    disk.PowerOn();
    // Files that were opened before the cut stay dead.
    file->Write(0, later.span(), [&](const absl::Status&) { done = true; });
    EXPECT_EQ(Write(blocking.get(), &later).code(), absl::StatusCode::kInternal);
    executor.RunAll();
    EXPECT_FALSE(done);
    outcomes.insert(disk.Contents("f"));
  }
  EXPECT_GT(outcomes.size(), 10u);
  EXPECT_EQ(outcomes.count(std::string(kSize, '\1')), 1u);
  EXPECT_EQ(outcomes.count(std::string(kSize, '\0')), 1u);
}

// The names that a cut in the middle of `call` may leave.
std::set<std::vector<std::string>> StatesAfter(const std::function<absl::Status(Disk*)>& call) {
  std::set<std::vector<std::string>> states;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SimulatedDisk disk(Over(nullptr));
    NewFile(&disk, "a");
    disk.CutPowerAtCall(1, seed);
    EXPECT_EQ(call(&disk).code(), absl::StatusCode::kInternal);
    disk.PowerOn();
    states.insert(*disk.List("."));
    EXPECT_EQ(disk.List("."), disk.List("."));
  }
  return states;
}

TEST(SimulatedDisk, FolderChangeIsAtomicUnderPowerCuts) {
  using Names = std::vector<std::string>;
  using testing::UnorderedElementsAre;
  EXPECT_THAT(StatesAfter([](Disk* disk) { return disk->Remove("a"); }),
              UnorderedElementsAre(Names{"a"}, Names{}));
  EXPECT_THAT(StatesAfter([](Disk* disk) { return disk->Rename("a", "b"); }),
              UnorderedElementsAre(Names{"a"}, Names{"b"}));
  EXPECT_THAT(StatesAfter([](Disk* disk) { return disk->CreateFile("b", kSize); }),
              UnorderedElementsAre(Names{"a"}, Names{"a", "b"}));
}

TEST(SimulatedDisk, PowerCutLeavesPartOfAFile) {
  std::set<uint64_t> sizes;  // in sectors, plus one; 0 for no file
  for (uint64_t call = 1; call <= 3; ++call) {
    for (uint64_t seed = 0; seed < 1000; ++seed) {
      SimulatedDisk disk(Over(nullptr));
      disk.CutPowerAtCall(call, seed);
      EXPECT_EQ(disk.CreateFile("f", kSize).code(), absl::StatusCode::kInternal);
      disk.PowerOn();
      if (disk.List(".")->empty()) {
        sizes.insert(0);
        continue;
      }
      const std::string found = disk.Contents("f");
      EXPECT_EQ(found, std::string(found.size(), '\0'));
      sizes.insert(1 + found.size() / SimulatedDisk::kSector);
      EXPECT_TRUE(call > 1 || found.empty());
    }
  }
  EXPECT_EQ(sizes.size(), 2 + kSize / SimulatedDisk::kSector);
}

TEST(SimulatedDisk, AFailedSyncLosesForGood) {
  bool lost = false;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SimulatedDisk disk(Over(nullptr));
    const auto file = NewFile(&disk);
    Page page = Filled(1);
    ASSERT_EQ(Write(file.get(), &page), absl::OkStatus());
    disk.FailCall(Call::kSync, 1, Fault::kIoError);
    EXPECT_EQ(Sync(file.get()).code(), absl::StatusCode::kInternal);
    EXPECT_EQ(Sync(file.get()), absl::OkStatus());
    disk.CutPower(seed);
    lost |= disk.Contents("f") != std::string(kSize, '\1');
  }
  EXPECT_TRUE(lost);
}

TEST(SimulatedDisk, TheNthCallFailsAsAsked) {
  SimulatedDisk disk(Over(nullptr));
  const auto file = NewFile(&disk);
  Page page = Filled(1);
  disk.FailCall(Call::kWrite, 2, Fault::kShortWrite);
  EXPECT_EQ(Write(file.get(), &page), absl::OkStatus());
  page = Filled(2);
  const absl::Status half = Write(file.get(), &page);
  EXPECT_EQ(half.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(half.message()), testing::HasSubstr("writing f at 0, 16384 bytes: EIO"));
  EXPECT_EQ(disk.Contents("f"), std::string(kSize / 2, '\2') + std::string(kSize / 2, '\1'));
  disk.FailCall(Call::kWrite, 1, Fault::kNoSpace);
  const absl::Status full = Write(file.get(), &page);
  EXPECT_EQ(full.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(full.message()), testing::HasSubstr("ENOSPC"));
  disk.FailCall(Call::kCreateFile, 1, Fault::kNoSpace);
  EXPECT_EQ(disk.CreateFile("g", kSize).code(), absl::StatusCode::kResourceExhausted);
  disk.FailCall(Call::kOpen, 1, Fault::kIoError);
  EXPECT_EQ(disk.Open("f").status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(disk.Open("f").status(), absl::OkStatus());
  EXPECT_EQ(disk.calls(Call::kWrite), 3u);
  EXPECT_EQ(disk.calls(Call::kOpen), 3u);
  EXPECT_EQ(disk.calls(), 10u);
}

TEST(SimulatedDisk, SpaceRunsOut) {
  SimulatedDisk::Options options;
  options.capacity_bytes = 3 * kSize / 2;
  SimulatedDisk disk(options);
  NewFile(&disk);
  EXPECT_EQ(disk.used_bytes(), kSize);
  EXPECT_EQ(*disk.FreeBytes("."), kSize / 2);
  const absl::Status status = disk.CreateFile("g", kSize);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("8192 bytes are missing"));
  EXPECT_THAT(*disk.List("."), ElementsAre("f"));
  disk.set_capacity_bytes(2 * kSize);
  EXPECT_EQ(disk.CreateFile("g", kSize), absl::OkStatus());
}

TEST(SimulatedDisk, FilesFoldersAndLocks) {
  SimulatedDisk disk(Over(nullptr));
  const auto not_found = absl::StatusCode::kNotFound;
  EXPECT_EQ(disk.CreateFile("/a/b/f", kSize).code(), not_found);
  ASSERT_EQ(disk.CreateFolder("/a/b"), absl::OkStatus());
  ASSERT_EQ(disk.CreateFile("/a/b/f", kSize), absl::OkStatus());
  EXPECT_EQ(disk.CreateFile("/a/b/f", kSize).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(*disk.List("/a"), ElementsAre("b"));
  EXPECT_EQ(disk.List("/c").status().code(), not_found);
  EXPECT_EQ(disk.Open("/a/b/g").status().code(), not_found);
  EXPECT_EQ(disk.Remove("/a/b/g").code(), not_found);
  EXPECT_EQ(disk.Rename("/a/b/g", "/a/b/f").code(), not_found);
  auto held = disk.TakeLock("/a/b/LOCK");
  ASSERT_EQ(held.status(), absl::OkStatus());
  EXPECT_EQ(disk.TakeLock("/a/b/LOCK").status().code(), absl::StatusCode::kFailedPrecondition);
  disk.CutPower(1);
  disk.PowerOn();
  const auto again = disk.TakeLock("/a/b/LOCK");
  EXPECT_EQ(again.status(), absl::OkStatus());
  held->reset();  // a lock from before the cut releases nothing
  EXPECT_EQ(disk.TakeLock("/a/b/LOCK").status().code(), absl::StatusCode::kFailedPrecondition);
  const auto file = *disk.Open("/a/b/f");
  Page page;
  EXPECT_EQ(Now([&](AsyncFile::Done done) { file->Read(kDiskBlock, page.span(), done); }).code(),
            absl::StatusCode::kOutOfRange);
  disk.FlipBit("/a/b/f", 5, 7);
  EXPECT_EQ(Now([&](AsyncFile::Done done) { file->Read(0, page.span(), done); }), absl::OkStatus());
  EXPECT_EQ(page.bytes[5], 128);
  ASSERT_EQ(disk.CreateFolder("/c/d"), absl::OkStatus());
  EXPECT_EQ(disk.Remove("/c").code(), absl::StatusCode::kInternal) << "it is not empty";
  EXPECT_EQ(disk.Remove("/c/d"), absl::OkStatus());
  EXPECT_EQ(disk.Remove("/c"), absl::OkStatus());
  EXPECT_EQ(disk.List("/c").status().code(), not_found);
}

TEST(SimulatedDiskDeathTest, WhatIsNotAlignedEndsTheTest) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  SimulatedDisk disk(Over(nullptr));
  const auto file = NewFile(&disk);
  Page page;
  const auto done = [](const absl::Status&) {};
  EXPECT_DEATH(file->Read(512, page.span(kDiskBlock), done), "offset 512");
  EXPECT_DEATH(file->Read(0, page.span(512), done), "512 bytes");
  EXPECT_DEATH(file->Read(0, {page.bytes + 512, kDiskBlock}, done), "offset 0");
}

}  // namespace
}  // namespace eps
