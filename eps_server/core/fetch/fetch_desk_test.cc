// FetchDesk alone: the test changes the facts and answers for the backend.

#include "eps_server/core/fetch/fetch_desk.h"

#include <algorithm>
#include <string>
#include <vector>

#include "eps_server/core/fetch/step_workers.h"
#include "eps_server/core/testing/fake_outbox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::StartsWith;

constexpr StreamId kFirst(7);
constexpr StreamId kSecond(8);

class FetchDeskTest : public testing::Test {
 protected:
  // One chunk of stage 1.
  event::Fetch Fetch(StreamId stream, uint64_t version, uint64_t tag = 1, bool backward = false) {
    event::Fetch e{stream, {}};
    if (backward) e.request.set_pass(v1::PASS_BACKWARD);
    e.request.set_job_id(facts_.job.id.value());
    e.request.set_term(facts_.term.value());
    e.request.set_tag(tag);
    e.request.set_stage(1);
    e.request.set_version(version);
    e.request.add_chunks(chunk().value());
    return e;
  }
  bool Done(OpId op, absl::Status status = absl::OkStatus()) {
    BackendDone done;
    done.op = op;
    done.status = std::move(status);
    done.value = Bytes::CopyOf("encoded");
    return desk_.On(event::OpDone{done});
  }
  ChunkId chunk() const { return facts_.job.chunks.ChunksOfStage(StageId(1)).front(); }
  Axis forward_axis() const {
    return facts_.job.codecs.axes(StageId(1), chunk(), /*backward=*/false).first;
  }
  // Delivers what the router delivers when the chunk gets its next version.
  void Update(const std::vector<std::string>& encoded) {
    desk_.On(internal_event::UpdateStarted{chunk()});
    facts_.Owned(chunk())->updating = true;
    internal_event::ChunkUpdated updated{chunk(), {}};
    for (const std::string& bytes : encoded) updated.encoded.push_back(Bytes::CopyOf(bytes));
    facts_.Owned(chunk())->updating = false;
    facts_.Owned(chunk())->version = facts_.Owned(chunk())->version.Next();
    desk_.On(updated);
  }

  uint64_t tag_ = 100;
  SmallJob job_;
  ShardFacts facts_ = job_.MakeFacts();
  FakeOutbox outbox_;
  FetchDesk desk_{&facts_, &outbox_};
};

TEST_F(FetchDeskTest, EncodesOnceForTwoWorkers) {
  desk_.On(internal_event::PartsBegun{{PartId(0)}, 10});
  desk_.On(internal_event::PartsBegun{{PartId(1)}, 11});
  desk_.On(Fetch(kFirst, 0));
  EXPECT_THAT(outbox_.Take(), ElementsAre(StartsWith("Start 1 Read")));
  EXPECT_FALSE(desk_.idle());
  EXPECT_TRUE(Done(OpId(1)));
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("SendChunk on 7 tag 1")));
  desk_.On(Fetch(kSecond, 0));
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("SendChunk on 8 tag 1")));
  // Both workers have it, so the copy is gone.
  desk_.On(Fetch(kSecond, 0, /*tag=*/2));
  EXPECT_THAT(outbox_.Take(), ElementsAre(StartsWith("Start 2 Read")));
}

TEST_F(FetchDeskTest, SharesAReadInFlight) {
  desk_.On(Fetch(kFirst, 0));
  desk_.On(Fetch(kSecond, 0));
  EXPECT_THAT(outbox_.Take(), ElementsAre(StartsWith("Start 1 Read")));
  Done(OpId(1));
  EXPECT_THAT(outbox_.Take(),
              ElementsAre(StartsWith("SendChunk on 7"), StartsWith("SendChunk on 8")));
}

TEST_F(FetchDeskTest, ParksFetchesUntilTheUpdate) {
  desk_.On(Fetch(kFirst, 1));
  EXPECT_THAT(outbox_.Take(), IsEmpty());
  EXPECT_THAT(desk_.AxesForUpdate(chunk()), ElementsAre(forward_axis()));
  Update({"from the update"});
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr(" at 1 ")));
  EXPECT_EQ(outbox_.counters["encoded_by_updates"], 1u);
}

