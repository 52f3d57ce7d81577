#include "eps_server/rpc/calls/stream_call.h"

#include <chrono>
#include <future>
#include <string>
#include <vector>

#include "eps/v1/data.pb.h"
#include "eps_server/shell/timer_queue.h"
#include "gtest/gtest.h"
#include "wire/payload_message.h"

namespace eps {
namespace {

grpc::ByteBuffer Text(const std::string& text) {
  grpc::Slice slice(text);
  return grpc::ByteBuffer(&slice, 1);
}

std::string Flat(const grpc::ByteBuffer& buffer) {
  grpc::Slice slice;
  if (buffer.Length() == 0 || !buffer.DumpToSingleSlice(&slice).ok()) return "";
  return std::string(reinterpret_cast<const char*>(slice.begin()), slice.size());
}

// A stream whose transport is the test, which completes each operation explicitly.
class FakeCall final : public StreamCall {
 public:
  void Start() { Adopt(nullptr); }
  using StreamCall::Cancelled;
  using StreamCall::Done;
  using StreamCall::ReadNext;
  using StreamCall::WatchReader;
  using StreamCall::WriteDone;
  void Receive(const std::string& text) {
    *target = Text(text);
    target = nullptr;
    ReadDone(true);
  }
  void HalfClose() {
    target = nullptr;
    ReadDone(false);
  }

  std::vector<std::string> written;
  std::vector<grpc::Status> finished;
  std::vector<std::string> messages;
  std::promise<grpc::Status> cancelled;
  grpc::ByteBuffer* target = nullptr;  // receives the message of the read in flight
  bool writing = false;
  bool read_more = true;
  int half_closes = 0;
  int drains = 0;
  int ends = 0;
  std::function<void()> on_message = [] {};

