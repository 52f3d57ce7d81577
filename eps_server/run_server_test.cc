// Tests RunServer in a process of its own: its output and its exit codes.

#include <chrono>
#include <csignal>
#include <string>

#include "base/testing/test_specs.h"
#include "eps_server/rpc/testing/serve_process.h"
#include "eps_server/rpc/testing/test_client.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

TEST(RunServer, AnUnfinishedJobEndsWith143OnSigterm) {
  ServeProcess process("127.0.0.1:0");
  const std::string address = process.Address();
  // A job and a stream that would stay open forever.
  TestClient client(address);
  const JobSpec spec = TinySyntheticSpec();
  ASSERT_TRUE(client.CreateJob(spec, {address}).ok());
  auto context = NewContext();
  auto push = client.data().Push(context.get());
  ASSERT_TRUE(client.Initialize(spec).ok());
  const auto start = std::chrono::steady_clock::now();
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait(), 143);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(8));
  v1::PushReply reply;
  EXPECT_FALSE(push->Read(&reply));
  EXPECT_EQ(push->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST(RunServer, AnUnfinishedJobEndsWith130OnSigint) {
  ServeProcess process("127.0.0.1:0");
  const std::string address = process.Address();
  TestClient client(address);
  ASSERT_TRUE(client.CreateJob(TinySyntheticSpec(), {address}).ok());
  process.Signal(SIGINT);
  EXPECT_EQ(process.Wait(), 130);
}

TEST(RunServer, EndsWithZeroWithoutAJob) {
  for (const int signal : {SIGTERM, SIGINT}) {
    ServeProcess process("127.0.0.1:0");
    process.Address();
    process.Signal(signal);
    EXPECT_EQ(process.Wait(), 0) << signal;
  }
}

TEST(RunServer, MapsErrorsToExitCodes) {
  ServeProcess first("127.0.0.1:0");
  const std::string address = first.Address();
  ServeProcess taken(address);
  EXPECT_EQ(taken.Line(), "");
  EXPECT_EQ(taken.Wait(), 69) << "unavailable";
  ServeProcess open_to_all("0.0.0.0:0");
  EXPECT_EQ(open_to_all.Wait(), 77) << "not allowed";
  ServeProcess nonsense("nonsense");
  EXPECT_EQ(nonsense.Wait(), 64) << "usage";
}

}  // namespace
}  // namespace eps
