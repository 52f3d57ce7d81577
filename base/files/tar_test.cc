#include "base/files/tar.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr uint64_t kMtime = 1'700'000'000;
constexpr uint64_t kEightGiB = uint64_t{1} << 33;

std::string Member(const std::string& name, const std::string& content) {
  return absl::StrCat(TarHeader(name, content.size(), kMtime), content, TarPadding(content.size()));
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
      {"folder/empty", ""}, {"folder/deep/one", "x"}, {"folder/block", std::string(512, 'b')}};
  std::string large((size_t{3} << 20) + 7, '\0');
  for (size_t i = 0; i < large.size(); ++i) large[i] = static_cast<char>(i * 2654435761u >> 11);
  members["folder/large"] = large;
  members[std::string(100, 'n')] = "a name that fills its field";
  std::string archive;
  for (const auto& [name, content] : members) archive += Member(name, content);
  Write(archive + TarEnd());
  const auto found = Read(archive + TarEnd());
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE(*found == members);
  const std::string listed = SystemTar("tvf");
  for (const auto& [name, content] : members) {
    EXPECT_THAT(listed, AllOf(HasSubstr(name), HasSubstr(absl::StrCat(content.size()))));
  }
  EXPECT_THAT(listed, HasSubstr("code 0"));
  EXPECT_THAT(listed, HasSubstr("-rw-r--r--"));
  // Zeros up to a multiple of 10 KiB, as tar itself writes them, are part of the format.
  EXPECT_TRUE(Read(archive + TarEnd() + std::string(9000, '\0')).ok());
}

TEST_F(TarTest, EightGibibytesNeedAnExtendedHeader) {
  EXPECT_EQ(TarHeader("f", kEightGiB - 1, kMtime).size(), 512u);
  for (const uint64_t size : {kEightGiB, kEightGiB + 12345, uint64_t{1} << 40}) {
    const std::string header = TarHeader("huge", size, kMtime);
    ASSERT_EQ(header.size(), 3 * 512u);
    Write(header);
    const int fd = open(path_.c_str(), O_RDWR | O_CLOEXEC);
    TarReader reader(fd, "here.tar");
    const auto member = reader.Next();
    ASSERT_TRUE(member.ok()) << member.status();
    EXPECT_EQ((*member)->name, "huge");
    EXPECT_EQ((*member)->size, size);
    // A hole, and the end after it: the system's tar seeks over it.
    const auto end = static_cast<off_t>(header.size() + size + TarPadding(size).size());
    const std::string last = Member("last", "z") + TarEnd();
    ASSERT_EQ(pwrite(fd, last.data(), last.size(), end), static_cast<ssize_t>(last.size()));
    close(fd);
    EXPECT_THAT(SystemTar("tvf"),
                AllOf(HasSubstr(absl::StrCat(" ", size, " ")), HasSubstr("huge\n"),
                      HasSubstr("last\n"), HasSubstr("code 0")));
  }
}

TEST_F(TarTest, ReadsFromAPipeInPieces) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const std::string archive = Member("a/b", "piped") + TarEnd();
  // Fits into the pipe's buffer.
  ASSERT_EQ(write(ends[1], archive.data(), archive.size()), static_cast<ssize_t>(archive.size()));
  close(ends[1]);
  const auto found = ReadFrom(ends[0]);
  close(ends[0]);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->at("a/b"), "piped");
}

TEST_F(TarTest, TruncationIsDamageAtEveryLength) {
  const std::string archive = Member("f/a", std::string(700, 'x')) + Member("f/b", "y") + TarEnd();
  for (size_t size = 0; size < archive.size(); size += 512) {
    EXPECT_THAT(ErrorOf(archive.substr(0, size)), HasSubstr("it was cut short")) << size;
    EXPECT_THAT(ErrorOf(archive.substr(0, size + 1)), HasSubstr("it was cut short")) << size;
  }
  for (size_t size = 511; size < archive.size(); size += 512) {
    EXPECT_THAT(ErrorOf(archive.substr(0, size)), HasSubstr("it was cut short")) << size;
  }
}

TEST_F(TarTest, ChecksEachBitOfHeadersAndPadding) {
  const std::string content(100, 'c');
  const std::string archive = Member("f/a", content) + TarEnd();
  size_t noticed = 0;
  for (size_t byte = 0; byte < archive.size(); ++byte) {
    if (byte >= 512 && byte < 612) continue;  // the content: its sums are the manifest's
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
  EXPECT_GT(noticed, 4000u);
}

TEST_F(TarTest, AcceptsOnlyPlainFilesBelowTheRoot) {
  for (const char* const name : {"/etc/x", "../x", "a/../../x", "a/..", ".."}) {
    EXPECT_THAT(ErrorOf(Member(name, "") + TarEnd()),
                AllOf(HasSubstr(name), HasSubstr("leaves its folder")));
  }
  EXPECT_TRUE(Read(Member("a..b/c..", "") + TarEnd()).ok());
  // Links, folders, devices, and extended headers of whole archives; the sum is made to fit.
  for (const char type : {'1', '2', '3', '5', '6', 'g', 'L', 'S', 'x'}) {
    std::string member = Member("f/a", "");
    const int sum = std::stoi(member.substr(148, 6), nullptr, 8) + type - member[156];
    member[156] = type;
    char text[8];
    std::snprintf(text, sizeof(text), "%06o", sum);
    member.replace(148, 6, text);
    EXPECT_THAT(ErrorOf(member + TarEnd()),
                HasSubstr(type == 'x' ? "something else than a size" : "no plain file"));
  }
}

TEST_F(TarTest, NothingMayStandBehindTheEnd) {
  EXPECT_THAT(ErrorOf(Member("f/a", "") + TarEnd() + "x"), HasSubstr("behind its end"));
  EXPECT_THAT(ErrorOf(TarEnd() + Member("f/a", "")), HasSubstr("behind its end"));
  EXPECT_THAT(ErrorOf(std::string(512, '\0') + Member("f/a", "")), HasSubstr("its end"));
  EXPECT_THAT(ErrorOf(std::string(2000, 'q')), HasSubstr("no tar, or damaged"));
}

}  // namespace
}  // namespace eps
