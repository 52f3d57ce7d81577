// TrustDesk alone: the test plays StepDesk, the router, the other shards and the backend.

#include "eps_server/core/trust/trust_desk.h"

#include <optional>
#include <string>
#include <vector>

#include "base/job/optimizers.h"
#include "eps_server/core/testing/fake_outbox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::StartsWith;

// Shard `shard` of two.
class TrustDeskTest : public testing::Test {
 protected:
  explicit TrustDeskTest(uint32_t shard = 0) {
    job_.shard = ShardId(shard);
    job_.spec.training.mode = Mode::kSealed;
    job_.spec.optimizer.name = OptimizerName::kLamb;
    job_.spec.optimizer.always_adapt = true;
    facts_.emplace(job_.MakeFacts());
    desk_.emplace(&*facts_, &outbox_);
    outbox_.on_to_lead = [this](const v1::ShardMessage& message) {
      sent_.push_back(message.tensor_norms());
      desk_->OnMessage(message.tensor_norms());
    };
  }

  void Decide(uint64_t step, bool skip = false) {
    internal_event::Decided decided;
    decided.decision.set_step(step);
    decided.decision.set_skip(skip);
    desk_->On(decided);
  }
  // Lets the desk measure all chunks of this shard, which takes the next op ids.
  void AskForAll() {
    for (const OwnedChunk& chunk : facts_->owned) {
      internal_event::Measurable measurable;
      measurable.request.chunk = chunk.id;
      desk_->On(measurable);
    }
  }
  void Done(size_t index, absl::Status status = absl::OkStatus()) {
    BackendDone done;
    done.op = OpId(first_op_ + index);
    done.status = std::move(status);
    MeasureResult result;
    const ChunkId id = facts_->owned[index].id;
    for (size_t i = 0; i < job_.chunks().chunk(id).segments.size(); ++i) {
      result.segments.push_back({16, 1});
    }
    done.value = result;
    EXPECT_TRUE(desk_->On(event::OpDone{done}));
  }
  void MeasureAll() {
    first_op_ = outbox_.last_op.value() + 1;
    AskForAll();
    for (size_t i = 0; i < facts_->owned.size(); ++i) Done(i);
  }
  // The norms of the chunks of the other shard.
  v1::TensorNorms OfOthers(uint64_t step) const {
    v1::TensorNorms norms;
    norms.set_step(step);
    for (const Chunk& chunk : job_.chunks().chunks()) {
      if (facts_->Owned(chunk.id) != nullptr) continue;
      norms.add_chunks(chunk.id.value());
      for (size_t i = 0; i < chunk.segments.size(); ++i) {
        norms.add_weight_squares(16);
        norms.add_step_squares(1);
      }
    }
    return norms;
  }
  v1::Trust TrustOf(uint64_t step) const {
    v1::Trust trust;
    trust.set_step(step);
    for (size_t i = 0; i < job_.spec.tensors.size(); ++i) trust.add_ratios(4);
    return trust;
  }
  void OpenStep(uint64_t step) {
    facts_->step = step;
    desk_->On(internal_event::StepOpened());
  }

  SmallJob job_{2};
  FakeOutbox outbox_;
  std::optional<ShardFacts> facts_;
  std::optional<TrustDesk> desk_;
  std::vector<v1::TensorNorms> sent_;  // to the lead
  uint64_t first_op_ = 1;
};

class OtherShardTest : public TrustDeskTest {
 protected:
  OtherShardTest() : TrustDeskTest(1) {}
};

TEST_F(TrustDeskTest, LeadNeedsTheNormsOfAllShards) {
  Decide(1);
  MeasureAll();
  EXPECT_THAT(sent_, SizeIs(1));
  EXPECT_EQ(desk_->OfOpenStep(), nullptr) << "the other shard has not measured";
  outbox_.Take();
  desk_->OnMessage(OfOthers(1));
  ASSERT_NE(desk_->OfOpenStep(), nullptr);
  EXPECT_EQ(desk_->OfOpenStep()->SerializeAsString(), TrustOf(1).SerializeAsString());
  EXPECT_THAT(outbox_.Take(), ElementsAre(AllOf(StartsWith("ToShard 1"), HasSubstr("trust"))));
  EXPECT_THAT(outbox_.TakeRaised<internal_event::Trusted>(), SizeIs(1));
  desk_->OnMessage(OfOthers(1));
  EXPECT_THAT(outbox_.Take(), IsEmpty()) << "norms count once";
}

// The content of a repetition does not matter: it has the same bits if all is well.
TEST_F(TrustDeskTest, NormsOfAnotherStepCountNothing) {
  Decide(1);
  MeasureAll();
  desk_->OnMessage(OfOthers(2));
  EXPECT_EQ(desk_->OfOpenStep(), nullptr);
  EXPECT_THAT(desk_->WaitsFor(), HasSubstr("the norms of chunk"));
  desk_->OnMessage(OfOthers(1));
  EXPECT_NE(desk_->OfOpenStep(), nullptr);
}

TEST_F(TrustDeskTest, SkippedStepsHaveNoTrust) {
  Decide(1, /*skip=*/true);
  desk_->OnMessage(OfOthers(1));
  EXPECT_THAT(outbox_.Take(), IsEmpty());
  OpenStep(2);
  Decide(2);
  MeasureAll();
  desk_->OnMessage(OfOthers(2));
  EXPECT_NE(desk_->OfOpenStep(), nullptr);
}

