#include "eps_server/rpc/testing/test_client.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/checksum.h"
#include "base/job/layout/model_layout.h"
#include "base/testing/test_specs.h"
#include "compression/codec.h"
#include "wire/channel.h"
#include "wire/grpc_status.h"

namespace eps {

namespace {

std::unique_ptr<Server> StartServer(const ServerOptions& options) {
  auto server = Server::Start(options);
  EPS_CHECK_MSG(server.ok(), server.status().ToString());
  return *std::move(server);
}

}  // namespace

std::unique_ptr<Server> StartTestServer(uint64_t memory_limit_bytes) {
  ServerOptions options;
  options.threads = 2;
  options.memory_limit_bytes = memory_limit_bytes;
  return StartServer(options);
}

std::unique_ptr<Server> StartImpatientServer(std::chrono::milliseconds push_timeout,
                                             std::chrono::milliseconds unread_timeout) {
  ServerOptions options;
  options.threads = 2;
  options.memory_limit_bytes = uint64_t{1} << 30;
  options.push_timeout_ms = static_cast<uint64_t>(push_timeout.count());
  options.unread_timeout_ms = static_cast<uint64_t>(unread_timeout.count());
  return StartServer(options);
}

JobSpec BigChunkSpec() {
  JobSpec spec = TinySyntheticSpec();
  spec.name = "big";
  spec.model.synthetic.n_layer = 2;
  spec.model.synthetic.n_embd = 1024;
  spec.model.synthetic.tied = false;
  spec.chunk_elements = 1024 * 1024;
  spec.training.parts = 1;
  spec.tensors.clear();
  spec.stages.clear();
  spec.groups.clear();
  const absl::Status status = BuildLayout(0.01, &spec);
  EPS_CHECK_MSG(status.ok(), status.message());
  return spec;
}

std::unique_ptr<grpc::ClientContext> NewContext(std::chrono::milliseconds timeout) {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(std::chrono::system_clock::now() + timeout);
  return context;
}

TestClient::TestClient(const std::string& address)
    : channel_(NewChannel(address)),
      control_(v1::Control::NewStub(channel_)),
      data_(v1::Data::NewStub(channel_)),
      shard_(v1::Shard::NewStub(channel_)) {}

absl::Status TestClient::CreateJob(const JobSpec& spec, const std::vector<std::string>& servers,
                                   v1::CreateJobReply* reply) {
  v1::CreateJobRequest request;
  request.set_request_id("create");
  request.set_spec_text(spec.ToText());
  for (const std::string& server : servers) request.add_servers(server);
  v1::CreateJobReply ignored;
  return FromGrpc(
      control_->CreateJob(NewContext().get(), request, reply != nullptr ? reply : &ignored),
      "CreateJob");
}

absl::Status TestClient::Initialize(const JobSpec& spec) {
  auto context = NewContext();
  v1::ImportStateReply reply;
  auto stream = control_->ImportState(context.get(), &reply);
  v1::ImportStateRequest request;
  request.set_request_id("initialize");
  request.set_job_id(spec.id().value());
  request.set_initialize(true);
  request.set_finish(true);
  stream->Write(request);
  stream->WritesDone();
  return FromGrpc(stream->Finish(), "ImportState");
}

absl::Status TestClient::Join(const JobSpec& spec, v1::JoinReply* reply) {
  v1::JoinRequest request;
  request.set_job_id(spec.id().value());
  request.set_worker_nonce(1);
  v1::JoinReply ignored;
  return FromGrpc(control_->Join(NewContext().get(), request, reply != nullptr ? reply : &ignored),
                  "Join");
}

absl::Status TestClient::BeginStep(const JobSpec& spec, uint64_t step, v1::BeginStepReply* reply,
                                   const std::vector<v1::PartLoss>& losses) {
  v1::BeginStepRequest request;
  request.set_request_id("begin");
  request.set_job_id(spec.id().value());
  request.set_term(1);
  request.set_step(step);
  request.set_worker_nonce(1);
  for (uint32_t p = 0; p < spec.training.parts; ++p) request.add_parts(p);
  for (const v1::PartLoss& loss : losses) *request.add_losses() = loss;
  v1::BeginStepReply ignored;
  return FromGrpc(
      data_->BeginStep(NewContext().get(), request, reply != nullptr ? reply : &ignored),
      "BeginStep");
}

absl::Status TestClient::Status(v1::StatusReply* reply) {
  return FromGrpc(control_->Status(NewContext().get(), v1::StatusRequest(), reply), "Status");
}

bool TestClient::WaitForStatus(const std::function<bool(const v1::StatusReply&)>& wanted) {
  const auto deadline = std::chrono::steady_clock::now() + kCallTimeout;
  while (std::chrono::steady_clock::now() < deadline) {
    v1::StatusReply reply;
    if (Status(&reply).ok() && wanted(reply)) return true;
  }
  return false;
}

uint64_t TestClient::LiveBytes(const std::string& kind) {
  v1::StatusReply reply;
  const absl::Status status = Status(&reply);
  EPS_CHECK_MSG(status.ok(), status.ToString());
  for (const v1::MemoryUse& use : reply.memory()) {
    if (use.kind() == kind) return use.live_bytes();
  }
  EPS_CHECK_MSG(false, "no memory kind " << kind);
  return 0;
}

uint64_t TestClient::Counter(const std::string& name) {
  v1::StatusReply reply;
  const absl::Status status = Status(&reply);
  EPS_CHECK_MSG(status.ok(), status.ToString());
  const auto it = reply.counters().find(name);
  return it == reply.counters().end() ? 0 : it->second;
}

v1::PushFrame HeaderFrame(const JobSpec& spec, uint64_t tag, uint64_t step, StageId use,
                          PartId part, ChunkId chunk, const std::string& payload, uint64_t nonce) {
  v1::PushFrame frame;
  v1::PushHeader* header = frame.mutable_header();
  header->set_tag(tag);
  header->mutable_key()->set_job_id(spec.id().value());
  header->mutable_key()->set_term(1);
  header->mutable_key()->set_step(step);
  header->mutable_key()->set_use_stage(use.value());
  header->mutable_key()->set_part_first(part.value());
  header->mutable_key()->set_part_count(1);
  header->mutable_key()->set_chunk(chunk.value());
  header->set_codec(static_cast<uint32_t>(CodecId::kFp32));
  header->set_bytes(payload.size());
  header->set_crc32c(Crc32c(payload));
  header->set_tokens(100);
  header->set_worker_nonce(nonce);
  return frame;
}

std::vector<v1::PushFrame> PayloadFrames(uint64_t tag, const std::string& payload, size_t slice) {
  std::vector<v1::PushFrame> frames;
  for (size_t offset = 0; offset < payload.size(); offset += slice) {
    v1::PushFrame frame;
    frame.set_tag(tag);
    frame.set_offset(offset);
    frame.set_data(payload.substr(offset, slice));
    frame.set_last(offset + slice >= payload.size());
    frames.push_back(std::move(frame));
  }
  return frames;
}

std::string Fp32Payload(uint64_t elements, float value) {
  std::string payload(elements * sizeof(float), '\0');
  for (uint64_t i = 0; i < elements; ++i) {
    std::memcpy(&payload[i * sizeof(float)], &value, sizeof(float));
  }
  return payload;
}

}  // namespace eps
