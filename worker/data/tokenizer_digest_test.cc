#include "worker/data/tokenizer_digest.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace eps {
namespace {

// The expected digests are those of `sha256sum NAMES | sha256sum`.
TEST(TokenizerDigestTest, IsThatOfSha256sum) {
  const std::string folder = testing::TempDir() + "/tokenizer";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  const auto write = [&](const std::string& name, const std::string& content) {
    std::ofstream(folder + "/" + name) << content;
  };
  EXPECT_EQ(*TokenizerDigest(folder), "");
  write("config.json", "{}");
  EXPECT_EQ(*TokenizerDigest(folder), "");
  write("vocab.json", "{\"a\": 0}\n");
  write("merges.txt", "a b\n");
  write("spiece.model", "pieces\n");
  EXPECT_EQ(*TokenizerDigest(folder),
            "8ed9281a7bcd85555ea72fe453f1238f4c396081e83ca01520fb262aac605dc8");
  write("tokenizer.json", "{\"version\": \"1.0\"}\n");
  EXPECT_EQ(*TokenizerDigest(folder),
            "c8867550e2a5dc0560c0450d0a6692b77e43ded4bbc6001edd9692a064434a77");
  EXPECT_EQ(*TokenizerDigest("/nonexistent"), "");
}

}  // namespace
}  // namespace eps