TEST_F(TrustDeskTest, LeadRepeatsTrustToRegisteredShards) {
  desk_->On(internal_event::ShardReached{ShardId(1)});
  EXPECT_THAT(outbox_.Take(), IsEmpty());
  Decide(1);
  MeasureAll();
  desk_->OnMessage(OfOthers(1));
  OpenStep(2);  // the lead is ahead of the other shard
  outbox_.Take();
  desk_->On(internal_event::ShardReached{ShardId(1)});
  EXPECT_THAT(outbox_.Take(), ElementsAre(AllOf(StartsWith("ToShard 1"), HasSubstr("trust"),
                                                HasSubstr("step: 1"))));
}

TEST_F(TrustDeskTest, LeadLogsItBeforeItTellsAnybody) {
  facts_->log = ShardFacts::LogState::kWritten;
  Decide(1);
  MeasureAll();
  outbox_.Take();
  desk_->OnMessage(OfOthers(1));
  EXPECT_THAT(outbox_.Take(),
              ElementsAre(AllOf(StartsWith("Log"), HasSubstr("trust")), StartsWith("ToShard 1")));
}

TEST_F(TrustDeskTest, AReplayMakesNoTrust) {
  facts_->log = ShardFacts::LogState::kReplayed;
  Decide(1);
  MeasureAll();
  desk_->OnMessage(OfOthers(1));
  EXPECT_EQ(desk_->OfOpenStep(), nullptr);
  facts_->log = ShardFacts::LogState::kWritten;
  desk_->On(internal_event::ReplayEnded());
  EXPECT_NE(desk_->OfOpenStep(), nullptr);
}

TEST_F(TrustDeskTest, AReplayedTrustNeedsNoNorms) {
  facts_->log = ShardFacts::LogState::kReplayed;
  Decide(1);
  first_op_ = outbox_.last_op.value() + 1;
  AskForAll();
  desk_->Replay(TrustOf(1));
  EXPECT_NE(desk_->OfOpenStep(), nullptr);
  OpenStep(2);
  EXPECT_FALSE(desk_->idle());
  for (size_t i = 0; i < facts_->owned.size(); ++i) Done(i);
  EXPECT_TRUE(desk_->idle());
  EXPECT_THAT(sent_, IsEmpty()) << "these are norms of step 1";
  outbox_.Take();
  desk_->On(internal_event::ShardReached{ShardId(1)});
  EXPECT_THAT(outbox_.Take(), SizeIs(1));
}

TEST_F(TrustDeskTest, AFailedMeasurementFailsTheJob) {
  Decide(1);
  AskForAll();
  Done(0, absl::DataLossError("bad sector"));
  const auto failed = outbox_.TakeRaised<internal_event::OpFailed>();
  ASSERT_THAT(failed, SizeIs(1));
  EXPECT_THAT(failed[0].what, AllOf(HasSubstr("norms of chunk"), HasSubstr("step 1")));
}

TEST_F(OtherShardTest, SendsItsNormsOnceItHasAll) {
  Decide(1);
  AskForAll();
  EXPECT_THAT(desk_->WaitsFor(), HasSubstr("the norms of"));
  for (size_t i = 0; i < facts_->owned.size(); ++i) {
    EXPECT_THAT(sent_, IsEmpty());
    Done(i);
  }
  ASSERT_THAT(sent_, SizeIs(1));
  EXPECT_EQ(sent_[0].step(), 1u);
  EXPECT_EQ(static_cast<size_t>(sent_[0].chunks_size()), facts_->owned.size());
  EXPECT_THAT(desk_->WaitsFor(), HasSubstr("the lead's trust ratios of step 1"));
}

TEST_F(OtherShardTest, RepeatsNormsUntilItHasTheTrust) {
  Decide(1);
  desk_->On(internal_event::LeadReached());
  EXPECT_THAT(sent_, IsEmpty());
  MeasureAll();
  desk_->On(internal_event::LeadReached());
  ASSERT_THAT(sent_, SizeIs(2));
  EXPECT_EQ(sent_[0].SerializeAsString(), sent_[1].SerializeAsString());
  desk_->OnMessage(TrustOf(1));
  desk_->On(internal_event::LeadReached());
  EXPECT_THAT(sent_, SizeIs(2));
}

TEST_F(OtherShardTest, LogsATrustOnce) {
  facts_->log = ShardFacts::LogState::kWritten;
  desk_->OnMessage(TrustOf(1));
  EXPECT_THAT(outbox_.Take(), ElementsAre(AllOf(StartsWith("Log"), HasSubstr("trust"))));
  desk_->OnMessage(TrustOf(1));
  EXPECT_THAT(outbox_.Take(), IsEmpty());
  OpenStep(2);
  desk_->OnMessage(TrustOf(1));
  EXPECT_THAT(outbox_.Take(), IsEmpty()) << "the step is over";
  EXPECT_EQ(desk_->OfOpenStep(), nullptr);
}

TEST_F(OtherShardTest, TrustOfOtherTensorsFailsTheJob) {
  v1::Trust trust = TrustOf(1);
  trust.add_ratios(1);
  desk_->OnMessage(trust);
  const auto failed = outbox_.TakeRaised<internal_event::JobFailed>();
  ASSERT_THAT(failed, SizeIs(1));
  EXPECT_THAT(failed[0].reason, HasSubstr("trust ratios, the job has"));
}

}  // namespace
}  // namespace eps
