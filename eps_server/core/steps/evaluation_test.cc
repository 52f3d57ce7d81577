// Evaluations that workers report to the lead.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/testing/test_specs.h"
#include "eps_server/core/testing/core_cluster.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

constexpr uint32_t kParts = 3;
constexpr uint64_t kSteps = 2;

JobSpec Spec() {
  JobSpec spec = TinySyntheticSpec();
  spec.training.parts = kParts;
  spec.training.micro_batches = 1;
  spec.training.steps = kSteps;
  EXPECT_TRUE(spec.Validate().ok()) << spec.Validate();
  return spec;
}

v1::PartLoss Loss(uint32_t part, uint64_t step, double sum) {
  v1::PartLoss loss;
  loss.set_part(part);
  loss.set_step(step);
  loss.set_loss_sum(sum);
  loss.set_tokens(10 + part);
  return loss;
}

class EvaluationTest : public testing::Test {
 protected:
  EvaluationTest() : cluster_(Spec(), CoreCluster::Options{2, 0, {}}) {
    cluster_.InitializeAll();
    pushes_ = cluster_.NewStream();
    Watch(&watch_, {});
  }

  void Watch(StreamId* stream, event::Watch request) {
    *stream = request.stream = cluster_.NewStream();
    cluster_.Send(ShardId(0), request);
  }
  // Begins `step` and reports the losses of the step before.
  void Begin(uint64_t step) {
    std::vector<v1::PartLoss> losses;
    for (uint32_t p = 0; p < kParts && step > 1; ++p) losses.push_back(Loss(p, step - 1, 1.0));
    ASSERT_TRUE(cluster_.Begin(step, {0, 1, 2}, 7, losses));
  }
  void PushAll(uint64_t step) {
    for (uint32_t s = 0; s < cluster_.spec().stages.size(); ++s) {
      for (ChunkId id : cluster_.chunks().ChunksOfStage(StageId(s))) {
        for (uint32_t p = 0; p < kParts; ++p) {
          const std::vector<float> gradient(cluster_.chunks().chunk(id).elements, 0.5f);
          cluster_.Push(pushes_, step, StageId(s), TreeRange{p, 1}, id, gradient, 10, 7);
        }
      }
    }
    cluster_.Run();
  }
  // Repeats the request for `step` to the lead, with evaluations of the border before it.
  StreamId Report(uint64_t step, const std::vector<v1::PartLoss>& evaluations) {
    v1::BeginStepRequest request;
    request.set_job_id(cluster_.spec().id().value());
    request.set_term(1);
    request.set_step(step);
    request.set_worker_nonce(7);
    for (uint32_t p = 0; p < kParts; ++p) request.add_parts(p);
    for (const v1::PartLoss& loss : evaluations) *request.add_evaluations() = loss;
    const StreamId stream = cluster_.NewStream();
    cluster_.Send(ShardId(0), event::BeginStep{stream, request});
    cluster_.Run();
    return stream;
  }
  // Returns the steps of the records that a watcher received, such as "1 e1 2"; "e" marks
  // evaluations.
  std::string Told(StreamId watch) {
    std::string told;
    for (const effect::ReplyMessage& reply : cluster_.answers.replies[watch]) {
      const auto& record = *std::get<effect::SharedRecord>(reply);
      absl::StrAppend(&told, told.empty() ? "" : " ", record.has_evaluation() ? "e" : "",
                      record.step());
    }
    return told;
  }
  v1::StepRecord Last(StreamId watch) {
    return *std::get<effect::SharedRecord>(cluster_.answers.replies[watch].back());
  }

  CoreCluster cluster_;
  StreamId pushes_;
  StreamId watch_;
};

