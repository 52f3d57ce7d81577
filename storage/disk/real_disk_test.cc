#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/disk/disk.h"

namespace eps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kMiB = uint64_t{1} << 20;

// Blocks in memory, aligned for direct I/O.
class Blocks {
 public:
  explicit Blocks(size_t size, uint8_t fill = 0)
      : data_(static_cast<uint8_t*>(std::aligned_alloc(kDiskBlock, size)), std::free), size_(size) {
    std::memset(data_.get(), fill, size);
  }
  static Blocks Pattern(size_t size, uint64_t seed) {
    Blocks blocks(size);
    for (size_t i = 0; i < size; ++i) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      blocks.data_.get()[i] = static_cast<uint8_t>(seed >> 56);
    }
    return blocks;
  }
  absl::Span<uint8_t> span() const { return absl::MakeSpan(data_.get(), size_); }
  bool operator==(const Blocks& other) const {
    return size_ == other.size_ && std::memcmp(data_.get(), other.data_.get(), size_) == 0;
  }

 private:
  std::unique_ptr<uint8_t, void (*)(void*)> data_;
  size_t size_;
};

class RealDiskTest : public testing::TestWithParam<bool> {
 protected:
  RealDiskTest() {
    DiskOptions options;
    options.allow_io_uring = GetParam();
    options.queue_depth = 4;
    disk_ = NewRealDisk(options);
    folder_ = testing::TempDir() + "/disk-XXXXXX";
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
  }

  std::string Path(const char* name) const { return folder_ + "/" + name; }
  std::unique_ptr<AsyncFile> Make(const char* name, uint64_t size) {
    const absl::Status created = disk_->CreateFile(Path(name), size);
    EXPECT_TRUE(created.ok()) << created;
    auto file = disk_->Open(Path(name));
    EXPECT_TRUE(file.ok()) << file.status();
    return std::move(*file);
  }

  std::string folder_;
  std::unique_ptr<Disk> disk_;
};

TEST_P(RealDiskTest, ReadsFilesOfAnotherDisk) {
  auto file = Make("a", 4 * kMiB);
  EXPECT_EQ(file->size(), 4 * kMiB);
  EXPECT_EQ(file->path(), Path("a"));
  const Blocks zeros(4 * kMiB);
  Blocks found(4 * kMiB, 1);
  ASSERT_TRUE(ReadBlocking(file.get(), 0, found.span()).ok());
  EXPECT_TRUE(found == zeros) << "a new file is not all zeros";
  const Blocks data = Blocks::Pattern(kMiB, 7);
  ASSERT_TRUE(WriteBlocking(file.get(), kMiB + kDiskBlock, data.span()).ok());
  ASSERT_TRUE(SyncBlocking(file.get()).ok());
  file.reset();
  const auto other = NewRealDisk(DiskOptions());
  auto again = *other->Open(Path("a"));
  Blocks back(kMiB);
  ASSERT_TRUE(ReadBlocking(again.get(), kMiB + kDiskBlock, back.span()).ok());
  EXPECT_TRUE(back == data);
}

TEST_P(RealDiskTest, IdentifiesRenamedFilesAndDistinguishesCopies) {
  const FileIdentity made = Make("a", kMiB)->identity();
  EXPECT_NE(made.number, 0u);
  EXPECT_EQ((*NewRealDisk(DiskOptions())->Open(Path("a")))->identity(), made);
  ASSERT_TRUE(disk_->Rename(Path("a"), Path("b")).ok());
  EXPECT_EQ((*disk_->Open(Path("b")))->identity(), made);
  std::ofstream(Path("copy"), std::ios::binary)
      << std::ifstream(Path("b"), std::ios::binary).rdbuf();
  EXPECT_FALSE((*disk_->Open(Path("copy")))->identity() == made);
}

TEST_P(RealDiskTest, FinishesManyMoreOperationsThanItsDepth) {
  constexpr int kCount = 64;
  auto file = Make("many", kCount * kDiskBlock);
  std::vector<Blocks> blocks;
  std::atomic<int> good{0}, done{0};
  for (int i = 0; i < kCount; ++i) blocks.push_back(Blocks::Pattern(kDiskBlock, 100 + i));
  for (int i = 0; i < kCount; ++i) {
    file->Write(i * kDiskBlock, blocks[i].span(), [&](absl::Status status) {
      good += status.ok();
      ++done;
    });
  }
  while (done < kCount) ASSERT_TRUE(SyncBlocking(file.get()).ok());
  EXPECT_EQ(good, kCount);
  for (int i = 0; i < kCount; ++i) {
    Blocks back(kDiskBlock);
    ASSERT_TRUE(ReadBlocking(file.get(), i * kDiskBlock, back.span()).ok());
    EXPECT_TRUE(back == blocks[i]) << i;
  }
}

TEST_P(RealDiskTest, RefusesTransfersPastTheEnd) {
  auto file = Make("short", 2 * kDiskBlock);
  Blocks two(2 * kDiskBlock);
  for (const uint64_t offset : {uint64_t{kDiskBlock}, uint64_t{0} - kDiskBlock, kMiB}) {
    const absl::Status read = ReadBlocking(file.get(), offset, two.span());
    EXPECT_EQ(read.code(), absl::StatusCode::kOutOfRange) << read;
    EXPECT_THAT(std::string(read.message()),
                HasSubstr(Path("short") + ": 8192 bytes at offset " + std::to_string(offset)));
    EXPECT_EQ(WriteBlocking(file.get(), offset, two.span()).code(), absl::StatusCode::kOutOfRange);
  }
  EXPECT_TRUE(ReadBlocking(file.get(), 0, two.span()).ok());
}

