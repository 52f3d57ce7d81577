#include "cli/launch/state/state_home.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "base/config/spec_builder.h"
#include "base/job/layout/chunk_map.h"
#include "base/machine/disk_room.h"
#include "base/testing/test_specs.h"
#include "checkpoint/guard/checkpoint_room.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using ::testing::HasSubstr;

class StateHomeTest : public testing::Test {
 protected:
  void SetUp() override {
    config_.checkpoint.dir = testing::TempDir() + "/state_home";
    std::filesystem::remove_all(config_.checkpoint.dir);
  }

  const JobSpec spec_ = TinyGpt2Spec();
  Config config_;
};

TEST_F(StateHomeTest, KeepsCutsInTheOutputFolder) {
  const absl::StatusOr<std::string> line = ChooseState(spec_, 2, &config_);
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_TRUE(config_.storage.durable());
  EXPECT_TRUE(config_.storage.chosen);
  EXPECT_EQ(config_.storage.path, config_.checkpoint.dir + "/state");
  EXPECT_EQ(config_.storage.tier(), "dram");
  EXPECT_THAT(*line, HasSubstr("--storage.kind=dram turns them off"));
  EXPECT_FALSE(std::filesystem::exists(config_.checkpoint.dir)) << "it only chooses";
}

TEST_F(StateHomeTest, LeavesExplicitChoicesAlone) {
  for (const char* kind : {"dram", "nvme"}) {
    Config config = config_;
    config.storage.kind = kind;
    EXPECT_EQ(*ChooseState(spec_, 2, &config), "");
    EXPECT_EQ(config.storage.kind, kind);
    EXPECT_EQ(config.storage.path, "");
  }
  config_.storage.path = "/elsewhere";
  EXPECT_EQ(*ChooseState(spec_, 2, &config_), "");
  EXPECT_EQ(config_.storage.path, "/elsewhere");
  EXPECT_FALSE(config_.storage.chosen);
}

TEST_F(StateHomeTest, WritesNothingWithoutAnOutputFolder) {
  config_.checkpoint.dir.clear();
  EXPECT_EQ(*ChooseState(spec_, 2, &config_), "");
  EXPECT_FALSE(config_.storage.durable());
}

TEST_F(StateHomeTest, SaysThatTheDiskIsTooSmall) {
  ModelSpec model;  // 1.8e12 parameters
  model.gpt2.n_layer = 1000;
  model.gpt2.n_embd = 12288;
  model.gpt2.n_head = 96;
  const JobSpec large =
      *BuildJobSpec(config_, model, {DataOrder::kShuffled, uint64_t{1} << 40, std::string(64, '0')},
                    /*workers=*/1);
  ASSERT_GT(*StateRoom(large, 2), *FreeBytes(config_.checkpoint.dir)) << "take a larger model";
  const absl::StatusOr<std::string> line = ChooseState(large, 2, &config_);
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_THAT(*line, HasSubstr("a killed server ends the run"));
  EXPECT_FALSE(config_.storage.durable());
}

TEST_F(StateHomeTest, RoomIsTwoSlotsOfTheState) {
  const uint64_t state = spec_.total_elements() * 12;
  const uint64_t room = *StateRoom(spec_, 1);
  EXPECT_GT(room, 2 * state);
  EXPECT_LT(room, 2 * state + (uint64_t{64} << 20));
}

TEST_F(StateHomeTest, RemovesWhatItChose) {
  ASSERT_TRUE(ChooseState(spec_, 1, &config_).ok());
  std::filesystem::create_directories(config_.storage.path + "/server-0");
  std::ofstream(config_.storage.path + "/server-0/LOCK") << "x";
  EXPECT_GT(OccupiedBytes(config_.storage.path), 0u);
  ASSERT_TRUE(RemoveChosenState(config_).ok());
  EXPECT_FALSE(std::filesystem::exists(config_.storage.path));
  EXPECT_TRUE(std::filesystem::exists(config_.checkpoint.dir));
}

TEST_F(StateHomeTest, KeepsStateThatWasNamed) {
  config_.storage.path = config_.checkpoint.dir + "/mine";
  std::filesystem::create_directories(config_.storage.path);
  ASSERT_TRUE(RemoveChosenState(config_).ok());
  EXPECT_TRUE(std::filesystem::exists(config_.storage.path));
}

}  // namespace
}  // namespace eps
