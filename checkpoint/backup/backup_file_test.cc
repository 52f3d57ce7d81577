// Backups as one file, on real files.

#include "checkpoint/backup/backup_file.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/files/files.h"
#include "base/files/tar.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/testing/job_states.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

class BackupFileTest : public JobStateTest {
 protected:
  // Returns the status of CheckBackupFile for the archive, which must be that of UnpackBackupFile.
  absl::Status Check(const std::string& archive) const {
    std::ofstream(Path("tried.tar"), std::ios::binary) << archive;
    const absl::Status checked = CheckBackupFile(Path("tried.tar")).status();
    fs::remove_all(Path("unpacked"));
    fs::create_directories(Path("unpacked"));
    const absl::Status unpacked = UnpackBackupFile(Path("tried.tar"), Path("unpacked")).status();
    EXPECT_EQ(checked, unpacked);
    return checked;
  }
  std::string Backup() const {
    const auto bytes = WriteBackupFile(MemoryState(HeadOf()), Path("b.tar"));
    EXPECT_TRUE(bytes.ok()) << bytes.status();
    const std::string archive = *ReadTextFile(Path("b.tar"));
    EXPECT_EQ(archive.size(), *bytes);
    return archive;
  }
  static constexpr size_t kTarEnd = 1024;  // zeros after the last member
  // An archive of one file, without its end.
  static std::string EmptyMember(const std::string& name) {
    std::string archive;
    TarWriter tar([&archive](absl::string_view bytes) {
      archive.append(bytes.data(), bytes.size());
      return absl::OkStatus();
    });
    EXPECT_TRUE(tar.Add(name, 0, 1).ok() && tar.Finish().ok());
    return archive.substr(0, archive.size() - kTarEnd);
  }
  static uint64_t SizeOf(const std::string& member) {
    return std::stoull(member.substr(124, 11), nullptr, 8);
  }
  // The members of an archive, each with its header and padding, by name.
  static std::vector<std::pair<std::string, std::string>> MembersOf(const std::string& archive) {
    std::vector<std::pair<std::string, std::string>> members;
    for (size_t at = 0; archive[at] != '\0';) {
      const uint64_t size = SizeOf(archive.substr(at, 512));
      const size_t bytes = 512 + (size + 511) / 512 * 512;
      members.emplace_back(archive.substr(at).c_str(), archive.substr(at, bytes));
      at += bytes;
    }
    return members;
  }
};

TEST_F(BackupFileTest, HoldsTheCheckpointAndComesBack) {
  const MemoryState state(HeadOf());
  Backup();
  const absl::Status again = WriteBackupFile(state, Path("b.tar")).status();
  EXPECT_EQ(again.code(), absl::StatusCode::kAlreadyExists);
  const auto checked = CheckBackupFile(Path("b.tar"));
  ASSERT_TRUE(checked.ok()) << checked.status();
  EXPECT_EQ((*checked)->head().spec.ToText(), state.head().spec.ToText());
  EXPECT_EQ((*checked)->head().border.id, state.head().border.id);
  EXPECT_EQ((*checked)->head().servers, 2u);
  EXPECT_EQ((*checked)->ReadChunk(ChunkId(0)).status().code(),
            absl::StatusCode::kFailedPrecondition);

  const auto unpacked = UnpackBackupFile(Path("b.tar"), root_);
  ASSERT_TRUE(unpacked.ok()) << unpacked.status();
  ExpectSame(**OpenCheckpointState(*unpacked), state);
  const std::string saved = *SaveCheckpoint(state, Path("saved"));
  size_t files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(saved)) {
    if (!entry.is_regular_file()) continue;
    const std::string name = entry.path().lexically_relative(saved).string();
    EXPECT_EQ(*ReadTextFile(entry.path().string()), *ReadTextFile(*unpacked + "/" + name)) << name;
    ++files;
  }
  EXPECT_GT(files, 5u);
  for (const auto& entry : fs::directory_iterator(root_)) {
    EXPECT_NE(entry.path().filename().string()[0], '.') << "left in the folder: " << entry.path();
  }
}

TEST_F(BackupFileTest, AnErrorLeavesNothingBehind) {
  Write(MemoryState(HeadOf()), 1, "state");
  Flip(Slot("state", 0, 0), 4096);
  const auto folder = *Open("state");
  const auto damaged = *folder->OpenCut(std::nullopt);
  EXPECT_EQ(WriteBackupFile(*damaged, Path("b.tar")).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_FALSE(fs::exists(Path("b.tar")));
  EXPECT_FALSE(fs::exists(Path(".b.tar.tmp")));
  EXPECT_EQ(CheckBackupFile(Path("b.tar")).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(BackupFileTest, EachChangedBitIsNoticed) {
  const std::string archive = Backup();
  ASSERT_TRUE(Check(archive).ok());
  std::vector<bool> counts(archive.size(), false);  // false for padding, which means nothing
  size_t at = 0;
  for (const auto& [name, member] : MembersOf(archive)) {
    std::fill_n(counts.begin() + static_cast<ptrdiff_t>(at), 512 + SizeOf(member), true);
    at += member.size();
  }
  EXPECT_EQ(at + kTarEnd, archive.size());
  // All of the manifest's header, and every so many bytes of the rest.
  for (size_t byte = 0; byte < archive.size(); byte += byte < 600 ? 13 : archive.size() / 47) {
    if (byte >= 148 && byte < 156) continue;  // blanks around the header's sum mean nothing
    if (!counts[byte]) continue;
    std::string changed = archive;
    changed[byte] = static_cast<char>(changed[byte] ^ 1 << byte % 8);
    EXPECT_EQ(Check(changed).code(), absl::StatusCode::kDataLoss) << byte;
  }
  for (size_t size = 0; size < archive.size() - kTarEnd; size += archive.size() / 23) {
    EXPECT_EQ(Check(archive.substr(0, size)).code(), absl::StatusCode::kDataLoss) << size;
  }
}

TEST_F(BackupFileTest, HasEachMemberOfTheManifestOnce) {
  const std::string archive = Backup();
  const auto members = MembersOf(archive);
  ASSERT_GT(members.size(), 5u);
  EXPECT_EQ(members[0].first, "checkpoint-7/eps/manifest.json");
  const auto with = [&](const std::vector<std::string>& parts) {
    std::string changed;
    for (const std::string& part : parts) changed += part;
    return std::string(Check(changed + std::string(kTarEnd, '\0')).message());
  };
  std::string all;
  for (const auto& member : members) all += member.second;
  const std::string manifest = members[0].second;
  const std::string rest = all.substr(manifest.size());
  EXPECT_THAT(with({rest, manifest}), HasSubstr("tar xf"));
  EXPECT_THAT(with({}), HasSubstr("tar xf"));
  EXPECT_THAT(with({all, manifest}), HasSubstr("no further file of this name"));
  EXPECT_THAT(with({all, members[1].second}), HasSubstr("no further file of this name"));
  EXPECT_THAT(with({all, EmptyMember("checkpoint-7/eps/new")}), HasSubstr("eps/new"));
  EXPECT_THAT(with({all, EmptyMember("checkpoint-8/config.json")}),
              HasSubstr("checkpoint-8/config.json: the manifest lists no file"));
  EXPECT_THAT(with({manifest, EmptyMember("checkpoint-7/../../x"), rest}),
              HasSubstr("leaves its folder"));
  EXPECT_THAT(with({all.substr(0, all.size() - members.back().second.size())}),
              HasSubstr("is missing"));
  EXPECT_FALSE(fs::exists(root_ + "/x"));
}

}  // namespace
}  // namespace eps