TEST_F(FetchDeskTest, DropsCopiesOfTheVersionBefore) {
  desk_.On(internal_event::PartsBegun{{PartId(0)}, 10});
  desk_.On(internal_event::PartsBegun{{PartId(1)}, 11});
  desk_.On(Fetch(kFirst, 0));
  Done(OpId(1));
  outbox_.Take();
  Update({});
  facts_.version = 1;
  desk_.On(Fetch(kSecond, 1));
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("Start 2 Read"))) << "no copy of version 0";
}

TEST_F(FetchDeskTest, ServesParkedFetchesWhenTheBorderOpens) {
  for (const v1::JobState state : {v1::JOB_STATE_IMPORTING, v1::JOB_STATE_RECOVERING}) {
    facts_.state = state;
    desk_.On(Fetch(kFirst, 0, /*tag=*/static_cast<uint64_t>(state)));
    EXPECT_THAT(outbox_.Take(), IsEmpty()) << "the backend has no weights to read";
  }
  facts_.state = v1::JOB_STATE_RUNNING;
  desk_.On(internal_event::BorderOpened());
  EXPECT_THAT(outbox_.Take(), ElementsAre(StartsWith("Start 1 Read")));
  Done(OpId(1));
  EXPECT_EQ(outbox_.Take().size(), 2u) << "both fetches are answered";
}

TEST_F(FetchDeskTest, RefusesVersionsOutOfReach) {
  desk_.On(Fetch(kFirst, 2));
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("beyond the open step")));
  facts_.Owned(chunk())->version = Version(1);
  desk_.On(Fetch(kFirst, 0));
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("is gone, it is at version 1")));
  EXPECT_EQ(outbox_.counters["fetches_refused"], 2u);
}

TEST_F(FetchDeskTest, RefusesATagThatIsInUse) {
  desk_.On(Fetch(kFirst, 0));
  outbox_.Take();
  desk_.On(Fetch(kFirst, 0));
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("tag 1 is in use")));
}

TEST_F(FetchDeskTest, RollsBackWhenDurableWeightsAreGone) {
  job_.caps.durable = true;
  ShardFacts facts = job_.MakeFacts();
  FetchDesk desk(&facts, &outbox_);
  facts.Owned(chunk())->updating = true;
  desk.On(Fetch(kFirst, 0));
  EXPECT_EQ(outbox_.TakeRaised<internal_event::RollBack>().size(), 1u);
  EXPECT_THAT(outbox_.Take(), IsEmpty()) << "the new term answers it";
}

TEST_F(FetchDeskTest, SendsNothingToAClosedStream) {
  desk_.On(Fetch(kFirst, 0));
  desk_.On(Fetch(kFirst, 1, /*tag=*/2));
  outbox_.Take();
  desk_.Closed(kFirst);
  Done(OpId(1));
  Update({"from the update"});
  EXPECT_THAT(outbox_.Take(), IsEmpty());
}

TEST_F(FetchDeskTest, RefusesEverythingWhenWorkEnds) {
  desk_.On(Fetch(kFirst, 1));
  desk_.On(Fetch(kSecond, 0));
  outbox_.Take();
  desk_.EndWork(absl::AbortedError("the term is over"));
  EXPECT_THAT(outbox_.Take(),
              ElementsAre(StartsWith("FailFetch on 7"), StartsWith("FailFetch on 8")));
}

TEST_F(FetchDeskTest, TellsWorkersOfAFailedRead) {
  desk_.On(Fetch(kFirst, 0));
  outbox_.Take();
  Done(OpId(1), absl::InternalError("the disk is gone"));
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("the disk is gone")));
  EXPECT_THAT(outbox_.TakeRaised<internal_event::OpFailed>(), IsEmpty());
  EXPECT_FALSE(Done(OpId(1))) << "a call completes once";
}

