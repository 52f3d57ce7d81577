#include "wire/control_client.h"

#include <atomic>
#include <thread>

#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "wire/channel.h"

namespace eps {
namespace {

// Accepts every job.
class AcceptingService final : public v1::Control::Service {
 public:
  grpc::Status Hello(grpc::ServerContext*, const v1::HelloRequest*, v1::HelloReply*) override {
    return grpc::Status::OK;
  }
  grpc::Status CreateJob(grpc::ServerContext*, const v1::CreateJobRequest*,
                         v1::CreateJobReply*) override {
    return grpc::Status::OK;
  }
};

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
