// The data directory of a server on real files: nothing that its catalogue does not name is
// deleted, and jobs without a catalogue are refused.

#include "storage/backends/durable_storage.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/executor.h"
#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"
#include "base/memory_account.h"
#include "base/testing/test_specs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/backends/near/job_devices.h"
#include "storage/csd/link_bytes.h"
#include "storage/cuts/catalogue.h"
#include "storage/cuts/job_folders.h"
#include "storage/cuts/rocksdb_store.h"
#include "storage/disk/disk.h"
#include "storage/state_backend.h"
#include "storage/testing/catalogue_samples.h"

namespace eps {
namespace {

using testing::AllOf;
using testing::HasSubstr;
namespace fs = std::filesystem;

// Returns the bytes of a job's folders.
uint64_t BytesOf(const DurableStorage& storage, JobId job) {
  const auto folders = storage.JobFolders();
  EXPECT_TRUE(folders.ok()) << folders.status();
  uint64_t bytes = 0;
  if (!folders.ok()) return bytes;
  for (const JobFolder& folder : *folders) {
    if (folder.job == job) bytes += folder.bytes;
  }
  return bytes;
}

// A folder with a job that has a cut.
class DurableStorageTest : public testing::Test {
 protected:
  DurableStorageTest() {
    root_ =
        absl::StrCat(testing::TempDir(), "/storage-",
                     testing::UnitTest::GetInstance()->current_test_info()->name(), "-", getpid());
    fs::remove_all(root_);
    Put(JobFolderName(known_.id));
    WithCatalogue([this](Catalogue* catalogue) {
      EXPECT_TRUE(catalogue->AddJob(known_).ok());
      EXPECT_TRUE(catalogue->AddCut(known_.id, SampleCut(3, 1), {"a", "b", "c"}).ok());
    });
  }
  ~DurableStorageTest() override { fs::remove_all(root_); }

  template <class Use>
  void WithCatalogue(const Use& use) {
    const auto store = OpenRocksDb(root_ + "/catalogue");
    ASSERT_TRUE(store.ok()) << store.status();
    Catalogue catalogue(store->get());
    use(&catalogue);
  }
  // Creates a folder with two files.
  void Put(const std::string& name) const {
    fs::create_directories(root_ + "/" + name);
    for (const char* const file : {"/slot-0.eps", "/contributions.eps"}) {
      std::ofstream(root_ + "/" + name + file) << "the state of " << name;
    }
  }
  bool Holds(const std::string& folder, const std::string& name) const {
    for (const char* const file : {"/slot-0.eps", "/contributions.eps"}) {
      std::ostringstream found;
      found << std::ifstream(root_ + "/" + folder + file).rdbuf();
      if (found.str() != "the state of " + name) return false;
    }
    return true;
  }
  StorageOptions Options() const {
    StorageOptions options;
    options.kind = "nvme";
    options.path = root_;
    options.staging_bytes = uint64_t{8} << 20;
    return options;
  }
  absl::Status Create(const JobSpec& spec) { return Create(spec, Options()); }
  static absl::Status Create(const JobSpec& spec, const StorageOptions& options) {
    const ChunkMap chunks = ChunkMap::Build(spec);
    MemoryAccount account;
    ThreadPool pool(1);
    const auto storage = DurableStorage::Open(options);
    if (!storage.ok()) return storage.status();
    return (*storage)
        ->NewBackend(spec, chunks, {chunks.chunks().front().id}, ShardPlace(), &pool, &account,
                     [](BackendDone) {})
        .status();
  }

