// Imports, exports and watches with the desk alone: the test sets the facts and completes the calls
// on the backend.

#include "eps_server/core/transfer/transfer_desk.h"

#include "absl/strings/str_cat.h"
#include "eps_server/core/testing/fake_outbox.h"
#include "eps_server/core/transfer/watch_desk.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

constexpr StreamId kStream(7);

class TransferDeskTest : public testing::Test {
 protected:
  event::OpDone Done(OpId op, absl::Status status = absl::OkStatus()) {
    BackendDone done;
    done.op = op;
    done.status = std::move(status);
    done.value = Bytes::CopyOf("0123");
    return event::OpDone{done};
  }
  event::Export Export(uint32_t chunk, uint64_t step = 0) {
    event::Export e{kStream, {}};
    e.request.set_step(step);
    e.request.add_chunks(chunk);
    return e;
  }

  SmallJob job_;
  ShardFacts facts_ = job_.MakeFacts();
  FakeOutbox outbox_;
  FakeQueries queries_;
  TransferDesk desk_{&facts_, &queries_, &outbox_};
};

TEST_F(TransferDeskTest, RefusesImportsUnlessImporting) {
  desk_.On(event::ImportInitialize{kStream});
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("the job has its weights, it is at step 1")));
  facts_.state = v1::JOB_STATE_RECOVERING;
  desk_.On(event::ImportInitialize{kStream});
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("waiting for its disk")));
}

TEST_F(TransferDeskTest, CompletesAnImportAfterItsLastChunk) {
  facts_.state = v1::JOB_STATE_IMPORTING;
  desk_.On(event::ImportInitialize{kStream});
  desk_.On(event::ImportFinish{kStream, Step(0), Version(0), 0, 0});
  EXPECT_EQ(outbox_.Take().size(), facts_.owned.size());
  for (uint64_t op = 1; op <= facts_.owned.size(); ++op) {
    EXPECT_THAT(outbox_.TakeRaised<internal_event::Imported>(), IsEmpty());
    desk_.On(Done(OpId(op)));
  }
  EXPECT_THAT(outbox_.Take(), ElementsAre(StartsWith("Reply on 7 eps.v1.ImportStateReply")));
  EXPECT_EQ(outbox_.TakeRaised<internal_event::Imported>().size(), 1u);
}

TEST_F(TransferDeskTest, AnEndedImportDoesNotComplete) {
  facts_.state = v1::JOB_STATE_IMPORTING;
  desk_.On(event::ImportInitialize{kStream});
  desk_.On(event::ImportFinish{kStream, Step(0), Version(0), 0, 0});
  EXPECT_EQ(outbox_.Take().size(), facts_.owned.size());
  desk_.EndImports(absl::AbortedError("another driver"));
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("another driver")));
  for (uint64_t op = 1; op <= facts_.owned.size(); ++op) desk_.On(Done(OpId(op)));
  EXPECT_THAT(outbox_.TakeRaised<internal_event::Imported>(), IsEmpty());
}

TEST_F(TransferDeskTest, InitializesOneAtATime) {
  facts_.state = v1::JOB_STATE_IMPORTING;
  desk_.On(event::ImportInitialize{kStream});
  EXPECT_EQ(outbox_.Take().size(), facts_.owned.size());
  desk_.On(event::ImportInitialize{StreamId(8)});
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("is being initialized")));
  desk_.On(event::ImportFinish{StreamId(8), Step(0), Version(0), 0, 0});
  EXPECT_THAT(outbox_.Take(), IsEmpty()) << "the stream was refused";
  EXPECT_THAT(outbox_.TakeRaised<internal_event::Imported>(), IsEmpty());
  // Its stream is gone, but its writes still run.
  desk_.Closed(kStream);
  desk_.On(event::ImportInitialize{StreamId(9)});
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("is being initialized")));
  for (uint64_t op = 1; op <= facts_.owned.size(); ++op) desk_.On(Done(OpId(op)));
  desk_.On(event::ImportInitialize{StreamId(10)});
  EXPECT_EQ(outbox_.Take().size(), facts_.owned.size());
}

TEST_F(TransferDeskTest, RefusesAnImportThatLacksChunks) {
  facts_.state = v1::JOB_STATE_IMPORTING;
  const std::string all = absl::StrCat(facts_.owned.size());
  desk_.On(event::ImportFinish{kStream, Step(0), Version(0), 0, 0});
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("0 of the " + all +
                                                    " chunks of shard 0; chunk 0 is the first")));
  // Chunks that were written stay; another stream may send the others.
  desk_.On(event::ImportChunk{kStream, facts_.owned[0].id, Version(0), Bytes()});
  desk_.On(Done(OpId(1)));
  outbox_.Take();
  desk_.On(event::ImportFinish{kStream, Step(0), Version(0), 0, 0});
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("1 of the " + all + " chunks")));
  desk_.EndWork(absl::AbortedError("the term is over"));
  desk_.On(event::ImportFinish{kStream, Step(0), Version(0), 0, 0});
  EXPECT_THAT(outbox_.Take(), ElementsAre(HasSubstr("0 of the " + all + " chunks")));
}

