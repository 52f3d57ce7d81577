// The gate of a driver, beside a server that plays a job at a border.

#include "cli/driver/save/save_gate.h"
#include "base/mutex.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "base/testing/test_specs.h"
#include "eps/v1/control.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "wire/channel.h"
#include "wire/control_client.h"
#include "wire/testing/answering_control.h"

namespace eps {
namespace {

// After this number the driver's begin.
constexpr uint64_t kGateNumber = uint64_t{1} << 32;

// A job in which `first` is the first border at which all shards can stop.
class GateService final : public AnsweringControl {
 public:
  grpc::Status CreateJob(grpc::ServerContext*, const v1::CreateJobRequest*,
                         v1::CreateJobReply* reply) override {
    reply->set_gate_number(kGateNumber);
    return grpc::Status::OK;
  }
  grpc::Status Gate(grpc::ServerContext*, const v1::GateRequest* request,
                    v1::GateReply* reply) override {
    MutexLock lock(&mu_);
    asked_.push_back(request->has_step() ? request->step() : 0);
    EXPECT_GT(request->number(), number_);
    number_ = request->number();
    reply->set_step(first_);
    return grpc::Status::OK;
  }

  void SetFirst(uint64_t first) {
    MutexLock lock(&mu_);
    first_ = first;
  }
  // Returns the last gate that was asked for; 0: to lift it.
  uint64_t asked() {
    MutexLock lock(&mu_);
    return asked_.back();
  }

  // Returns the highest border that was asked for.
  uint64_t most_asked() {
    MutexLock lock(&mu_);
    return *std::max_element(asked_.begin(), asked_.end());
  }

 private:
  Mutex mu_;
  std::vector<uint64_t> asked_ EPS_GUARDED_BY(mu_);
  uint64_t first_ EPS_GUARDED_BY(mu_) = 1;
  uint64_t number_ EPS_GUARDED_BY(mu_) = kGateNumber;  // of the last request
};

class SaveGateTest : public testing::Test {
 protected:
  SaveGateTest() {
    KeepGrpcInitialised();
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    auto client =
        ControlClient::Connect({"127.0.0.1:" + std::to_string(port)},
                               std::chrono::steady_clock::now() + std::chrono::seconds(30));
    EXPECT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
    EXPECT_TRUE(client_->CreateJob(TinySyntheticSpec(), "").ok());
  }
  // Returns the border of the gate that a driver sets.
  uint64_t BorderAfter(uint64_t step, uint64_t known, uint64_t first) {
    service_.SetFirst(first);
    EXPECT_TRUE(gate_.SetAfter(step, known, client_.get()).ok());
    return gate_.border();
  }

  GateService service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<ControlClient> client_;
  // Decides at 3, 5, 7 and so on.
  SaveGate gate_{{/*save_every=*/4, /*decide_every=*/2, /*last=*/20}};
};

TEST_F(SaveGateTest, StopsWhereSomethingIsLeftToDo) {
  EXPECT_EQ(BorderAfter(0, 0, 1), 3u);
  EXPECT_EQ(BorderAfter(3, 3, 4), 4u);
  EXPECT_EQ(BorderAfter(4, 4, 5), 5u);
  EXPECT_EQ(BorderAfter(5, 5, 6), 7u);
  EXPECT_EQ(BorderAfter(19, 19, 20), 0u);
  EXPECT_TRUE(gate_.Saves(4) && !gate_.Saves(5));
}

TEST_F(SaveGateTest, ADecisionAtTheBorderIsOpen) {
  // The job waits at border 7, and the driver has the records up to 5 or 6.
  EXPECT_EQ(BorderAfter(7, 5, 8), 7u);
  EXPECT_EQ(BorderAfter(7, 6, 8), 7u);
  EXPECT_EQ(BorderAfter(7, 7, 8), 8u);
}

TEST_F(SaveGateTest, ARequestComesBeforeWhatIsDue) {
  EXPECT_EQ(BorderAfter(8, 8, 9), 9u);
  EXPECT_EQ(BorderAfter(9, 9, 10), 11u);
  service_.SetFirst(10);
  ASSERT_TRUE(gate_.SaveFrom(10, client_.get()).ok());
  EXPECT_EQ(gate_.border(), 10u);
  EXPECT_EQ(service_.asked(), 10u);
  EXPECT_TRUE(gate_.Saves(10) && !gate_.Saves(11));
  EXPECT_EQ(BorderAfter(10, 10, 11), 11u) << "the gates go on as before";
  // A border that the servers name after the one that is due.
  service_.SetFirst(12);
  ASSERT_TRUE(gate_.SaveFrom(10, client_.get()).ok());
  EXPECT_EQ(service_.most_asked(), 11u) << "no step may pass the border that is due";
  EXPECT_EQ(gate_.border(), 11u);
  EXPECT_EQ(service_.asked(), 11u);
  EXPECT_TRUE(gate_.Saves(11));
}

// A lead that was restarted let the workers go on to the border that waits for the driver.
TEST_F(SaveGateTest, TheJobMayReachADecisionMeanwhile) {
  EXPECT_EQ(BorderAfter(6, 6, 8), 7u);
  EXPECT_EQ(service_.asked(), 7u);
  EXPECT_EQ(BorderAfter(3, 3, 6), 5u) << "past the checkpoint of 4";
  EXPECT_EQ(service_.asked(), 5u);
}

// Workers of another configuration do not wait.
TEST_F(SaveGateTest, ADecisionThatWasPassedIsSkipped) {
  EXPECT_EQ(BorderAfter(6, 6, 9), 9u);
  EXPECT_EQ(BorderAfter(7, 5, 9), 9u);
}

}  // namespace
}  // namespace eps
