#include "tests/e2e/loopback_cluster.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/checksum.h"
#include "base/job/layout/chunk_map.h"
#include "eps/v1/control.grpc.pb.h"
#include "eps_server/server.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "wire/channel.h"
#include "wire/grpc_status.h"

namespace eps {
namespace {

std::unique_ptr<grpc::ClientContext> Context() {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(std::chrono::system_clock::now() + LoopbackCluster::kTimeout);
  return context;
}

// Adds the weights that a server holds.
void Export(v1::Control::Stub* control, JobId job, const ChunkMap& chunks, Tensors* weights) {
  const auto context = Context();
  v1::ExportStateRequest request;
  request.set_job_id(job.value());
  request.set_weights_only(true);
  const auto stream = control->ExportState(context.get(), request);
  v1::ExportStateReply reply;
  std::string bytes;
  while (stream->Read(&reply)) {
    ASSERT_EQ(reply.offset(), bytes.size());
    bytes += reply.data();
    if (!reply.last()) continue;
    ASSERT_EQ(reply.crc32c(), Crc32c(bytes));
    const Chunk& chunk = chunks.chunk(ChunkId(reply.chunk()));
    ASSERT_EQ(bytes.size(), chunk.elements * sizeof(float));
    for (const Segment& segment : chunk.segments) {
      std::memcpy((*weights)[segment.tensor.value()].data() + segment.tensor_offset,
                  bytes.data() + segment.offset * sizeof(float),
                  segment.elements() * sizeof(float));
    }
    bytes.clear();
  }
  const auto status = stream->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
}

}  // namespace

// The servers, and connections to them.
struct LoopbackCluster::Processes {
  std::vector<std::unique_ptr<Server>> servers;
  std::vector<std::unique_ptr<v1::Control::Stub>> controls;
};

LoopbackCluster::LoopbackCluster(const JobSpec& spec, int servers, uint64_t shm_bytes)
    : spec_(spec), processes_(std::make_unique<Processes>()) {
  for (int i = 0; i < servers; ++i) {
    ServerOptions options;
    options.threads = 2;
    options.memory_limit_bytes = uint64_t{1} << 30;
    options.shm_weights_bytes = options.shm_gradients_bytes = shm_bytes;
    options.shm_folder = absl::StrCat(::testing::TempDir(), "/shm-", i);
    auto server = Server::Start(options);
    EXPECT_TRUE(server.ok()) << server.status();
    processes_->servers.push_back(*std::move(server));
    addresses_.push_back(processes_->servers.back()->address());
    processes_->controls.push_back(v1::Control::NewStub(NewChannel(addresses_.back())));
  }
  v1::CreateJobRequest request;
  request.set_request_id("create");
  request.set_spec_text(spec.ToText());
  for (const std::string& address : addresses_) request.add_servers(address);
  v1::CreateJobReply reply;
  const auto status = processes_->controls[0]->CreateJob(Context().get(), request, &reply);
  EXPECT_TRUE(status.ok()) << status.error_message();
}

LoopbackCluster::~LoopbackCluster() = default;

void LoopbackCluster::Initialize() {
  for (const auto& control : processes_->controls) {
    const auto context = Context();
    v1::ImportStateReply reply;
    const auto stream = control->ImportState(context.get(), &reply);
    v1::ImportStateRequest request;
    request.set_job_id(spec_.id().value());
    request.set_initialize(true);
    request.set_finish(true);
    stream->Write(request);
    stream->WritesDone();
    const auto status = stream->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
}

LoopbackCluster::Outcome LoopbackCluster::Result() {
  Outcome outcome;
  const auto context = Context();
  v1::WatchStepsRequest request;
  request.set_job_id(spec_.id().value());
  const auto stream = processes_->controls[0]->WatchSteps(context.get(), request);
  v1::StepRecord record;
  while (stream->Read(&record)) {
    EXPECT_EQ(record.step(), outcome.losses.size() + 1);
    EXPECT_EQ(record.clip_factor() < 1.0, ClipsStep(record.step()) && !record.skipped())
        << "step " << record.step();
    EXPECT_EQ(std::isnan(record.grad_norm()), record.skipped());
    if (record.skipped()) outcome.skipped.push_back(record.step());
    outcome.losses.push_back(record.loss());
    outcome.tokens.push_back(record.tokens());
  }
  outcome.failure = FromGrpc(stream->Finish(), "WatchSteps");
  if (!outcome.failure.ok()) return outcome;
  outcome.weights = InitialWeights(spec_);
  for (auto& tensor : outcome.weights) std::fill(tensor.begin(), tensor.end(), 0.0f);
  const ChunkMap chunks = ChunkMap::Build(spec_);
  for (const auto& control : processes_->controls)
    Export(control.get(), spec_.id(), chunks, &outcome.weights);
  return outcome;
}

// Lagged clipping uses the norm of the previous step, which the first step does not have.
bool LoopbackCluster::ClipsStep(uint64_t step) const {
  if (spec_.training.clip == Clip::kNone) return false;
  return spec_.training.clip == Clip::kExact || step > 1;
}

}  // namespace eps
