#include "base/job/legality.h"

#include <memory>
#include <optional>
#include <vector>

#include "absl/strings/match.h"
#include "base/job/models/model_program.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

constexpr absl::StatusCode kOk = absl::StatusCode::kOk;
constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr Auto<Mode> kAuto = std::nullopt;
constexpr Nonfinite kHalt = Nonfinite::kHalt;
constexpr Nonfinite kSkip = Nonfinite::kSkip;

constexpr OptimizerName kOptimizer = OptimizerName::kAdamW;

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
    TrainingSettings settings;
    settings.clip = c.clip;
    settings.nonfinite = c.nonfinite;
    const absl::StatusOr<Mode> mode = ResolveMode(c.mode, settings, kOptimizer);
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
        for (const OptimizerRow& row : Optimizers()) {
          EXPECT_EQ(CheckLegal(training, row.name), ResolveMode(mode, training, row.name).status());
        }
      }
    }
  }
}

TEST(Legality, CmpIsSealedAndSkips) {
  TrainingSettings settings;
  settings.precision = Precision::kCmp;
  settings.nonfinite = kSkip;
  EXPECT_EQ(*ResolveMode(std::nullopt, settings, kOptimizer), Mode::kSealed);
  const absl::Status eager = ResolveMode(Mode::kEager, settings, kOptimizer).status();
  EXPECT_TRUE(absl::StrContains(eager.message(), "eager and training.precision=cmp")) << eager;
  EXPECT_TRUE(absl::StrContains(eager.message(), "set training.mode=sealed")) << eager;
  settings.nonfinite = kHalt;
  const absl::Status halt = ResolveMode(Mode::kSealed, settings, kOptimizer).status();
  EXPECT_TRUE(absl::StrContains(halt.message(), "needs training.nonfinite=skip")) << halt;
}

TEST(Legality, TrustRatiosNeedSealedMode) {
  for (const OptimizerRow& row : Optimizers()) {
    EXPECT_EQ(*ResolveMode(std::nullopt, TrainingSettings(), row.name),
              row.adapts ? Mode::kSealed : Mode::kEager);
    EXPECT_TRUE(ResolveMode(Mode::kSealed, TrainingSettings(), row.name).ok());
  }
  const absl::Status eager =
      ResolveMode(Mode::kEager, TrainingSettings(), OptimizerName::kLamb).status();
  EXPECT_EQ(eager.code(), kInvalid);
  EXPECT_TRUE(absl::StrContains(eager.message(), "training.mode=eager and optimizer.name=lamb"))
      << eager;
  EXPECT_TRUE(absl::StrContains(eager.message(), "set training.mode=sealed")) << eager;
}

TEST(Legality, PrecisionIsThatOfTheModel) {
  constexpr Precision kFp32 = Precision::kFp32, kBf16 = Precision::kBf16, kCmp = Precision::kCmp;
  constexpr ModelType kProgram = ModelType::kProgram;
  const struct {
    ModelType model;
    ElementType element;  // of a program
    Precision precision;
    std::vector<const char*> names;  // what the refusal must name
  } cases[] = {
      {ModelType::kGpt2, {}, kFp32, {}},
      {ModelType::kSynthetic, {}, kFp32, {}},
      {kProgram, ElementType::kFloat32, kFp32, {}},
      {kProgram, ElementType::kBfloat16, kBf16, {}},
      {kProgram, ElementType::kFloat16, kCmp, {}},
      {ModelType::kGpt2, {}, kBf16, {}},
      {ModelType::kGpt2, {}, kCmp, {}},
      {kProgram, ElementType::kFloat16, kBf16, {"precision=cmp", "--dtype=bfloat16"}},
      {kProgram, ElementType::kFloat64, kFp32, {"float64", "float16"}},
      {ModelType::kSynthetic, {}, kBf16, {"training.precision=fp32", "synthetic"}},
      {kProgram, ElementType::kFloat32, kBf16, {"precision=fp32", "--dtype=bfloat16"}},
      {kProgram, ElementType::kBfloat16, kFp32, {"precision=bf16", "--dtype=float32"}},
  };
  for (const auto& c : cases) {
    ModelSpec model;
    model.type = c.model;
    auto program = std::make_shared<ModelProgram>();
    program->type = c.element;
    if (c.model == kProgram) model.program = program;
    const absl::Status status = CheckPrecision(c.precision, model);
    EXPECT_EQ(status.code(), c.names.empty() ? kOk : kInvalid) << status;
    for (const char* const name : c.names) {
      EXPECT_TRUE(absl::StrContains(status.message(), name)) << status;
    }
  }
}

}  // namespace
}  // namespace eps
