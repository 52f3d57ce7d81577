// Jobs whose slots are spread over several drives.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/job/layout/chunk_map.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/cuts/catalogue.h"
#include "storage/cuts/drives/drive_placement.h"
#include "storage/cuts/extents/extents.h"
#include "storage/testing/durable_world.h"
#include "storage/testing/log_store.h"

namespace eps {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class DrivesTest : public testing::Test {
 protected:
  // A process that has cut version 1 as step 1 of term 1, and has ended.
  void TrainAndEnd() {
    DurableProcess process(&world_);
    ASSERT_TRUE(process.status().ok()) << process.status();
    process.WriteAll(Version(1));
    CutRequest cut = CutAt(1, 1, 1);
    cut.content.residuals = SomeResiduals(5);
    ASSERT_TRUE(process.Cut(cut).ok());
  }
  void ExpectRestored() {
    DurableProcess process(&world_);
    ASSERT_TRUE(process.status().ok()) << process.status();
    ASSERT_TRUE(process.Restore({Step(1), Term(1)}, Term(2)).ok());
    process.ExpectAll(Version(1));
  }
  uint64_t SizeOf(const std::string& path) const { return world_.disk.Contents(path).size(); }

  DurableWorld world_{kOnDrives};
};

TEST_F(DrivesTest, SlotsAreOnTheDrivesAlone) {
  TrainAndEnd();
  const ExtentLayout all(world_.chunks, world_.owned, /*arrays=*/3, world_.residual_bytes,
                         world_.spec.training.parts);
  uint64_t bytes = 0;
  for (const std::string& folder : world_.drive_folders) {
    const uint64_t size = SizeOf(folder + "/slot-0.eps");
    EXPECT_EQ(SizeOf(folder + "/slot-1.eps"), size);
    EXPECT_GT(size, all.file_bytes(0) / 5) << folder;
    bytes += size - kDiskBlock;
  }
  EXPECT_EQ(bytes, all.file_bytes(0) - kDiskBlock);
  EXPECT_THAT(*world_.disk.blocking()->List(world_.folder), testing::IsEmpty());
  ExpectRestored();
}

TEST_F(DrivesTest, ExchangedDrivesAreRefused) {
  TrainAndEnd();
  std::swap(world_.drive_folders[0], world_.drive_folders[2]);
  const absl::Status refused = DurableProcess(&world_).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("/drive-2/job/slot-0.eps"), HasSubstr("drive 0 expected, 2 found")));
  std::swap(world_.drive_folders[0], world_.drive_folders[2]);
  ExpectRestored();
}

TEST_F(DrivesTest, AnotherNumberOfDrivesIsRefused) {
  TrainAndEnd();
  const std::vector<std::string> three = world_.drive_folders;
  for (const size_t drives : {0, 2, 4}) {
    world_.drive_folders = three;
    world_.drive_folders.resize(drives, "/drive-3/job");
    const absl::Status refused = DurableProcess(&world_).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
    EXPECT_THAT(std::string(refused.message()),
                AllOf(HasSubstr("made for 3 drives, and the server has " + std::to_string(drives)),
                      HasSubstr("storage.drives")));
  }
  world_.drive_folders = three;
  ExpectRestored();
}

TEST_F(DrivesTest, ALostDriveIsNamed) {
  TrainAndEnd();
  for (const char* const slot : {"/slot-0.eps", "/slot-1.eps"}) {
    ASSERT_TRUE(world_.disk.blocking()->Remove(world_.drive_folders[1] + slot).ok());
  }
  const absl::Status refused = DurableProcess(&world_).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kNotFound) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("/drive-1/job/slot-0.eps"));
}

TEST_F(DrivesTest, DamageNamesItsDrive) {
  TrainAndEnd();
  world_.disk.FlipBit("/drive-1/job/slot-0.eps", 2 * kDiskBlock + 100, 3);
  DurableProcess process(&world_);
  const absl::Status damaged = process.Restore({Step(1), Term(1)}, Term(2)).status();
  EXPECT_EQ(damaged.code(), absl::StatusCode::kDataLoss) << damaged;
  EXPECT_THAT(std::string(damaged.message()), HasSubstr("/drive-1/job/slot-0.eps: "));
}

TEST_F(DrivesTest, AFullDriveIsNamed) {
  world_.disk.set_capacity_bytes(1'100'000);  // the catalogue takes most of it
  const absl::Status refused = DurableProcess(&world_).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("/drive-0/job: two slots of "), HasSubstr("more storage.drives")));
}

// A later release may place chunks in another way; the files of a job stay as they are.
TEST_F(DrivesTest, TheRecordedPlacementCounts) {
  DrivePlacement placement = SpreadOverDrives(world_.chunks, world_.owned, /*arrays=*/3, 3);
  std::rotate(placement.drive.begin(), placement.drive.begin() + 1, placement.drive.end());
  const ExtentLayout layout(world_.chunks, world_.owned, /*arrays=*/3, world_.residual_bytes,
                            world_.spec.training.parts, placement);
  ExtentIdentity identity;
  identity.job = world_.spec.id();
  identity.digest = world_.spec.Digest();
  identity.shards = 1;
  identity.nonce = 77;
  Disk* const disk = world_.disk.blocking();
  for (const std::string& folder : world_.drive_folders) {
    ASSERT_TRUE(disk->CreateFolder(folder).ok());
  }
  ASSERT_TRUE(Extents::Create(disk, world_.drive_folders, layout, identity).ok());
  {
    auto store = LogStore::Open(disk, "/state/catalogue");
    ASSERT_TRUE(store.ok()) << store.status();
    CatalogueJob job;
    job.id = identity.job;
    job.spec_text = world_.spec.ToText();
    job.shards = 1;
    job.extents_nonce = identity.nonce;
    job.placement = placement;
    ASSERT_TRUE(Catalogue(store->get()).AddJob(job).ok());
  }
  TrainAndEnd();
  for (uint32_t i = 0; i < world_.owned.size(); ++i) {
    const Chunk& chunk = world_.chunks.chunk(world_.owned[i]);
    const std::string folder = world_.drive_folders[placement.of(i)];
    const std::string state = DurableProcess::SomeState(chunk, Version(1)).substr(0, 64);
    EXPECT_EQ(world_.disk.Contents(folder + "/slot-0.eps").substr(layout.area(i).offset, 64),
              state);
  }
  ExpectRestored();
}

}  // namespace
}  // namespace eps
