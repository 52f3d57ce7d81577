#include <algorithm>
#include <future>
#include <map>
#include <string>

#include "base/checksum.h"
#include "base/job/initial_values.h"
#include "base/job/layout/chunk_map.h"
#include "base/memory_account.h"
#include "base/testing/test_specs.h"
#include "eps_server/rpc/testing/test_client.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/channel_arguments.h"
#include "gtest/gtest.h"
#include "wire/grpc_status.h"

namespace eps {
namespace {

using ::testing::Test;

bool Contains(const absl::Status& status, const std::string& text) {
  return std::string(status.message()).find(text) != std::string::npos;
}

class ControlRpc : public Test {
 protected:
  std::unique_ptr<Server> server_ = StartTestServer();
  TestClient client_{server_->address()};
  JobSpec spec_ = TinySyntheticSpec();
};

TEST_F(ControlRpc, HelloNegotiatesCommonFeatures) {
  v1::HelloRequest request;
  request.set_min_protocol(1);
  request.set_max_protocol(7);
  request.add_features(v1::FEATURE_MERGED_PARTS);
  request.add_features(v1::FEATURE_BOUNDARY);
  v1::HelloReply reply;
  ASSERT_TRUE(client_.control().Hello(NewContext().get(), request, &reply).ok());
  EXPECT_EQ(reply.protocol(), 1u);
  ASSERT_EQ(reply.features_size(), 1);
  EXPECT_EQ(reply.features(0), v1::FEATURE_MERGED_PARTS);
  EXPECT_NE(reply.incarnation(), 0u);
  EXPECT_EQ(std::count(reply.codecs().begin(), reply.codecs().end(), "fp32"), 1);
}

TEST_F(ControlRpc, HelloRefusesAnotherVersionAndNamesBoth) {
  v1::HelloRequest request;
  request.set_request_id("req-17");
  request.set_min_protocol(2);
  request.set_max_protocol(3);
  request.set_client("eps-worker 9.9");
  v1::HelloReply reply;
  const absl::Status status =
      FromGrpc(client_.control().Hello(NewContext().get(), request, &reply), "");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Contains(status, "speaks protocol 1")) << status;
  EXPECT_TRUE(Contains(status, "eps-worker 9.9")) << status;
  EXPECT_TRUE(Contains(status, "2 to 3")) << status;
  EXPECT_TRUE(Contains(status, "[request req-17]")) << status;
}

TEST_F(ControlRpc, CreateJobIsIdempotent) {
  v1::CreateJobReply first, second, later;
  ASSERT_TRUE(client_.CreateJob(spec_, {server_->address()}, &first).ok());
  EXPECT_EQ(first.job_id(), spec_.id().value());
  EXPECT_EQ(first.state(), v1::JOB_STATE_IMPORTING);
  EXPECT_EQ(first.step(), 1u);
  ASSERT_TRUE(client_.CreateJob(spec_, {server_->address()}, &second).ok());
  EXPECT_GT(second.gate_number(), first.gate_number());
  second.set_gate_number(first.gate_number());
  EXPECT_EQ(first.SerializeAsString(), second.SerializeAsString());
  ASSERT_TRUE(client_.Initialize(spec_).ok());
  ASSERT_TRUE(client_.CreateJob(spec_, {server_->address()}, &later).ok());
  EXPECT_EQ(later.state(), v1::JOB_STATE_RUNNING);
}

TEST_F(ControlRpc, ConcurrentCreateJobMakesOneJob) {
  std::vector<std::future<absl::Status>> calls;
  for (int i = 0; i < 8; ++i) {
    calls.push_back(std::async(std::launch::async, [this] {
      return TestClient(server_->address()).CreateJob(spec_, {server_->address()});
    }));
  }
  for (auto& call : calls) EXPECT_EQ(call.get(), absl::OkStatus());
}

TEST_F(ControlRpc, CreateJobNamesTheFirstDifference) {
  ASSERT_TRUE(client_.CreateJob(spec_, {server_->address()}).ok());
  ASSERT_TRUE(client_.Initialize(spec_).ok());
  JobSpec other = spec_;
  other.training.seed = 4711;
  absl::Status status = client_.CreateJob(other, {server_->address()});
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(Contains(status, "job \"tiny\"")) << status;
  EXPECT_TRUE(Contains(status, "training.seed: 4711 there, 42 here")) << status;
  status = client_.CreateJob(spec_, {server_->address(), "127.0.0.1:9"});
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(Contains(status, "127.0.0.1:9")) << status;
}

TEST_F(ControlRpc, BadSpecIsRefusedWithItsLine) {
  v1::CreateJobRequest request;
  std::string text = spec_.ToText();
  const size_t at = text.find("training.parts = 2");
  ASSERT_NE(at, std::string::npos);
  text.replace(at, 18, "training.parts = x");
  request.set_spec_text(text);
  request.add_servers(server_->address());
  v1::CreateJobReply reply;
  const absl::Status status =
      FromGrpc(client_.control().CreateJob(NewContext().get(), request, &reply), "");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Contains(status, "line")) << status;
  EXPECT_TRUE(Contains(status, "training.parts")) << status;
}

