// The Scheduler service of real servers over real sockets.

#include <unistd.h>

#include <filesystem>
#include <future>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/testing/test_specs.h"
#include "eps/v1/scheduler.grpc.pb.h"
#include "eps_server/jobs/testing/board_requests.h"
#include "eps_server/rpc/testing/test_client.h"
#include "grpcpp/channel.h"
#include "gtest/gtest.h"
#include "wire/grpc_status.h"

namespace eps {
namespace {

using Stub = v1::Scheduler::Stub;

template <class Request, class Reply>
absl::StatusOr<Reply> Call(Stub* stub,
                           grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                        Reply*),
                           const Request& request) {
  Reply reply;
  const auto context = NewContext();
  const grpc::Status status = (stub->*method)(context.get(), request, &reply);
  if (!status.ok()) return FromGrpc(status, "Scheduler");
  return reply;
}

// A server, with or without a data directory, and a client.
class SchedulerRpcTest : public testing::Test {
 protected:
  SchedulerRpcTest()
      : folder_(absl::StrCat(testing::TempDir(), "/scheduler-",
                             testing::UnitTest::GetInstance()->current_test_info()->name(), "-",
                             getpid())) {
    std::filesystem::remove_all(folder_);
  }
  ~SchedulerRpcTest() override {
    server_.reset();
    std::filesystem::remove_all(folder_);
  }

  void Start(bool durable) {
    stub_.reset();
    server_.reset();
    ServerOptions options;
    options.threads = 2;
    options.memory_limit_bytes = uint64_t{1} << 30;
    if (durable) {
      options.storage.emplace();
      options.storage->kind = "dram";
      options.storage->path = folder_;
      options.storage->staging_bytes = uint64_t{8} << 20;
    }
    auto server = Server::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = v1::Scheduler::NewStub(TestClient(server_->address()).channel());
  }

  absl::StatusOr<v1::Job> Submit(const std::string& name) {
    const auto reply = Call(stub_.get(), &Stub::SubmitJob, SubmitOf(name));
    return reply.ok() ? absl::StatusOr<v1::Job>(reply->job()) : reply.status();
  }
  absl::StatusOr<v1::Job> Claim(int driver, const std::string& name) {
    const auto reply = Call(stub_.get(), &Stub::ClaimJob, ClaimOf(driver, name));
    return reply.ok() ? absl::StatusOr<v1::Job>(reply->job()) : reply.status();
  }
  absl::StatusOr<v1::Job> Report(const v1::ReportJobRequest& request) {
    const auto reply = Call(stub_.get(), &Stub::ReportJob, request);
    return reply.ok() ? absl::StatusOr<v1::Job>(reply->job()) : reply.status();
  }
  v1::ListJobsReply List(const std::string& name = "") {
    const auto reply = Call(stub_.get(), &Stub::ListJobs, ListOf(name));
    EXPECT_TRUE(reply.ok()) << reply.status();
    return reply.ok() ? *reply : v1::ListJobsReply();
  }
  v1::WatchJobsRequest WatchFrom(uint64_t revision) {
    v1::WatchJobsRequest request;
    request.set_board(List().board());
    request.set_from_revision(revision);
    return request;
  }

