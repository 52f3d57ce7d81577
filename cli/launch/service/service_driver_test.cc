#include "cli/launch/service/service_driver.h"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/strings/match.h"
#include "cli/launch/service/job_lease.h"
#include "cli/launch/service/job_progress.h"
#include "eps/v1/control.grpc.pb.h"
#include "eps/v1/scheduler.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "wire/channel.h"
#include "wire/testing/answering_control.h"

namespace eps {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// Answers reports with `status`.
class ReportingBoard final : public v1::Scheduler::Service {
 public:
  grpc::Status ReportJob(grpc::ServerContext*, const v1::ReportJobRequest* request,
                         v1::ReportJobReply* reply) override {
    ++reports;
    if (request->has_result()) {
      EXPECT_EQ(request->result().text(), "no ? text\nof UTF-8");
    }
    if (status != grpc::StatusCode::OK) return {status.load(), "not now"};
    EXPECT_EQ(request->name(), "a");
    EXPECT_EQ(request->uid(), 5u);
    EXPECT_EQ(request->driver_nonce(), "mine");
    EXPECT_EQ(request->lease_generation(), 3u);
    reply->set_lease_ms(lease_ms);
    reply->mutable_job()->set_name("a");
    reply->mutable_job()->set_uid(5);
    reply->mutable_job()->set_desired(v1::DESIRED_PAUSE);
    return grpc::Status::OK;
  }

  std::atomic<grpc::StatusCode> status{grpc::StatusCode::OK};
  std::atomic<int> lease_ms{60'000};
  std::atomic<int> reports{0};
};

class JobLeaseTest : public testing::Test {
 protected:
  JobLeaseTest() {
    KeepGrpcInitialised();
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&control_);
    builder.RegisterService(&board_);
    server_ = builder.BuildAndStart();
    auto client = SchedulerClient::Connect("127.0.0.1:" + std::to_string(port),
                                           Clock::now() + std::chrono::seconds(20));
    EXPECT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }

  JobLease Claimed(int lease_ms) {
    v1::ClaimJobReply claim;
    claim.set_lease_ms(lease_ms);
    claim.mutable_job()->set_name("a");
    claim.mutable_job()->set_uid(5);
    claim.mutable_job()->mutable_driver()->set_generation(3);
    return JobLease(client_.get(), "mine", claim, Clock::now());
  }

  AnsweringControl control_;
  ReportingBoard board_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<SchedulerClient> client_;
};

TEST_F(JobLeaseTest, ReportsTellWhatIsWanted) {
  JobLease lease = Claimed(60'000);
  EXPECT_LE(lease.due(), Clock::now());
  const absl::Status status = lease.Report({});
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(lease.job().desired(), v1::DESIRED_PAUSE);
  EXPECT_GT(lease.due(), Clock::now());
}

TEST_F(JobLeaseTest, IsLostWhenTheLeadSaysSo) {
  JobLease lease = Claimed(60'000);
  for (const grpc::StatusCode code : {grpc::StatusCode::ABORTED, grpc::StatusCode::NOT_FOUND}) {
    board_.status = code;
    EXPECT_TRUE(absl::IsAborted(lease.Report({})));
    EXPECT_TRUE(absl::IsAborted(lease.End({})));
  }
}

TEST_F(JobLeaseTest, IsLostAfterItsTimeWithoutAnswers) {
  JobLease lease = Claimed(60'000);
  board_.lease_ms = 300;
  ASSERT_TRUE(lease.Report({}).ok());
  const auto granted = Clock::now();
  board_.status = grpc::StatusCode::UNAVAILABLE;
  absl::Status status = lease.Report({});
  while (status.ok()) {
    ASSERT_LT(Clock::now() - granted, std::chrono::seconds(20));
    status = lease.Report({});
  }
  EXPECT_TRUE(absl::IsAborted(status)) << status;
  EXPECT_GE(Clock::now() - granted, std::chrono::milliseconds(250));
  EXPECT_TRUE(absl::IsAborted(lease.End({})));
}

TEST_F(JobLeaseTest, RepeatsItsEnd) {
  JobLease lease = Claimed(60'000);
  board_.status = grpc::StatusCode::UNAVAILABLE;
  std::thread back([this] {
    while (board_.reports < 2) std::this_thread::yield();
    board_.status = grpc::StatusCode::OK;
  });
  v1::ReportJobRequest report;
  report.mutable_result()->set_text("no \xff text\nof UTF-8");
  const absl::Status status = lease.End(report);
  back.join();
  EXPECT_TRUE(status.ok()) << status;
}

TEST(JobProgressReader, ReadsTheFilesOfARun) {
  const fs::path folder = fs::path(testing::TempDir()) / "progress";
  fs::remove_all(folder);
  fs::create_directories(folder);
  const std::string log = (folder / "train.log").string();
  std::ofstream(log) << "job: 00000000000000ab at step 9\neps: an old error\n";
  JobProgressReader reader(folder.string(), log);
  reader.Read();
  EXPECT_EQ(reader.job_id(), 0u);
  EXPECT_EQ(reader.Error(), "");
  std::ofstream(log, std::ios::app) << "job: 00000000000000cd at step 3 (eps status)\nstep: 4/30 "
                                       "loss: 2.5\nstep: 5/40 lo";
  std::ofstream(folder / "metrics.jsonl") << "{\"step\": 4, \"loss\": 2.5}\n"
                                          << "{\"step\": 4, \"eval_loss\": 1.5}\n{\"step\": 5, \"l";
  std::ofstream(folder / "latest") << "checkpoint-3\n";
  reader.Read();
  EXPECT_EQ(reader.job_id(), 0xcdu);
  EXPECT_EQ(reader.progress().step(), 4u);
  EXPECT_EQ(reader.progress().steps(), 30u);
  EXPECT_EQ(reader.progress().loss(), 2.5);
  EXPECT_EQ(reader.progress().checkpoint_step(), 3u);
  EXPECT_EQ(reader.progress().checkpoint(), (folder / "checkpoint-3").string());
  std::ofstream(log, std::ios::app) << "ss\neps: no room\nmore about it\n";
  reader.Read();
  EXPECT_EQ(reader.progress().steps(), 40u);
  EXPECT_EQ(reader.Error(), "no room\nmore about it");
}

TEST(ServiceDriver, OneDriverHasAFolder) {
  DriverOptions options;
  options.servers = {"127.0.0.1:1"};
  options.out = (fs::path(testing::TempDir()) / "driver").string();
  const auto first = ServiceDriver::Open(options);
  ASSERT_TRUE(first.ok()) << first.status();
  const absl::Status second = ServiceDriver::Open(options).status();
  EXPECT_TRUE(absl::IsInvalidArgument(second)) << second;
  EXPECT_TRUE(absl::StrContains(second.message(), "is in use by")) << second;
}

}  // namespace
}  // namespace eps
