// How the link of a shard ends, with real server processes: only with its connection.

#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "base/job/job_spec.h"
#include "base/testing/test_specs.h"
#include "eps_server/rpc/testing/honest_worker.h"
#include "eps_server/rpc/testing/relay_port.h"
#include "eps_server/rpc/testing/serve_process.h"
#include "eps_server/rpc/testing/test_client.h"
#include "gtest/gtest.h"
#include "wire/channel.h"
#include "wire/grpc_status.h"

namespace eps {
namespace {

// Ample for a link to end by its keep-alive and to be opened again.
constexpr std::chrono::seconds kPatience{120};

// Two servers and a worker. The second server reaches the lead through a relay.
class LinkEnd : public ::testing::Test {
 protected:
  // Opens a link in the name of the second server, and returns how it ends.
  absl::Status Forge(uint64_t incarnation) {
    auto context = NewContext();
    auto link = worker_.client(0).shard().Link(context.get());
    v1::ShardMessage message;
    message.set_job_id(spec_.id().value());
    message.set_from(1);
    message.set_term(1);
    message.mutable_register_()->set_incarnation(incarnation);
    link->Write(message);
    v1::ShardMessage ignored;
    while (link->Read(&ignored)) {
    }
    return FromGrpc(link->Finish(), "");
  }
  // Runs a step and prints how long it takes.
  void ExpectStep(const char* what) {
    const auto start = std::chrono::steady_clock::now();
    const absl::Status status = worker_.Step(kPatience);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    std::printf("%s: the step takes %.1f s\n", what, seconds.count());
    EXPECT_TRUE(status.ok()) << what << ": " << status;
  }

  const JobSpec spec_ = TinySyntheticSpec();
  ServeProcess lead_{"127.0.0.1:0"};
  ServeProcess second_{"127.0.0.1:0"};
  const std::string lead_address_ = lead_.Address();
  const std::string second_address_ = second_.Address();
  RelayPort to_lead_{lead_address_};
  HonestWorker worker_{
      {lead_address_, second_address_}, spec_, {to_lead_.address(), second_address_}};
};

TEST_F(LinkEnd, ARegisterEndsNoLivingLink) {
  ExpectStep("before");
  const absl::Status status = Forge(/*incarnation=*/1);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "a link of shard 1 is open")) << status;
  ExpectStep("after a forged Register");
}

TEST_F(LinkEnd, ABrokenLinkOpensAgain) {
  ExpectStep("before");
  to_lead_.Break();
  ExpectStep("after a break");
}

TEST_F(LinkEnd, ASilentLinkIsReplaced) {
  ExpectStep("before");
  auto context = NewContext(kPatience);
  auto silent = worker_.client(0).shard().Link(context.get());  // never sends a Register
  to_lead_.Silence();
  ExpectStep("after a silent break");
  v1::ShardMessage ignored;
  EXPECT_FALSE(silent->Read(&ignored));
  EXPECT_EQ(silent->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
}

}  // namespace
}  // namespace eps