TEST_F(ControlRpc, CreateJobRefusesBadServerLists) {
  for (const std::vector<std::string>& servers : {std::vector<std::string>{},
                                                  {server_->address(), server_->address()},
                                                  {server_->address(), "nonsense"}}) {
    const absl::Status status = client_.CreateJob(spec_, servers);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  }
}

TEST_F(ControlRpc, OversizeJobIsRefusedWithItsSizes) {
  const auto small = StartTestServer(/*memory_limit_bytes=*/200'000);
  TestClient client(small->address());
  const absl::Status status = client.CreateJob(spec_, {small->address()});
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(Contains(status, "servers.memory_limit")) << status;
  EXPECT_TRUE(Contains(status, "200000")) << status;
  // The refused job holds no memory.
  EXPECT_EQ(client.LiveBytes("state"), 0u);
  EXPECT_EQ(client.LiveBytes("contribution"), 0u);
}

TEST_F(ControlRpc, NamesFailedShardAndAcceptsAnotherSpec) {
  const auto small = StartTestServer(/*memory_limit_bytes=*/1000);
  absl::Status status = client_.CreateJob(spec_, {server_->address(), small->address()});
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(Contains(status, "shard 1 at " + small->address())) << status;
  JobSpec other = spec_;
  other.training.seed = 1;
  status = client_.CreateJob(other, {server_->address()});
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(ControlRpc, PreparedShardFollowsItsLead) {
  const auto second = StartTestServer();
  const auto small = StartTestServer(/*memory_limit_bytes=*/1000);
  const std::vector<std::string> three = {server_->address(), second->address(), small->address()};
  EXPECT_EQ(client_.CreateJob(spec_, three).code(), absl::StatusCode::kResourceExhausted);
  TestClient client2(second->address());
  ASSERT_TRUE(client2.WaitForStatus([&](const v1::StatusReply& s) { return s.job_id() != 0; }));
  JobSpec other = spec_;
  other.name = "second-try";
  const absl::Status status = client_.CreateJob(other, {server_->address(), second->address()});
  ASSERT_TRUE(status.ok()) << status;
  v1::StatusReply reply;
  ASSERT_TRUE(client2.Status(&reply).ok());
  EXPECT_EQ(reply.job_name(), "second-try");
}

TEST_F(ControlRpc, PrepareJobIsIdempotentOnOtherShards) {
  v1::PrepareJobRequest request;
  request.set_spec_text(spec_.ToText());
  request.add_servers("127.0.0.1:9");  // no lead runs there, so the link never opens
  request.add_servers(server_->address());
  request.set_term(1);
  v1::PrepareJobReply first, second;
  for (const uint32_t shard : {0u, 2u}) {
    request.set_shard(shard);
    EXPECT_EQ(client_.shard().PrepareJob(NewContext().get(), request, &first).error_code(),
              grpc::StatusCode::INVALID_ARGUMENT);
  }
  request.set_shard(1);
  ASSERT_TRUE(client_.shard().PrepareJob(NewContext().get(), request, &first).ok());
  EXPECT_EQ(first.job_id(), spec_.id().value());
  EXPECT_GT(first.reserved_bytes(), 0u);
  ASSERT_TRUE(client_.shard().PrepareJob(NewContext().get(), request, &second).ok());
  EXPECT_EQ(first.SerializeAsString(), second.SerializeAsString());
  // This shard is not the lead, so it refuses CreateJob; it also refuses another lead.
  absl::Status status = client_.CreateJob(spec_, {server_->address()});
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists) << status;
  request.set_servers(0, "127.0.0.1:10");
  EXPECT_EQ(client_.shard().PrepareJob(NewContext().get(), request, &second).error_code(),
            grpc::StatusCode::ALREADY_EXISTS);
}

TEST_F(ControlRpc, CallsWithoutAJobSayWhatToDo) {
  EXPECT_EQ(client_.BeginStep(spec_, 1).code(), absl::StatusCode::kNotFound);
  v1::JoinReply reply;
  const absl::Status join =
      FromGrpc(client_.control().Join(NewContext().get(), v1::JoinRequest(), &reply), "");
  EXPECT_EQ(join.code(), absl::StatusCode::kUnavailable) << "a worker may start before the job";
  v1::StatusReply status;
  ASSERT_TRUE(client_.Status(&status).ok());
  EXPECT_EQ(status.state(), v1::JOB_STATE_UNSPECIFIED);
  EXPECT_EQ(status.server(), server_->address());
  EXPECT_EQ(status.memory_limit_bytes(), uint64_t{1} << 30);
}

TEST_F(ControlRpc, RefusesRequestsForAnotherJob) {
  ASSERT_TRUE(client_.CreateJob(spec_, {server_->address()}).ok());
  JobSpec other = spec_;
  other.name = "other";
  const absl::Status status = client_.BeginStep(other, 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(Contains(status, "job \"tiny\"")) << status;
}

TEST_F(ControlRpc, RefusesOversizeMessages) {
  v1::JoinRequest request;
  request.set_compute_profile(std::string(5 << 20, 'x'));
  v1::JoinReply reply;
  EXPECT_EQ(FromGrpc(client_.control().Join(NewContext().get(), request, &reply), "").code(),
            absl::StatusCode::kInvalidArgument);
  // Larger than the server's transport accepts. Our own client would not send such a message.
  grpc::ChannelArguments unlimited;
  unlimited.SetMaxSendMessageSize(-1);
  const auto control = v1::Control::NewStub(
      grpc::CreateCustomChannel(server_->address(), grpc::InsecureChannelCredentials(), unlimited));
  request.set_compute_profile(std::string(20 << 20, 'x'));
  EXPECT_EQ(FromGrpc(control->Join(NewContext().get(), request, &reply), "").code(),
            absl::StatusCode::kResourceExhausted);
}

// ---------------------------------------------------------------- importing and exporting state

struct Exported {
  std::map<uint32_t, std::string> chunks;
  v1::ExportStateReply last;
};

absl::Status Export(TestClient* client, const JobSpec& spec, Exported* out) {
  auto context = NewContext();
  v1::ExportStateRequest request;
  request.set_job_id(spec.id().value());
  auto stream = client->control().ExportState(context.get(), request);
  v1::ExportStateReply reply;
  while (stream->Read(&reply)) {
    std::string& chunk = out->chunks[reply.chunk()];
    EXPECT_EQ(reply.offset(), chunk.size());
    EXPECT_LE(reply.data().size(), size_t{2} << 20);
    chunk += reply.data();
    if (reply.last()) {
      EXPECT_EQ(reply.crc32c(), Crc32c(chunk));
    }
    out->last = reply;
  }
  return FromGrpc(stream->Finish(), "ExportState");
}

v1::ImportStateRequest StateSlice(const JobSpec& spec, uint32_t chunk, const std::string& state,
                                  size_t offset, size_t size) {
  v1::ImportStateRequest request;
  request.set_job_id(spec.id().value());
  request.set_chunk(chunk);
  request.set_offset(offset);
  request.set_data(state.substr(offset, size));
  request.set_last(offset + size >= state.size());
  if (request.last()) request.set_crc32c(Crc32c(state));
  return request;
}

TEST_F(ControlRpc, StateRoundTripsUnchanged) {
  const JobSpec spec = BigChunkSpec();
  ASSERT_TRUE(client_.CreateJob(spec, {server_->address()}).ok());
  ASSERT_TRUE(client_.Initialize(spec).ok());
  Exported before;
  ASSERT_TRUE(Export(&client_, spec, &before).ok());
  const ChunkMap chunks = ChunkMap::Build(spec);
  ASSERT_EQ(before.chunks.size(), chunks.chunks().size());
  // The exported values are the right ones: chunk 0 begins with the initial values of its tensor.
  const Segment& segment = chunks.chunk(ChunkId(0)).segments[0];
  std::vector<float> initial(segment.elements());
  FillInitialValues(spec, segment.tensor, segment.tensor_offset, absl::MakeSpan(initial));
  EXPECT_EQ(before.chunks[0].substr(0, initial.size() * 4),
            std::string(reinterpret_cast<const char*>(initial.data()), initial.size() * 4));

  const auto second = StartTestServer();
  TestClient client2(second->address());
  ASSERT_TRUE(client2.CreateJob(spec, {second->address()}).ok());
  auto context = NewContext();
  v1::ImportStateReply reply;
  auto stream = client2.control().ImportState(context.get(), &reply);
  v1::ImportStateRequest border;
  border.set_job_id(spec.id().value());
  border.set_step(3);
  border.set_version(3);
  border.set_update(3);
  ASSERT_TRUE(stream->Write(border));
  const size_t slice = 1'500'000;
  for (auto it = before.chunks.rbegin(); it != before.chunks.rend(); ++it) {
    for (size_t offset = 0; offset < it->second.size(); offset += slice) {
      ASSERT_TRUE(stream->Write(StateSlice(spec, it->first, it->second, offset, slice)));
    }
  }
  v1::ImportStateRequest finish;
  finish.set_finish(true);
  ASSERT_TRUE(stream->Write(finish));
  stream->WritesDone();
  const grpc::Status status = stream->Finish();
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(reply.chunks(), chunks.chunks().size());
  v1::BeginStepReply begun;
  ASSERT_TRUE(client2.BeginStep(spec, 4, &begun).ok());
  EXPECT_EQ(begun.version(), 3u);
  Exported after;
  ASSERT_TRUE(Export(&client2, spec, &after).ok());
  EXPECT_EQ(after.chunks, before.chunks);
  EXPECT_EQ(after.last.version(), 3u);
  EXPECT_TRUE(client2.WaitForStatus([](const v1::StatusReply& s) {
    return s.memory(static_cast<int>(MemoryKind::kImport)).live_bytes() == 0;
  }));
}

TEST_F(ControlRpc, ImportStateRefusesInvalidChunks) {
  ASSERT_TRUE(client_.CreateJob(spec_, {server_->address()}).ok());
  const std::string good(ChunkMap::Build(spec_).chunk(ChunkId(0)).elements * 12, '\0');
  v1::ImportStateRequest wrong_crc = StateSlice(spec_, 0, good, 0, good.size());
  wrong_crc.set_crc32c(wrong_crc.crc32c() + 1);
  v1::ImportStateRequest wrong_scale;
  wrong_scale.mutable_loss_scale()->set_log2(25);
  const struct {
    const char* what;
    v1::ImportStateRequest message;
    const char* text;
  } cases[] = {
      {"wrong CRC", wrong_crc, "CRC32C"},
      {"too short", StateSlice(spec_, 0, good.substr(4), 0, good.size()), "expected"},
      {"too long", StateSlice(spec_, 0, good + "x", 0, good.size() + 1), "of"},
      {"a gap", StateSlice(spec_, 0, good, 4, 8), "in order"},
      {"a loss scale beyond all rules", wrong_scale, "2^25, expected 2^0 to 2^24"},
      {"no such chunk", StateSlice(spec_, 9999, good, 0, good.size()), "chunk 9999"},
  };
  for (const auto& c : cases) {
    auto context = NewContext();
    v1::ImportStateReply reply;
    auto stream = client_.control().ImportState(context.get(), &reply);
    stream->Write(c.message);
    stream->WritesDone();
    const absl::Status status = FromGrpc(stream->Finish(), "");
    EXPECT_TRUE(absl::IsInvalidArgument(status) && Contains(status, c.text)) << c.what << status;
  }
  v1::StatusReply status;
  ASSERT_TRUE(client_.Status(&status).ok());
  EXPECT_EQ(status.state(), v1::JOB_STATE_IMPORTING);
  EXPECT_TRUE(client_.Initialize(spec_).ok());
}

// ---------------------------------------------------------------- the server itself

TEST(ServerStart, NamesAddressAndKeyOfTakenPort) {
  const auto first = StartTestServer();
  ServerOptions options;
  options.listen = first->address();
  options.memory_limit_bytes = 1 << 20;
  const auto second = Server::Start(options);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(Contains(second.status(), first->address())) << second.status();
  EXPECT_TRUE(Contains(second.status(), "servers.listen")) << second.status();
  // The first server still works.
  v1::StatusReply reply;
  EXPECT_TRUE(TestClient(first->address()).Status(&reply).ok());
}

TEST(ServerStart, RefusesRemoteAccessUnlessInsecure) {
  ServerOptions options;
  options.listen = "0.0.0.0:0";
  options.memory_limit_bytes = 1 << 20;
  const auto refused = Server::Start(options);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(Contains(refused.status(), "--insecure")) << refused.status();
  options.insecure = true;
  const auto allowed = Server::Start(options);
  EXPECT_TRUE(allowed.ok()) << allowed.status();
}

TEST(ServerStart, RefusesABadAddress) {
  ServerOptions options;
  options.listen = "nonsense";
  EXPECT_EQ(Server::Start(options).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ServerStart, DefaultsToTheMachinesMemory) {
  ServerOptions options;
  const auto server = Server::Start(options);
  ASSERT_TRUE(server.ok()) << server.status();
  v1::StatusReply reply;
  ASSERT_TRUE(TestClient((*server)->address()).Status(&reply).ok());
  EXPECT_GT(reply.memory_limit_bytes(), uint64_t{64} << 20);
}

// grpc.health.v1: request {string service = 1}, reply {enum status = 1}.
int HealthOf(TestClient* client, const std::string& service) {
  v1::HelloRequest request;  // stands in: it also has a string in field 1
  request.set_request_id(service);
  grpc::Slice slice(request.SerializeAsString());
  grpc::ByteBuffer raw(&slice, 1);
  grpc::ByteBuffer answer;
  grpc::GenericStub stub(client->channel());
  grpc::CompletionQueue queue;
  auto context = NewContext();
  auto call = stub.PrepareUnaryCall(context.get(), "/grpc.health.v1.Health/Check", raw, &queue);
  call->StartCall();
  grpc::Status status;
  call->Finish(&answer, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  EXPECT_TRUE(queue.Next(&tag, &ok));
  if (!status.ok()) return -static_cast<int>(status.error_code());
  grpc::Slice bytes;
  if (answer.Length() == 0) return 0;
  EXPECT_TRUE(answer.DumpToSingleSlice(&bytes).ok());
  v1::StepRecord reply;  // stands in: it also has a varint in field 1
  EXPECT_TRUE(reply.ParseFromArray(bytes.begin(), static_cast<int>(bytes.size())));
  return static_cast<int>(reply.step());
}

constexpr int kServing = 1;
constexpr int kNotServing = 2;

TEST(ServerHealth, DrainingIsAliveButNotReady) {
  const auto server = StartTestServer();
  TestClient client(server->address());
  for (const char* name : {"", "eps.live", "eps.ready"}) {
    EXPECT_EQ(HealthOf(&client, name), kServing) << name;
  }
  EXPECT_EQ(HealthOf(&client, "eps.nothing"), -static_cast<int>(grpc::StatusCode::NOT_FOUND));
  std::string why;
  server->Drain([&why](const std::string& reason) { why = reason; });
  EXPECT_EQ(why, "there is no job");
  EXPECT_EQ(HealthOf(&client, "eps.live"), kServing);
  EXPECT_EQ(HealthOf(&client, "eps.ready"), kNotServing);
  EXPECT_EQ(HealthOf(&client, ""), kNotServing);
  const JobSpec spec = TinySyntheticSpec();
  EXPECT_EQ(client.CreateJob(spec, {server->address()}).code(), absl::StatusCode::kUnavailable);
}

TEST(ServerShutdown, MeetsItsDeadlineWithOpenStreams) {
  const auto server = StartTestServer();
  TestClient client(server->address());
  const JobSpec spec = TinySyntheticSpec();
  ASSERT_TRUE(client.CreateJob(spec, {server->address()}).ok());
  auto push_context = NewContext();
  auto push = client.data().Push(push_context.get());
  auto fetch_context = NewContext();
  auto fetch = client.data().Fetch(fetch_context.get());
  v1::FetchRequest request;
  request.set_job_id(spec.id().value());
  request.set_term(1);
  request.set_version(5);
  ASSERT_TRUE(fetch->Write(request));
  auto link_context = NewContext();
  auto link = client.shard().Link(link_context.get());  // never ends by itself
  auto begin = std::async(std::launch::async, [&] {
    return TestClient(server->address()).BeginStep(spec, 1);  // parked: the job has no weights
  });
  ASSERT_TRUE(client.WaitForStatus([](const v1::StatusReply& s) {
    bool fetch_waits = false;
    bool begin_waits = false;
    for (const v1::Wait& wait : s.waits()) {
      fetch_waits |= wait.what().find("Fetch") == 0;
      begin_waits |= wait.what().find("BeginStep") == 0;
    }
    return fetch_waits && begin_waits;
  }));

  const auto start = std::chrono::steady_clock::now();
  server->Shutdown(std::chrono::milliseconds(300));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  EXPECT_TRUE(server->WaitForTermination(std::chrono::milliseconds(0)));
  EXPECT_EQ(begin.get().code(), absl::StatusCode::kUnavailable);
  v1::PushReply push_reply;
  EXPECT_FALSE(push->Read(&push_reply));
  EXPECT_EQ(push->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  v1::FetchSlice slice;
  EXPECT_FALSE(fetch->Read(&slice));
  EXPECT_EQ(fetch->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  v1::ShardMessage message;
  EXPECT_FALSE(link->Read(&message));
  EXPECT_FALSE(link->Finish().ok());
}

TEST(ServerShutdown, TheSecondCallDoesNothing) {
  const auto server = StartTestServer();
  server->Shutdown(std::chrono::milliseconds(100));
  server->Shutdown(std::chrono::milliseconds(100));
}

}  // namespace
}  // namespace eps
