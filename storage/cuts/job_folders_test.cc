// A job is removed while the power fails: either the whole job remains, or an orphaned folder.
// Other jobs stay unchanged, and a repeated call completes the removal.

#include "storage/cuts/job_folders.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/testing/catalogue_samples.h"
#include "storage/testing/log_store.h"
#include "storage/testing/simulated_disk.h"

namespace eps {
namespace {

constexpr char kDirectory[] = "/state";
constexpr int kCalls = 22;  // calls of one removal to the disk, including the store's new log
constexpr uint64_t kFileBytes = 2 * kDiskBlock;

// Two jobs with a cut each; the first one is served.
class JobFoldersTest : public testing::Test {
 protected:
  struct Process {
    std::unique_ptr<LogStore> store;
    std::unique_ptr<Catalogue> catalogue;
  };

  void SetUp() override {
    ASSERT_TRUE(disk_.CreateFolder(kDirectory).ok());
    const Process process = Start();
    for (const CatalogueJob& job : {old_, other_}) {
      const std::string folder = FolderOf(job);
      ASSERT_TRUE(disk_.CreateFolder(folder).ok());
      for (const char* const file : {"slot-0.eps", "slot-1.eps", "contributions.eps"}) {
        ASSERT_TRUE(disk_.CreateFile(absl::StrCat(folder, "/", file), kFileBytes).ok());
      }
      ASSERT_TRUE(process.catalogue->AddJob(job).ok());
      ASSERT_TRUE(process.catalogue->AddCut(job.id, SampleCut(3, 1), {"a", "b", "c"}).ok());
      ASSERT_TRUE(process.catalogue->SetLog(job.id, SampleLog(1, 3)).ok());
    }
    ASSERT_TRUE(process.catalogue->SetServed({old_.id, {"x:1", "x:2", "x:3"}}).ok());
  }

  Process Start() {
    Process process;
    auto store = LogStore::Open(&disk_, absl::StrCat(kDirectory, "/catalogue"), 8 * kDiskBlock);
    EXPECT_TRUE(store.ok()) << store.status();
    process.store = *std::move(store);
    process.catalogue = std::make_unique<Catalogue>(process.store.get());
    return process;
  }
  static std::string FolderOf(const CatalogueJob& job) {
    return absl::StrCat(kDirectory, "/", JobFolderName(job.id));
  }
  // Returns the bytes of the job's folder; nullopt if it has none.
  std::optional<uint64_t> BytesOf(const CatalogueJob& job) {
    const auto folders = ListJobFolders(&disk_, kDirectory);
    EXPECT_TRUE(folders.ok()) << folders.status();
    for (const JobFolder& folder : *folders) {
      if (folder.job == job.id) return folder.bytes;
    }
    return std::nullopt;
  }
  void ExpectWhole(const CatalogueJob& job, const Catalogue& catalogue) {
    EXPECT_EQ(*catalogue.FindJob(job.id), job);
    ASSERT_EQ(catalogue.Cuts(job.id)->size(), 1u);
    EXPECT_EQ(catalogue.Records(job.id, catalogue.Cuts(job.id)->front())->size(), 3u);
    EXPECT_TRUE(catalogue.Log(job.id)->has_value());
    EXPECT_EQ(BytesOf(job), 3 * kFileBytes);
  }
  // Expects that neither the folder nor any record of the job remains.
  void ExpectGone(const CatalogueJob& job, const Process& process) {
    EXPECT_EQ(BytesOf(job), std::nullopt);
    ExpectForgotten(job, process);
  }
  static void ExpectForgotten(const CatalogueJob& job, const Process& process) {
    EXPECT_FALSE(process.catalogue->Served()->has_value());
    const std::string id = JobFolderName(job.id).substr(4);
    const auto records = *process.store->Scan("");
    for (const auto& [key, value] : records) {
      EXPECT_EQ(key.find(id), std::string::npos) << key;
    }
  }

