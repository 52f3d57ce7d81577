#include "spec/legality.h"

#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

constexpr absl::StatusCode kOk = absl::StatusCode::kOk;
constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kUnbuilt = absl::StatusCode::kUnimplemented;

TEST(Legality, IsTheTableOfModes) {
  const struct {
    const char* mode;
    Clip clip;
    absl::StatusCode code;
    std::vector<const char*> names;  // what the message must name
  } cases[] = {
      {"auto", Clip::kNone, kOk, {}},
      {"auto", Clip::kLagged, kOk, {}},
      {"auto", Clip::kExact, kUnbuilt,
       {"training.mode=sealed", "training.clip=exact", "set training.clip=lagged"}},
      {"eager", Clip::kNone, kOk, {}},
      {"eager", Clip::kLagged, kOk, {}},
      {"eager", Clip::kExact, kInvalid,
       {"training.mode=eager", "training.clip=exact", "set training.clip=lagged"}},
      {"sealed", Clip::kNone, kUnbuilt, {"training.mode=sealed", "set training.mode=eager"}},
      {"sealed", Clip::kLagged, kUnbuilt, {"training.mode=sealed", "set training.mode=eager"}},
      {"sealed", Clip::kExact, kUnbuilt,
       {"training.mode=sealed", "training.clip=exact", "set training.clip=lagged"}},
      {"seald", Clip::kNone, kInvalid, {"training.mode", "did you mean 'sealed'?"}},
      {"", Clip::kNone, kInvalid, {"training.mode"}},
  };
  for (const auto& c : cases) {
    const absl::StatusOr<Mode> mode = ResolveMode(c.mode, c.clip, Replay::kRollback);
    EXPECT_EQ(mode.status().code(), c.code) << c.mode << " " << ClipName(c.clip);
    if (mode.ok()) {
      EXPECT_EQ(*mode, Mode::kEager);
    }
    for (const char* name : c.names) {
      EXPECT_TRUE(absl::StrContains(mode.status().message(), name)) << mode.status();
    }
  }
}

TEST(Legality, CheckLegalAppliesTheSameTableToASpec) {
  for (Mode mode : {Mode::kEager, Mode::kSealed}) {
    for (Clip clip : {Clip::kNone, Clip::kLagged, Clip::kExact}) {
      TrainingSpec training;
      training.mode = mode;
      training.clip = clip;
      EXPECT_EQ(CheckLegal(training), ResolveMode(ModeName(mode), clip, training.replay).status());
    }
  }
}

TEST(Legality, ParsesTheNamesOfClipAndReplay) {
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
