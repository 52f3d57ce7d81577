// Planted: the OnCancel of a server's call and the thread that cancelled the call count without a
// lock. The tsan lane must report it, although gRPC's libraries are not instrumented.

#include <chrono>
#include <memory>

#include "base/mutex.h"
#include "eps/v1/control.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

// The calls of a server and the test share this.
struct Counts {
  int count = 0;  // the race
  Mutex mu;
  CondVar changed;
  int begun = 0;      // guarded by mu
  int cancelled = 0;  // likewise
};

// Ends when it is cancelled.
class PatientCall final : public grpc::ServerUnaryReactor {
 public:
  explicit PatientCall(Counts* counts) : counts_(counts) {
    MutexLock lock(&counts_->mu);
    ++counts_->begun;
    counts_->changed.NotifyAll();
  }
  void OnCancel() override {
    ++counts_->count;
    Finish(grpc::Status::CANCELLED);
    MutexLock lock(&counts_->mu);
    ++counts_->cancelled;
    counts_->changed.NotifyAll();
  }
  void OnDone() override { delete this; }

 private:
  Counts* const counts_;
};

class Server : public v1::Control::CallbackService {
 public:
  explicit Server(Counts* counts) : counts_(counts) {}
  grpc::ServerUnaryReactor* Hello(grpc::CallbackServerContext*, const v1::HelloRequest*,
                                  v1::HelloReply*) override {
    return new PatientCall(counts_);
  }

 private:
  Counts* const counts_;
};

TEST(Planted, CountsInOnCancelWithoutALock) {
  Counts counts;
  Server service(&counts);
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  const auto stub = v1::Control::NewStub(
      grpc::CreateChannel("127.0.0.1:" + std::to_string(port), grpc::InsecureChannelCredentials()));

  constexpr int kCalls = 100;
  for (int i = 0; i < kCalls; ++i) {
    grpc::ClientContext context;
    const v1::HelloRequest request;
    v1::HelloReply reply;
    bool ended = false;  // guarded by counts.mu
    stub->async()->Hello(&context, &request, &reply, [&](const grpc::Status&) {
      MutexLock lock(&counts.mu);
      ended = true;
      counts.changed.NotifyAll();
    });
    {
      MutexLock lock(&counts.mu);
      while (counts.begun <= i) {
        ASSERT_TRUE(counts.changed.WaitFor(&counts.mu, std::chrono::seconds(10)));
      }
    }
    context.TryCancel();
    ++counts.count;
    MutexLock lock(&counts.mu);
    while (!ended || counts.cancelled <= i) {
      ASSERT_TRUE(counts.changed.WaitFor(&counts.mu, std::chrono::seconds(10)));
    }
  }
  EXPECT_LE(counts.count, 2 * kCalls);
}

}  // namespace
}  // namespace eps
