// PushDesk alone: the test plays worker, shell and the other desks.

#include "eps_server/core/push/push_desk.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "compression/codec_table.h"
#include "eps_server/core/testing/fake_outbox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

constexpr StreamId kStream(7);

class PushDeskTest : public testing::Test {
 protected:
  // The gradient of `part` to the last chunk of stage 1.
  v1::PushHeader Header(uint32_t part, uint64_t tag, uint32_t crc = 1) const {
    v1::PushHeader header;
    header.set_tag(tag);
    header.mutable_key()->set_job_id(facts_.job.id.value());
    header.mutable_key()->set_term(facts_.term.value());
    header.mutable_key()->set_step(facts_.step);
    header.mutable_key()->set_use_stage(1);
    header.mutable_key()->set_part_first(part);
    header.mutable_key()->set_part_count(1);
    header.mutable_key()->set_chunk(chunk().value());
    header.set_codec(static_cast<uint32_t>(codec().traits().id));
    header.set_bytes(bytes());
    header.set_crc32c(crc);
    header.set_tokens(100);
    header.set_worker_nonce(10 + part);
    return header;
  }
  void Offer(const v1::PushHeader& header) { desk_.On(event::PushOffered{kStream, header}); }
  void Receive(uint64_t tag) {
    const std::string payload(bytes(), '\0');
    auto opened = codec().Open(facts_.job.chunks.chunk(chunk()), Axis::kRow, Bytes::CopyOf(payload),
                               Content::kGradient);
    ASSERT_TRUE(opened.ok()) << opened.status();
    desk_.On(event::PushReceived{kStream, tag, *std::move(opened), Bytes()});
  }
  // Returns the effects since the last call, without timers.
  std::vector<std::string> Take() {
    std::vector<std::string> lines = outbox_.Take();
    lines.erase(
        std::remove_if(lines.begin(), lines.end(),
                       [](const std::string& line) { return line.rfind("SetTimer", 0) == 0; }),
        lines.end());
    return lines;
  }
  std::vector<std::string> Acks() {
    std::vector<std::string> acks;
    for (const std::string& line : outbox_.Take()) {
      if (line.rfind("SendAck", 0) == 0) acks.push_back(line);
    }
    return acks;
  }
  // Lets `ms` pass; the newest timer has expired then.
  void Expire(uint64_t ms) {
    facts_.now_ms += ms;
    desk_.On(event::Timer{outbox_.last_timer});
  }
  // Offers, and sends, a payload that arrives damaged. Returns the acknowledgement.
  std::string Damage(const v1::PushHeader& header) {
    Offer(header);
    outbox_.Take();
    desk_.On(event::PushInvalid{kStream, header.tag(), absl::DataLossError("the CRC differs")});
    const std::vector<std::string> acks = Acks();
    return acks.size() == 1 ? acks[0] : "";
  }
  ChunkId chunk() const { return facts_.job.chunks.ChunksOfStage(StageId(1)).back(); }
  const Codec& codec() const { return facts_.job.codecs.gradient(chunk(), Step(1)); }
  uint64_t bytes() const {
    return codec().MaxEncodedSize(facts_.job.chunks.chunk(chunk()), Axis::kRow);
  }

  SmallJob job_;
  ShardFacts facts_ = job_.MakeFacts();
  FakeQueries queries_;
  FakeOutbox outbox_;
  PushDesk desk_{&facts_, &queries_, &outbox_};
};

TEST_F(PushDeskTest, CreditsCountsAndAcknowledges) {
  Offer(Header(0, 1));
  EXPECT_THAT(Take(), ElementsAre("Credit on 7 tag 1"));
  Receive(1);
  EXPECT_THAT(outbox_.Take(),
              ElementsAre(StartsWith("Trace counted"), HasSubstr("outcome: ACCEPTED")));
  EXPECT_THAT(outbox_.TakeRaised<internal_event::ChunkComplete>(), IsEmpty());
}

TEST_F(PushDeskTest, HandsOverTheGradientAfterItsLastPart) {
  for (const uint32_t part : {0u, 1u}) {
    Offer(Header(part, 1 + part));
    Receive(1 + part);
  }
  const auto complete = outbox_.TakeRaised<internal_event::ChunkComplete>();
  ASSERT_EQ(complete.size(), 1u);
  EXPECT_EQ(complete[0].chunk, chunk());
  EXPECT_EQ(complete[0].inputs.size(), 2u);
  EXPECT_EQ(complete[0].tokens, 200u);
  EXPECT_FALSE(complete[0].nonfinite);
  EXPECT_TRUE(desk_.Complete(chunk()));
}

TEST_F(PushDeskTest, CountsARepetitionOnce) {
  Offer(Header(0, 1));
  Receive(1);
  Offer(Header(0, 2));
  EXPECT_THAT(Acks(), ElementsAre(HasSubstr("ACCEPTED"), HasSubstr("DUPLICATE")));
  Offer(Header(0, 3, /*crc=*/9));
  EXPECT_THAT(Acks(), ElementsAre(HasSubstr("CONFLICT"))) << "the same worker sent other bytes";
}

