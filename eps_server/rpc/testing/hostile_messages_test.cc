// Small messages that could make a server allocate a multiple of their size. Each test compares the
// memory of a real server process before and after, and then an honest worker runs a step.

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "base/job/job_spec.h"
#include "base/testing/test_specs.h"
#include "eps_server/rpc/testing/honest_worker.h"
#include "eps_server/rpc/testing/hostile_client.h"
#include "eps_server/rpc/testing/serve_process.h"
#include "eps_server/rpc/testing/test_client.h"
#include "gtest/gtest.h"
#include "wire/grpc_status.h"

namespace eps {
namespace {

constexpr uint64_t kMebibyte = uint64_t{1} << 20;
constexpr uint64_t kAllowedGrowth = 64 * kMebibyte;

// A server process, with an honest worker that has done one step.
class HostileMessages : public ::testing::Test {
 protected:
  HostileMessages() {
    const absl::Status status = worker_.Step();
    EXPECT_TRUE(status.ok()) << status;
    server_.ResetPeak();
    before_ = server_.ResidentBytes();
  }
  // Checks the peak of the memory, and that the worker's next step succeeds at once. Prints both.
  void ExpectHarmless(const char* attack) {
    const uint64_t peak = server_.PeakBytes();
    const absl::Status status = worker_.Step();
    std::printf("%s: resident %llu MiB, peak %llu MiB, steps of delay: %d\n", attack,
                static_cast<unsigned long long>(before_ / kMebibyte),
                static_cast<unsigned long long>(peak / kMebibyte), status.ok() ? 0 : 1);
    EXPECT_LT(peak, before_ + kAllowedGrowth);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(worker_.steps_done(), 2u);
  }

  const JobSpec spec_ = TinySyntheticSpec();
  ServeProcess server_{"127.0.0.1:0"};
  const std::string address_ = server_.Address();
  HonestWorker worker_{{address_}, spec_};
  TestClient stranger_{address_};
  uint64_t before_ = 0;
};

TEST_F(HostileMessages, GzipIsRefusedBeforeItIsInflated) {
  const std::string bomb = GzipOfZeros(1536);
  ASSERT_LT(bomb.size(), 2 * kMebibyte);
  for (const char* method : {"/eps.v1.Control/Hello", "/eps.v1.Control/WatchSteps",
                             "/eps.v1.Data/Push", "/grpc.health.v1.Health/Check"}) {
    const absl::Status status = SendGzip(address_, method, bomb);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << method << ": " << status;
  }
  ExpectHarmless("gzip of 1.5 GiB in 1.5 MiB, four times");
}

TEST_F(HostileMessages, RepeatedChunksAreRefusedByName) {
  constexpr int kCopies = 2'000'000;
  v1::FetchRequest fetch;
  fetch.set_tag(1);
  fetch.set_job_id(spec_.id().value());
  fetch.set_term(1);
  fetch.set_version(1);
  for (int i = 0; i < kCopies; ++i) fetch.add_chunks(0);
  auto context = NewContext();
  auto stream = stranger_.data().Fetch(context.get());
  ASSERT_TRUE(stream->Write(fetch));
  v1::FetchSlice slice;
  ASSERT_TRUE(stream->Read(&slice));
  EXPECT_EQ(slice.code(), static_cast<uint32_t>(grpc::StatusCode::INVALID_ARGUMENT));
  EXPECT_EQ(slice.message(), "Fetch: chunk 0 is named twice");
  context->TryCancel();

  v1::ExportStateRequest request;
  request.set_job_id(spec_.id().value());
  for (int i = 0; i < kCopies; ++i) request.add_chunks(3);
  auto export_context = NewContext();
  auto reader = stranger_.control().ExportState(export_context.get(), request);
  v1::ExportStateReply reply;
  EXPECT_FALSE(reader->Read(&reply));
  const absl::Status status = FromGrpc(reader->Finish(), "");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(status.message(), "ExportState: chunk 3 is named twice")) << status;
  ExpectHarmless("2,000,000 copies of a chunk, fetched and exported");
}

TEST_F(HostileMessages, RepeatedPartsAreRefusedByName) {
  constexpr int kCopies = 2'000'000;
  v1::JoinRequest join;
  join.set_job_id(spec_.id().value());
  join.set_worker_nonce(9);
  v1::BeginStepRequest begin;
  begin.set_job_id(spec_.id().value());
  begin.set_term(1);
  begin.set_step(2);
  for (int i = 0; i < kCopies; ++i) join.add_parts(1);
  for (int i = 0; i < kCopies; ++i) begin.add_parts(1);
  v1::JoinReply joined;
  absl::Status status = FromGrpc(stranger_.control().Join(NewContext().get(), join, &joined), "");
  EXPECT_TRUE(absl::StrContains(status.message(), "Join: part 1 is named twice")) << status;
  v1::BeginStepReply begun;
  status = FromGrpc(stranger_.data().BeginStep(NewContext().get(), begin, &begun), "");
  EXPECT_TRUE(absl::StrContains(status.message(), "BeginStep: part 1 is named twice")) << status;
  ExpectHarmless("2,000,000 copies of a part, joined and begun");
}

// Returns a spec of a few KiB with the given number of chunks, all of them in one tensor.
JobSpec ManyChunks(uint32_t chunks) {
  JobSpec spec = TinySyntheticSpec();
  spec.name = "many";
  spec.chunk_elements = 32;
  spec.tensors[0].rows = chunks * 32;
  spec.tensors[0].cols = 1;
  return spec;
}

TEST(HostileSpecTest, ManyChunksAreRefusedBeforeTheyExist) {
  ServeProcess server("127.0.0.1:0");
  const std::string address = server.Address();
  TestClient stranger(address);
  server.ResetPeak();
  const uint64_t before = server.ResidentBytes();

  absl::Status status = stranger.CreateJob(ManyChunks(4'000'000), {address});
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "the description of its chunks")) << status;

  JobSpec spec = ManyChunks(4'000'000);
  while (spec.stages.size() < kMaxStages) spec.stages.push_back(spec.stages.front());
  EXPECT_LT(spec.ToText().size(), kMebibyte);
  status = stranger.CreateJob(spec, {address});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "expected at most 8388608")) << status;

  const uint64_t peak = server.PeakBytes();
  std::printf("4,096 stages of 4,000,000 chunks: resident %llu MiB, peak %llu MiB\n",
              static_cast<unsigned long long>(before / kMebibyte),
              static_cast<unsigned long long>(peak / kMebibyte));
  EXPECT_LT(peak, before + kAllowedGrowth);
  HonestWorker worker({address}, TinySyntheticSpec());
  status = worker.Step();
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace eps