  std::string root_;
  const CatalogueJob known_ = SampleJob("known");
};

TEST_F(DurableStorageTest, SetsFoldersOfUnknownJobsAside) {
  const JobSpec spec = TinySyntheticSpec();
  const std::string own = JobFolderName(spec.id());
  const std::string other = JobFolderName(SampleJob("other").id);
  for (const std::string& name : {own, other}) Put(name);
  const absl::Status created = Create(spec);
  ASSERT_TRUE(created.ok()) << created;
  EXPECT_TRUE(Holds("lost+found/" + own, own));
  EXPECT_TRUE(Holds("lost+found/" + other, other));
  EXPECT_TRUE(Holds(JobFolderName(known_.id), JobFolderName(known_.id)));
  EXPECT_TRUE(fs::exists(root_ + "/" + own + "/slot-1.eps"));
  EXPECT_FALSE(fs::exists(root_ + "/" + other));
}

TEST_F(DurableStorageTest, RemovesInterruptedCreationsAndEmptyJobs) {
  const JobSpec spec = TinySyntheticSpec();
  const CatalogueJob empty = SampleJob("empty");
  WithCatalogue([&](Catalogue* catalogue) { EXPECT_TRUE(catalogue->AddJob(empty).ok()); });
  Put(JobFolderName(empty.id));
  Put(JobFolderName(spec.id()) + ".new");
  Put(JobFolderName(SampleJob("other").id) + ".new");
  const absl::Status created = Create(spec);
  ASSERT_TRUE(created.ok()) << created;
  EXPECT_FALSE(fs::exists(root_ + "/lost+found"));
  const std::string own = JobFolderName(spec.id());
  for (const fs::directory_entry& entry : fs::directory_iterator(root_)) {
    EXPECT_THAT(entry.path().filename().string(),
                testing::AnyOf("catalogue", "LOCK", own, JobFolderName(known_.id)));
  }
}

TEST_F(DurableStorageTest, RefusesJobsWithoutTheirCatalogue) {
  fs::remove_all(root_ + "/catalogue");
  for (const bool empty : {false, true}) {
    if (empty) fs::create_directories(root_ + "/catalogue");
    const absl::Status refused = DurableStorage::Open(Options()).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kNotFound) << refused;
    EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr(root_ + "/catalogue is missing"),
                                                      HasSubstr(JobFolderName(known_.id))));
    EXPECT_EQ(fs::exists(root_ + "/catalogue"), empty);
  }
  // A creation that was interrupted before the catalogue had the job holds no state.
  const std::string folder = root_ + "/" + JobFolderName(known_.id);
  fs::rename(folder, NewFolderOf(folder));
  EXPECT_TRUE(DurableStorage::Open(Options()).ok());
}

TEST_F(DurableStorageTest, DrivesHoldTheSlotsOfJobs) {
  const JobSpec spec = TinySyntheticSpec();
  const std::string name = "/" + JobFolderName(spec.id());
  const std::vector<std::string> drives = {root_ + "-a", root_ + "-b"};
  for (const std::string& drive : drives) fs::create_directories(drive + "/job-00000000000000ff");
  const ChunkMap chunks = ChunkMap::Build(spec);
  StorageOptions options = Options();
  options.drives = drives;
  ASSERT_TRUE(Create(spec, options).ok());
  for (const std::string& drive : drives) {
    EXPECT_TRUE(fs::exists(drive + name + "/slot-1.eps")) << drive;
    EXPECT_TRUE(fs::exists(drive + "/lost+found/job-00000000000000ff")) << drive;
  }
  EXPECT_FALSE(fs::exists(root_ + name + "/slot-1.eps"));
  const auto reading = DurableStorage::OpenForReading(root_);
  ASSERT_TRUE(reading.ok()) << reading.status();
  EXPECT_GE(BytesOf(**reading, spec.id()), 2 * 12 * chunks.chunks().front().elements);
  ASSERT_TRUE((*reading)->RemoveJob(spec.id()).ok());
  for (const std::string& drive : drives) EXPECT_FALSE(fs::exists(drive + name)) << drive;
}