  const std::string folder_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<Stub> stub_;
};

TEST_F(SchedulerRpcTest, RunsAJobFromSubmissionToRemoval) {
  Start(/*durable=*/false);
  const auto submitted = Submit("a");
  ASSERT_TRUE(submitted.ok()) << submitted.status();
  EXPECT_NE(submitted->uid(), 0u);
  EXPECT_GT(submitted->created_ms(), 1'600'000'000'000);
  const auto context = NewContext();
  auto watch = stub_->WatchJobs(context.get(), WatchFrom(0));
  auto job = Claim(1, "a");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(Claim(2, "a").status().code(), absl::StatusCode::kUnavailable);
  v1::ReportJobRequest report = ReportOf(*job, v1::JOB_PHASE_RUNNING);
  report.set_job_id(0xabcd);
  ASSERT_TRUE(Report(report).ok());
  const auto paused =
      Call(stub_.get(), &Stub::UpdateJob, UpdateOf(List("a").jobs(0), v1::DESIRED_PAUSE));
  ASSERT_TRUE(paused.ok()) << paused.status();
  EXPECT_EQ(Report(ReportOf(*job))->desired(), v1::DESIRED_PAUSE);
  const auto ended = Report(EndOf(*job, 0));
  ASSERT_TRUE(ended.ok()) << ended.status();
  EXPECT_EQ(ended->job_id(), 0xabcdu);
  ASSERT_TRUE(Call(stub_.get(), &Stub::RemoveJob, RemoveOf("a")).ok());
  EXPECT_TRUE(List().jobs().empty());
  const v1::JobPhase phases[] = {v1::JOB_PHASE_QUEUED, v1::JOB_PHASE_STARTING,
                                 v1::JOB_PHASE_RUNNING, v1::JOB_PHASE_RUNNING,
                                 v1::JOB_PHASE_SUCCEEDED};
  v1::JobEvent event;
  uint64_t revision = 0;
  for (const v1::JobPhase phase : phases) {
    ASSERT_TRUE(watch->Read(&event));
    EXPECT_EQ(event.kind(), v1::JobEvent::KIND_PUT);
    EXPECT_EQ(event.revision(), ++revision);
    EXPECT_EQ(event.job().phase(), phase);
  }
  ASSERT_TRUE(watch->Read(&event));
  EXPECT_EQ(event.kind(), v1::JobEvent::KIND_REMOVED);
  EXPECT_EQ(event.job().uid(), submitted->uid());
}

TEST_F(SchedulerRpcTest, KeepsTheBoardOverARestart) {
  Start(/*durable=*/true);
  ASSERT_TRUE(Submit("a").ok());
  const v1::Job job = *Claim(1, "a");
  v1::ReportJobRequest report = ReportOf(job, v1::JOB_PHASE_RUNNING);
  report.mutable_progress()->set_checkpoint_step(8);
  report.mutable_progress()->set_checkpoint("/out/8");
  ASSERT_TRUE(Report(report).ok());
  const v1::ListJobsReply before = List();
  Start(/*durable=*/true);
  EXPECT_EQ(List().DebugString(), before.DebugString());
  EXPECT_EQ(Claim(2, "a").status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(Report(ReportOf(job)).ok()) << "the driver goes on";
  // A watcher that has seen everything goes on, others have to list.
  const auto context = NewContext();
  auto watch = stub_->WatchJobs(context.get(), WatchFrom(before.revision()));
  ASSERT_TRUE(Report(EndOf(job, 0)).ok());
  v1::JobEvent event;
  ASSERT_TRUE(watch->Read(&event));
  EXPECT_EQ(event.revision(), before.revision() + 1);
  const auto late_context = NewContext();
  auto late = stub_->WatchJobs(late_context.get(), WatchFrom(1));
  EXPECT_FALSE(late->Read(&event));
  EXPECT_EQ(late->Finish().error_code(), grpc::StatusCode::OUT_OF_RANGE);
}

TEST_F(SchedulerRpcTest, ForgetsABoardInMemory) {
  Start(/*durable=*/false);
  ASSERT_TRUE(Submit("a").ok());
  const v1::WatchJobsRequest request = WatchFrom(1);
  Start(/*durable=*/false);
  EXPECT_TRUE(List().jobs().empty());
  const auto context = NewContext();
  auto watch = stub_->WatchJobs(context.get(), request);
  v1::JobEvent event;
  EXPECT_FALSE(watch->Read(&event));
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::OUT_OF_RANGE);
}

TEST_F(SchedulerRpcTest, RefusesWithTheRequestsId) {
  Start(/*durable=*/false);
  const absl::Status bad = Submit("Bad Name").status();
  EXPECT_EQ(bad.code(), absl::StatusCode::kInvalidArgument) << bad;
  EXPECT_TRUE(absl::StrContains(bad.message(), "[request test]")) << bad;
  v1::SubmitJobRequest large = SubmitOf("a", std::string(size_t{5} << 20, 'x'));
  const absl::Status too_large = Call(stub_.get(), &Stub::SubmitJob, large).status();
  EXPECT_EQ(too_large.code(), absl::StatusCode::kInvalidArgument) << too_large;
  EXPECT_TRUE(absl::StrContains(too_large.message(), "at most 4194304")) << too_large;
}

TEST_F(SchedulerRpcTest, AnotherShardNamesTheLead) {
  Start(/*durable=*/false);
  const std::unique_ptr<Server> lead = StartTestServer();
  const auto on_lead = v1::Scheduler::NewStub(TestClient(lead->address()).channel());
  ASSERT_TRUE(Submit("a").ok()) << "no job is here yet";
  const JobSpec spec = TinySyntheticSpec();
  const absl::Status created =
      TestClient(lead->address()).CreateJob(spec, {lead->address(), server_->address()});
  ASSERT_TRUE(created.ok()) << created;
  const absl::Status status = Submit("b").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), lead->address())) << status;
  const auto context = NewContext();
  auto watch = stub_->WatchJobs(context.get(), v1::WatchJobsRequest());
  v1::JobEvent event;
  EXPECT_FALSE(watch->Read(&event));
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_TRUE(Call(on_lead.get(), &Stub::SubmitJob, SubmitOf("b")).ok());
}

TEST_F(SchedulerRpcTest, ServesTheBoardWhileItDrains) {
  Start(/*durable=*/false);
  ASSERT_TRUE(Submit("a").ok());
  const v1::Job job = *Claim(1, "a");
  server_->Drain([](const std::string&) {});
  EXPECT_TRUE(Report(ReportOf(job)).ok());
  EXPECT_EQ(List().jobs_size(), 1);
}

TEST_F(SchedulerRpcTest, ShutdownEndsWatches) {
  Start(/*durable=*/false);
  const auto context = NewContext();
  auto watch = stub_->WatchJobs(context.get(), WatchFrom(0));
  ASSERT_TRUE(Submit("a").ok());
  v1::JobEvent event;
  ASSERT_TRUE(watch->Read(&event));
  server_->Shutdown(std::chrono::seconds(10));
  EXPECT_FALSE(watch->Read(&event));
  const grpc::Status status = watch->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(absl::StrContains(status.error_message(), "shutting down")) << "not at the deadline";
}

