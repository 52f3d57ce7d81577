// A checkpoint replaces an older one of the same name. The process is killed at each call that
// changes or syncs a name, with and without a file system that can exchange two names.

#include "checkpoint/guard/checkpoint_place.h"

#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/files/files.h"
#include "checkpoint/checkpoint_folders.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace {

std::vector<std::string>* calls = nullptr;  // null: calls are not counted
int refuses_exchange = 0;                   // the errno; 0 exchanges
size_t dies_at = 0;                         // the number of the call; 0: at none

void Count(const std::string& call) {
  if (calls == nullptr) return;
  calls->push_back(call);
  if (calls->size() == dies_at) _exit(9);
}

}  // namespace

// These take the place of the C library's functions.
extern "C" {

int renameat2(int from_folder, const char* from, int to_folder, const char* to,
              unsigned flags) noexcept {
  Count("exchange");
  if (refuses_exchange != 0) {
    errno = refuses_exchange;
    return -1;
  }
  return static_cast<int>(syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
}

int rename(const char* from, const char* to) noexcept {
  Count("rename");
  return static_cast<int>(syscall(SYS_rename, from, to));
}

int fsync(int fd) {
  std::error_code gone;
  Count("sync " +
        std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), gone).string());
  return 0;
}

int unlinkat(int folder, const char* name, int flags) noexcept {
  Count("unlink");
  return static_cast<int>(syscall(SYS_unlinkat, folder, name, flags));
}

}  // extern "C"

namespace eps {
namespace {

namespace fs = std::filesystem;

constexpr char kName[] = "checkpoint-5";

// The errno with which the file system refuses to exchange two names; 0 if it does not.
class CheckpointPlaceTest : public testing::TestWithParam<int> {
 protected:
  CheckpointPlaceTest() {
    root_ = absl::StrCat(testing::TempDir(), "/place-", GetParam(), "-", getpid());
    fs::remove_all(root_);
    fs::create_directories(root_);
    root_ = fs::canonical(root_).string();
    Reset();
  }
  ~CheckpointPlaceTest() override { fs::remove_all(root_); }

  // Leaves an old checkpoint under the name and a new one under the temporary name.
  void Reset() const {
    fs::remove_all(root_);
    Put(absl::StrCat(root_, "/", kName), "old");
    Put(TemporaryName(root_, kName), "new");
    std::ofstream(root_ + "/latest") << kName << "\n";
  }
  static void Put(const std::string& folder, const std::string& content) {
    fs::create_directories(folder + "/eps");
    std::ofstream(folder + "/a") << content;
    CheckpointManifest manifest;
    manifest.step = 5;
    manifest.files["a"] = *SumFile(folder + "/a");
    std::ofstream(folder + "/" + kManifestFile) << ManifestText(manifest);
  }
  // Returns the content of the whole checkpoint that a resumed run would use.
  std::string Latest() const {
    const absl::StatusOr<std::string> latest = LatestCheckpoint(root_);
    EXPECT_TRUE(latest.ok()) << latest.status();
    if (!latest.ok() || latest->empty()) return "none";
    const absl::Status whole = CheckFiles(*latest, *ReadManifest(*latest), /*sums=*/true);
    EXPECT_TRUE(whole.ok()) << whole;
    return *ReadTextFile(*latest + "/a");
  }
  // Places the checkpoint in a process of its own that dies at a call. Returns its exit code.
  int PlaceAndDieAt(size_t call) const {
    const pid_t child = fork();
    if (child == 0) {
      std::vector<std::string> counted;
      calls = &counted;
      refuses_exchange = GetParam();
      dies_at = call;
      const absl::Status placed = PlaceCheckpoint(root_, kName);
      _exit(placed.ok() ? 0 : 1);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return WEXITSTATUS(status);
  }

  std::string root_;
};

TEST_P(CheckpointPlaceTest, RemovesTheOldOneAfterTheSync) {
  std::vector<std::string> counted;
  calls = &counted;
  refuses_exchange = GetParam();
  const absl::Status placed = PlaceCheckpoint(root_, kName);
  calls = nullptr;
  ASSERT_TRUE(placed.ok()) << placed;
  EXPECT_EQ(Latest(), "new");
  const auto last_sync = std::find(counted.rbegin(), counted.rend(), "sync " + root_);
  EXPECT_NE(last_sync, counted.rend());
  for (auto call = last_sync; call != counted.rend(); ++call) EXPECT_NE(*call, "unlink");
  EXPECT_NE(std::find(counted.begin(), counted.end(), "unlink"), counted.end());
  for (auto call = counted.rbegin(); call != last_sync; ++call) EXPECT_EQ(*call, "unlink");
  EXPECT_EQ(ListCheckpoints(root_).size(), 1u);
  for (const auto& entry : fs::directory_iterator(root_)) {
    EXPECT_FALSE(absl::StartsWith(entry.path().filename().string(), ".")) << entry.path();
  }
}

TEST_P(CheckpointPlaceTest, KillsAtAnyCallLoseNothing) {
  size_t call = 1;
  for (int code = 9; code == 9; ++call) {
    Reset();
    code = PlaceAndDieAt(call);
    ASSERT_TRUE(code == 0 || code == 9) << call;
    const std::string before = Latest();
    EXPECT_THAT(before, testing::AnyOf("old", "new")) << call;
    ASSERT_TRUE(CleanCheckpoints(root_).ok());
    EXPECT_EQ(Latest(), before) << call;
    EXPECT_TRUE(fs::exists(absl::StrCat(root_, "/", kName))) << call;
    EXPECT_FALSE(fs::exists(TemporaryName(root_, kName))) << call;
    EXPECT_FALSE(fs::exists(ReplacedName(root_, kName))) << call;
  }
  EXPECT_GT(call, 4u);
}

TEST_P(CheckpointPlaceTest, KeepsTheOldOneUntilTheSync) {
  // A killed process left both: the new name may not be durable yet.
  Put(ReplacedName(root_, kName), "older");
  std::vector<std::string> counted;
  calls = &counted;
  const absl::Status cleaned = CleanCheckpoints(root_);
  calls = nullptr;
  ASSERT_TRUE(cleaned.ok()) << cleaned;
  ASSERT_FALSE(counted.empty());
  EXPECT_EQ(counted.front(), "sync " + root_);
  EXPECT_EQ(Latest(), "old");
}

INSTANTIATE_TEST_SUITE_P(FileSystems, CheckpointPlaceTest, testing::Values(0, EINVAL, ENOSYS));

}  // namespace
}  // namespace eps