// A server that keeps state in two devices.
class DeviceStorageTest : public DurableStorageTest {
 protected:
  DeviceStorageTest() {
    in_devices_ = Options();
    in_devices_.kind = "csd";
    in_devices_.devices.program = "storage/csd/process/eps-csd";
    in_devices_.devices.count = 2;
    in_devices_.devices.dram_bytes = uint64_t{4} << 20;
  }
  std::string MediumOf(int device) const {
    return JobDevices::MediumIn(
        absl::StrCat(root_, "/csd-", device, "/", JobFolderName(spec_.id())));
  }
  // Returns the names of what was set aside.
  size_t LostFolders() const {
    size_t lost = 0;
    for (const auto& entry : fs::recursive_directory_iterator(root_)) {
      lost += entry.path().filename() == "lost+found" ? 1 : 0;
    }
    return lost;
  }
  absl::Status Create() { return DurableStorageTest::Create(spec_, in_devices_); }

  const JobSpec spec_ = TinySyntheticSpec();
  StorageOptions in_devices_;
};

TEST_F(DeviceStorageTest, MediaAreFilesOfTheirJob) {
  ASSERT_TRUE(Create().ok());
  for (const int device : {0, 1}) EXPECT_TRUE(fs::exists(MediumOf(device)));
  EXPECT_FALSE(fs::exists(root_ + "/" + JobFolderName(spec_.id()) + "/slot-0.eps"));
  ASSERT_TRUE(Create().ok()) << "a known job";
  const auto reading = DurableStorage::OpenForReading(root_);
  ASSERT_TRUE(reading.ok()) << reading.status();
  EXPECT_EQ(BytesOf(**reading, spec_.id()),
            fs::file_size(MediumOf(0)) + fs::file_size(MediumOf(1)));
  ASSERT_TRUE((*reading)->RemoveJob(spec_.id()).ok());
  for (const int device : {0, 1}) EXPECT_FALSE(fs::exists(MediumOf(device)));
}

TEST_F(DeviceStorageTest, RemovesMediaWithoutSlots) {
  const std::unique_ptr<Disk> disk = NewRealDisk(DiskOptions());
  const std::string folder = fs::path(MediumOf(1)).parent_path().string();
  fs::create_directories(root_ + "/csd-1");
  ASSERT_TRUE(JobDevices::CreateMedium(disk.get(), folder, uint64_t{1} << 20).ok());
  const absl::Status created = Create();
  ASSERT_TRUE(created.ok()) << created;
  EXPECT_EQ(LostFolders(), 0u);
  // A medium with slots, which no catalogue names, is kept.
  WithCatalogue([&](Catalogue* catalogue) { EXPECT_TRUE(catalogue->RemoveJob(spec_.id()).ok()); });
  ASSERT_TRUE(Create().ok());
  EXPECT_EQ(LostFolders(), 3u) << "two devices, and the folder of the log";
}

TEST_F(DeviceStorageTest, RefusesJobsOfAnotherKind) {
  ASSERT_TRUE(Create().ok());
  for (const char* const kind : {"nvme", "dram"}) {
    StorageOptions options = Options();
    options.kind = kind;
    const absl::Status refused = DurableStorageTest::Create(spec_, options);
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
    EXPECT_THAT(std::string(refused.message()),
                AllOf(HasSubstr(MediumOf(0)), HasSubstr("set storage.kind=csd")));
  }
  in_devices_.devices.count = 3;
  EXPECT_THAT(std::string(Create().message()), HasSubstr("made for 2 drives"));
  in_devices_.devices.count = 2;
  fs::remove(MediumOf(1));
  EXPECT_THAT(std::string(Create().message()), HasSubstr(MediumOf(1)));
  EXPECT_FALSE(fs::exists(MediumOf(1))) << "a lost medium is never created again";
}

TEST_F(DeviceStorageTest, NamesFoldersThatAreGone) {
  ASSERT_TRUE(Create().ok());
  for (const int device : {0, 1}) fs::remove_all(absl::StrCat(root_, "/csd-", device));
  const auto reading = DurableStorage::OpenForReading(root_);
  ASSERT_TRUE(reading.ok()) << reading.status();
  const CatalogueJob job = *(*reading)->catalogue().FindJob(spec_.id());
  const ChunkMap chunks = ChunkMap::Build(spec_);
  const absl::Status opened =
      (*reading)
          ->OpenCut(spec_, chunks, {chunks.chunks().front().id}, 0, job, SampleCut(1, 1))
          .status();
  EXPECT_EQ(opened.code(), absl::StatusCode::kFailedPrecondition) << opened;
}

