#include "base/files/tar.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr uint64_t kMtime = 1'700'000'000;
constexpr uint64_t kEightGiB = uint64_t{1} << 33;

constexpr size_t kBlock = 512;

// The bytes of an archive of these files; without its end if `ends` is false.
std::string Archive(const std::vector<std::pair<std::string, std::string>>& files,
                    bool ends = true) {
  std::string archive;
  TarWriter writer([&archive](absl::string_view bytes) {
    archive.append(bytes.data(), bytes.size());
    return absl::OkStatus();
  });
  for (const auto& [name, content] : files) {
    EXPECT_TRUE(writer.Add(name, content.size(), kMtime).ok());
    EXPECT_TRUE(writer.Write(content).ok());
  }
  EXPECT_TRUE(writer.Finish().ok());
  if (!ends) archive.resize(archive.size() - 2 * kBlock);
  return archive;
}

// The header of a file.
std::string Header(const std::string& name, uint64_t size) {
  std::string header;
  TarWriter writer([&header](absl::string_view bytes) {
    header.append(bytes.data(), bytes.size());
    return absl::OkStatus();
  });
  EXPECT_TRUE(writer.Add(name, size, kMtime).ok());
  return header;
}

class TarTest : public testing::Test {
 protected:
  TarTest()
      : path_(absl::StrCat(testing::TempDir(), "/",
                           testing::UnitTest::GetInstance()->current_test_info()->name(), "-",
                           getpid(), ".tar")) {}
  ~TarTest() override { unlink(path_.c_str()); }

  void Write(const std::string& content) const {
    FILE* const file = std::fopen(path_.c_str(), "wb");
    ASSERT_EQ(std::fwrite(content.data(), 1, content.size(), file), content.size());
    ASSERT_EQ(std::fclose(file), 0);
  }
  // All members of the archive by name, or its error.
  static absl::StatusOr<std::map<std::string, std::string>> Read(const std::string& archive) {
    const int fd = memfd_create("archive", MFD_CLOEXEC);
    EXPECT_EQ(pwrite(fd, archive.data(), archive.size(), 0), static_cast<ssize_t>(archive.size()));
    auto found = ReadFrom(fd);
    close(fd);
    return found;
  }
  static absl::StatusOr<std::map<std::string, std::string>> ReadFrom(int fd) {
    TarReader reader(fd, "here.tar");
    std::map<std::string, std::string> members;
    for (;;) {
      const absl::StatusOr<std::optional<TarMember>> member = reader.Next();
      if (!member.ok()) return member.status();
      if (!member->has_value()) return members;
      std::string& content = members[(*member)->name];
      for (;;) {
        const absl::StatusOr<absl::string_view> piece = reader.Read();
        if (!piece.ok()) return piece.status();
        if (piece->empty()) break;
        content.append(piece->data(), piece->size());
      }
      EXPECT_EQ(content.size(), (*member)->size);
    }
  }
  static std::string ErrorOf(const std::string& archive) {
    const auto found = Read(archive);
    EXPECT_EQ(found.status().code(), absl::StatusCode::kDataLoss) << found.status();
    return std::string(found.status().message());
  }
  // What the system's tar says about the file.
  std::string SystemTar(const std::string& options) const {
    FILE* const pipe =
        popen(absl::StrCat("tar ", options, " ", path_, " 2>&1; echo code $?").c_str(), "r");
    std::string text;
    char piece[256];
    while (std::fgets(piece, sizeof(piece), pipe) != nullptr) text += piece;
    pclose(pipe);
    return text;
  }

  const std::string path_;
};

TEST_F(TarTest, RoundTripsAndTheSystemsTarReadsIt) {
  std::map<std::string, std::string> members = {
      {"folder/empty", ""}, {"folder/deep/one", "x"}, {"folder/block", std::string(kBlock, 'b')}};
  std::string large((size_t{3} << 20) + 7, '\0');
  for (size_t i = 0; i < large.size(); ++i) large[i] = static_cast<char>(i * 2654435761u >> 11);
  members["folder/large"] = large;
  members[std::string(300, 'n')] = "a name that ustar has no room for";
  const std::string archive = Archive({members.begin(), members.end()});
  Write(archive);
  const auto found = Read(archive);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE(*found == members);
  const std::string listed = SystemTar("tvf");
  for (const auto& [name, content] : members) {
    EXPECT_THAT(listed, AllOf(HasSubstr(name), HasSubstr(absl::StrCat(content.size()))));
  }
  EXPECT_THAT(listed, HasSubstr("code 0"));
  EXPECT_THAT(listed, HasSubstr("-rw-r--r--"));
  // Zeros up to a multiple of 10 KiB, as tar itself writes them, are part of the format.
  EXPECT_TRUE(Read(archive + std::string(9000, '\0')).ok());
}

