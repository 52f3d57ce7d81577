#include "cli/driver/job_driver.h"

#include <atomic>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "base/config/config.h"
#include "base/exit_code.h"
#include "base/testing/test_specs.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "wire/channel.h"
#include "wire/testing/answering_control.h"

namespace eps {
namespace {

constexpr char kReason[] = "part 1 was lost in step 3";

// A server whose job fails as soon as somebody follows it.
class FailingService final : public AnsweringControl {
 public:
  explicit FailingService(uint32_t failure_code, bool failed = false)
      : failure_code_(failure_code), failed_(failed) {}

  grpc::Status CreateJob(grpc::ServerContext*, const v1::CreateJobRequest*,
                         v1::CreateJobReply*) override {
    return grpc::Status::OK;
  }
  grpc::Status Gate(grpc::ServerContext*, const v1::GateRequest*, v1::GateReply*) override {
    return grpc::Status::OK;
  }
  grpc::Status Status(grpc::ServerContext*, const v1::StatusRequest*,
                      v1::StatusReply* reply) override {
    reply->set_state(failed_ ? v1::JOB_STATE_FAILED : v1::JOB_STATE_RUNNING);
    if (!failed_) return grpc::Status::OK;
    reply->set_failure(kReason);
    reply->set_failure_code(failure_code_);
    return grpc::Status::OK;
  }
  grpc::Status WatchSteps(grpc::ServerContext*, const v1::WatchStepsRequest*,
                          grpc::ServerWriter<v1::StepRecord>*) override {
    failed_ = true;
    return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "no more records");
  }

 private:
  const uint32_t failure_code_;
  std::atomic<bool> failed_;
};

// A run without processes of its own.
class NoProcesses final : public DriverHost {
 public:
  absl::Status CheckProcesses() override { return absl::OkStatus(); }
  absl::Status RestartFinishedWorkers() override { return absl::OkStatus(); }
  bool WorkersEnded() override { return false; }
  const std::string& log_folder() const override { return log_folder_; }
  bool Interrupted() const override { return false; }
  bool TakeSaveRequest() override { return false; }
  absl::Status BeforeCheckpoint() override { return absl::OkStatus(); }
  void OnCheckpoint(const std::string&, uint64_t) override {}
  void OnRecord(const v1::StepRecord&) override {}

 private:
  const std::string log_folder_;
};

// Returns how a run ends whose job fails, or had failed before.
absl::Status FollowAJobThatFails(uint32_t failure_code, bool before = false) {
  KeepGrpcInitialised();
  FailingService service(failure_code, before);
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  NoProcesses host;
  const auto driver = JobDriver::Open({Config(), TinySyntheticSpec(), ""}, &host);
  if (!driver.ok()) return driver.status();
  const absl::Status started = (*driver)->Start({"127.0.0.1:" + std::to_string(port)}, "");
  return started.ok() ? (*driver)->Follow() : started;
}

TEST(JobDriverTest, AFailedJobGivesReasonAndCode) {
  for (const ExitCode code : {ExitCode::kDataInvalid, ExitCode::kUnavailable, ExitCode::kIo}) {
    const absl::Status status = FollowAJobThatFails(static_cast<uint32_t>(code));
    EXPECT_EQ(ExitCodeOf(status), code) << status;
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), kReason)) << status;
  }
}

TEST(JobDriverTest, AnEarlierFailureGivesItsCode) {
  for (const ExitCode code : {ExitCode::kDataInvalid, ExitCode::kUnavailable}) {
    const absl::Status status = FollowAJobThatFails(static_cast<uint32_t>(code), /*before=*/true);
    EXPECT_EQ(ExitCodeOf(status), code) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "an earlier run (part 1 was lost")) << status;
  }
}

TEST(JobDriverTest, WithoutACodeTheStatusDecides) {
  for (const uint32_t none : {0u, 256u, 1000u}) {
    const absl::Status status = FollowAJobThatFails(none);
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kDataInvalid) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "no more records")) << status;
  }
}

}  // namespace
}  // namespace eps