  const CatalogueJob old_ = SampleJob("old");
  const CatalogueJob other_ = SampleJob("other");
  SimulatedDisk disk_{SimulatedDisk::Options()};
};

TEST_F(JobFoldersTest, RemovesAJobWithItsRecords) {
  const Process process = Start();
  EXPECT_EQ(RemoveJob(process.catalogue.get(), &disk_, {kDirectory}, SampleJob("no").id).code(),
            absl::StatusCode::kNotFound);
  const uint64_t used = disk_.used_bytes();
  ExpectWhole(old_, *process.catalogue);
  const uint64_t calls = disk_.calls();
  const absl::Status removed = RemoveJob(process.catalogue.get(), &disk_, {kDirectory}, old_.id);
  ASSERT_TRUE(removed.ok()) << removed;
  EXPECT_EQ(disk_.calls() - calls, uint64_t{kCalls});
  ExpectGone(old_, process);
  ExpectWhole(other_, *process.catalogue);
  EXPECT_EQ(disk_.used_bytes(), used - 3 * kFileBytes);
  EXPECT_EQ(RemoveJob(process.catalogue.get(), &disk_, {kDirectory}, old_.id).code(),
            absl::StatusCode::kNotFound);
}

TEST_F(JobFoldersTest, RemovesAnOrphanedFolder) {
  const Process process = Start();
  ASSERT_TRUE(process.catalogue->RemoveJob(old_.id).ok());
  EXPECT_EQ(BytesOf(old_), 3 * kFileBytes);
  ASSERT_TRUE(RemoveJob(process.catalogue.get(), &disk_, {kDirectory}, old_.id).ok());
  ExpectGone(old_, process);
}

TEST_F(JobFoldersTest, SetsFoldersAsideUnderFreeNames) {
  EXPECT_EQ(*SetAside(&disk_, FolderOf(SampleJob("no"))), "");
  const std::string name = JobFolderName(old_.id);
  for (const std::string& free : {name, name + ".2", name + ".3"}) {
    const absl::StatusOr<std::string> moved = SetAside(&disk_, FolderOf(old_));
    ASSERT_TRUE(moved.ok()) << moved.status();
    EXPECT_EQ(*moved, absl::StrCat(kDirectory, "/lost+found/", free));
    EXPECT_EQ(BytesOf(old_), std::nullopt);
    ASSERT_TRUE(disk_.CreateFolder(FolderOf(old_)).ok());
    ASSERT_TRUE(disk_.CreateFile(FolderOf(old_) + "/slot-0.eps", kFileBytes).ok());
  }
  EXPECT_EQ(disk_.List(absl::StrCat(kDirectory, "/lost+found/", name))->size(), 3u);
  ExpectWhole(other_, *Start().catalogue);
}

TEST_F(JobFoldersTest, FoldersOfInterruptedCreationsAreTold) {
  const std::string created = NewFolderOf(FolderOf(old_));
  ASSERT_TRUE(disk_.CreateFolder(created).ok());
  int found = 0;
  const auto folders = ListJobFolders(&disk_, kDirectory);
  for (const JobFolder& folder : *folders) {
    EXPECT_EQ(folder.is_new, folder.path == created) << folder.path;
    found += folder.job == old_.id ? 1 : 0;
  }
  EXPECT_EQ(found, 2);
  const Process process = Start();
  ASSERT_TRUE(RemoveJob(process.catalogue.get(), &disk_, {kDirectory}, old_.id).ok());
  EXPECT_EQ(ListJobFolders(&disk_, kDirectory)->size(), 1u);
}

TEST_F(JobFoldersTest, OtherNamesAreNoFoldersOfJobs) {
  for (const char* const name :
       {"job-", "job-12", "job-00000000000000AB", "job-notes", ".new", "kept"}) {
    ASSERT_TRUE(disk_.CreateFolder(absl::StrCat(kDirectory, "/", name)).ok());
  }
  EXPECT_EQ(ListJobFolders(&disk_, kDirectory)->size(), 2u);
  EXPECT_EQ(ListJobFolders(&disk_, "/nowhere").status().code(), absl::StatusCode::kNotFound);
}

// One fixture per cut, because gtest cannot restart a fixture.
class JobFoldersPowerTest : public JobFoldersTest, public testing::WithParamInterface<int> {};

TEST_P(JobFoldersPowerTest, PowerCutLeavesJobOrOrphan) {
  const auto seed = static_cast<uint64_t>(GetParam());
  std::optional<Process> process = Start();
  disk_.CutPowerAtCall(seed / 2, seed);
  const absl::Status interrupted =
      RemoveJob(process->catalogue.get(), &disk_, {kDirectory}, old_.id);
  const bool cut = !disk_.on();
  if (!cut) disk_.CutPower(seed);
  EXPECT_EQ(interrupted.ok(), !cut) << interrupted;
  EXPECT_EQ(cut, GetParam() / 2 <= kCalls) << "not all calls are met, or there are more";
  process.reset();
  disk_.PowerOn();

  process = Start();
  ExpectWhole(other_, *process->catalogue);
  if (process->catalogue->FindJob(old_.id).ok()) {
    ExpectWhole(old_, *process->catalogue);
    EXPECT_TRUE(process->catalogue->Served()->has_value());
    EXPECT_FALSE(interrupted.ok());
  } else {
    ExpectForgotten(old_, *process);
  }
  const absl::Status again = RemoveJob(process->catalogue.get(), &disk_, {kDirectory}, old_.id);
  EXPECT_TRUE(again.ok() || absl::IsNotFound(again)) << again;
  ExpectGone(old_, *process);
  ExpectWhole(other_, *process->catalogue);
}

// Two seeds per call: the interrupted change did or did not reach the disk.
INSTANTIATE_TEST_SUITE_P(EveryCall, JobFoldersPowerTest, testing::Range(2, 2 * kCalls + 4));

}  // namespace
}  // namespace eps
