// Tests timers, mailboxes and payloads.

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "base/checksum.h"
#include "base/testing/test_specs.h"
#include "eps_server/shell/payload.h"
#include "eps_server/shell/peer_mailbox.h"
#include "eps_server/shell/timer_queue.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using std::chrono::milliseconds;

TEST(TimerQueue, RunsByTimeThenByScheduleOrder) {
  TimerQueue timers;
  const auto done = std::make_shared<std::promise<void>>();
  std::vector<int> order;  // written on the timer thread
  timers.Schedule(milliseconds(30), [&] { order.push_back(3); });
  timers.Schedule(milliseconds(0), [&] { order.push_back(1); });
  timers.Schedule(milliseconds(0), [&] { order.push_back(2); });
  timers.Schedule(milliseconds(31), [done] { done->set_value(); });
  ASSERT_EQ(done->get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
}

TEST(TimerQueue, DoesNotRunCancelledFunctions) {
  TimerQueue timers;
  const auto done = std::make_shared<std::promise<void>>();
  bool ran = false;
  const TimerQueue::Handle handle = timers.Schedule(milliseconds(20), [&] { ran = true; });
  timers.Cancel(handle);
  timers.Cancel(handle);
  timers.Schedule(milliseconds(40), [done] { done->set_value(); });
  ASSERT_EQ(done->get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
  EXPECT_FALSE(ran);
}

TEST(TimerQueue, StopDestroysPendingFunctions) {
  auto held = std::make_shared<int>(1);
  TimerQueue timers;
  timers.Schedule(std::chrono::hours(1), [held] {});
  EXPECT_EQ(held.use_count(), 2);
  timers.Stop();
  EXPECT_EQ(held.use_count(), 1);
  timers.Schedule(milliseconds(0), [held] {});
  EXPECT_EQ(held.use_count(), 1);
}

v1::ShardMessage StatsOf(uint64_t step) {
  v1::ShardMessage message;
  message.mutable_stats()->set_step(step);
  return message;
}

v1::ShardMessage RegisterOf(uint64_t step) {
  v1::ShardMessage message;
  message.mutable_register_()->set_step(step);
  return message;
}

TEST(PeerMailbox, KeepsMessagesAndSendsRegisterFirst) {
  PeerMailbox mailbox;
  mailbox.Send(StatsOf(1));
  mailbox.Send(StatsOf(2));
  mailbox.Send(RegisterOf(7));
  mailbox.Send(StatsOf(2));
  std::vector<v1::ShardMessage> sent;
  const uint64_t ticket = mailbox.Open([&](const v1::ShardMessage& m) { sent.push_back(m); });
  mailbox.Send(StatsOf(3));
  ASSERT_EQ(sent.size(), 5u);
  EXPECT_TRUE(sent[0].has_register_());
  EXPECT_EQ(sent[1].stats().step(), 1u);
  EXPECT_EQ(sent[2].stats().step(), 2u);
  EXPECT_EQ(sent[3].stats().step(), 2u);
  EXPECT_EQ(sent[4].stats().step(), 3u);
  EXPECT_TRUE(mailbox.Close(ticket));
  mailbox.Send(StatsOf(4));
  EXPECT_EQ(sent.size(), 5u) << "the link is closed";
}

TEST(PeerMailbox, OldTicketLeavesTheNewLinkOpen) {
  PeerMailbox mailbox;
  int first = 0;
  int second = 0;
  const uint64_t old_ticket = mailbox.Open([&](const v1::ShardMessage&) { ++first; });
  const uint64_t new_ticket = mailbox.Open([&](const v1::ShardMessage&) { ++second; });
  EXPECT_FALSE(mailbox.Close(old_ticket));
  mailbox.Send(StatsOf(1));
  EXPECT_EQ(first, 0);
  EXPECT_EQ(second, 1);
  EXPECT_TRUE(mailbox.Close(new_ticket));
  EXPECT_FALSE(mailbox.Close(new_ticket)) << "closed twice";
}

TEST(PeerMailbox, DropsTheOldestBeyondItsLimit) {
  PeerMailbox mailbox;
  for (uint64_t step = 0; step < PeerMailbox::kMaxKept + 3; ++step) mailbox.Send(StatsOf(step));
  std::vector<uint64_t> steps;
  mailbox.Open([&](const v1::ShardMessage& m) { steps.push_back(m.stats().step()); });
  ASSERT_EQ(steps.size(), PeerMailbox::kMaxKept);
  EXPECT_EQ(steps.front(), 3u);
}

class CheckPushTest : public ::testing::Test {
 protected:
  CheckPushTest() {
    chunk_.elements = 4;
    Segment segment;
    segment.rows = 1;
    segment.cols = 4;
    chunk_.segments.push_back(segment);
    header_.set_tag(9);
    header_.set_codec(static_cast<uint32_t>(CodecId::kFp32));
    header_.mutable_key()->set_step(1);
    header_.set_bytes(bytes_.size());
    header_.set_crc32c(Crc32c(bytes_));
  }
  Event Check(const std::string& bytes) {
    return CheckPush(StreamId(3), header_, chunk_, codecs_, Bytes::CopyOf(bytes), nullptr);
  }

  const JobSpec spec_ = TinySyntheticSpec();
  const ChunkMap chunks_ = ChunkMap::Build(spec_);
  const CodecTable codecs_ = *CodecTable::Build(spec_, chunks_);
  Chunk chunk_;
  v1::PushHeader header_;
  std::string bytes_ = std::string(16, '\1');
};

TEST_F(CheckPushTest, PassesIntactContributions) {
  const Event first = Check(bytes_);
  ASSERT_TRUE(std::holds_alternative<event::PushReceived>(first));
  const auto& received = std::get<event::PushReceived>(first);
  EXPECT_EQ(received.stream, StreamId(3));
  EXPECT_EQ(received.tag, 9u);
  EXPECT_EQ(received.data->bytes().view(), bytes_);
}

TEST_F(CheckPushTest, DistinguishesRetryableDamage) {
  std::string damaged = bytes_;
  damaged[3] ^= 1;
  Event event = Check(damaged);
  ASSERT_TRUE(std::holds_alternative<event::PushInvalid>(event));
  EXPECT_TRUE(absl::IsDataLoss(std::get<event::PushInvalid>(event).status));
  const std::string nan("\xff\xff\xff\xff\0\0\0\0\0\0\0\0\0\0\0\0", 16);
  header_.set_crc32c(Crc32c(nan));
  event = Check(nan);
  ASSERT_TRUE(std::holds_alternative<event::PushInvalid>(event));
  EXPECT_TRUE(absl::IsInvalidArgument(std::get<event::PushInvalid>(event).status));
}

}  // namespace
}  // namespace eps
