#include "wire/control_client.h"

#include <atomic>
#include <thread>

#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "wire/channel.h"
#include "wire/testing/answering_control.h"

namespace eps {
namespace {

// Accepts every job.
class AcceptingService final : public AnsweringControl {
 public:
  grpc::Status CreateJob(grpc::ServerContext*, const v1::CreateJobRequest*,
                         v1::CreateJobReply*) override {
    return grpc::Status::OK;
  }
};

// Fills its slots while it creates a job: a piece whenever somebody looks.
class FillingService final : public AnsweringControl {
 public:
  static constexpr uint64_t kBytes = 40;

  grpc::Status Status(grpc::ServerContext*, const v1::StatusRequest*,
                      v1::StatusReply* reply) override {
    const uint64_t looks = ++looks_;
    if (looks % 3 == 0 && filled_ < stops_at) ++filled_;
    (*reply->mutable_counters())["filled_bytes"] = filled_;
    (*reply->mutable_counters())["fill_wanted_bytes"] = kBytes;
    return grpc::Status::OK;
  }
  grpc::Status CreateJob(grpc::ServerContext* context, const v1::CreateJobRequest*,
                         v1::CreateJobReply*) override {
    while (filled_ < kBytes && !context->IsCancelled()) std::this_thread::yield();
    return context->IsCancelled() ? grpc::Status::CANCELLED : grpc::Status::OK;
  }

  std::atomic<uint64_t> stops_at{kBytes};

 private:
  std::atomic<uint64_t> looks_{0};
  std::atomic<uint64_t> filled_{0};
};

TEST(ControlClient, WaitsWhileServersFillTheirSlots) {
  KeepGrpcInitialised();
  FillingService service;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  auto client = ControlClient::Connect({"127.0.0.1:" + std::to_string(port)},
                                       std::chrono::steady_clock::now() + std::chrono::seconds(20));
  ASSERT_TRUE(client.ok()) << client.status();
  const ControlClient::CreatePatience patience = {std::chrono::milliseconds(1), /*idle_looks=*/5};
  service.stops_at = FillingService::kBytes / 2;
  const absl::Status stuck = (*client)->CreateJob(JobSpec(), "", patience).status();
  EXPECT_EQ(stuck.code(), absl::StatusCode::kDeadlineExceeded) << stuck;
  service.stops_at = FillingService::kBytes;
  const absl::Status filled = (*client)->CreateJob(JobSpec(), "", patience).status();
  EXPECT_TRUE(filled.ok()) << filled;
}

// A race here is for the thread sanitizer to find.
TEST(ControlClient, NamesItsJobWhileAnotherIsCreated) {
  KeepGrpcInitialised();
  AcceptingService service;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  auto client = ControlClient::Connect({"127.0.0.1:" + std::to_string(port)},
                                       std::chrono::steady_clock::now() + std::chrono::seconds(20));
  ASSERT_TRUE(client.ok()) << client.status();

  JobSpec first, second;
  first.name = "first";
  second.name = "second";
  ASSERT_TRUE((*client)->CreateJob(first).ok());
  EXPECT_EQ((*client)->job(), first.id());
  std::atomic<bool> created{false};
  std::thread reader([&] {
    while (!created.load()) {
      const JobId job = (*client)->job();
      EXPECT_TRUE(job == first.id() || job == second.id());
    }
  });
  EXPECT_TRUE((*client)->CreateJob(second).ok());
  created.store(true);
  reader.join();
  EXPECT_EQ((*client)->job(), second.id());
}

}  // namespace
}  // namespace eps
