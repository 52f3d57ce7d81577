#include "base/job/layout/visits.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/testing/test_specs.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

std::string Text(const Visit& visit) {
  return absl::StrCat(visit.stage.value(), visit.backward ? "b" : "f");
}

// The visits of a step; those without a fetch are in brackets.
std::string Step(const JobSpec& spec) {
  std::string text;
  for (const Visit& visit : VisitsOfStep(spec)) {
    absl::StrAppend(&text, text.empty() ? "" : " ",
                    FetchesWeights(spec, visit) ? Text(visit) : "(" + Text(visit) + ")");
  }
  return text;
}

std::string Fetches(const JobSpec& spec) {
  std::string text;
  std::optional<Visit> visit = VisitsOfStep(spec).front();
  for (; visit.has_value(); visit = NextFetch(spec, *visit)) {
    absl::StrAppend(&text, text.empty() ? "" : " ", Text(*visit));
  }
  return text;
}

JobSpec Reparsed(const JobSpec& spec) { return *JobSpec::Parse(spec.ToText()); }

TEST(Visits, GoUpAndDownWithOneTurn) {
  JobSpec spec = TinySyntheticSpec();
  EXPECT_EQ(Step(spec), "0f 1f 2f 3b 2b 1b 0b");
  EXPECT_EQ(Fetches(spec), Step(spec));
  spec.stages.resize(1);
  EXPECT_EQ(Step(spec), "0b");
  EXPECT_EQ(Fetches(spec), "0b");
}

TEST(Visits, FetchNothingForBackwardOfALookup) {
  for (const bool tied : {true, false}) {
    JobSpec spec = TinyGpt2Spec();
    spec.model.gpt2.tie_word_embeddings = tied;
    EXPECT_EQ(Step(spec), "0f 1f 2f 3b 2b 1b (0b)");
    EXPECT_EQ(Fetches(spec), "0f 1f 2f 3b 2b 1b");
  }
}

TEST(Visits, TheLastStageAlwaysFetches) {
  JobSpec spec = TinySyntheticSpec();
  for (StageSpec& stage : spec.stages) stage.backward_needs_weights = false;
  EXPECT_EQ(Step(spec), "0f 1f 2f 3b (2b) (1b) (0b)");
  EXPECT_EQ(Fetches(spec), "0f 1f 2f 3b");
}

TEST(Visits, EndAtTheLowestTrainableStage) {
  JobSpec spec = TinyGpt2Spec();
  Freeze(".h.1.", /*others=*/true, &spec);
  EXPECT_EQ(Step(spec), "0f 1f 2f 3b 2b");
  EXPECT_EQ(Fetches(spec), Step(spec));
  JobSpec head = TinyGpt2Spec();
  Freeze("ln_f", /*others=*/true, &head);
  EXPECT_EQ(Step(head), "0f 1f 2f 3b");
  JobSpec block = TinyGpt2Spec();
  Freeze(".h.", /*others=*/false, &block);
  EXPECT_EQ(Step(block), "0f 1f 2f 3b 2b 1b (0b)") << "the embedding is trained";
}

TEST(Visits, AnEvaluationEndsWithTheLastStage) {
  EXPECT_EQ(NextFetch(TinyGpt2Spec(), Visit{StageId(3), /*backward=*/false}), std::nullopt);
}

// Servers learn the spec from its text.
TEST(Visits, AreTheSameInAParsedSpec) {
  for (const JobSpec& spec : {TinyGpt2Spec(), TinySyntheticSpec()}) {
    EXPECT_EQ(Step(Reparsed(spec)), Step(spec));
  }
}

}  // namespace
}  // namespace eps