TEST_F(SchedulerRpcTest, ASlowReaderGetsEachChange) {
  constexpr int kChanges = 200;
  Start(/*durable=*/false);
  const auto context = NewContext();
  auto watch = stub_->WatchJobs(context.get(), WatchFrom(0));
  // More bytes than the call and the transport take for a client that does not read.
  v1::SubmitJobRequest request = SubmitOf("a", std::string(size_t{200} << 10, 'x'));
  const auto submitted = Call(stub_.get(), &Stub::SubmitJob, request);
  ASSERT_TRUE(submitted.ok()) << submitted.status();
  v1::Job job = submitted->job();
  for (int i = 1; i < kChanges; ++i) {
    const auto updated = Call(stub_.get(), &Stub::UpdateJob,
                              UpdateOf(job, i % 2 == 1 ? v1::DESIRED_PAUSE : v1::DESIRED_RUN));
    ASSERT_TRUE(updated.ok()) << updated.status();
    job = updated->job();
  }
  v1::JobEvent event;
  for (uint64_t revision = 1; revision <= kChanges; ++revision) {
    do {
      ASSERT_TRUE(watch->Read(&event)) << watch->Finish().error_message();
    } while (event.kind() == v1::JobEvent::KIND_BOOKMARK);
    ASSERT_EQ(event.revision(), revision);
  }
}

TEST_F(SchedulerRpcTest, GivesEachJobToOneDriver) {
  constexpr int kDrivers = 6;
  constexpr int kJobs = 30;
  Start(/*durable=*/true);
  for (int i = 0; i < kJobs; ++i) ASSERT_TRUE(Submit(absl::StrCat("job-", i)).ok());
  std::vector<std::thread> threads;
  std::vector<std::vector<std::string>> done(kDrivers);
  for (int driver = 0; driver < kDrivers; ++driver) {
    threads.emplace_back([&, driver] {
      for (;;) {
        const auto job = Claim(driver, "");
        if (absl::IsNotFound(job.status())) return;
        ASSERT_TRUE(job.ok()) << job.status();
        done[driver].push_back(job->name());
        const auto ended = Report(EndOf(*job, 0));
        ASSERT_TRUE(ended.ok()) << ended.status();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<std::string> names;
  size_t claims = 0;
  for (const auto& of_driver : done) {
    claims += of_driver.size();
    names.insert(of_driver.begin(), of_driver.end());
  }
  EXPECT_EQ(claims, static_cast<size_t>(kJobs));
  EXPECT_EQ(names.size(), static_cast<size_t>(kJobs));
}

TEST_F(SchedulerRpcTest, ScalingChangesNothingElse) {
  Start(/*durable=*/false);
  const auto job = Submit("a");
  ASSERT_TRUE(job.ok()) << job.status();
  v1::UpdateJobRequest request;
  request.set_request_id("scale");
  request.set_name("a");
  request.set_expected_generation(job->generation());
  request.set_workers(3);
  const auto scaled = Call(stub_.get(), &Stub::UpdateJob, request);
  ASSERT_TRUE(scaled.ok()) << scaled.status();
  EXPECT_EQ(scaled->job().workers_wanted(), 3u);
  EXPECT_EQ(scaled->job().desired(), job->desired());
  EXPECT_EQ(scaled->job().generation(), job->generation() + 1);
  const auto again = Call(stub_.get(), &Stub::UpdateJob, request);
  ASSERT_TRUE(again.ok()) << "the effect is there already: " << again.status();
  EXPECT_EQ(again->job().revision(), scaled->job().revision());
  request.set_workers(4);
  EXPECT_EQ(Call(stub_.get(), &Stub::UpdateJob, request).status().code(),
            absl::StatusCode::kAborted);
  request.set_workers(100'000);
  EXPECT_EQ(Call(stub_.get(), &Stub::UpdateJob, request).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(SchedulerRpcTest, OnlyRunningJobsHaveWorkers) {
  Start(/*durable=*/false);
  v1::DrainWorkerRequest request;
  request.set_request_id("drain");
  request.set_name("a");
  request.set_worker_nonce(7);
  EXPECT_EQ(Call(stub_.get(), &Stub::DrainWorker, request).status().code(),
            absl::StatusCode::kNotFound);
  ASSERT_TRUE(Submit("a").ok());
  const absl::Status idle = Call(stub_.get(), &Stub::DrainWorker, request).status();
  EXPECT_EQ(idle.code(), absl::StatusCode::kFailedPrecondition) << idle;
  v1::DrainServerRequest server;
  server.set_request_id("drain");
  EXPECT_EQ(Call(stub_.get(), &Stub::DrainServer, server).status().code(),
            absl::StatusCode::kUnimplemented)
      << "no process of its own";
}

}  // namespace
}  // namespace eps
