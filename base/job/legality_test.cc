#include "base/job/legality.h"

#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

constexpr absl::StatusCode kOk = absl::StatusCode::kOk;
constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kUnbuilt = absl::StatusCode::kUnimplemented;
constexpr Nonfinite kHalt = Nonfinite::kHalt;
constexpr Nonfinite kSkip = Nonfinite::kSkip;

TEST(Legality, IsTheTableOfModes) {
  const struct {
    const char* mode;
    Clip clip;
    Nonfinite nonfinite;
    absl::StatusCode code;
    Mode resolved;                   // if kOk
    std::vector<const char*> names;  // what the message must name
  } cases[] = {
      {"auto", Clip::kNone, kHalt, kOk, Mode::kEager, {}},
      {"auto", Clip::kLagged, kHalt, kOk, Mode::kEager, {}},
      {"auto", Clip::kExact, kHalt, kOk, Mode::kSealed, {}},
      {"auto", Clip::kNone, kSkip, kOk, Mode::kSealed, {}},
      {"auto", Clip::kLagged, kSkip, kOk, Mode::kSealed, {}},
      {"auto", Clip::kExact, kSkip, kOk, Mode::kSealed, {}},
      {"eager", Clip::kNone, kHalt, kOk, Mode::kEager, {}},
      {"eager", Clip::kLagged, kHalt, kOk, Mode::kEager, {}},
      {"eager",
       Clip::kNone,
       kSkip,
       kInvalid,
       Mode::kEager,
       {"training.mode=eager", "training.nonfinite=skip",
        "set training.nonfinite=halt, or training.m"}},
      {"eager",
       Clip::kExact,
       kHalt,
       kInvalid,
       Mode::kEager,
       {"training.mode=eager", "training.clip=exact", "set training.clip=lagged"}},
      {"sealed", Clip::kNone, kHalt, kOk, Mode::kSealed, {}},
      {"sealed", Clip::kLagged, kSkip, kOk, Mode::kSealed, {}},
      {"sealed", Clip::kExact, kSkip, kOk, Mode::kSealed, {}},
      {"seald",
       Clip::kNone,
       kHalt,
       kInvalid,
       Mode::kEager,
       {"training.mode", "did you mean 'sealed'?"}},
      {"", Clip::kNone, kHalt, kInvalid, Mode::kEager, {"training.mode"}},
  };
  for (const auto& c : cases) {
    const absl::StatusOr<Mode> mode = ResolveMode(c.mode, c.clip, c.nonfinite, Replay::kRollback);
    EXPECT_EQ(mode.status().code(), c.code) << c.mode << " " << ClipName(c.clip);
    if (mode.ok()) {
      EXPECT_EQ(*mode, c.resolved) << c.mode << " " << ClipName(c.clip);
    }
    for (const char* name : c.names) {
      EXPECT_TRUE(absl::StrContains(mode.status().message(), name)) << mode.status();
    }
  }
}

TEST(Legality, CheckLegalAppliesTheSameTableToASpec) {
  for (Mode mode : {Mode::kEager, Mode::kSealed}) {
    for (Clip clip : {Clip::kNone, Clip::kLagged, Clip::kExact}) {
      for (Nonfinite nonfinite : {kHalt, kSkip}) {
        TrainingSpec training;
        training.mode = mode;
        training.clip = clip;
        training.nonfinite = nonfinite;
        EXPECT_EQ(CheckLegal(training),
                  ResolveMode(ModeName(mode), clip, nonfinite, training.replay).status());
      }
    }
  }
}

TEST(Legality, ParsesTheNames) {
  EXPECT_EQ(*ParseNonfinite("halt"), kHalt);
  EXPECT_EQ(*ParseNonfinite("skip"), kSkip);
  EXPECT_TRUE(absl::StrContains(ParseNonfinite("skp").status().message(),
                                "training.nonfinite: 'skp' is unknown, did you mean 'skip'?"));

  EXPECT_EQ(*ParseClip("none"), Clip::kNone);
  EXPECT_EQ(*ParseClip("lagged"), Clip::kLagged);
  EXPECT_EQ(*ParseClip("exact"), Clip::kExact);
  EXPECT_TRUE(absl::StrContains(ParseClip("lageed").status().message(),
                                "training.clip: 'lageed' is unknown, did you mean 'lagged'?"));
  EXPECT_EQ(*ParseReplay("rollback"), Replay::kRollback);
  EXPECT_EQ(ParseReplay("frontier").status().code(), kUnbuilt);
  EXPECT_EQ(ParseReplay("rolback").status().code(), kInvalid);
}

}  // namespace
}  // namespace eps
