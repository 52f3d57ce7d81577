#include <future>
#include <map>
#include <string>

#include "base/checksum.h"
#include "base/job/initial_values.h"
#include "base/job/layout/chunk_map.h"
#include "base/memory_account.h"
#include "base/testing/test_specs.h"
#include "eps_server/rpc/testing/test_client.h"
#include "gtest/gtest.h"
#include "wire/grpc_status.h"

namespace eps {
namespace {

constexpr size_t kSlice = size_t{2} << 20;

class DataRpc : public ::testing::Test {
 protected:
  void Open(const JobSpec& spec) {
    spec_ = spec;
    chunks_ = ChunkMap::Build(spec_);
    ASSERT_TRUE(client_.CreateJob(spec_, {server_->address()}).ok());
    ASSERT_TRUE(client_.Initialize(spec_).ok());
    ASSERT_TRUE(client_.BeginStep(spec_, 1).ok());
  }

  // The big tensor of the first stage, and its payload.
  ChunkId FirstChunk() const { return chunks_.ChunksOfStage(StageId(0))[0]; }
  std::string Payload(ChunkId chunk, float value) const {
    return Fp32Payload(chunks_.chunk(chunk).elements, value);
  }

  v1::PushReply Next(TestClient::PushStream* stream) {
    v1::PushReply reply;
    EXPECT_TRUE(stream->Read(&reply));
    return reply;
  }