TEST_P(RealDiskTest, NamesAFileThatLostItsEnd) {
  auto file = Make("cut", 4 * kDiskBlock);
  ASSERT_EQ(truncate(Path("cut").c_str(), kDiskBlock), 0);
  Blocks all(4 * kDiskBlock);
  const absl::Status read = ReadBlocking(file.get(), 0, all.span());
  EXPECT_EQ(read.code(), absl::StatusCode::kInternal) << read;
  EXPECT_THAT(std::string(read.message()),
              HasSubstr("read of 16384 bytes at offset 0: only 4096 bytes were moved"));
}

TEST_P(RealDiskTest, RefusesFilesLargerThanTheDisk) {
  const uint64_t size = uint64_t{1} << 60;
  const absl::Status refused = disk_->CreateFile(Path("huge"), size);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  const uint64_t free_bytes = *disk_->FreeBytes(folder_);
  EXPECT_GT(free_bytes, 0u);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr(" bytes are missing: " + std::to_string(size) + " wanted, "));
  EXPECT_THAT(*disk_->List(folder_), ElementsAre());
}

TEST_P(RealDiskTest, ReportsMissingAndExistingFiles) {
  EXPECT_EQ(disk_->Open(Path("none")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(disk_->Remove(Path("none")).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(disk_->List(Path("none")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(disk_->FreeBytes(Path("none")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(disk_->CreateFile(Path("none/a"), kDiskBlock).code(), absl::StatusCode::kNotFound);
  Make("a", kDiskBlock);
  EXPECT_EQ(disk_->CreateFile(Path("a"), kDiskBlock).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(disk_->CreateFolder(Path("a")).code(), absl::StatusCode::kAlreadyExists);
}

TEST_P(RealDiskTest, KeepsAFolder) {
  ASSERT_TRUE(disk_->CreateFolder(Path("x/y/z")).ok());
  ASSERT_TRUE(disk_->CreateFolder(Path("x/y/z")).ok());
  Make("x/b", kDiskBlock);
  Make("x/a", 2 * kDiskBlock);
  EXPECT_THAT(*disk_->List(Path("x")), ElementsAre("a", "b", "y"));
  ASSERT_TRUE(disk_->Rename(Path("x/a"), Path("x/b")).ok());
  EXPECT_THAT(*disk_->List(Path("x")), ElementsAre("b", "y"));
  EXPECT_EQ((*disk_->Open(Path("x/b")))->size(), 2 * kDiskBlock);
  ASSERT_TRUE(disk_->Remove(Path("x/b")).ok());
  EXPECT_THAT(*disk_->List(Path("x")), ElementsAre("y"));
}

TEST_P(RealDiskTest, GivesALockOnce) {
  auto lock = disk_->TakeLock(Path("lock"));
  ASSERT_TRUE(lock.ok()) << lock.status();
  const absl::Status second = NewRealDisk(DiskOptions())->TakeLock(Path("lock")).status();
  EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition) << second;
  EXPECT_THAT(std::string(second.message()), HasSubstr(Path("lock")));
  lock->reset();
  EXPECT_TRUE(disk_->TakeLock(Path("lock")).ok());
}

// Uses a file system in memory, on which older kernels refuse direct I/O.
TEST_P(RealDiskTest, LogsTheFallbackToThePageCache) {
  // Without such a file system, use the folder of all tests.
  const bool in_memory = access("/dev/shm", W_OK) == 0;
  folder_ = (in_memory ? std::string("/dev/shm") : testing::TempDir()) + "/eps-disk-XXXXXX";
  ASSERT_NE(mkdtemp(folder_.data()), nullptr);
  const int probe = open(Path("probe").c_str(), O_RDWR | O_CREAT | O_DIRECT, 0666);
  const bool refused = probe < 0 && errno == EINVAL;
  if (probe >= 0) close(probe);
  testing::internal::CaptureStderr();
  auto file = Make("a", kMiB);
  const Blocks data = Blocks::Pattern(kMiB, 7);
  const absl::Status written = WriteBlocking(file.get(), 0, data.span());
  const absl::Status synced = SyncBlocking(file.get());
  Blocks back(kMiB);
  const absl::Status read = ReadBlocking(file.get(), 0, back.span());
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(written.ok() && synced.ok() && read.ok()) << written << synced << read;
  EXPECT_TRUE(back == data);
  const std::string warning = Path("a") + ": the file system has no direct I/O";
  EXPECT_EQ(said.find(warning) != std::string::npos, refused) << said;
  EXPECT_EQ(said.find(warning), said.rfind(warning)) << "logged more than once: " << said;
  for (const char* name : {"a", "probe"}) unlink(Path(name).c_str());
  rmdir(folder_.c_str());
}

INSTANTIATE_TEST_SUITE_P(Queues, RealDiskTest, testing::Values(true, false),
                         [](const testing::TestParamInfo<bool>& info) {
                           return info.param ? "Uring" : "Threads";
                         });

}  // namespace
}  // namespace eps
