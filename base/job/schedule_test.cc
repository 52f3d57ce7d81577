#include "base/job/schedule.h"

#include <cmath>
#include <limits>

#include "absl/strings/match.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

ScheduleSpec Schedule(const std::string& name) {
  ScheduleSpec schedule;
  schedule.name = name;
  schedule.warmup_steps = 10;
  schedule.min_lr_ratio = 0.1;
  schedule.power = 1.5;
  if (name == "cosine_with_restarts") schedule.num_cycles = 3;
  return schedule;
}

// What transformers' lambdas give for a rate of 1e-3, 10 steps of warm-up and 100 in all.
struct Reference {
  const char* name;
  double rate[7];
};
constexpr uint64_t kUpdates[7] = {1, 6, 11, 37, 96, 101, 150};
constexpr Reference kReferences[] = {
    {"constant", {0.001, 0.001, 0.001, 0.001, 0.001, 0.001, 0.001}},
    {"constant_with_warmup", {0.0, 0.0005, 0.001, 0.001, 0.001, 0.001, 0.001}},
    {"linear", {0.0, 0.0005, 0.001, 0.0007111111111111111, 5.555555555555555e-05, 0.0, 0.0}},
    {"cosine",
     {0.0, 0.0005, 0.001, 0.0008078307376628291, 7.59612349389599e-06, 0.0, 0.0005695865504800327}},
    {"cosine_with_restarts",
     {0.0, 0.0005, 0.001, 4.3227271178699624e-05, 6.698729810778087e-05, 0.0, 0.0}},
    {"polynomial",
     {0.0, 0.0005, 0.001, 0.0006396953873354035, 0.0001117851130197758, 0.0001, 0.0001}},
    {"inverse_sqrt",
     {0.0, 0.0005, 0.001, 0.0005270462766947299, 0.0003244428422615251, 0.00031622776601683794,
      0.00025906388007541984}},
    {"cosine_with_min_lr",
     {0.0, 0.0005, 0.001, 0.0008270476638965462, 0.0001068365111445064, 0.0001,
      0.0006126278954320294}},
    {"warmup_stable_decay", {0.0001, 0.00055, 0.001, 0.001, 0.00055, 0.0001, 0.0001}},
};

TEST(LearningRate, FollowsHuggingFacesFormulas) {
  ASSERT_EQ(std::size(kReferences), ScheduleNames().size());
  for (size_t s = 0; s < std::size(kReferences); ++s) {
    const Reference& reference = kReferences[s];
    EXPECT_EQ(reference.name, ScheduleNames()[s]);
    for (size_t i = 0; i < std::size(kUpdates); ++i) {
      EXPECT_NEAR(LearningRate(Schedule(reference.name), 1e-3, kUpdates[i], 100), reference.rate[i],
                  1e-18)
          << reference.name << " update " << kUpdates[i];
    }
  }
}

TEST(LearningRate, GivesTheGoldenBits) {
  EXPECT_EQ(LearningRate(Schedule("cosine"), 1e-3, 37, 100), 0x1.a78934caae6p-11);
  EXPECT_EQ(LearningRate(Schedule("cosine"), 1e-3, 96, 100), 0x1.fdc4686e247fp-18);
  EXPECT_EQ(LearningRate(Schedule("cosine_with_restarts"), 1e-3, 37, 100), 0x1.6a9ddba625148p-15);
  EXPECT_EQ(LearningRate(Schedule("polynomial"), 1e-3, 96, 100), 0x1.d4dc59e4f5b98p-14);
  EXPECT_EQ(LearningRate(Schedule("inverse_sqrt"), 1e-3, 96, 100), 0x1.5433f659d8077p-12);
}

TEST(LearningRate, StaysBetweenZeroAndTheBase) {
  for (const std::string& name : ScheduleNames()) {
    for (uint64_t warmup : {0, 1, 50, 1000}) {
      for (uint64_t total : {1, 2, 100}) {
        ScheduleSpec schedule = Schedule(name);
        schedule.warmup_steps = warmup;
        for (uint64_t update = 1; update <= 200; ++update) {
          const double rate = LearningRate(schedule, 1.0, update, total);
          ASSERT_TRUE(rate >= 0.0 && rate <= 1.0) << name << " warmup " << warmup << " total "
                                                  << total << " update " << update << ": " << rate;
        }
      }
    }
  }
}

TEST(LearningRate, InverseSqrtHasADefaultTimescale) {
  ScheduleSpec schedule = Schedule("inverse_sqrt");
  schedule.warmup_steps = 0;
  EXPECT_EQ(LearningRate(schedule, 1.0, 1, 100), 1.0);
  EXPECT_NEAR(LearningRate(schedule, 1.0, 30'001, 100), 0.5, 1e-15);
}

TEST(ValidateSchedule, NamesTheNearestNameAndTheKey) {
  EXPECT_TRUE(ValidateSchedule(Schedule("linear")).ok());
  const absl::Status unknown = ValidateSchedule(Schedule("liner"));
  EXPECT_EQ(unknown.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(unknown.message(), "lr_scheduler.name")) << unknown;
  EXPECT_TRUE(absl::StrContains(unknown.message(), "did you mean 'linear'?")) << unknown;

  ScheduleSpec schedule = Schedule("cosine");
  schedule.min_lr_ratio = 1.5;
  EXPECT_TRUE(absl::StrContains(ValidateSchedule(schedule).message(), "lr_scheduler.min_lr_ratio"));
  schedule = Schedule("cosine");
  schedule.num_cycles = std::nan("");
  EXPECT_TRUE(absl::StrContains(ValidateSchedule(schedule).message(), "lr_scheduler.num_cycles"));
  schedule = Schedule("cosine_with_restarts");
  schedule.num_cycles = 0.5;
  EXPECT_TRUE(absl::StrContains(ValidateSchedule(schedule).message(), "whole number of cycles"));
  schedule = Schedule("polynomial");
  schedule.power = -1;
  EXPECT_TRUE(absl::StrContains(ValidateSchedule(schedule).message(), "lr_scheduler.power"));
  schedule = Schedule("linear");
  schedule.warmup_steps = UINT64_MAX;
  EXPECT_TRUE(absl::StrContains(ValidateSchedule(schedule).message(), "lr_scheduler.warmup_steps"));
}

TEST(IntegerPower, SquaresInAFixedOrder) {
  EXPECT_EQ(IntegerPower(0.9, 0), 1.0);
  EXPECT_EQ(IntegerPower(0.9, 1), 0.9);
  EXPECT_EQ(IntegerPower(0.9, 2), 0.9 * 0.9);
  EXPECT_EQ(IntegerPower(0.9, 5), 0.9 * ((0.9 * 0.9) * (0.9 * 0.9)));
  EXPECT_NEAR(IntegerPower(0.999, 1000), std::pow(0.999, 1000), 1e-14);
  EXPECT_EQ(IntegerPower(0.999, 1000), 0x1.788526411edacp-2);
  EXPECT_LT(IntegerPower(0.999, uint64_t{1} << 40), 1e-300);
}

}  // namespace
}  // namespace eps