TEST_F(EvaluationTest, ReportsTheSumOnceAfterAllParts) {
  Begin(1);
  PushAll(1);
  Begin(2);
  EXPECT_EQ(Told(watch_), "1");
  // One part reports twice with different losses: the first one counts.
  Report(2, {Loss(2, 1, 1e17)});
  Report(2, {Loss(2, 1, 5.0), Loss(0, 1, 3.0)});
  EXPECT_EQ(Told(watch_), "1");
  const StreamId reply = Report(2, {Loss(1, 1, -1e17)});
  EXPECT_EQ(cluster_.answers.replies[reply].size(), 1u) << "the request is still answered";
  ASSERT_EQ(Told(watch_), "1 e1");
  const v1::StepRecord record = Last(watch_);
  // Summed in the order of parts, (3 + -1e17) + 1e17, whichever reported first.
  EXPECT_EQ(record.evaluation().loss(), ((3.0 + -1e17) + 1e17) / 33.0);
  EXPECT_EQ(record.evaluation().tokens(), 33u);
  Report(2, {Loss(0, 1, 3.0), Loss(1, 1, 3.0), Loss(2, 1, 3.0)});
  EXPECT_EQ(Told(watch_), "1 e1") << "sent twice";
}

v1::PartLoss Counted(uint32_t part, uint64_t correct, double sum_x) {
  v1::PartLoss loss = Loss(part, 1, 1.0);
  loss.mutable_counts()->set_rows(10 + part);
  loss.mutable_counts()->set_correct(correct);
  for (const uint64_t n : {correct, uint64_t{1}}) loss.mutable_counts()->add_class_correct(n);
  for (const uint64_t n : {uint64_t{6}, uint64_t{5}})
    loss.mutable_counts()->add_class_predicted(n + part);
  for (const uint64_t n : {uint64_t{3}, uint64_t{7}})
    loss.mutable_counts()->add_class_labels(n * part);
  loss.mutable_counts()->set_sum_x(sum_x);
  loss.mutable_counts()->set_sum_xy(-sum_x);
  return loss;
}

TEST_F(EvaluationTest, CountsOfThePartsAddUp) {
  Begin(1);
  PushAll(1);
  Begin(2);
  Report(2, {Counted(2, 5, 1e17)});
  Report(2, {Counted(2, 9, 1.0), Counted(0, 3, 3.0)});
  Report(2, {Counted(1, 4, -1e17)});
  ASSERT_EQ(Told(watch_), "1 e1");
  const v1::HeldOutCounts counts = Last(watch_).evaluation().counts();
  EXPECT_EQ(counts.rows(), 33u);
  EXPECT_EQ(counts.correct(), 12u) << "a part counts once, as it first reported";
  EXPECT_THAT(counts.class_correct(), testing::ElementsAre(12, 3));
  EXPECT_THAT(counts.class_predicted(), testing::ElementsAre(21, 18));
  EXPECT_THAT(counts.class_labels(), testing::ElementsAre(9, 21));
  // Along the tree, (3 + -1e17) + 1e17, whichever reported first.
  EXPECT_EQ(counts.sum_x(), (3.0 + -1e17) + 1e17);
  EXPECT_EQ(counts.sum_xy(), (-3.0 + 1e17) + -1e17);
}

TEST_F(EvaluationTest, EveryPartHasToCount) {
  Begin(1);
  PushAll(1);
  Begin(2);
  Report(2, {Counted(2, 5, 1), Loss(1, 1, 1.0), Counted(0, 3, 3.0)});
  ASSERT_EQ(Told(watch_), "1 e1");
  EXPECT_FALSE(Last(watch_).evaluation().has_counts());
  EXPECT_EQ(Last(watch_).evaluation().tokens(), 33u);
}

TEST_F(EvaluationTest, CountsOfOtherClassesAreDropped) {
  Begin(1);
  PushAll(1);
  Begin(2);
  v1::PartLoss other = Counted(1, 4, 1);
  other.mutable_counts()->add_class_labels(7);
  Report(2, {Counted(2, 5, 1), other, Counted(0, 3, 3.0)});
  ASSERT_EQ(Told(watch_), "1 e1");
  EXPECT_FALSE(Last(watch_).evaluation().has_counts());
}

