// Links between shards, with the desk alone.

#include "eps_server/core/steps/link_desk.h"

#include <string>
#include <vector>

#include "base/ids.h"
#include "eps_server/core/testing/fake_outbox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr ShardId kPeer(1);

// A job of three shards whose lead waits two seconds for a shard.
SmallJob TwoSeconds(bool durable) {
  SmallJob job(3);
  job.limits.part_timeout_ms = 2000;
  job.caps.durable = durable;
  return job;
}

// On the lead of a job that is not durable.
class LinkDeskTest : public testing::Test {
 protected:
  // Returns why the job failed, once for each failure that was raised since the last call.
  std::vector<std::string> Failures() {
    std::vector<std::string> reasons;
    for (const auto& e : outbox_.TakeRaised<internal_event::JobFailed>()) {
      reasons.push_back(e.reason);
    }
    return reasons;
  }
  void Register(ShardId from, uint64_t incarnation) {
    v1::Register message;
    message.set_incarnation(incarnation);
    desk_.OnRegister(from, message);
  }

  SmallJob job_ = TwoSeconds(/*durable=*/false);
  ShardFacts facts_ = job_.MakeFacts();
  FakeOutbox outbox_;
  LinkDesk desk_{&facts_, &outbox_};
};

TEST_F(LinkDeskTest, ALostShardEndsTheJob) {
  desk_.On(event::LinkDown{kPeer});
  EXPECT_THAT(outbox_.Take(), ElementsAre("SetTimer 1 after 2000"));
  EXPECT_THAT(Failures(), IsEmpty());
  desk_.On(event::Timer{TimerId(1)});
  EXPECT_THAT(Failures(), ElementsAre("shard 1 at shard-1 has been unreachable for 2 s"));
  desk_.On(event::Timer{TimerId(1)});
  EXPECT_THAT(Failures(), IsEmpty());
}

TEST_F(LinkDeskTest, AShardMayReturnInTime) {
  desk_.On(event::LinkDown{kPeer});
  outbox_.Take();
  desk_.On(event::LinkUp{kPeer});
  EXPECT_THAT(outbox_.Take(), ElementsAre("ClearTimer 1"));
  desk_.On(event::Timer{TimerId(1)});  // it was on its way
  EXPECT_THAT(Failures(), IsEmpty());
  desk_.On(event::LinkUp{kPeer});
  EXPECT_THAT(outbox_.Take(), IsEmpty());
}

TEST_F(LinkDeskTest, TheTimeAwayRunsFromItsBegin) {
  desk_.On(event::LinkDown{kPeer});
  desk_.On(event::LinkDown{kPeer});
  EXPECT_THAT(outbox_.Take(), ElementsAre("SetTimer 1 after 2000"));
}

TEST_F(LinkDeskTest, EachShardHasItsOwnTimer) {
  desk_.On(event::LinkDown{kPeer});
  desk_.On(event::LinkDown{ShardId(2)});
  desk_.On(event::LinkUp{kPeer});
  EXPECT_THAT(outbox_.Take(),
              ElementsAre("SetTimer 1 after 2000", "SetTimer 2 after 2000", "ClearTimer 1"));
  desk_.On(event::Timer{TimerId(77)});  // of another desk
  EXPECT_THAT(Failures(), IsEmpty());
  desk_.On(event::Timer{TimerId(2)});
  EXPECT_THAT(Failures(), ElementsAre("shard 2 at shard-2 has been unreachable for 2 s"));
}

TEST_F(LinkDeskTest, AJobThatEndedAwaitsNobody) {
  for (const v1::JobState state : {v1::JOB_STATE_DONE, v1::JOB_STATE_FAILED}) {
    facts_.state = state;
    desk_.On(event::LinkDown{kPeer});
    EXPECT_THAT(outbox_.Take(), IsEmpty());
  }
}

TEST_F(LinkDeskTest, ADurableJobAwaitsItsShards) {
  const SmallJob job = TwoSeconds(/*durable=*/true);
  const ShardFacts facts = job.MakeFacts();
  LinkDesk desk(&facts, &outbox_);
  desk.On(event::LinkDown{kPeer});
  desk.On(event::LinkUp{kPeer});
  EXPECT_THAT(outbox_.Take(), IsEmpty());
  EXPECT_THAT(Failures(), IsEmpty());
}

TEST_F(LinkDeskTest, ARestartedShardEndsTheJob) {
  Register(kPeer, 10);
  EXPECT_EQ(outbox_.TakeRaised<internal_event::ShardReached>().size(), 1u);
  Register(kPeer, 11);
  ASSERT_EQ(outbox_.raised.size(), 1u);  // nobody repeats anything to the new process
  EXPECT_THAT(Failures(), ElementsAre("shard 1 at shard-1 was restarted and has lost its memory"));
}

TEST_F(LinkDeskTest, AProcessThatReturnsIsWelcome) {
  Register(kPeer, 10);
  Register(ShardId(2), 20);
  Register(kPeer, 10);
  const auto reached = outbox_.TakeRaised<internal_event::ShardReached>();
  ASSERT_EQ(reached.size(), 3u);
  EXPECT_EQ(reached[1].shard, ShardId(2));
  EXPECT_EQ(reached[2].shard, kPeer);
}

}  // namespace
}  // namespace eps
