#include "checkpoint/checkpoint_folders.h"

#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/files/files.h"
#include "base/job/drivers/driver_lease.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

namespace fs = std::filesystem;

class CheckpointFoldersTest : public testing::Test {
 protected:
  CheckpointFoldersTest() {
    root_ =
        absl::StrCat(testing::TempDir(), "/folders-",
                     testing::UnitTest::GetInstance()->current_test_info()->name(), "-", getpid());
    fs::remove_all(root_);
  }
  ~CheckpointFoldersTest() override { fs::remove_all(root_); }

  void Write(const std::string& name, const std::string& content) {
    fs::create_directories(fs::path(root_ + "/" + name).parent_path());
    std::ofstream(root_ + "/" + name, std::ios::trunc) << content;
  }
  // A complete one, as far as names and sizes tell.
  void Checkpoint(uint64_t step, const DriverLease& driver = {}) {
    const std::string folder = absl::StrCat("checkpoint-", step);
    Write(folder + "/config.json", "{}");
    CheckpointManifest manifest;
    manifest.step = step;
    manifest.driver = driver;
    manifest.files["config.json"] = *SumFile(root_ + "/" + folder + "/config.json");
    Write(absl::StrCat(folder, "/", kManifestFile), ManifestText(manifest));
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const CheckpointFolder& folder : ListCheckpoints(root_)) names.push_back(folder.name);
    return names;
  }
  // What --resume=latest takes, without the root.
  std::string Latest() const {
    CheckpointConfig config;
    config.dir = root_;
    config.resume = "latest";
    const auto folder = ResumeFolder(config);
    EXPECT_TRUE(folder.ok()) << folder.status();
    if (!folder.ok() || folder->empty()) return "";
    EXPECT_TRUE(absl::StartsWith(*folder, root_ + "/")) << *folder;
    return folder->substr(root_.size() + 1);
  }
  // Writes a checkpoint, and returns the one that `latest` names then.
  std::string Publish(uint64_t step, const DriverLease& driver) {
    Checkpoint(step, driver);
    const auto manifest = ReadManifest(absl::StrCat(root_, "/checkpoint-", step));
    EXPECT_TRUE(manifest.ok()) << manifest.status();
    EXPECT_TRUE(PointLatest(root_, absl::StrCat("checkpoint-", step), *manifest).ok());
    return Latest();
  }
  std::vector<std::string> Removed(uint64_t limit) const {
    const auto removed = RemoveOldCheckpoints(root_, limit);
    EXPECT_TRUE(removed.ok()) << removed.status();
    return removed.ok() ? *removed : std::vector<std::string>();
  }

  std::string root_;
};

using Strings = std::vector<std::string>;

TEST_F(CheckpointFoldersTest, ListsOnlyCheckpointsByNumber) {
  for (const uint64_t step : {100, 9, 10}) Checkpoint(step);
  Checkpoint(11);
  fs::rename(root_ + "/checkpoint-11", root_ + "/.checkpoint-11.tmp");
  for (const char* name : {"checkpoint-", "checkpoint-012", "checkpoint-+5", "checkpoint-5b",
                           "checkpoint-99999999999999999999", "my-checkpoint-5", "logs"}) {
    Write(absl::StrCat(name, "/config.json"), "{}");
  }
  Write("checkpoint-7", "a file");
  fs::create_directory_symlink("checkpoint-9", root_ + "/checkpoint-8");
  EXPECT_EQ(Names(), (Strings{"checkpoint-9", "checkpoint-10", "checkpoint-100"}));
  EXPECT_TRUE(ListCheckpoints(root_ + "/nowhere").empty());
}

TEST_F(CheckpointFoldersTest, TheLatestIsWhatThePointerNames) {
  for (const uint64_t step : {9, 10, 11}) Checkpoint(step);
  Write(kLatestFile, "checkpoint-10\n");
  EXPECT_EQ(Latest(), "checkpoint-10");
}

