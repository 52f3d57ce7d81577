#include "worker/exec/stash/stash_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

constexpr uint64_t kBytes = 5000;  // not whole blocks

std::vector<uint8_t> Item(uint32_t number, size_t size = kBytes) {
  std::vector<uint8_t> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<uint8_t>(number * 31 + i * 7 + i / 251);
  return bytes;
}

class StashFileTest : public testing::Test {
 protected:
  void SetUp() override {
    auto file = StashFile::Create(testing::TempDir(), kBytes, &account_);
    ASSERT_TRUE(file.ok()) << file.status();
    file_ = *std::move(file);
  }
  void TearDown() override {
    file_.reset();
    EXPECT_EQ(account_.live_bytes(), 0u);
  }
  absl::Status Read(uint64_t place, uint32_t number, size_t size = kBytes) {
    std::vector<uint8_t> found(size);
    absl::Status status = file_->Read(place, absl::MakeSpan(found));
    if (status.ok()) {
      EXPECT_EQ(found, Item(number, size)) << "place " << place;
    }
    return status;
  }

  MemoryAccount account_;
  std::unique_ptr<StashFile> file_;
};

TEST_F(StashFileTest, ReturnsWhatWasWritten) {
  EXPECT_EQ(account_.live_bytes(MemoryKind::kScratch), StashFile::kBuffers * 8192);
  constexpr uint32_t kItems = 40;
  ASSERT_TRUE(file_->Reserve(kItems / 2).ok());  // the file grows for the others
  for (int round = 0; round < 3; ++round) {
    std::vector<uint64_t> places;
    for (uint32_t i = 0; i < kItems; ++i) {
      const auto place = file_->Write(Item(i + round));
      ASSERT_TRUE(place.ok()) << place.status();
      places.push_back(*place);
    }
    // As a backward pass reads: in reverse, the next one announced; every third one twice.
    for (uint32_t i = kItems; i-- > 0;) {
      if (i > 0) file_->StartRead(places[i - 1]);
      ASSERT_TRUE(Read(places[i], i + round).ok());
      if (i % 3 == 0) {
        ASSERT_TRUE(Read(places[i], i + round).ok());
      }
      file_->GiveBack(places[i]);
    }
  }
}

// A place that is given back while its bytes are under way, or read ahead, holds the next item.
TEST_F(StashFileTest, PlacesAreUsedAgainAtOnce) {
  for (uint32_t i = 0; i < 100; ++i) {
    const auto place = file_->Write(Item(i, kBytes - i));
    ASSERT_TRUE(place.ok()) << place.status();
    EXPECT_EQ(*place, 0u);
    if (i % 2 == 0) {
      ASSERT_TRUE(Read(*place, i, kBytes - i).ok());
      file_->StartRead(*place);
    }
    file_->GiveBack(*place);
  }
}

// Returns the open file without a name that this process has in a folder.
int FileIn(const std::string& folder) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    if (absl::StrContains(target, "eps-stash-") && absl::EndsWith(target, "(deleted)")) {
      return std::stoi(entry.path().filename().string());
    }
  }
  ADD_FAILURE() << "no stash in " << folder;
  return -1;
}

TEST_F(StashFileTest, NoticesOtherBytes) {
  const uint64_t first = *file_->Write(Item(0));
  for (uint32_t i = 1; i < 8; ++i) ASSERT_TRUE(file_->Write(Item(i)).ok());  // takes its buffer
  const int fd = open(absl::StrCat("/proc/self/fd/", FileIn(testing::TempDir())).c_str(), O_RDWR);
  ASSERT_GE(fd, 0);
  const uint8_t other = 0xff;
  ASSERT_EQ(pwrite(fd, &other, 1, static_cast<off_t>(first * 8192 + 17)), 1);
  close(fd);
  const absl::Status status = Read(first, 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "worker.stash_path")) << status;
}

TEST_F(StashFileTest, LeavesNothingBehind) {
  ASSERT_TRUE(file_->Write(Item(1)).ok());
  for (const auto& entry : std::filesystem::directory_iterator(testing::TempDir())) {
    EXPECT_FALSE(absl::StrContains(entry.path().string(), "eps-stash-")) << entry.path();
  }
}

TEST(StashFile, RefusalsNameFolderAndKey) {
  const auto none = StashFile::Create("/nowhere/at/all", kBytes, nullptr);
  EXPECT_TRUE(absl::StrContains(none.status().message(), "worker.stash_path")) << none.status();
  EXPECT_TRUE(absl::StrContains(none.status().message(), "/nowhere/at/all")) << none.status();
  auto file = StashFile::Create(testing::TempDir(), kBytes, nullptr);
  ASSERT_TRUE(file.ok()) << file.status();
  const absl::Status full = (*file)->Reserve(uint64_t{1} << 47);
  EXPECT_FALSE(full.ok());
  EXPECT_TRUE(absl::StrContains(full.message(), "worker.stash_path")) << full;
}

}  // namespace
}  // namespace eps