// Returns the most fetches that an event looks at while a fetch of every part is parked.
uint64_t MostLookedAt(uint32_t parts) {
  SmallJob job;
  job.spec.training.parts = parts;
  ShardFacts facts = job.MakeFacts();
  FakeOutbox outbox;
  FetchDesk desk(&facts, &outbox);
  event::Fetch fetch{StreamId(0), {}};
  fetch.request.set_job_id(facts.job.id.value());
  fetch.request.set_term(facts.term.value());
  fetch.request.set_stage(1);
  fetch.request.set_version(1);
  fetch.request.add_chunks(facts.job.chunks.ChunksOfStage(StageId(1)).front().value());
  uint64_t most = 0;
  uint64_t before = 0;
  const auto note = [&] {
    most = std::max(most, desk.looked_at() - before);
    before = desk.looked_at();
  };
  for (uint32_t part = 0; part < parts; ++part) {
    desk.On(internal_event::PartsBegun{{PartId(part)}, 10 + part});
    fetch.stream = StreamId(1 + part);
    desk.On(fetch);
    note();
  }
  fetch.request.set_version(7);
  for (uint32_t part = 0; part < parts; ++part) {
    fetch.stream = StreamId(1 + part);
    fetch.request.set_tag(1);
    desk.On(fetch);  // refused: the version is out of reach
    note();
    desk.Closed(StreamId(1 + part));
    note();
  }
  EXPECT_EQ(outbox.counters["fetches_refused"], parts);
  return most;
}

TEST(FetchDeskScale, LooksAtFewFetchesPerEvent) {
  const uint64_t few = MostLookedAt(16);
  EXPECT_GT(few, 0u);
  EXPECT_LE(few, 4u);
  EXPECT_LE(MostLookedAt(4096), few);
}

TEST(StepWorkers, CountsProcessesByTheirParts) {
  StepWorkers workers(4);
  EXPECT_EQ(workers.count(), 4u) << "a part without a process counts as one";
  workers.Begin(PartId(0), 7);
  workers.Begin(PartId(1), 7);
  EXPECT_EQ(workers.count(), 3u);
  workers.Begin(PartId(1), 8);  // a successor
  workers.Begin(PartId(1), 8);
  EXPECT_EQ(workers.count(), 4u);
  workers.Begin(PartId(0), 8);
  workers.Begin(PartId(2), 8);
  workers.Begin(PartId(3), 8);
  EXPECT_EQ(workers.count(), 1u);
  workers.Begin(PartId(3), 0);
  EXPECT_EQ(workers.count(), 2u);
}

TEST_F(FetchDeskTest, EncodesTheNextFetchAhead) {
  job_.limits.jit_depth = 1;
  for (const bool needs_weights : {true, false}) {
    job_.spec.stages[0].backward_needs_weights = needs_weights;
    ShardFacts facts = job_.MakeFacts();
    FetchDesk desk(&facts, &outbox_);
    // Stage 1 is the last one: the backward visit of stage 0 follows.
    desk.On(Fetch(kFirst, 0, /*tag=*/1, /*backward=*/true));
    EXPECT_EQ(outbox_.Take().size() > 1, needs_weights);
  }
}

// A worker of an earlier version fetches weights that it does not need.
TEST_F(FetchDeskTest, AnswersFetchesThatNoVisitNeeds) {
  job_.limits.jit_depth = 1;
  job_.spec.stages[0].backward_needs_weights = false;
  ShardFacts facts = job_.MakeFacts();
  FetchDesk desk(&facts, &outbox_);
  event::Fetch e = Fetch(kFirst, 0, /*tag=*/1, /*backward=*/true);
  e.request.set_stage(0);
  e.request.clear_chunks();
  desk.On(e);
  const size_t chunks = job_.chunks().ChunksOfStage(StageId(0)).size();
  EXPECT_THAT(outbox_.Take(), SizeIs(chunks));
  for (size_t i = 1; i <= chunks; ++i) {
    BackendDone done;
    done.op = OpId(i);
    done.value = Bytes::CopyOf("encoded");
    EXPECT_TRUE(desk.On(event::OpDone{done}));
  }
  EXPECT_THAT(outbox_.Take(), AllOf(SizeIs(chunks), Each(StartsWith("SendChunk on 7"))));
}

// The workers fetch the last stage once, for its backward visit.
TEST_F(FetchDeskTest, EncodesTheTurnAheadForBackward) {
  job_.limits.jit_depth = 1;
  ShardFacts facts = job_.MakeFacts();
  FetchDesk desk(&facts, &outbox_);
  event::Fetch e = Fetch(kFirst, 0);
  e.request.set_stage(0);
  e.request.clear_chunks();
  desk.On(e);
  for (uint64_t i = 1; i <= outbox_.counters["encodes"]; ++i) {
    BackendDone done;
    done.op = OpId(i);
    done.value = Bytes::CopyOf("encoded");
    EXPECT_TRUE(desk.On(event::OpDone{done}));
  }
  outbox_.Take();
  e = Fetch(kFirst, 0, /*tag=*/2, /*backward=*/true);
  e.request.set_chunks(0, facts.job.chunks.ChunksOfStage(StageId(1)).back().value());
  desk.On(e);
  EXPECT_EQ(outbox_.counters["encoded_before"], 1u);
}