TEST_F(TarTest, SizesBeyondEightGibibytes) {
  EXPECT_EQ(Header("f", kEightGiB - 1).size(), kBlock);
  for (const uint64_t size : {kEightGiB, kEightGiB + 12345, uint64_t{1} << 40}) {
    const std::string header = Header("huge", size);
    Write(header);
    const int fd = open(path_.c_str(), O_RDWR | O_CLOEXEC);
    TarReader reader(fd, "here.tar");
    const auto member = reader.Next();
    ASSERT_TRUE(member.ok()) << member.status();
    EXPECT_EQ((*member)->name, "huge");
    EXPECT_EQ((*member)->size, size);
    // A hole, and the end after it: the system's tar seeks over it.
    const uint64_t padding = (kBlock - size % kBlock) % kBlock;
    const auto end = static_cast<off_t>(header.size() + size + padding);
    const std::string last = Archive({{"last", "z"}});
    ASSERT_EQ(pwrite(fd, last.data(), last.size(), end), static_cast<ssize_t>(last.size()));
    close(fd);
    EXPECT_THAT(SystemTar("tvf"),
                AllOf(HasSubstr(absl::StrCat(" ", size, " ")), HasSubstr("huge\n"),
                      HasSubstr("last\n"), HasSubstr("code 0")));
  }
}

TEST_F(TarTest, ReadsFromAPipeToItsEnd) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  // More than the reader takes at once.
  const std::string archive = Archive({{"a/b", "piped"}}) + std::string(size_t{3} << 20, '\0');
  size_t written = 0;
  std::thread writer([&] {
    std::signal(SIGPIPE, SIG_IGN);
    while (written < archive.size()) {
      const ssize_t done = write(ends[1], &archive[written], archive.size() - written);
      if (done <= 0) break;
      written += static_cast<size_t>(done);
    }
    close(ends[1]);
  });
  const auto found = ReadFrom(ends[0]);
  close(ends[0]);
  writer.join();
  EXPECT_EQ(written, archive.size()) << "the writer of the pipe was interrupted";
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->at("a/b"), "piped");
}

TEST_F(TarTest, TruncatedFilesAreDamage) {
  const std::string archive = Archive({{"f/a", std::string(700, 'x')}, {"f/b", "y"}});
  const size_t second = 3 * kBlock;  // header, and 700 bytes
  for (size_t size = 1; size < second + kBlock + 1; size += 51) {
    if (size >= kBlock + 700 && size <= second) continue;  // between the files: one is missing
    EXPECT_THAT(ErrorOf(archive.substr(0, size)), HasSubstr("cut short")) << size;
  }
  const auto found = Read(archive.substr(0, second));
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->size(), 1u);
}

TEST_F(TarTest, ChecksEachBitOfHeaders) {
  const std::string content(100, 'c');
  const std::string archive = Archive({{"f/a", content}});
  size_t noticed = 0;
  for (size_t byte = 0; byte < kBlock; ++byte) {
    for (int bit = 0; bit < 8; bit += 3) {
      std::string damaged = archive;
      damaged[byte] = static_cast<char>(damaged[byte] ^ 1 << bit);
      const auto found = Read(damaged);
      noticed += found.ok() ? 0 : 1;
      // The blanks around the checksum's own digits mean nothing.
      const bool sum = byte >= 148 && byte < 156;
      EXPECT_TRUE(!found.ok() || (sum && found->at("f/a") == content)) << byte << "." << bit;
    }
  }
  EXPECT_GT(noticed, 1500u);
}

TEST_F(TarTest, AcceptsOnlyPlainFilesBelowTheRoot) {
  for (const char* const name : {"/etc/x", "../x", "a/../../x", "a/..", ".."}) {
    EXPECT_THAT(ErrorOf(Archive({{name, ""}})),
                AllOf(HasSubstr(name), HasSubstr("leaves its folder")));
  }
  EXPECT_TRUE(Read(Archive({{"a..b/c..", ""}})).ok());
  // Links, folders and devices; the sum is made to fit.
  for (const char type : {'1', '2', '3', '5', '6'}) {
    std::string member = Archive({{"f/a", ""}}, false);
    member[156] = type;
    uint64_t sum = 0;
    for (size_t i = 0; i < kBlock; ++i) {
      sum += i >= 148 && i < 156 ? ' ' : static_cast<uint8_t>(member[i]);
    }
    member.replace(148, 6, absl::StrFormat("%06o", sum));
    EXPECT_THAT(ErrorOf(member + std::string(2 * kBlock, '\0')), HasSubstr("no plain file"));
  }
}

TEST_F(TarTest, RefusesWhatIsNoArchive) {
  EXPECT_THAT(ErrorOf(std::string(2000, 'q')), HasSubstr("no tar"));
  EXPECT_THAT(ErrorOf(""), HasSubstr("no tar"));
}

TEST_F(TarTest, PassesOnErrorsOfSinkAndSystem) {
  TarWriter full(
      [](absl::string_view) { return absl::ResourceExhaustedError("the disk is full"); });
  EXPECT_EQ(full.Add("f", 3, kMtime), absl::ResourceExhaustedError("the disk is full"));
  const int folder = open(testing::TempDir().c_str(), O_RDONLY | O_CLOEXEC);
  TarReader reader(folder, "here.tar");
  const absl::Status status = reader.Next().status();
  close(folder);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("here.tar"), HasSubstr("directory")));
}

}  // namespace
}  // namespace eps