TEST_F(PushDeskTest, CreditsOneOfTwoEqualOffers) {
  Offer(Header(0, 1));
  Offer(Header(0, 2));
  EXPECT_THAT(Take(), ElementsAre("Credit on 7 tag 1"));
  Receive(1);
  EXPECT_THAT(Acks(), ElementsAre(HasSubstr("ACCEPTED"), HasSubstr("DUPLICATE")));
}

TEST_F(PushDeskTest, RefusesStepsThatAreNotOpen) {
  v1::PushHeader early = Header(0, 1);
  early.mutable_key()->set_step(2);
  Offer(early);
  EXPECT_THAT(Acks(), ElementsAre(HasSubstr("retry_after_ms")));
  facts_.step = 2;
  v1::PushHeader late = Header(0, 2);
  late.mutable_key()->set_step(1);
  Offer(late);
  EXPECT_THAT(Acks(), ElementsAre(HasSubstr("STALE")));
}

TEST_F(PushDeskTest, RefusesHeadersOfTheWrongSize) {
  v1::PushHeader header = Header(0, 1);
  header.set_bytes(bytes() + 1);
  Offer(header);
  EXPECT_THAT(Acks(), ElementsAre(HasSubstr("expected")));
  EXPECT_EQ(outbox_.counters["refused"], 1u);
}

TEST_F(PushDeskTest, AClosedStreamFreesItsCredit) {
  Offer(Header(0, 1));
  outbox_.Take();
  desk_.On(event::PushOffered{StreamId(8), Header(0, 1)});
  EXPECT_THAT(outbox_.Take(), IsEmpty()) << "another stream sends it";
  desk_.Closed(kStream);
  EXPECT_THAT(Take(), ElementsAre("Credit on 8 tag 1"));
}

TEST_F(PushDeskTest, AsksForADamagedPayloadAgain) {
  Offer(Header(0, 1));
  outbox_.Take();
  desk_.On(event::PushInvalid{kStream, 1, absl::DataLossError("the CRC differs")});
  EXPECT_THAT(Acks(), ElementsAre(HasSubstr("retry_after_ms")));
  Offer(Header(0, 2));
  EXPECT_THAT(Take(), ElementsAre("Credit on 7 tag 2"));
}

TEST_F(PushDeskTest, RefusesTheThirdDamagedPayloadForGood) {
  EXPECT_THAT(Damage(Header(0, 1)), HasSubstr("retry_after_ms"));
  EXPECT_THAT(Damage(Header(0, 2)), HasSubstr("retry_after_ms"));
  // Other contributions, and other processes, have counts of their own.
  EXPECT_THAT(Damage(Header(1, 3)), HasSubstr("retry_after_ms"));
  v1::PushHeader successor = Header(0, 4);
  successor.set_worker_nonce(99);
  EXPECT_THAT(Damage(successor), HasSubstr("retry_after_ms"));
  const std::string last = Damage(Header(0, 5));
  EXPECT_THAT(last, HasSubstr("part 0: its payload arrived damaged 3 times"));
  EXPECT_THAT(last, HasSubstr("check the memory and the network"));
  EXPECT_EQ(last.find("retry_after_ms"), std::string::npos) << last;
  Offer(Header(0, 6));
  EXPECT_THAT(Take(), ElementsAre(HasSubstr("arrived damaged 3 times"))) << "no credit again";
  successor.set_tag(7);
  Offer(successor);
  EXPECT_THAT(Take(), ElementsAre("Credit on 7 tag 7")) << "another process may send it";
}

TEST_F(PushDeskTest, ForgetsDamageWithTheStep) {
  for (uint64_t tag = 1; tag <= 3; ++tag) Damage(Header(0, tag));
  desk_.On(internal_event::StepComplete());
  facts_.step = 2;
  EXPECT_THAT(Damage(Header(0, 4)), HasSubstr("retry_after_ms"));
}