TEST_F(TransferDeskTest, RefusesABorderOfAnotherVersion) {
  facts_.state = v1::JOB_STATE_IMPORTING;
  desk_.On(event::ImportInitialize{kStream});
  for (uint64_t op = 1; op <= facts_.owned.size(); ++op) desk_.On(Done(OpId(op)));
  outbox_.Take();
  desk_.On(event::ImportFinish{kStream, Step(2), Version(2), 2, 0});
  EXPECT_THAT(outbox_.Take(),
              ElementsAre(HasSubstr("chunk 0 is at version 0, the border at version 2")));
}

TEST_F(TransferDeskTest, HoldsTheBorderWhileItIsRead) {
  desk_.On(Export(0));
  EXPECT_THAT(outbox_.Take(), ElementsAre("Start 1 ReadState 0 at 0"));
  const auto begun = outbox_.TakeRaised<internal_event::BorderReaders>();
  ASSERT_EQ(begun.size(), 1u);
  EXPECT_EQ(begun[0].count, 1u);
  desk_.On(Done(OpId(1)));
  EXPECT_THAT(outbox_.Take(), ElementsAre(StartsWith("SendState on 7")));
  desk_.On(event::ExportDrained{kStream});
  EXPECT_THAT(outbox_.Take(), ElementsAre("Close 7 {OK}"));
  const auto ended = outbox_.TakeRaised<internal_event::BorderReaders>();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].count, 0u);
}

TEST_F(TransferDeskTest, WaitsUntilNoUpdateIsUnderWay) {
  facts_.open.updates = 1;
  desk_.On(Export(0));
  EXPECT_THAT(outbox_.Take(), IsEmpty());
  v1::StatusReply status;
  WaitPage page(10, &status);
  desk_.Waits(&page);
  EXPECT_EQ(status.waits_size(), 1);
  facts_.open.updates = 0;
  desk_.On(internal_event::StepReady());
  EXPECT_THAT(outbox_.Take(), ElementsAre("Start 1 ReadState 0 at 0"));
}

TEST_F(TransferDeskTest, WaitsForTheStepThatIsAskedFor) {
  desk_.On(Export(0, /*step=*/1));
  EXPECT_THAT(outbox_.Take(), IsEmpty());
  facts_.step = 2;
  desk_.On(internal_event::StepReady());
  EXPECT_THAT(outbox_.Take(), ElementsAre("Start 1 ReadState 0 at 0"));
}

TEST_F(TransferDeskTest, RecoveryEndsAnExportOfAStep) {
  facts_.state = v1::JOB_STATE_RECOVERING;
  desk_.On(Export(0, /*step=*/1));
  EXPECT_THAT(outbox_.Take(), ElementsAre(StartsWith("Close 7 {UNAVAILABLE: ExportState: the job "
                                                     "returns to a cut and waits for its disk")));
  desk_.On(Export(0));
  EXPECT_THAT(outbox_.Take(), IsEmpty()) << "any border will do";
}

TEST_F(TransferDeskTest, AClosedStreamFreesTheBorder) {
  desk_.On(Export(0));
  outbox_.raised.clear();
  desk_.Closed(kStream);
  EXPECT_EQ(outbox_.raised.size(), 2u);
  EXPECT_EQ(outbox_.TakeRaised<internal_event::ExportEnded>().size(), 1u);
  outbox_.Take();
  desk_.On(Done(OpId(1)));  // its export is gone
  EXPECT_THAT(outbox_.Take(), IsEmpty());
}

TEST(WatchDesk, SendsEachRecordOnceAndEnds) {
  SmallJob job;
  ShardFacts facts = job.MakeFacts();
  FakeOutbox outbox;
  WatchDesk desk(&facts, &outbox);
  v1::StepRecord record;
  record.set_step(1);
  desk.On(internal_event::Recorded{record});
  desk.On(event::Watch{kStream, /*after_step=*/1});
  EXPECT_THAT(outbox.Take(), IsEmpty());
  record.set_step(3);
  desk.On(internal_event::Recorded{record});
  EXPECT_THAT(outbox.Take(), ElementsAre(StartsWith("Reply on 7 eps.v1.StepRecord {step: 3")));
  facts.state = v1::JOB_STATE_DONE;
  facts.step = 4;
  desk.On(internal_event::RecordsUpToDate());
  EXPECT_THAT(outbox.Take(), ElementsAre("Close 7 {OK}"));
}

}  // namespace
}  // namespace eps
