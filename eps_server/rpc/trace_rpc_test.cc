// Control.Trace of a real server: its spans, its limits, and its end.

#include <chrono>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "base/job/layout/chunk_map.h"
#include "base/testing/test_specs.h"
#include "base/trace/trace_log.h"
#include "eps_server/rpc/testing/honest_worker.h"
#include "eps_server/rpc/testing/test_client.h"
#include "gtest/gtest.h"
#include "wire/grpc_status.h"
#include "wire/trace/trace_message.h"

namespace eps {
namespace {

// A trace that a client has opened.
class OpenTrace {
 public:
  OpenTrace(TestClient* client, uint32_t steps) {
    v1::TraceRequest request;
    request.set_steps(steps);
    reader_ = client->control().Trace(context_.get(), request);
  }
  bool Read(v1::TraceReply* reply) { return reader_->Read(reply); }
  void Cancel() { context_->TryCancel(); }
  absl::Status Finish() { return FromGrpc(reader_->Finish(), "Trace"); }

  // Reads to the end. Returns, by the process and the name of the spans, the steps.
  std::map<std::string, std::multiset<uint64_t>> ReadAll() {
    std::map<std::string, std::multiset<uint64_t>> steps;
    v1::TraceReply reply;
    while (Read(&reply)) {
      for (const v1::TraceSpan& span : reply.report().spans()) {
        const std::string process = reply.report().process();
        steps[process.substr(0, process.find(' ')) + " " +
              reply.report().names(static_cast<int>(span.name()))]
            .insert(span.step());
      }
      dropped_ += reply.report().dropped();
    }
    return steps;
  }
  uint64_t dropped() const { return dropped_; }

 private:
  std::unique_ptr<grpc::ClientContext> context_ = NewContext();
  std::unique_ptr<grpc::ClientReader<v1::TraceReply>> reader_;
  uint64_t dropped_ = 0;
};

class TraceRpc : public testing::Test {
 protected:
  // A job whose step 1 is open.
  void SetUp() override {
    v1::BeginStepReply reply;
    ASSERT_TRUE(Begin(1, nullptr, &reply).ok());
  }
  // Begins a step as a worker that may bring spans.
  absl::Status Begin(uint64_t step, const v1::TraceReport* report, v1::BeginStepReply* reply) {
    v1::BeginStepRequest request;
    request.set_job_id(spec_.id().value());
    request.set_term(1);
    request.set_step(step);
    request.set_worker_nonce(1);
    for (uint32_t p = 0; p < spec_.training.parts; ++p) request.add_parts(p);
    if (report != nullptr) *request.mutable_trace() = *report;
    return FromGrpc(client().data().BeginStep(NewContext().get(), request, reply), "BeginStep");
  }
  TestClient& client() { return worker_.client(0); }