TEST_F(CheckpointFoldersTest, WithoutPointerTheHighestCompleteIsLatest) {
  EXPECT_EQ(Latest(), "") << "nothing there: a new run";
  Write("logs/worker-0.log", "");
  EXPECT_EQ(Latest(), "") << "no checkpoint there: a new run";
  for (const uint64_t step : {9, 10}) Checkpoint(step);
  EXPECT_EQ(Latest(), "checkpoint-10");
  Write("checkpoint-11/model.safetensors", "half written by somebody");
  EXPECT_EQ(Latest(), "checkpoint-10") << "no manifest";
  Checkpoint(12);
  Write("checkpoint-12/config.json", "{} and more");
  EXPECT_EQ(Latest(), "checkpoint-10") << "a file of another size";
  Checkpoint(13);
  fs::rename(root_ + "/checkpoint-13", root_ + "/.checkpoint-13.tmp");
  EXPECT_EQ(Latest(), "checkpoint-10") << "hidden";
}

// The rule D8 of docs/protocol.md.
TEST_F(CheckpointFoldersTest, AFencedDriverMovesNoPointer) {
  EXPECT_EQ(Publish(10, {1, 5}), "checkpoint-10");
  EXPECT_EQ(Publish(20, {1, 5}), "checkpoint-20");
  EXPECT_EQ(Publish(15, {1, 5}), "checkpoint-20") << "the job returned to a cut";
  EXPECT_EQ(Publish(12, {1, 7}), "checkpoint-12") << "the next driver began earlier";
  EXPECT_EQ(Publish(30, {1, 6}), "checkpoint-12") << "its lease is over";
  EXPECT_EQ(Publish(11, {2, 3}), "checkpoint-11") << "boards have no order";
  EXPECT_EQ(Publish(9, {}), "checkpoint-9") << "a person chose to go back";
  EXPECT_EQ(Publish(5, {2, 3}), "checkpoint-5");
}

TEST_F(CheckpointFoldersTest, ADamagedLatestGivesAdvice) {
  struct Case {
    std::string latest;
    std::string says;
  };
  Checkpoint(9);
  Checkpoint(10);
  Write("checkpoint-11/model.safetensors", "half");
  Checkpoint(12);
  fs::remove(root_ + "/checkpoint-12/config.json");
  for (const Case& c : {Case{"checkpoint-11", "names checkpoint-11, which is not complete"},
                        Case{"checkpoint-12", "config.json is missing"},
                        Case{"checkpoint-20", "names checkpoint-20, which is not there"},
                        Case{"", "expected the name of a checkpoint folder"},
                        Case{"../x", "expected the name of a checkpoint folder"}}) {
    Write(kLatestFile, c.latest + "\n");
    const absl::Status status = LatestCheckpoint(root_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), c.says)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "--resume=" + root_ + "/checkpoint-10"))
        << status;
  }
  fs::remove_all(root_ + "/checkpoint-9");
  fs::remove_all(root_ + "/checkpoint-10");
  const absl::Status status = LatestCheckpoint(root_).status();
  EXPECT_TRUE(absl::StrContains(status.message(), "remove " + root_ + "/latest")) << status;
  Checkpoint(9);
  Checkpoint(10);
  EXPECT_TRUE(absl::StrContains(ResumeAdvice(root_, "checkpoint-10"), "/checkpoint-9 takes it"))
      << "never the damaged one itself";
}

TEST_F(CheckpointFoldersTest, RemovesLowestNumbersDownToTheLimit) {
  for (const uint64_t step : {9, 10, 100, 11}) Checkpoint(step);
  Write(kLatestFile, "checkpoint-100\n");
  EXPECT_EQ(Removed(0), Strings());
  EXPECT_EQ(Removed(4), Strings());
  EXPECT_EQ(Removed(3), Strings{"checkpoint-9"}) << "by number, not by letter";
  EXPECT_EQ(Removed(1), (Strings{"checkpoint-10", "checkpoint-11"}));
  EXPECT_EQ(Names(), Strings{"checkpoint-100"});
  for (const auto& entry : fs::directory_iterator(root_)) {
    EXPECT_NE(entry.path().filename().string()[0], '.') << entry.path();
  }
}

