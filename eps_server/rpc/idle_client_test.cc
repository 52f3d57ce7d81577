// Clients that hold what others wait for: a credit that they do not use, and answers that they do
// not read. In each case the step of an honest worker still ends.

#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "base/job/layout/chunk_map.h"
#include "base/testing/test_specs.h"
#include "eps_server/rpc/testing/honest_worker.h"
#include "eps_server/rpc/testing/hostile_client.h"
#include "eps_server/rpc/testing/test_client.h"
#include "eps_server/server.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

constexpr size_t kSlice = size_t{1} << 20;
constexpr std::chrono::seconds kNever{3600};
constexpr uint64_t kNonce = 99;

// A Push stream of a client that writes what it likes.
class Pushes {
 public:
  Pushes(TestClient* client, const JobSpec& spec)
      : spec_(spec), context_(NewContext()), stream_(client->data().Push(context_.get())) {}

  void Offer(uint64_t tag, ChunkId chunk, const std::string& payload) {
    EXPECT_TRUE(
        stream_->Write(HeaderFrame(spec_, tag, 1, StageId(0), PartId(0), chunk, payload, kNonce)));
  }
  void Send(const v1::PushFrame& frame) { EXPECT_TRUE(stream_->Write(frame)); }
  v1::PushReply Next() {
    v1::PushReply reply;
    EXPECT_TRUE(stream_->Read(&reply)) << stream_->Finish().error_message();
    return reply;
  }

 private:
  const JobSpec& spec_;
  const std::unique_ptr<grpc::ClientContext> context_;
  const std::unique_ptr<TestClient::PushStream> stream_;
};

TEST(UnusedCredit, DelaysAnHonestWorkerBriefly) {
  const auto server = StartImpatientServer(std::chrono::seconds(2), kNever);
  const JobSpec spec = TinySyntheticSpec();
  HonestWorker worker({server->address()}, spec);
  TestClient stranger(server->address());
  ASSERT_TRUE(stranger.BeginStep(spec, 1).ok());
  const ChunkMap chunks = ChunkMap::Build(spec);
  const ChunkId chunk = chunks.ChunksOfStage(StageId(0))[0];
  Pushes pushes(&stranger, spec);
  pushes.Offer(1, chunk, Fp32Payload(chunks.chunk(chunk).elements, 0.5f));
  ASSERT_TRUE(pushes.Next().has_credit());
  const absl::Status status = worker.Step();
  EXPECT_TRUE(status.ok()) << status;
  const v1::PushReply reply = pushes.Next();
  EXPECT_EQ(reply.ack().outcome(), v1::Ack::REFUSED);
  EXPECT_NE(reply.ack().message().find("servers.push_timeout"), std::string::npos)
      << reply.ack().message();
  EXPECT_GT(reply.ack().retry_after_ms(), 0u);
  EXPECT_EQ(stranger.Counter("credits_taken_back"), 1u);
}

TEST(UnusedCredit, FreesTheMemoryOfALatePayload) {
  const auto server = StartImpatientServer(std::chrono::seconds(2), kNever);
  const JobSpec spec = BigChunkSpec();
  TestClient client(server->address());
  ASSERT_TRUE(client.CreateJob(spec, {server->address()}).ok());
  ASSERT_TRUE(client.Initialize(spec).ok());
  ASSERT_TRUE(client.BeginStep(spec, 1).ok());
  const ChunkMap chunks = ChunkMap::Build(spec);
  const ChunkId chunk = chunks.ChunksOfStage(StageId(0))[0];
  const std::string payload = Fp32Payload(chunks.chunk(chunk).elements, 1.0f);
  Pushes pushes(&client, spec);
  pushes.Offer(1, chunk, payload);
  ASSERT_TRUE(pushes.Next().has_credit());
  const std::vector<v1::PushFrame> frames = PayloadFrames(1, payload, kSlice);
  ASSERT_GT(frames.size(), 2u);
  pushes.Send(frames[0]);
  ASSERT_EQ(pushes.Next().ack().outcome(), v1::Ack::REFUSED);
  EXPECT_EQ(client.LiveBytes("contribution"), 0u);
  // The rest comes late: it counts for nothing, and the stream goes on.
  for (size_t i = 1; i < frames.size(); ++i) pushes.Send(frames[i]);
  v1::PushReply reply;
  uint64_t tag = 1;
  while (reply.ack().outcome() != v1::Ack::ACCEPTED && tag < 20) {
    pushes.Offer(++tag, chunk, payload);
    ASSERT_TRUE(pushes.Next().has_credit());
    for (const v1::PushFrame& frame : PayloadFrames(tag, payload, kSlice)) pushes.Send(frame);
    reply = pushes.Next();  // refused if this machine needs longer than the time-out
  }
  EXPECT_EQ(reply.ack().outcome(), v1::Ack::ACCEPTED) << reply.ack().message();
  EXPECT_EQ(client.Counter("accepted"), 1u);
  EXPECT_EQ(client.Counter("streams_refused"), 0u);
}