  std::unique_ptr<Server> server_ = StartTestServer();
  TestClient client_{server_->address()};
  JobSpec spec_;
  ChunkMap chunks_;
};

TEST_F(DataRpc, FetchSendsInitialWeightsWithTheirChecksum) {
  Open(BigChunkSpec());
  auto context = NewContext();
  auto stream = client_.data().Fetch(context.get());
  v1::FetchRequest request;
  request.set_tag(77);
  request.set_job_id(spec_.id().value());
  request.set_term(1);
  request.set_stage(0);
  request.set_version(0);
  request.set_pass(v1::PASS_FORWARD);
  ASSERT_TRUE(stream->Write(request));
  ASSERT_TRUE(stream->WritesDone());  // the stream ends with the last answer
  std::map<uint32_t, std::string> got;
  int slices = 0;
  v1::FetchSlice slice;
  while (stream->Read(&slice)) {
    ++slices;
    EXPECT_EQ(slice.tag(), 77u);
    EXPECT_EQ(slice.code(), 0u) << slice.message();
    EXPECT_LE(slice.data().size(), kSlice);
    std::string& chunk = got[slice.chunk()];
    EXPECT_EQ(slice.offset(), chunk.size());
    chunk += slice.data();
    EXPECT_EQ(slice.last(), chunk.size() == slice.total_bytes());
    if (slice.last()) {
      EXPECT_EQ(slice.crc32c(), Crc32c(chunk));
    }
  }
  const grpc::Status status = stream->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_GT(slices, static_cast<int>(got.size())) << "no chunk was longer than a slice";
  ASSERT_EQ(got.size(), chunks_.ChunksOfStage(StageId(0)).size());
  const Segment& segment = chunks_.chunk(FirstChunk()).segments[0];
  std::vector<float> initial(segment.elements());
  FillInitialValues(spec_, segment.tensor, segment.tensor_offset, absl::MakeSpan(initial));
  EXPECT_EQ(got[FirstChunk().value()],
            std::string(reinterpret_cast<const char*>(initial.data()), initial.size() * 4));
  // Only copies of this stage, for workers that have not fetched it yet, and of the next stage
  // remain.
  const uint64_t copies =
      4 * (chunks_.StageElements(StageId(0)) + chunks_.StageElements(StageId(1)));
  EXPECT_TRUE(client_.WaitForStatus([copies](const v1::StatusReply& s) {
    return s.memory(static_cast<int>(MemoryKind::kFetch)).live_bytes() <= copies;
  }));
}

TEST_F(DataRpc, FetchRefusesOneRequestAndContinues) {
  Open(TinySyntheticSpec());
  auto context = NewContext();
  auto stream = client_.data().Fetch(context.get());
  v1::FetchRequest request;
  request.set_tag(1);
  request.set_job_id(spec_.id().value());
  request.set_term(1);
  request.set_stage(99);
  ASSERT_TRUE(stream->Write(request));
  v1::FetchSlice slice;
  ASSERT_TRUE(stream->Read(&slice));
  EXPECT_EQ(slice.tag(), 1u);
  EXPECT_EQ(slice.code(), static_cast<uint32_t>(grpc::StatusCode::INVALID_ARGUMENT));
  EXPECT_NE(slice.message().find("stage 99"), std::string::npos);
  request.set_tag(2);
  request.set_stage(0);
  ASSERT_TRUE(stream->Write(request));
  ASSERT_TRUE(stream->Read(&slice));
  EXPECT_EQ(slice.tag(), 2u);
  EXPECT_EQ(slice.code(), 0u);
}

TEST_F(DataRpc, MalformedFetchEndsTheStream) {
  Open(TinySyntheticSpec());
  auto context = NewContext();
  // A message of another type with incompatible fields.
  auto stream = client_.data().Fetch(context.get());
  v1::FetchRequest request;
  request.GetReflection()->MutableUnknownFields(&request)->AddLengthDelimited(15, "payload");
  ASSERT_TRUE(stream->Write(request));
  v1::FetchSlice slice;
  EXPECT_FALSE(stream->Read(&slice));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(DataRpc, StalledReadersUseBoundedMemory) {
  Open(BigChunkSpec());
  auto context = NewContext();
  auto stream = client_.data().Fetch(context.get());
  constexpr uint64_t kRequests = 40;  // each answered with more than 4 MiB
  constexpr int kPolls = 200;
  const uint64_t stage_bytes = chunks_.StageElements(StageId(0)) * sizeof(float);
  v1::FetchRequest request;
  request.set_job_id(spec_.id().value());
  request.set_term(1);
  uint64_t sent = 0;
  bool served = true;
  while (sent < kRequests && served) {
    request.set_tag(++sent);
    ASSERT_TRUE(stream->Write(request));
    served = false;
    for (int poll = 0; poll < kPolls && !served; ++poll) {
      served = client_.Counter("fetched_bytes") >= sent * stage_bytes;
    }
  }
  EXPECT_LT(sent, kRequests)
      << "the server kept reading requests of a client that reads no answers";
  v1::StatusReply status;
  ASSERT_TRUE(client_.Status(&status).ok());
  EXPECT_LT(status.memory(static_cast<int>(MemoryKind::kFetch)).peak_bytes(), uint64_t{60} << 20);
  // No answer is lost.
  stream->WritesDone();
  uint64_t chunks = 0;
  v1::FetchSlice slice;
  while (stream->Read(&slice)) {
    EXPECT_EQ(slice.code(), 0u) << slice.message();
    chunks += slice.last() ? 1 : 0;
  }
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(chunks, sent * chunks_.ChunksOfStage(StageId(0)).size());
}

TEST_F(DataRpc, APushIsCountedOnce) {
  Open(BigChunkSpec());
  const std::string payload = Payload(FirstChunk(), 1.0f);
  auto context = NewContext();
  auto stream = client_.data().Push(context.get());
  const auto push = [&](uint64_t tag, const std::string& bytes, uint64_t nonce) {
    EXPECT_TRUE(stream->Write(
        HeaderFrame(spec_, tag, 1, StageId(0), PartId(0), FirstChunk(), bytes, nonce)));
    v1::PushReply reply = Next(stream.get());
    EXPECT_EQ(reply.tag(), tag);
    if (!reply.has_credit()) return reply.ack().outcome();
    for (const v1::PushFrame& frame : PayloadFrames(tag, bytes, kSlice)) {
      EXPECT_TRUE(stream->Write(frame));
    }
    reply = Next(stream.get());
    EXPECT_EQ(reply.tag(), tag);
    EXPECT_TRUE(reply.has_ack());
    return reply.ack().outcome();
  };
  EXPECT_EQ(push(1, payload, 11), v1::Ack::ACCEPTED);
  EXPECT_EQ(push(2, payload, 11), v1::Ack::DUPLICATE);
  EXPECT_EQ(push(3, payload, 12), v1::Ack::DUPLICATE) << "another process";
  EXPECT_EQ(push(4, Payload(FirstChunk(), 2.0f), 11), v1::Ack::CONFLICT);
  EXPECT_EQ(push(5, Payload(FirstChunk(), 2.0f), 12), v1::Ack::DUPLICATE);
  stream->WritesDone();
  v1::PushReply none;
  EXPECT_FALSE(stream->Read(&none));
  EXPECT_TRUE(stream->Finish().ok())
      << "all pushes were answered before the client closed its side";
  EXPECT_EQ(client_.Counter("accepted"), 1u);
}

TEST_F(DataRpc, PayloadWithoutCreditClosesTheStream) {
  Open(BigChunkSpec());
  const std::string payload = Payload(FirstChunk(), 1.0f);
  // A header that is never credited: its step is not open, so it is refused.
  const struct {
    const char* what;
    std::vector<v1::PushFrame> frames;
  } cases[] = {
      {"no header", {PayloadFrames(1, payload, kSlice)[0]}},
      {"another tag",
       {HeaderFrame(spec_, 1, 1, StageId(0), PartId(0), FirstChunk(), payload, 5),
        PayloadFrames(2, payload, kSlice)[0]}},
      {"header and payload in one frame",
       [&] {
         v1::PushFrame frame =
             HeaderFrame(spec_, 1, 1, StageId(0), PartId(0), FirstChunk(), payload, 5);
         frame.set_data("x");
         return std::vector<v1::PushFrame>{frame};
       }()},
  };
  uint64_t refused = 0;
  for (const auto& c : cases) {
    auto context = NewContext();
    auto stream = client_.data().Push(context.get());
    for (const v1::PushFrame& frame : c.frames) stream->Write(frame);
    v1::PushReply reply;
    while (stream->Read(&reply)) {
    }
    const grpc::Status status = stream->Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << c.what;
    EXPECT_EQ(client_.Counter("streams_refused"), ++refused) << c.what;
  }
  EXPECT_EQ(client_.Counter("accepted"), 0u);
  EXPECT_TRUE(client_.WaitForStatus([](const v1::StatusReply& s) {
    return s.memory(static_cast<int>(MemoryKind::kContribution)).live_bytes() == 0;
  }));
}

TEST_F(DataRpc, SlicesOutOfOrderCloseTheStream) {
  Open(BigChunkSpec());
  const std::string payload = Payload(FirstChunk(), 1.0f);
  auto frames = PayloadFrames(1, payload, size_t{1} << 20);
  std::vector<v1::PushFrame> gap = {frames[0], frames[2]};
  std::vector<v1::PushFrame> twice = {frames[0], frames[0]};
  std::vector<v1::PushFrame> early = {frames[0]};
  early[0].set_last(true);
  std::vector<v1::PushFrame> beyond = frames;
  beyond.back().set_data(beyond.back().data() + "x");
  for (const auto& sent : {gap, twice, early, beyond}) {
    auto context = NewContext();
    auto stream = client_.data().Push(context.get());
    ASSERT_TRUE(
        stream->Write(HeaderFrame(spec_, 1, 1, StageId(0), PartId(0), FirstChunk(), payload, 5)));
    ASSERT_TRUE(Next(stream.get()).has_credit());
    for (const v1::PushFrame& frame : sent) stream->Write(frame);
    v1::PushReply reply;
    EXPECT_FALSE(stream->Read(&reply));
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  }
  EXPECT_EQ(client_.Counter("accepted"), 0u);
}

TEST_F(DataRpc, DamagedPayloadIsRefusedAndNotCounted) {
  Open(BigChunkSpec());
  const std::string payload = Payload(FirstChunk(), 1.0f);
  auto context = NewContext();
  auto stream = client_.data().Push(context.get());
  // One bit differs from what the header's CRC says.
  std::string damaged = payload;
  damaged[12345] ^= 1;
  ASSERT_TRUE(
      stream->Write(HeaderFrame(spec_, 1, 1, StageId(0), PartId(0), FirstChunk(), payload, 5)));
  ASSERT_TRUE(Next(stream.get()).has_credit());
  for (const auto& frame : PayloadFrames(1, damaged, kSlice)) stream->Write(frame);
  v1::PushReply reply = Next(stream.get());
  EXPECT_EQ(reply.ack().outcome(), v1::Ack::REFUSED);
  EXPECT_NE(reply.ack().message().find("CRC32C"), std::string::npos) << reply.ack().message();
  EXPECT_GT(reply.ack().retry_after_ms(), 0u) << "the client should retry";
  EXPECT_EQ(client_.Counter("accepted"), 0u);
  EXPECT_EQ(client_.Counter("payloads_refused"), 1u);
  // The stream stays open and accepts the contribution when it is sent again.
  ASSERT_TRUE(
      stream->Write(HeaderFrame(spec_, 3, 1, StageId(0), PartId(0), FirstChunk(), payload, 5)));
  ASSERT_TRUE(Next(stream.get()).has_credit());
  for (const auto& frame : PayloadFrames(3, payload, kSlice)) stream->Write(frame);
  EXPECT_EQ(Next(stream.get()).ack().outcome(), v1::Ack::ACCEPTED);
}

// Pushes a gradient with values that are too large to sum. training.nonfinite decides what follows.
class DataRpcNonfinite : public DataRpc, public testing::WithParamInterface<Nonfinite> {};

TEST_P(DataRpcNonfinite, InadmissiblePayloadFollowsThePolicy) {
  const bool skips = GetParam() == Nonfinite::kSkip;
  JobSpec spec = BigChunkSpec();
  spec.training.mode = Mode::kSealed;
  spec.training.nonfinite = GetParam();
  Open(spec);
  const std::string huge = Payload(FirstChunk(), 2e15f);
  auto context = NewContext();
  auto stream = client_.data().Push(context.get());
  ASSERT_TRUE(
      stream->Write(HeaderFrame(spec_, 1, 1, StageId(0), PartId(0), FirstChunk(), huge, 5)));
  ASSERT_TRUE(Next(stream.get()).has_credit());
  for (const auto& frame : PayloadFrames(1, huge, kSlice)) stream->Write(frame);
  const v1::PushReply reply = Next(stream.get());
  EXPECT_EQ(reply.ack().outcome(), skips ? v1::Ack::ACCEPTED : v1::Ack::REFUSED);
  EXPECT_EQ(reply.ack().retry_after_ms(), 0u) << "a retry would not help";
  EXPECT_EQ(client_.Counter("payloads_refused"), 1u);
  EXPECT_EQ(client_.Counter("accepted"), skips ? 1u : 0u);
  EXPECT_EQ(client_.LiveBytes("contribution"), 0u);
  v1::StatusReply status;
  ASSERT_TRUE(client_.Status(&status).ok());
  EXPECT_EQ(status.state(), skips ? v1::JOB_STATE_RUNNING : v1::JOB_STATE_FAILED);
  EXPECT_EQ(status.failure().find("is not finite") != std::string::npos, !skips)
      << status.failure();
}

INSTANTIATE_TEST_SUITE_P(Policies, DataRpcNonfinite,
                         testing::Values(Nonfinite::kHalt, Nonfinite::kSkip),
                         [](const testing::TestParamInfo<Nonfinite>& info) {
                           return std::string(NameOf(info.param));
                         });

TEST_F(DataRpc, TruncatedPushFreesMemoryAndIsRepeatable) {
  Open(BigChunkSpec());
  const std::string payload = Payload(FirstChunk(), 1.0f);
  auto context = NewContext();
  auto stream = client_.data().Push(context.get());
  ASSERT_TRUE(
      stream->Write(HeaderFrame(spec_, 1, 1, StageId(0), PartId(0), FirstChunk(), payload, 5)));
  ASSERT_TRUE(Next(stream.get()).has_credit());
  stream->Write(PayloadFrames(1, payload, kSlice)[0]);
  EXPECT_EQ(client_.LiveBytes("contribution"), payload.size());
  context->TryCancel();
  EXPECT_FALSE(stream->Finish().ok());
  EXPECT_TRUE(client_.WaitForStatus([](const v1::StatusReply& s) {
    return s.memory(static_cast<int>(MemoryKind::kContribution)).live_bytes() == 0;
  }));
  auto context2 = NewContext();
  auto stream2 = client_.data().Push(context2.get());
  ASSERT_TRUE(
      stream2->Write(HeaderFrame(spec_, 1, 1, StageId(0), PartId(0), FirstChunk(), payload, 5)));
  ASSERT_TRUE(Next(stream2.get()).has_credit());
  for (const auto& frame : PayloadFrames(1, payload, kSlice)) stream2->Write(frame);
  EXPECT_EQ(Next(stream2.get()).ack().outcome(), v1::Ack::ACCEPTED);
}

TEST_F(DataRpc, DepartedClientLeavesNoWait) {
  spec_ = TinySyntheticSpec();
  ASSERT_TRUE(client_.CreateJob(spec_, {server_->address()}).ok());
  v1::BeginStepRequest request;
  request.set_job_id(spec_.id().value());
  request.set_term(1);
  request.set_step(1);
  request.add_parts(0);
  v1::BeginStepReply reply;
  const grpc::Status status =
      client_.data().BeginStep(NewContext(std::chrono::milliseconds(200)).get(), request, &reply);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(client_.WaitForStatus([](const v1::StatusReply& s) { return s.waits_size() == 0; }));
}

// ---------------------------------------------------------------- several servers

// Pushes the gradient `value` for every part and use of the chunks of one shard.
void PushAll(TestClient* client, const JobSpec& spec, const ChunkMap& chunks, ShardId shard,
             uint32_t shards, uint64_t step, float value) {
  const std::vector<ShardId> placement = chunks.Place(shards);
  auto context = NewContext();
  auto stream = client->data().Push(context.get());
  std::map<uint64_t, std::string> payloads;
  uint64_t tag = 0;
  for (uint32_t stage = 0; stage < spec.stages.size(); ++stage) {
    for (ChunkId chunk : chunks.ChunksOfStage(StageId(stage))) {
      if (placement[chunk.value()] != shard) continue;
      for (uint32_t part = 0; part < spec.training.parts; ++part) {
        payloads[++tag] = Fp32Payload(chunks.chunk(chunk).elements, value);
        ASSERT_TRUE(stream->Write(
            HeaderFrame(spec, tag, step, StageId(stage), PartId(part), chunk, payloads[tag], 1)));
      }
    }
  }
  size_t acks = 0;
  v1::PushReply reply;
  while (acks < payloads.size() && stream->Read(&reply)) {
    if (reply.has_credit()) {
      for (const v1::PushFrame& frame : PayloadFrames(reply.tag(), payloads[reply.tag()], kSlice)) {
        ASSERT_TRUE(stream->Write(frame));
      }
    } else {
      EXPECT_EQ(reply.ack().outcome(), v1::Ack::ACCEPTED) << reply.ack().message();
      ++acks;
    }
  }
  EXPECT_EQ(acks, payloads.size());
  stream->WritesDone();
  const grpc::Status status = stream->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST(ParkedCalls, BlockNoOtherCalls) {
  const auto server = StartTestServer();
  TestClient client(server->address());
  const JobSpec spec = TinySyntheticSpec();
  const ChunkMap chunks = ChunkMap::Build(spec);
  ASSERT_TRUE(client.CreateJob(spec, {server->address()}).ok());
  ASSERT_TRUE(client.Initialize(spec).ok());
  ASSERT_TRUE(client.BeginStep(spec, 1).ok());
  // The next step and its weights wait for the gradients of this one. These calls outnumber the
  // threads of the callback API, of which there may be only two.
  constexpr int kParked = 3;
  std::vector<std::future<absl::Status>> begins;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<TestClient::FetchStream>> fetches;
  for (int i = 0; i < kParked; ++i) {
    begins.push_back(std::async(std::launch::async,
                                [&] { return TestClient(server->address()).BeginStep(spec, 2); }));
    contexts.push_back(NewContext());
    fetches.push_back(client.data().Fetch(contexts.back().get()));
    v1::FetchRequest request;
    request.set_job_id(spec.id().value());
    request.set_term(1);
    request.set_version(1);
    ASSERT_TRUE(fetches.back()->Write(request));
  }
  ASSERT_TRUE(client.WaitForStatus([](const v1::StatusReply& s) {
    int parked_begins = 0;
    for (const v1::Wait& wait : s.waits()) parked_begins += wait.what().find("BeginStep") == 0;
    return parked_begins == kParked && s.waits_size() >= 2 * kParked;
  })) << "the calls wait while the server answers others";
  PushAll(&client, spec, chunks, ShardId(0), 1, 1, 0.5f);
  for (auto& begin : begins) {
    const absl::Status status = begin.get();
    EXPECT_TRUE(status.ok()) << status;
  }
  for (auto& fetch : fetches) {
    v1::FetchSlice slice;
    ASSERT_TRUE(fetch->Read(&slice));
    EXPECT_EQ(slice.code(), 0u) << slice.message();
    EXPECT_EQ(slice.version(), 1u);
  }
}

TEST(ThreeServers, CompleteStepsTogether) {
  JobSpec spec = TinySyntheticSpec();
  spec.training.steps = 3;
  const ChunkMap chunks = ChunkMap::Build(spec);
  std::vector<std::unique_ptr<Server>> servers;
  std::vector<std::string> addresses;
  std::vector<std::unique_ptr<TestClient>> clients;
  for (int s = 0; s < 3; ++s) {
    servers.push_back(StartTestServer());
    addresses.push_back(servers.back()->address());
    clients.push_back(std::make_unique<TestClient>(addresses.back()));
  }
  const absl::Status created = clients[0]->CreateJob(spec, addresses);
  ASSERT_TRUE(created.ok()) << created;
  auto watch_context = NewContext();
  v1::WatchStepsRequest watch_request;
  watch_request.set_job_id(spec.id().value());
  auto watch = clients[0]->control().WatchSteps(watch_context.get(), watch_request);
  for (auto& client : clients) {
    const absl::Status status = client->Initialize(spec);
    ASSERT_TRUE(status.ok()) << status;
  }
  std::vector<v1::PartLoss> losses;
  for (uint64_t step = 1; step <= spec.training.steps + 1; ++step) {
    for (auto& client : clients) {
      v1::BeginStepReply reply;
      const absl::Status status = client->BeginStep(spec, step, &reply, losses);
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_EQ(reply.done(), step > spec.training.steps);
      if (!reply.done()) {
        EXPECT_EQ(reply.version(), step - 1);
      }
    }
    if (step > spec.training.steps) break;
    for (uint32_t s = 0; s < 3; ++s) {
      PushAll(clients[s].get(), spec, chunks, ShardId(s), 3, step, 0.5f);
    }
    losses.clear();
    for (uint32_t part = 0; part < spec.training.parts; ++part) {
      v1::PartLoss loss;
      loss.set_part(part);
      loss.set_step(step);
      loss.set_loss_sum(10.0 * static_cast<double>(step));
      loss.set_tokens(100);
      losses.push_back(loss);
    }
  }
  v1::StepRecord record;
  for (uint64_t step = 1; step <= spec.training.steps; ++step) {
    ASSERT_TRUE(watch->Read(&record));
    EXPECT_EQ(record.step(), step);
    EXPECT_DOUBLE_EQ(record.loss(), 0.1 * static_cast<double>(step));
    EXPECT_GT(record.grad_norm(), 0.0);
  }
  EXPECT_FALSE(watch->Read(&record)) << "the watch ends with the job";
  EXPECT_TRUE(watch->Finish().ok());
  for (auto& server : servers) server->Shutdown(std::chrono::milliseconds(200));
}

TEST(TwoServers, RefuseForeignLinks) {
  const JobSpec spec = TinySyntheticSpec();
  const auto lead = StartTestServer();
  const auto second = StartTestServer();
  TestClient client(lead->address());
  TestClient client2(second->address());
  ASSERT_TRUE(client.CreateJob(spec, {lead->address(), second->address()}).ok());
  v1::ShardMessage good;
  good.set_job_id(spec.id().value());
  good.set_from(1);
  good.mutable_register_()->set_incarnation(1);
  v1::ShardMessage other_job = good;
  other_job.set_job_id(1);
  v1::ShardMessage no_shard = good;
  no_shard.set_from(2);
  v1::ShardMessage lead_itself = good;
  lead_itself.set_from(0);
  v1::ShardMessage no_register = good;
  no_register.mutable_stats();
  const struct {
    const char* what;
    TestClient* client;
    v1::ShardMessage message;
    grpc::StatusCode code;
  } cases[] = {
      {"another job", &client, other_job, grpc::StatusCode::NOT_FOUND},
      {"no such shard", &client, no_shard, grpc::StatusCode::INVALID_ARGUMENT},
      {"the lead itself", &client, lead_itself, grpc::StatusCode::INVALID_ARGUMENT},
      {"no Register", &client, no_register, grpc::StatusCode::INVALID_ARGUMENT},
      {"not the lead", &client2, good, grpc::StatusCode::FAILED_PRECONDITION},
  };
  for (const auto& c : cases) {
    auto context = NewContext();
    auto link = c.client->shard().Link(context.get());
    link->Write(c.message);
    v1::ShardMessage ignored;
    EXPECT_FALSE(link->Read(&ignored)) << c.what;
    EXPECT_EQ(link->Finish().error_code(), c.code) << c.what;
  }
  v1::StatusReply status;
  ASSERT_TRUE(client.Status(&status).ok());
  EXPECT_EQ(status.state(), v1::JOB_STATE_IMPORTING) << "the job is unaffected";
}

TEST(ThreeServers, NameTheMissingShard) {
  const auto lead = StartTestServer();
  TestClient client(lead->address());
  std::string gone;
  {
    const auto server = StartTestServer();
    gone = server->address();
  }
  v1::CreateJobRequest request;
  request.set_spec_text(TinySyntheticSpec().ToText());
  request.add_servers(lead->address());
  request.add_servers(gone);
  v1::CreateJobReply reply;
  const absl::Status status = FromGrpc(
      client.control().CreateJob(NewContext(std::chrono::seconds(2)).get(), request, &reply), "");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_NE(std::string(status.message()).find("shard 1 at " + gone), std::string::npos) << status;
}

}  // namespace
}  // namespace eps