  std::unique_ptr<Server> server_ = StartTestServer();
  JobSpec spec_ = TinySyntheticSpec();
  HonestWorker worker_{{server_->address()}, spec_};
};

TEST_F(TraceRpc, SendsTheSpansOfItsSteps) {
  OpenTrace trace(&client(), 2);
  const int64_t before = TraceNowNs();
  v1::TraceReply first;
  ASSERT_TRUE(trace.Read(&first));
  EXPECT_EQ(first.report().spans_size(), 0);
  EXPECT_LT(std::abs(first.now_ns() - before), int64_t{30} * 1'000'000'000);
  for (int i = 0; i < 4; ++i) {
    const absl::Status status = worker_.Step();
    ASSERT_TRUE(status.ok()) << status;
  }
  const auto steps = trace.ReadAll();
  EXPECT_TRUE(trace.Finish().ok());
  ASSERT_EQ(steps.count("server step"), 1u);
  // Step 1 was open before. The trace ends when step 4 begins.
  EXPECT_EQ(steps.at("server step"), (std::multiset<uint64_t>{1, 2, 3}));
  const size_t chunks = ChunkMap::Build(spec_).chunks().size();
  for (const uint64_t step : {1, 2, 3}) {
    EXPECT_EQ(steps.at("server update").count(step), chunks) << step;
    EXPECT_GE(steps.at("server check").count(step), chunks * spec_.training.parts) << step;
  }
  EXPECT_FALSE(TraceIsOn());
}

TEST_F(TraceRpc, WorkersAreAskedWhileSomebodyTraces) {
  v1::BeginStepReply reply;
  OpenTrace trace(&client(), 1);
  v1::TraceReply first;
  ASSERT_TRUE(trace.Read(&first));
  const int64_t before = TraceNowNs();
  ASSERT_TRUE(Begin(1, nullptr, &reply).ok());
  ASSERT_TRUE(reply.has_trace_order());
  EXPECT_LE(before, reply.trace_order().received_ns());
  EXPECT_LE(reply.trace_order().received_ns(), reply.trace_order().sent_ns());
  EXPECT_LE(reply.trace_order().sent_ns(), TraceNowNs());
  ASSERT_TRUE(worker_.Step().ok());
  ASSERT_TRUE(worker_.Step().ok());  // step 3 begins: the trace has all of step 2
  ASSERT_TRUE(Begin(3, nullptr, &reply).ok());
  EXPECT_FALSE(reply.has_trace_order());
  trace.ReadAll();
  EXPECT_TRUE(trace.Finish().ok());
}

TEST_F(TraceRpc, ReportsOfWorkersPassThrough) {
  OpenTrace trace(&client(), 1);
  v1::TraceReply first;
  ASSERT_TRUE(trace.Read(&first));
  v1::TraceReport report;
  report.set_process("worker (a machine)");
  report.add_names("forward");
  report.add_spans()->set_step(1);
  v1::TraceReport longer = report;
  longer.add_names(std::string(kMaxWorkerReportBytes, 'x'));
  longer.mutable_spans(0)->set_step(17);
  ASSERT_TRUE(worker_.Step().ok());
  v1::BeginStepReply reply;
  ASSERT_TRUE(Begin(2, &report, &reply).ok());
  ASSERT_TRUE(Begin(2, &longer, &reply).ok());
  ASSERT_TRUE(worker_.Step().ok());
  const auto steps = trace.ReadAll();
  EXPECT_TRUE(trace.Finish().ok());
  ASSERT_EQ(steps.count("worker forward"), 1u);
  EXPECT_EQ(steps.at("worker forward"), std::multiset<uint64_t>{1});
  EXPECT_EQ(trace.dropped(), 1u) << "the one span of the report that was too long";
}

TEST_F(TraceRpc, TheEndOfTheJobEndsIt) {
  OpenTrace trace(&client(), 1000);
  v1::TraceReply first;
  ASSERT_TRUE(trace.Read(&first));
  for (uint64_t i = 0; i < spec_.training.steps; ++i) ASSERT_TRUE(worker_.Step().ok());
  trace.ReadAll();
  EXPECT_TRUE(trace.Finish().ok());
  OpenTrace late(&client(), 1);
  EXPECT_FALSE(late.Read(&first));
  const absl::Status status = late.Finish();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
}

TEST_F(TraceRpc, AFifthTraceIsRefused) {
  std::vector<std::unique_ptr<OpenTrace>> traces;
  v1::TraceReply reply;
  for (int i = 0; i < 4; ++i) {
    traces.push_back(std::make_unique<OpenTrace>(&client(), 1));
    ASSERT_TRUE(traces.back()->Read(&reply));
  }
  OpenTrace fifth(&client(), 1);
  EXPECT_FALSE(fifth.Read(&reply));
  const absl::Status status = fifth.Finish();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "4 of these calls")) << status;
}

TEST_F(TraceRpc, RecordingEndsWithItsClient) {
  OpenTrace first(&client(), 1000);
  OpenTrace second(&client(), 1000);
  v1::TraceReply reply;
  ASSERT_TRUE(first.Read(&reply));
  ASSERT_TRUE(second.Read(&reply));
  first.Cancel();
  EXPECT_TRUE(absl::IsCancelled(first.Finish()));
  EXPECT_TRUE(TraceIsOn());
  second.Cancel();
  EXPECT_TRUE(absl::IsCancelled(second.Finish()));
  const auto deadline = std::chrono::steady_clock::now() + kCallTimeout;
  while (TraceIsOn() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  EXPECT_FALSE(TraceIsOn());
  v1::BeginStepReply begun;
  ASSERT_TRUE(Begin(1, nullptr, &begun).ok());
  EXPECT_FALSE(begun.has_trace_order());
}

TEST_F(TraceRpc, RefusesWrongNumbersOfSteps) {
  for (const uint32_t steps : {0u, 1001u}) {
    OpenTrace trace(&client(), steps);
    v1::TraceReply reply;
    EXPECT_FALSE(trace.Read(&reply));
    const absl::Status status = trace.Finish();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  }
}

}  // namespace
}  // namespace eps