TEST_F(PushDeskTest, TakesAnUnusedCreditBack) {
  Offer(Header(0, 1));
  EXPECT_THAT(outbox_.Take(), ElementsAre("Credit on 7 tag 1", "SetTimer 1 after 30000"));
  desk_.On(event::PushOffered{StreamId(8), Header(0, 1)});
  Expire(30'000);
  const std::vector<std::string> lines = Take();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_THAT(lines[0], HasSubstr("was not complete within 30 s of its credit (servers.push_time"));
  EXPECT_THAT(lines[0], HasSubstr("retry_after_ms"));
  EXPECT_EQ(lines[1], "Credit on 8 tag 1") << "the offer of another stream goes on";
  EXPECT_EQ(outbox_.counters["credits_taken_back"], 1u);
}

TEST_F(PushDeskTest, DoesNotCountALatePayload) {
  Offer(Header(0, 1));
  Expire(30'000);
  outbox_.Take();
  Receive(1);
  EXPECT_THAT(outbox_.Take(), IsEmpty());
  EXPECT_EQ(outbox_.counters["accepted"], 0u);
  // Its memory is free, and the worker offers it again.
  Offer(Header(0, 2));
  EXPECT_THAT(Take(), ElementsAre("Credit on 7 tag 2"));
  Receive(2);
  EXPECT_THAT(Acks(), ElementsAre(HasSubstr("ACCEPTED")));
}

TEST_F(PushDeskTest, GivesEveryCreditItsWholeTime) {
  Offer(Header(0, 1));
  facts_.now_ms += 10'000;
  Offer(Header(1, 2));
  outbox_.Take();
  Receive(1);
  Expire(20'000);
  EXPECT_THAT(outbox_.Take(), Contains("SetTimer 2 after 10000")) << "tag 2 has 10 s left";
  Receive(2);
  EXPECT_THAT(Acks(), ElementsAre(HasSubstr("ACCEPTED")));
  Expire(10'000);
  EXPECT_THAT(outbox_.Take(), IsEmpty()) << "no timer runs without credits";
}

TEST_F(PushDeskTest, AnswersCreditsOfAClosedStep) {
  Offer(Header(0, 1));
  desk_.On(internal_event::StepComplete());
  facts_.step = 2;
  outbox_.Take();
  Expire(30'000);
  EXPECT_THAT(Acks(), ElementsAre(HasSubstr("STALE")));
}

TEST_F(PushDeskTest, LogsAContributionBeforeItCounts) {
  facts_.log = ShardFacts::LogState::kWritten;
  Offer(Header(0, 1));
  outbox_.Take();
  Receive(1);
  EXPECT_THAT(outbox_.Take(), ElementsAre(StartsWith("Log 1 push"), StartsWith("Trace counted"),
                                          StartsWith("SendAck")));
}

TEST_F(PushDeskTest, ForgetsTheStepWhenItIsComplete) {
  Offer(Header(0, 1));
  Receive(1);
  outbox_.Take();
  desk_.On(internal_event::GradientUsed{chunk()});
  desk_.On(internal_event::StepComplete());
  facts_.step = 2;
  Offer(Header(0, 2));
  EXPECT_THAT(Take(), ElementsAre("Credit on 7 tag 2"));
}

TEST_F(PushDeskTest, ReplaysALoggedContributionOnce) {
  v1::LoggedPush push;
  *push.mutable_header() = Header(0, 1);
  const Bytes payload = Bytes::CopyOf(std::string(bytes(), '\0'));
  absl::StatusOr<bool> applied = desk_.Replay(push, payload, Bytes());
  ASSERT_TRUE(applied.ok()) << applied.status();
  EXPECT_TRUE(*applied);
  applied = desk_.Replay(push, payload, Bytes());
  EXPECT_TRUE(absl::IsDataLoss(applied.status())) << applied.status();
  push.mutable_header()->mutable_key()->set_step(2);
  applied = desk_.Replay(push, payload, Bytes());
  ASSERT_TRUE(applied.ok());
  EXPECT_FALSE(*applied) << "step 2 has to open first";
}

TEST_F(PushDeskTest, FencesAnOlderGeneration) {
  facts_.parts[0] = {2, 2};
  Offer(Header(0, 1));
  v1::PushHeader old = Header(0, 2);
  old.add_generations(1);
  Offer(old);
  EXPECT_THAT(Acks(), ElementsAre(HasSubstr("FENCED"), HasSubstr("FENCED")));
  EXPECT_EQ(outbox_.counters["fenced"], 2u);
  v1::PushHeader held = Header(0, 3);
  held.add_generations(2);
  Offer(held);
  EXPECT_THAT(Take(), ElementsAre("Credit on 7 tag 3"));
}

TEST_F(PushDeskTest, FencesAPayloadThatWasCredited) {
  Offer(Header(0, 1));
  facts_.parts[0] = {1, 1};
  Receive(1);
  EXPECT_THAT(Acks(), ElementsAre(HasSubstr("FENCED")));
  v1::PushHeader held = Header(0, 2);
  held.add_generations(1);
  Offer(held);
  Receive(2);
  EXPECT_THAT(Acks(), ElementsAre(HasSubstr("ACCEPTED")));
}

TEST_F(PushDeskTest, ChecksEveryPartOfAMergedPush) {
  facts_.parts = {{1, 1, false}, {2, 2, false}};
  v1::PushHeader merged = Header(0, 1);
  merged.mutable_key()->set_part_count(2);
  merged.add_generations(1);
  Offer(merged);
  EXPECT_THAT(Acks(), ElementsAre(HasSubstr("1 generations for 2 parts")));
  merged.add_generations(1);
  Offer(merged);
  EXPECT_THAT(Acks(), ElementsAre(HasSubstr("FENCED")));
  merged.set_generations(1, 3);
  Offer(merged);
  EXPECT_THAT(Acks(), ElementsAre(HasSubstr("was never granted")));
  merged.set_generations(1, 2);
  Offer(merged);
  EXPECT_THAT(Take(), ElementsAre("Credit on 7 tag 1"));
}

TEST_F(PushDeskTest, ATermEndsItsStreams) {
  Offer(Header(0, 1));
  outbox_.Take();
  desk_.EndTerm(absl::AbortedError("term 1 is over"));
  EXPECT_THAT(outbox_.Take(), ElementsAre("Close 7 {ABORTED: term 1 is over}"));
}

}  // namespace
}  // namespace eps