TEST(DamagedPayloads, AreRefusedForGoodTheThirdTime) {
  const auto server = StartTestServer();
  const JobSpec spec = BigChunkSpec();
  TestClient client(server->address());
  ASSERT_TRUE(client.CreateJob(spec, {server->address()}).ok());
  ASSERT_TRUE(client.Initialize(spec).ok());
  ASSERT_TRUE(client.BeginStep(spec, 1).ok());
  const ChunkMap chunks = ChunkMap::Build(spec);
  const ChunkId chunk = chunks.ChunksOfStage(StageId(0))[0];
  const std::string payload = Fp32Payload(chunks.chunk(chunk).elements, 1.0f);
  std::string damaged = payload;
  damaged[12345] ^= 1;
  Pushes pushes(&client, spec);
  for (uint64_t tag = 1; tag <= 3; ++tag) {
    pushes.Offer(tag, chunk, payload);
    ASSERT_TRUE(pushes.Next().has_credit());
    for (const v1::PushFrame& frame : PayloadFrames(tag, damaged, kSlice)) pushes.Send(frame);
    const v1::PushReply reply = pushes.Next();
    EXPECT_EQ(reply.ack().outcome(), v1::Ack::REFUSED);
    EXPECT_EQ(reply.ack().retry_after_ms() == 0, tag == 3) << reply.ack().message();
  }
}