TEST_F(DeviceStorageTest, FirstDrivesAreDevices) {
  in_devices_.drives = {root_ + "/a", root_ + "/b", root_ + "/c"};
  const auto in = [&](const char* drive, const char* file) {
    return absl::StrCat(root_, "/", drive, "/", JobFolderName(spec_.id()), "/", file);
  };
  ASSERT_TRUE(Create().ok());
  for (const char* const drive : {"a", "b"}) {
    EXPECT_TRUE(fs::exists(in(drive, "medium")));
    EXPECT_FALSE(fs::exists(in(drive, "slot-0.eps")));
  }
  EXPECT_FALSE(fs::exists(in("c", "medium")));
  EXPECT_TRUE(fs::exists(in("c", "slot-0.eps")));
  EXPECT_TRUE(Create().ok()) << "a known job";
  // Another number of devices.
  for (const auto& [devices, why] :
       {std::make_pair(1u, in("b", "medium is there, and 1 of 3")),
        std::make_pair(3u, in("c", "medium is missing, and 3 of 3"))}) {
    in_devices_.devices.count = devices;
    const absl::Status refused = Create();
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(why));
  }
  in_devices_.devices.count = 2;
  EXPECT_TRUE(Create().ok());
}

TEST_F(DeviceStorageTest, DrivesMayBeFoldersOfStoragePath) {
  in_devices_.drives = {root_ + "/csd-0", root_ + "/csd-1"};
  const absl::Status created = Create();
  EXPECT_TRUE(created.ok()) << created;
  EXPECT_TRUE(fs::exists(MediumOf(1)));
}

TEST_F(DeviceStorageTest, RefusesJobsThatLieInNoDevice) {
  ASSERT_TRUE(DurableStorageTest::Create(spec_).ok());
  const absl::Status refused = Create();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("lies in no storage device"));
}

TEST_F(DeviceStorageTest, LinksAreThoseOfLivingDevices) {
  const ChunkMap chunks = ChunkMap::Build(spec_);
  MemoryAccount account;
  ThreadPool pool(1);
  const auto storage = *DurableStorage::Open(in_devices_);
  auto backend = storage->NewBackend(spec_, chunks, {chunks.chunks().front().id}, ShardPlace(),
                                     &pool, &account, [](BackendDone) {});
  ASSERT_TRUE(backend.ok()) << backend.status();
  EXPECT_GE(account.live_bytes(MemoryKind::kState), 2 * in_devices_.devices.dram_bytes);
  const std::vector<DeviceLinks> links = storage->link_bytes();
  ASSERT_EQ(links.size(), 2u);
  EXPECT_EQ(links[1].device, "csd-1");
  EXPECT_GT(links[1].bytes.of(Link::kHost, Direction::kWritten), 0u);
  EXPECT_EQ(links[1].bytes.of(Link::kHost, Direction::kWritten),
            links[1].bytes.of(Link::kMedia, Direction::kWritten));
  *backend = nullptr;
  EXPECT_TRUE(storage->link_bytes().empty());
  EXPECT_EQ(account.live_bytes(MemoryKind::kState), 0u);
}

TEST_F(DurableStorageTest, RefusesDrivesNamedTwice) {
  StorageOptions options = Options();
  for (const std::string& twin :
       {root_ + "/", root_ + "-a/../" + fs::path(root_ + "-a").filename().string()}) {
    options.drives = {root_ + "-a", twin};
    const absl::Status refused = DurableStorage::Open(options).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << twin;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("storage.drives"));
  }
}

}  // namespace
}  // namespace eps