TEST_F(EvaluationTest, WatchesShareTheirRecords) {
  Begin(1);
  PushAll(1);
  Begin(2);
  StreamId late;
  Watch(&late, {{}, 0, 0, 2});
  ASSERT_EQ(Told(late), "1");
  const auto record = [this](StreamId watch) {
    return std::get<effect::SharedRecord>(cluster_.answers.replies[watch].front());
  };
  EXPECT_EQ(record(late), record(watch_)) << "a copy";
}

TEST_F(EvaluationTest, StepsDoNotWaitForMissingEvaluations) {
  Begin(1);
  PushAll(1);
  Begin(2);
  Report(2, {Loss(0, 1, 3.0), Loss(1, 1, 3.0)});
  PushAll(2);
  Begin(3);
  EXPECT_EQ(Told(watch_), "1 2");
  EXPECT_EQ(cluster_.answers.closed.count(watch_), 1u) << "the job is done";
  // Reports of the border before do not count for this one.
  StreamId late;
  Watch(&late, {{}, 2, 0, 2});
  Report(3, {Loss(2, 2, 3.0)});
  EXPECT_EQ(Told(late), "");
}

TEST_F(EvaluationTest, OnlyTheNewestBorderCounts) {
  Begin(1);
  PushAll(1);
  Begin(2);
  const std::vector<v1::PartLoss> all = {Loss(0, 2, 1.0), Loss(1, 2, 1.0), Loss(2, 2, 1.0)};
  Report(2, all);  // the step is not complete
  Report(2, {Loss(0, 0, 1.0), Loss(1, 0, 1.0), Loss(2, 0, 1.0)});
  Report(2, {Loss(0, 1, 1.0), Loss(1, 1, 1.0), Loss(kParts, 1, 1.0)});
  EXPECT_EQ(Told(watch_), "1");
  PushAll(2);
  const StreamId early = Report(3, {Loss(2, 1, 1.0)});  // the border before
  EXPECT_EQ(cluster_.answers.replies[early].size(), 1u);
  EXPECT_EQ(Told(watch_), "1");
}

TEST_F(EvaluationTest, WatchCanWaitForTheLastEvaluation) {
  StreamId patient;
  Watch(&patient, {{}, 0, 0, kSteps});
  Begin(1);
  PushAll(1);
  Begin(2);
  Report(2, {Loss(0, 1, 1.0), Loss(1, 1, 1.0), Loss(2, 1, 1.0)});
  PushAll(2);
  Begin(3);
  EXPECT_TRUE(cluster_.begun[0].done());
  EXPECT_EQ(cluster_.answers.closed.count(watch_), 1u);
  EXPECT_EQ(cluster_.answers.closed.count(patient), 0u);
  // A finished job still serves its weights.
  const ChunkId chunk = cluster_.chunks().ChunksOfStage(StageId(0)).front();
  const StreamId stream = cluster_.NewStream();
  const uint64_t tag = cluster_.Fetch(stream, StageId(0), chunk, cluster_.begun[0].version());
  cluster_.Run();
  EXPECT_EQ(cluster_.answers.fetched.count(tag), 1u);
  Report(3, {Loss(0, 2, 1.0), Loss(1, 2, 1.0), Loss(2, 2, 1.0)});
  EXPECT_EQ(Told(patient), "1 e1 2 e2");
  EXPECT_EQ(cluster_.answers.closed.count(patient), 1u);
  EXPECT_TRUE(cluster_.answers.closed.at(patient).ok());
  // A client that watches again receives what it has not received yet.
  StreamId again;
  Watch(&again, {{}, 2, 1, kSteps});
  EXPECT_EQ(Told(again), "e2");
  Watch(&again, {{}, 1, 0, 0});
  EXPECT_EQ(Told(again), "e1 2 e2");
}

}  // namespace
}  // namespace eps
