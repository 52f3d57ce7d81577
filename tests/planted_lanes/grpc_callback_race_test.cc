// Planted: a gRPC callback and the thread that started the call count without a lock. The tsan lane
// must report it, although gRPC's libraries are not instrumented.

#include <chrono>
#include <memory>

#include "base/mutex.h"
#include "eps/v1/control.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

class Server : public v1::Control::CallbackService {
 public:
  grpc::ServerUnaryReactor* Hello(grpc::CallbackServerContext* context, const v1::HelloRequest*,
                                  v1::HelloReply*) override {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
};

TEST(Planted, CountsInACallbackWithoutALock) {
  Server service;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  const auto stub = v1::Control::NewStub(
      grpc::CreateChannel("127.0.0.1:" + std::to_string(port), grpc::InsecureChannelCredentials()));

  constexpr int kCalls = 200;
  int count = 0;  // the race
  Mutex mu;
  CondVar changed;
  int ended = 0;  // guarded by mu
  for (int i = 0; i < kCalls; ++i) {
    grpc::ClientContext context;
    const v1::HelloRequest request;
    v1::HelloReply reply;
    stub->async()->Hello(&context, &request, &reply, [&](const grpc::Status&) {
      ++count;
      MutexLock lock(&mu);
      ++ended;
      changed.NotifyAll();
    });
    ++count;
    MutexLock lock(&mu);
    while (ended <= i) {
      ASSERT_TRUE(changed.WaitFor(&mu, std::chrono::seconds(10)));
    }
  }
  EXPECT_LE(count, 2 * kCalls);
}

}  // namespace
}  // namespace eps
