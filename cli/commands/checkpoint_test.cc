#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/exit_code.h"
#include "gtest/gtest.h"

namespace eps {

absl::Status RunCheckpoint(const std::vector<std::string>& arguments);  // checkpoint.cc

namespace {

TEST(CheckpointCommandTest, RefusesMalformedArguments) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{},
                                             {"lst"},
                                             {"ls"},
                                             {"ls", "a", "b"},
                                             {"digest", "--fast", "a"},
                                             {"export", "a"},
                                             {"export", "a", "--out=b", "--max-shard-size=big"},
                                             {"convert", "a", "--out=b"},
                                             {"convert", "a", "--out=b", "--optimizer=adamv"}}) {
    EXPECT_EQ(ExitCodeOf(RunCheckpoint(arguments)), ExitCode::kUsage);
  }
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"--help"}, {"ls", "--help"}, {"export", "--help"}}) {
    EXPECT_TRUE(RunCheckpoint(arguments).ok());
  }
}

}  // namespace
}  // namespace eps