TEST_F(FetchDeskTest, RefusesAnOlderGeneration) {
  facts_.parts[0] = {2, 2};
  for (const uint64_t generation : {0, 1}) {
    event::Fetch e = Fetch(kFirst, 0);
    e.request.set_generation(generation);
    desk_.On(e);
    EXPECT_THAT(outbox_.Take(),
                ElementsAre(AllOf(HasSubstr("ABORTED"), HasSubstr("generation 2 has begun"))));
  }
  event::Fetch e = Fetch(kFirst, 0);
  e.request.set_generation(2);
  desk_.On(e);
  EXPECT_THAT(outbox_.Take(), ElementsAre(StartsWith("Start 1 Read")));
}

TEST_F(FetchDeskTest, OnlyTheHolderRollsBack) {
  job_.caps.durable = true;
  ShardFacts facts = job_.MakeFacts();
  FetchDesk desk(&facts, &outbox_);
  facts.Owned(chunk())->version = Version(1);
  facts.parts[0].granted = 3;
  const auto ask = [&](uint32_t part, uint64_t generation) {
    event::Fetch e = Fetch(kFirst, 0, /*tag=*/++tag_);
    e.request.set_part(part);
    e.request.set_generation(generation);
    desk.On(e);
    return outbox_.TakeRaised<internal_event::RollBack>().size();
  };
  EXPECT_EQ(ask(0, 0), 1u) << "no lease was seen in this term";
  facts.parts[0].seen = 2;
  EXPECT_EQ(ask(0, 2), 1u);
  EXPECT_EQ(ask(0, 1), 0u);
  EXPECT_EQ(ask(1, 0), 0u) << "a process without a lease";
}

TEST_F(FetchDeskTest, AFencedParkedFetchRollsNothingBack) {
  job_.caps.durable = true;
  ShardFacts facts = job_.MakeFacts();
  FetchDesk desk(&facts, &outbox_);
  facts.parts[0].granted = 2;
  facts.state = v1::JOB_STATE_RECOVERING;
  event::Fetch e = Fetch(kFirst, 0);
  e.request.set_generation(1);
  desk.On(e);
  EXPECT_THAT(outbox_.Take(), IsEmpty());
  facts.parts[0].seen = 2;
  facts.state = v1::JOB_STATE_RUNNING;
  facts.Owned(chunk())->version = Version(1);
  desk.On(internal_event::BorderOpened());
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("generation 2 has begun")));
  EXPECT_THAT(outbox_.TakeRaised<internal_event::RollBack>(), IsEmpty());
}

TEST_F(FetchDeskTest, RefusesALeaseThatNobodyGranted) {
  for (const uint32_t shard : {0, 1}) {
    SmallJob job(2);
    job.shard = ShardId(shard);
    ShardFacts facts = job.MakeFacts();
    FetchDesk desk(&facts, &outbox_);
    event::Fetch e = Fetch(kFirst, 0);
    e.request.clear_chunks();
    e.request.set_generation(uint64_t{1} << 63);
    desk.On(e);
    EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("was never granted"))) << shard;
    EXPECT_THAT(outbox_.TakeRaised<internal_event::PartsSeen>(), IsEmpty()) << shard;
  }
}

TEST_F(FetchDeskTest, GoneWeightsEndAJobWithoutCuts) {
  facts_.Owned(chunk())->version = Version(1);
  facts_.parts[0].granted = 1;
  event::Fetch e = Fetch(kFirst, 0);
  e.request.set_generation(1);
  desk_.On(e);
  const auto failed = outbox_.TakeRaised<internal_event::JobFailed>();
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_EQ(failed[0].code, ExitCode::kUnavailable);
  EXPECT_THAT(failed[0].reason, HasSubstr("a step that a worker left cannot be repeated"));
}

}  // namespace
}  // namespace eps