TEST_F(CheckpointFoldersTest, NeverRemovesTheLatestNorForeignFolders) {
  for (const uint64_t step : {3, 50, 60}) Checkpoint(step);
  Write(kLatestFile, "checkpoint-3\n");  // a run that went back to an early checkpoint
  Write("checkpoint-1/pytorch_model.bin", "of another program");
  Write("checkpoint-2/eps/manifest.json", "{}");
  Write("notes/a.txt", "of the user");
  EXPECT_EQ(Removed(1), (Strings{"checkpoint-50", "checkpoint-60"}));
  EXPECT_EQ(Names(), (Strings{"checkpoint-1", "checkpoint-2", "checkpoint-3"}));
  EXPECT_TRUE(fs::exists(root_ + "/notes/a.txt"));
  Write(kLatestFile, "nonsense\n");
  Checkpoint(70);
  EXPECT_FALSE(RemoveOldCheckpoints(root_, 1).ok()) << "nobody knows which one has to stay";
  EXPECT_EQ(Names().size(), 4u);
}

TEST_F(CheckpointFoldersTest, NeverRemovesTheBest) {
  for (const uint64_t step : {3, 50, 60, 70}) Checkpoint(step);
  Write(kLatestFile, "checkpoint-70\n");
  ASSERT_TRUE(SetBestCheckpoint(root_, "checkpoint-50").ok());
  EXPECT_EQ(BestCheckpointName(root_), "checkpoint-50");
  EXPECT_EQ(Removed(1), (Strings{"checkpoint-3", "checkpoint-60"}));
  EXPECT_EQ(Names(), (Strings{"checkpoint-50", "checkpoint-70"}));
  const absl::Status refused = RemoveCheckpoint(root_ + "/checkpoint-50", RemoveLatest::kRefuse);
  EXPECT_TRUE(absl::StrContains(refused.message(), "/best names")) << refused;
  ASSERT_TRUE(RemoveCheckpoint(root_ + "/checkpoint-50", RemoveLatest::kRepoint).ok());
  EXPECT_FALSE(fs::exists(root_ + "/best"));
  EXPECT_EQ(BestCheckpointName(root_), "");
  EXPECT_TRUE(SetBestCheckpoint(root_, "").ok()) << "there is none";
  Write(kBestFile, "nonsense\n");
  EXPECT_EQ(BestCheckpointName(root_), "");
}

TEST_F(CheckpointFoldersTest, HidesACheckpointBeforeRemovingFiles) {
  Checkpoint(1);
  Checkpoint(2);
  Write(kLatestFile, "checkpoint-2\n");
  Write(".checkpoint-1.tmp/left", "by a crash in an earlier removal");
  const int events = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  const int root = inotify_add_watch(events, root_.c_str(), IN_MOVED_FROM | IN_DELETE);
  ASSERT_GE(root, 0);
  ASSERT_GE(inotify_add_watch(events, (root_ + "/checkpoint-1").c_str(), IN_DELETE), 0);
  EXPECT_EQ(Removed(1), Strings{"checkpoint-1"});
  alignas(inotify_event) char buffer[4096];
  const ssize_t bytes = read(events, buffer, sizeof(buffer));
  close(events);
  Strings seen;
  for (ssize_t at = 0; at < bytes;) {
    const auto* event = reinterpret_cast<const inotify_event*>(buffer + at);
    if (event->len > 0) {
      seen.push_back(absl::StrCat((event->mask & IN_DELETE) != 0 ? "delete " : "move ",
                                  event->wd == root ? "" : "inside ", event->name));
    }
    at += static_cast<ssize_t>(sizeof(inotify_event) + event->len);
  }
  const auto place = [&](const std::string& what) {
    return std::find(seen.begin(), seen.end(), what) - seen.begin();
  };
  ASSERT_LT(place("move checkpoint-1"), static_cast<ptrdiff_t>(seen.size()));
  EXPECT_LT(place("move checkpoint-1"), place("delete inside config.json"));
  EXPECT_LT(place("delete inside config.json"), static_cast<ptrdiff_t>(seen.size()));
  EXPECT_EQ(place("delete checkpoint-1"), static_cast<ptrdiff_t>(seen.size()));
  EXPECT_FALSE(fs::exists(root_ + "/.checkpoint-1.tmp"));
}

