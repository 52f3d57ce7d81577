#include "wire/security/job_token.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "wire/security/reloaded.h"

namespace eps {
namespace {

constexpr int64_t kNow = 1'800'000'000;
const char kKeyLine[] = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n";

TokenKey KeyOf(const std::string& line) { return ParseTokenKeys(line)->front(); }
JobToken OfWorker() { return {0x0123456789abcdef, v1::ROLE_WORKER, kNow + 60}; }

TEST(JobTokenTest, HasTheBytesOfTheFormat) {
  // The MAC is that of the openssl tool: dgst -sha256 -mac HMAC -macopt hexkey:000102...1f
  EXPECT_EQ(SignToken(OfWorker(), KeyOf(kKeyLine)),
            "EPS1 0123456789abcdef.worker.1800000060."
            "c9a001bc5610d8afa7111f5251e3b981817cbd0d36c5a4dfc92aacb2ec31c943");
}

TEST(JobTokenTest, VerifiesWhatItSigns) {
  const TokenKey key = KeyOf(kKeyLine);
  const auto read = VerifyToken(SignToken(OfWorker(), key), {key}, kNow);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->uid, 0x0123456789abcdefu);
  EXPECT_EQ(read->role, v1::ROLE_WORKER);
  EXPECT_EQ(read->not_after, kNow + 60);
  const auto all = VerifyToken(SignToken({0, v1::ROLE_ADMIN, kNow}, key), {key}, kNow);
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(all->uid, 0u);
}

TEST(JobTokenTest, EachChangedByteIsRefused) {
  const TokenKey key = KeyOf(kKeyLine);
  const std::string text = SignToken(OfWorker(), key);
  for (size_t i = 0; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] = changed[i] == '1' ? '2' : '1';
    const auto read = VerifyToken(changed, {key}, kNow);
    EXPECT_EQ(read.status().code(), absl::StatusCode::kUnauthenticated) << changed;
    EXPECT_FALSE(absl::StrContains(read.status().message(), text.substr(text.size() - 20)))
        << "the error shows a secret";
  }
  for (const std::string& other : {text + "0", text.substr(0, text.size() - 1), std::string(),
                                   std::string("EPS1 *.admin.1900000000."),
                                   std::string("EPS1 *.admin.1900000000"), std::string(300, '.')}) {
    EXPECT_FALSE(VerifyToken(other, {key}, kNow).ok()) << other;
  }
}

TEST(JobTokenTest, TokensEnd) {
  const TokenKey key = KeyOf(kKeyLine);
  const std::string text = SignToken(OfWorker(), key);
  EXPECT_TRUE(VerifyToken(text, {key}, kNow + 60).ok());
  const auto late = VerifyToken(text, {key}, kNow + 70);
  EXPECT_EQ(late.status().code(), absl::StatusCode::kUnauthenticated);
  EXPECT_TRUE(absl::StrContains(late.status().message(), "over 10 s ago")) << late.status();
}

TEST(JobTokenTest, TwoKeysVerify) {
  const std::string fresh = *NewTokenKeyLine();
  ASSERT_NE(fresh, *NewTokenKeyLine());
  const auto keys = ParseTokenKeys(fresh + kKeyLine);
  ASSERT_TRUE(keys.ok()) << keys.status();
  ASSERT_EQ(keys->size(), 2u);
  for (const TokenKey& key : *keys) {
    EXPECT_TRUE(VerifyToken(SignToken(OfWorker(), key), *keys, kNow).ok());
  }
  EXPECT_FALSE(VerifyToken(SignToken(OfWorker(), keys->back()), {keys->front()}, kNow).ok());
}

TEST(JobTokenTest, FilesOfKeysAreChecked) {
  for (const std::string& bad :
       {std::string(), std::string("\n"), std::string("00"), std::string(64, 'g'),
        absl::StrCat(kKeyLine, kKeyLine, kKeyLine)}) {
    EXPECT_EQ(ParseTokenKeys(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

TEST(ReloadedTest, FollowsTheFile) {
  const std::string path = testing::TempDir() + "/reloaded";
  const auto write = [&path](const std::string& text) { std::ofstream(path) << text; };
  const auto parse = [](const std::string& text) -> absl::StatusOr<std::string> {
    if (text == "bad") return absl::InvalidArgumentError("it is bad");
    return text;
  };
  std::filesystem::remove(path);
  EXPECT_EQ(Reloaded<std::string>::Open(path, parse).status().code(), absl::StatusCode::kNotFound);
  write("bad");
  const absl::Status bad = Reloaded<std::string>::Open(path, parse).status();
  EXPECT_EQ(bad.message(), path + ": it is bad");
  write("one");
  const auto at_once = Reloaded<std::string>::Open(path, parse, std::chrono::milliseconds(0));
  const auto later = Reloaded<std::string>::Open(path, parse, std::chrono::hours(1));
  ASSERT_TRUE(at_once.ok() && later.ok());
  write("two");
  EXPECT_EQ(*(*at_once)->Get(), "two");
  EXPECT_EQ(*(*later)->Get(), "one");
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(5);
  while (*(*later)->GetNewest() != "two") ASSERT_LT(std::chrono::steady_clock::now(), deadline);
  write("bad");
  EXPECT_EQ(*(*at_once)->Get(), "two");
}

}  // namespace
}  // namespace eps
