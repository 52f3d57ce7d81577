#include "base/job/legality.h"

#include <optional>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

constexpr absl::StatusCode kOk = absl::StatusCode::kOk;
constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr Auto<Mode> kAuto = std::nullopt;
constexpr Nonfinite kHalt = Nonfinite::kHalt;
constexpr Nonfinite kSkip = Nonfinite::kSkip;

TEST(Legality, IsTheTableOfModes) {
  const struct {
    Auto<Mode> mode;
    Clip clip;
    Nonfinite nonfinite;
    absl::StatusCode code;
    Mode resolved;                   // if kOk
    std::vector<const char*> names;  // what the message must name
  } cases[] = {
      {kAuto, Clip::kNone, kHalt, kOk, Mode::kEager, {}},
      {kAuto, Clip::kLagged, kHalt, kOk, Mode::kEager, {}},
      {kAuto, Clip::kExact, kHalt, kOk, Mode::kSealed, {}},
      {kAuto, Clip::kNone, kSkip, kOk, Mode::kSealed, {}},
      {kAuto, Clip::kLagged, kSkip, kOk, Mode::kSealed, {}},
      {kAuto, Clip::kExact, kSkip, kOk, Mode::kSealed, {}},
      {Mode::kEager, Clip::kNone, kHalt, kOk, Mode::kEager, {}},
      {Mode::kEager, Clip::kLagged, kHalt, kOk, Mode::kEager, {}},
      {Mode::kEager,
       Clip::kNone,
       kSkip,
       kInvalid,
       Mode::kEager,
       {"training.mode=eager", "training.nonfinite=skip",
        "set training.nonfinite=halt, or training.m"}},
      {Mode::kEager,
       Clip::kExact,
       kHalt,
       kInvalid,
       Mode::kEager,
       {"training.mode=eager", "training.clip=exact", "set training.clip=lagged"}},
      {Mode::kSealed, Clip::kNone, kHalt, kOk, Mode::kSealed, {}},
      {Mode::kSealed, Clip::kLagged, kSkip, kOk, Mode::kSealed, {}},
      {Mode::kSealed, Clip::kExact, kSkip, kOk, Mode::kSealed, {}},
  };
  for (const auto& c : cases) {
    const absl::StatusOr<Mode> mode = ResolveMode(c.mode, c.clip, c.nonfinite);
    EXPECT_EQ(mode.status().code(), c.code)
        << (c.mode.has_value() ? NameOf(*c.mode) : "auto") << " " << NameOf(c.clip);
    if (mode.ok()) {
      EXPECT_EQ(*mode, c.resolved)
          << (c.mode.has_value() ? NameOf(*c.mode) : "auto") << " " << NameOf(c.clip);
    }
    for (const char* name : c.names) {
      EXPECT_TRUE(absl::StrContains(mode.status().message(), name)) << mode.status();
    }
  }
}

TEST(Legality, CheckLegalAppliesTheSameTable) {
  for (Mode mode : {Mode::kEager, Mode::kSealed}) {
    for (Clip clip : {Clip::kNone, Clip::kLagged, Clip::kExact}) {
      for (Nonfinite nonfinite : {kHalt, kSkip}) {
        TrainingSpec training;
        training.mode = mode;
        training.clip = clip;
        training.nonfinite = nonfinite;
        EXPECT_EQ(CheckLegal(training), ResolveMode(mode, clip, nonfinite).status());
      }
    }
  }
}

}  // namespace
}  // namespace eps