TEST_F(CheckpointFoldersTest, RemovesTheLatestOnlyIfForced) {
  for (const uint64_t step : {3, 9, 10, 11}) Checkpoint(step);
  fs::remove(root_ + "/checkpoint-11/config.json");
  Write(kLatestFile, "checkpoint-9\n");
  ASSERT_TRUE(RemoveCheckpoint(root_ + "/checkpoint-3/", RemoveLatest::kRefuse).ok());
  EXPECT_EQ(Names(), (Strings{"checkpoint-9", "checkpoint-10", "checkpoint-11"}));
  const absl::Status refused = RemoveCheckpoint(root_ + "/checkpoint-9", RemoveLatest::kRefuse);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(refused.message(), "--force")) << refused;
  EXPECT_EQ(Latest(), "checkpoint-9");
  ASSERT_TRUE(RemoveCheckpoint(root_ + "/checkpoint-9", RemoveLatest::kRepoint).ok());
  EXPECT_EQ(*ReadTextFile(root_ + "/latest"), "checkpoint-10\n") << "11 is not complete";
  ASSERT_TRUE(RemoveCheckpoint(root_ + "/checkpoint-10", RemoveLatest::kRepoint).ok());
  EXPECT_FALSE(fs::exists(root_ + "/latest"));
  EXPECT_TRUE(RemoveCheckpoint(root_ + "/checkpoint-11", RemoveLatest::kRefuse).ok())
      << "damaged, and with a manifest of ours";
  EXPECT_TRUE(fs::is_empty(root_));
}

TEST_F(CheckpointFoldersTest, RemovesNothingThatIsNoCheckpoint) {
  Checkpoint(3);
  Checkpoint(4);
  Write("checkpoint-1/pytorch_model.bin", "of another program");
  Write("notes/eps/manifest.json", *ReadTextFile(root_ + "/checkpoint-3/eps/manifest.json"));
  fs::rename(root_ + "/checkpoint-4", root_ + "/checkpoint-5");
  fs::create_directory_symlink(root_ + "/checkpoint-3", root_ + "/checkpoint-7");
  for (const char* const name : {"/checkpoint-1", "/notes", "/checkpoint-5", "/checkpoint-7"}) {
    for (const RemoveLatest latest : {RemoveLatest::kRefuse, RemoveLatest::kRepoint}) {
      EXPECT_EQ(RemoveCheckpoint(root_ + name, latest).code(),
                absl::StatusCode::kFailedPrecondition)
          << name;
    }
    EXPECT_TRUE(fs::exists(root_ + name)) << name;
  }
  EXPECT_TRUE(absl::IsNotFound(CheckRemovable(root_ + "/checkpoint-6", RemoveLatest::kRefuse)));
  EXPECT_TRUE(CheckRemovable(root_ + "/checkpoint-3", RemoveLatest::kRefuse).ok());
  EXPECT_TRUE(fs::exists(root_ + "/checkpoint-3"));
}

TEST_F(CheckpointFoldersTest, ReadsManifestsAndNamesBadOnes) {
  CheckpointManifest manifest;
  manifest.step = 12;
  manifest.version = 11;
  manifest.update = 10;
  manifest.term = 3;
  manifest.lagged_norm = 0.1 + 0.2;
  manifest.loss_scale = LossScale{kMaxLossScaleLog2, 7, 1};
  manifest.spec_digest = "ab";
  manifest.numerics_version = 1;
  manifest.optimizer = "adamw";
  manifest.files["a"] = {5, 0xe3069283u, "00"};
  Write(absl::StrCat("x/", kManifestFile), ManifestText(manifest));
  const auto read = ReadManifest(root_ + "/x");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(ManifestText(*read), ManifestText(manifest));
  EXPECT_EQ(read->loss_scale, manifest.loss_scale);
  CheckpointManifest beyond = manifest;
  beyond.loss_scale->log2 = kMaxLossScaleLog2 + 1;
  EXPECT_TRUE(absl::StrContains(ParseManifest(ManifestText(beyond), "x").status().message(),
                                "malformed loss_scale"));
  const std::string text = ManifestText(manifest);
  for (const std::string& cut :
       {text.substr(0, text.size() / 2), std::string("{}"), std::string()}) {
    Write(absl::StrCat("x/", kManifestFile), cut);
    const absl::Status status = ReadManifest(root_ + "/x").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), root_ + "/x/eps/manifest.json")) << status;
  }
}

}  // namespace
}  // namespace eps