TEST(UnreadExport, HoldsUpdatesBackBriefly) {
  const auto server = StartImpatientServer(kNever, std::chrono::seconds(2));
  HonestWorker worker({server->address()}, BigChunkSpec());
  absl::Status status = worker.Step();
  ASSERT_TRUE(status.ok()) << status;
  TestClient stranger(server->address());
  v1::ExportStateRequest request;
  request.set_job_id(BigChunkSpec().id().value());
  request.set_step(1);
  auto context = NewContext();
  auto reader = stranger.control().ExportState(context.get(), request);
  v1::ExportStateReply reply;
  ASSERT_TRUE(reader->Read(&reply)) << "the export has begun; nothing more is read";
  status = worker.Step();
  EXPECT_TRUE(status.ok()) << status;
  while (reader->Read(&reply)) {
  }
  const grpc::Status ended = reader->Finish();
  EXPECT_EQ(ended.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << ended.error_message();
  EXPECT_NE(ended.error_message().find("ExportState of step 1: the client has read nothing"),
            std::string::npos)
      << ended.error_message();
  EXPECT_NE(ended.error_message().find("servers.unread_timeout"), std::string::npos);
  EXPECT_EQ(stranger.Counter("streams_unread"), 1u);
}

TEST(UnreadFetch, EndsAndHarmsNobody) {
  const auto server = StartImpatientServer(kNever, std::chrono::seconds(2));
  HonestWorker worker({server->address()}, BigChunkSpec());
  TestClient stranger(server->address());
  auto context = NewContext();
  auto stream = stranger.data().Fetch(context.get());
  v1::FetchRequest request;
  request.set_job_id(BigChunkSpec().id().value());
  request.set_term(1);
  for (uint64_t tag = 1; tag <= 8; ++tag) {
    request.set_tag(tag);
    ASSERT_TRUE(stream->Write(request));
  }
  EXPECT_TRUE(stranger.WaitForStatus([](const v1::StatusReply& s) {
    const auto found = s.counters().find("streams_unread");
    return found != s.counters().end() && found->second == 1;
  }));
  v1::FetchSlice slice;
  while (stream->Read(&slice)) {
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  const absl::Status status = worker.Step();
  EXPECT_TRUE(status.ok()) << status;
}

TEST(UnreadReplies, StopTheReadingOfHeaders) {
  constexpr uint64_t kHeaders = 300'000;
  const auto server = StartTestServer();
  const JobSpec spec = BigChunkSpec();
  TestClient client(server->address());
  ASSERT_TRUE(client.CreateJob(spec, {server->address()}).ok());
  ASSERT_TRUE(client.Initialize(spec).ok());
  ASSERT_TRUE(client.BeginStep(spec, 1).ok());
  const ChunkMap chunks = ChunkMap::Build(spec);
  const ChunkId chunk = chunks.ChunksOfStage(StageId(0))[0];
  {
    // A job that failed refuses every header with a long reason.
    const std::string huge = Fp32Payload(chunks.chunk(chunk).elements, 2e15f);
    Pushes pushes(&client, spec);
    pushes.Offer(1, chunk, huge);
    ASSERT_TRUE(pushes.Next().has_credit());
    for (const v1::PushFrame& frame : PayloadFrames(1, huge, kSlice)) pushes.Send(frame);
    ASSERT_GT(pushes.Next().ack().message().size(), 300u);
  }
  auto context = NewContext(std::chrono::minutes(5));
  const auto stream = client.data().Push(context.get());
  v1::PushFrame frame = HeaderFrame(spec, 0, 1, StageId(0), PartId(0), chunk, "", kNonce);
  auto writer = std::async(std::launch::async, [&] {
    uint64_t tag = 0;
    do {
      frame.mutable_header()->set_tag(++tag);
    } while (tag < kHeaders && stream->Write(frame));
  });
  // Nothing reads the replies: after some time the server refuses no more.
  uint64_t refused = 0;
  for (int unchanged = 0; unchanged < 300 && refused < kHeaders;) {
    const uint64_t before = refused;
    refused = client.Counter("refused");
    unchanged = refused == before && refused > 1 ? unchanged + 1 : 0;
  }
  EXPECT_GT(refused, 1u);
  EXPECT_LT(refused, kHeaders) << "the server kept reading headers of a client that reads nothing";
  context->TryCancel();
  writer.get();
}

TEST(Fetch, ComputesOneCrcPerEncodedCopy) {
  constexpr uint32_t kWorkers = 3;
  const auto server = StartTestServer();
  JobSpec spec = BigChunkSpec();
  spec.training.parts = kWorkers;
  TestClient client(server->address());
  ASSERT_TRUE(client.CreateJob(spec, {server->address()}).ok());
  ASSERT_TRUE(client.Initialize(spec).ok());
  const ChunkMap chunks = ChunkMap::Build(spec);
  const uint64_t stage_chunks = chunks.ChunksOfStage(StageId(0)).size();
  v1::FetchRequest request;
  request.set_tag(1);
  request.set_job_id(spec.id().value());
  request.set_term(1);
  for (uint32_t i = 0; i < kWorkers; ++i) {
    auto context = NewContext();
    auto stream = client.data().Fetch(context.get());
    ASSERT_TRUE(stream->Write(request));
    ASSERT_TRUE(stream->WritesDone());
    v1::FetchSlice slice;
    uint64_t received = 0;
    while (stream->Read(&slice)) received += slice.last() ? 1 : 0;
    EXPECT_EQ(received, stage_chunks);
  }
  EXPECT_EQ(client.Counter("fetch_crcs"), stage_chunks);
  EXPECT_EQ(client.Counter("fetched_bytes"),
            kWorkers * chunks.StageElements(StageId(0)) * sizeof(float));
}

}  // namespace
}  // namespace eps