 protected:
  bool OnMessage(const grpc::ByteBuffer& message) override {
    messages.push_back(Flat(message));
    on_message();
    return read_more;
  }
  void OnHalfClose() override { ++half_closes; }
  void OnDrained() override { ++drains; }
  void OnEnded() override { ++ends; }
  void TransportRead(grpc::ByteBuffer* message) override {
    EXPECT_EQ(target, nullptr) << "a second read in flight";
    target = message;
  }
  void TransportWrite(const grpc::ByteBuffer* message) override {
    EXPECT_FALSE(writing) << "a second write in flight";
    EXPECT_TRUE(finished.empty()) << "a write after finish";
    writing = true;
    written.push_back(Flat(*message));
  }
  void TransportFinish(const grpc::Status& status) override {
    EXPECT_FALSE(writing) << "finished during a write";
    finished.push_back(status);
  }
  void TransportCancel(const grpc::Status& status) override { cancelled.set_value(status); }
  std::string What() const override { return "ExportState of step 7"; }
};

class StreamCallTest : public ::testing::Test {
 protected:
  void SetUp() override { call_->Start(); }
  // A call owns itself until the transport is done with it.
  void TearDown() override {
    if (call_ != nullptr) call_->Done();
  }
  void WriteIsDone(bool ok = true) {
    call_->writing = false;
    call_->WriteDone(ok);
  }
  std::shared_ptr<FakeCall> call_ = std::make_shared<FakeCall>();
};

TEST_F(StreamCallTest, WritesMessagesOneByOneInOrder) {
  call_->Write(Text("a"));
  std::vector<grpc::ByteBuffer> more;
  more.push_back(Text("bb"));
  more.push_back(Text("ccc"));
  call_->Write(std::move(more));
  EXPECT_EQ(call_->written, (std::vector<std::string>{"a"}));
  EXPECT_EQ(call_->queued_bytes(), 6u);
  WriteIsDone();
  WriteIsDone();
  EXPECT_EQ(call_->drains, 0);
  EXPECT_EQ(call_->queued_bytes(), 3u);
  WriteIsDone();
  EXPECT_EQ(call_->written, (std::vector<std::string>{"a", "bb", "ccc"}));
  EXPECT_EQ(call_->drains, 1);
  EXPECT_EQ(call_->queued_bytes(), 0u);
}

TEST_F(StreamCallTest, EndsOnceAfterQueuedMessages) {
  call_->Write(Text("a"));
  call_->Write(Text("b"));
  call_->End(absl::AbortedError("first"));
  call_->End(absl::InternalError("second"));
  call_->Write(Text("too late"));
  EXPECT_EQ(call_->ends, 1);
  WriteIsDone();
  EXPECT_TRUE(call_->finished.empty());
  WriteIsDone();
  ASSERT_EQ(call_->finished.size(), 1u);
  EXPECT_EQ(call_->finished[0].error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(call_->written, (std::vector<std::string>{"a", "b"}));
  call_->Done();
  EXPECT_EQ(call_->ends, 1);
}

TEST_F(StreamCallTest, CancelledCallFinishesAfterItsPendingWrite) {
  call_->Write(Text("a"));
  call_->Write(Text("b"));
  call_->Cancelled();
  EXPECT_EQ(call_->ends, 1);
  EXPECT_TRUE(call_->finished.empty()) << "a write is in flight";
  WriteIsDone(false);
  ASSERT_EQ(call_->finished.size(), 1u);
  EXPECT_EQ(call_->finished[0].error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(call_->written.size(), 1u);
  EXPECT_EQ(call_->queued_bytes(), 0u);
}

TEST_F(StreamCallTest, BrokenWriteEndsTheCall) {
  call_->Write(Text("a"));
  call_->Write(Text("b"));
  WriteIsDone(false);
  EXPECT_EQ(call_->finished.size(), 1u);
  EXPECT_EQ(call_->ends, 1);
  EXPECT_EQ(call_->drains, 0);
}

TEST_F(StreamCallTest, ReadsTheNextMessageOnlyWhenWanted) {
  call_->ReadNext();
  call_->Receive("one");
  ASSERT_NE(call_->target, nullptr) << "more was wanted";
  call_->read_more = false;
  call_->Receive("two");
  EXPECT_EQ(call_->target, nullptr) << "the read is withheld";
  call_->ReadNext();
  call_->ReadNext();
  EXPECT_NE(call_->target, nullptr);
  EXPECT_EQ(call_->messages, (std::vector<std::string>{"one", "two"}));
}

TEST_F(StreamCallTest, HandlesOneMessageAtATime) {
  call_->read_more = false;
  // Another thread may request the next message while this one is handled.
  call_->on_message = [&] {
    call_->ReadNext();
    EXPECT_EQ(call_->target, nullptr);
  };
  call_->ReadNext();
  call_->Receive("one");
  EXPECT_NE(call_->target, nullptr) << "the read starts afterwards";
}

TEST_F(StreamCallTest, ReadsNothingWhileEnding) {
  call_->ReadNext();
  call_->End(absl::InternalError("x"));
  call_->Receive("late");
  EXPECT_TRUE(call_->messages.empty());
  call_->ReadNext();
  EXPECT_EQ(call_->target, nullptr);
}

TEST_F(StreamCallTest, ReportsHalfCloseAndKeepsWriting) {
  call_->ReadNext();
  call_->HalfClose();
  EXPECT_EQ(call_->half_closes, 1);
  call_->ReadNext();
  EXPECT_EQ(call_->target, nullptr);
  call_->Write(Text("a"));
  EXPECT_EQ(call_->written.size(), 1u);
}

TEST_F(StreamCallTest, EndsIfTheClientReadsNothing) {
  TimerQueue timers;
  call_->WatchReader(&timers, std::chrono::milliseconds(1));
  call_->Write(Text("a"));
  call_->Write(Text("b"));
  std::future<grpc::Status> cancelled = call_->cancelled.get_future();
  ASSERT_EQ(cancelled.wait_for(std::chrono::seconds(30)), std::future_status::ready);
  timers.Stop();
  const grpc::Status status = cancelled.get();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_NE(status.error_message().find("ExportState of step 7: the client has read nothing"),
            std::string::npos);
  EXPECT_NE(status.error_message().find("servers.unread_timeout"), std::string::npos);
  EXPECT_EQ(call_->ends, 1);
  EXPECT_EQ(call_->queued_bytes(), 1u) << "only the write in flight is left";
  WriteIsDone(false);
  ASSERT_EQ(call_->finished.size(), 1u);
  EXPECT_EQ(call_->finished[0].error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(call_->written.size(), 1u);
}

TEST_F(StreamCallTest, AnEndedStreamAwaitsItsReaderBriefly) {
  TimerQueue timers;
  call_->WatchReader(&timers, std::chrono::milliseconds(1));
  call_->Write(Text("a"));
  call_->End(absl::OkStatus());
  std::future<grpc::Status> cancelled = call_->cancelled.get_future();
  ASSERT_EQ(cancelled.wait_for(std::chrono::seconds(30)), std::future_status::ready);
  timers.Stop();
  WriteIsDone(false);
  EXPECT_EQ(call_->finished.size(), 1u);
}

TEST_F(StreamCallTest, LivesUntilTheTransportIsDone) {
  std::weak_ptr<FakeCall> weak = call_;
  FakeCall* raw = call_.get();
  call_.reset();
  EXPECT_FALSE(weak.expired());
  raw->End(absl::OkStatus());
  EXPECT_FALSE(weak.expired());
  raw->Done();
  EXPECT_TRUE(weak.expired());
}

TEST(ParseMessage, RefusesUnexpectedPayloads) {
  v1::FetchSlice with_payload;
  with_payload.set_data("x");
  v1::FetchRequest request;
  EXPECT_FALSE(ParseMessage(Text(with_payload.SerializeAsString()), &request).ok());
  EXPECT_TRUE(ParseMessage(grpc::ByteBuffer(), &request).ok());
}

}  // namespace
}  // namespace eps
