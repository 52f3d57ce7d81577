// Every role calls every RPC of a real server, over TLS.

#include "eps_server/rpc/role_guard.h"

#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "eps/v1/control.grpc.pb.h"
#include "eps_server/rpc/testing/certified_peer.h"
#include "eps_server/rpc/testing/secured_server.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "wire/security/peer_role.h"

namespace eps {
namespace {

constexpr v1::Role kRoles[] = {v1::ROLE_WORKER,    v1::ROLE_SERVER, v1::ROLE_DRIVER,
                               v1::ROLE_SCHEDULER, v1::ROLE_ADMIN,  v1::ROLE_VIEWER};

// A server with a certificate, and one client for each role.
class RoleGuardTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    server_ = new SecuredServer();
    for (const v1::Role role : kRoles) channels_[role] = server_->Connect(role);
  }
  static void TearDownTestSuite() {
    channels_.clear();
    delete server_;
  }

  // Calls an RPC with an empty request, and returns its status.
  static absl::Status Call(v1::Role role, const std::string& path) {
    return CallRpc(channels_.at(role), path);
  }
  static bool IsDenied(const absl::Status& status) {
    return absl::IsPermissionDenied(status) && absl::StrContains(status.message(), "may not call");
  }

  static SecuredServer* server_;
  static std::map<v1::Role, std::shared_ptr<grpc::Channel>> channels_;
};

SecuredServer* RoleGuardTest::server_ = nullptr;
std::map<v1::Role, std::shared_ptr<grpc::Channel>> RoleGuardTest::channels_;

// The RPCs of each role, written by hand: a wrong option of an RPC must not pass.
const std::map<v1::Role, std::set<std::string>>& Expected() {
  static const auto* const expected = new std::map<v1::Role, std::set<std::string>>{
      {v1::ROLE_WORKER,
       {"Control/Join", "Control/Session", "Data/BeginStep", "Data/Fetch", "Data/Push"}},
      {v1::ROLE_SERVER, {"Shard/PrepareJob", "Shard/Link"}},
      {v1::ROLE_DRIVER,
       {"Control/CreateJob", "Control/GetJob", "Control/Join", "Control/Session",
        "Control/ImportState", "Control/ExportState", "Control/WatchSteps", "Control/Gate",
        "Control/Trace", "Data/BeginStep", "Data/Fetch", "Data/Push", "Scheduler/SubmitJob",
        "Scheduler/ListJobs", "Scheduler/WatchJobs", "Scheduler/ClaimJob", "Scheduler/ReportJob"}},
      {v1::ROLE_SCHEDULER,
       {"Control/WatchSteps", "Control/Trace", "Scheduler/SubmitJob", "Scheduler/ListJobs",
        "Scheduler/WatchJobs", "Scheduler/UpdateJob", "Scheduler/CheckpointJob",
        "Scheduler/RemoveJob", "Scheduler/DrainWorker", "Scheduler/DrainServer"}},
      {v1::ROLE_ADMIN,
       {"Control/GetJob", "Control/ExportState", "Control/WatchSteps", "Control/Trace",
        "Scheduler/SubmitJob", "Scheduler/ListJobs", "Scheduler/WatchJobs", "Scheduler/UpdateJob",
        "Scheduler/CheckpointJob", "Scheduler/RemoveJob", "Scheduler/DrainWorker",
        "Scheduler/DrainServer"}},
      {v1::ROLE_VIEWER,
       {"Control/WatchSteps", "Control/Trace", "Scheduler/ListJobs", "Scheduler/WatchJobs"}},
  };
  return *expected;
}

TEST_F(RoleGuardTest, EachRoleMayCallItsRpcsOnly) {
  const std::set<std::string> paths = AccessTable::Generated().Paths();
  ASSERT_GT(paths.size(), 15u);
  size_t allowed = 0;
  for (const v1::Role role : kRoles) {
    for (const std::string& path : paths) {
      const std::string name = path.substr(std::string("/eps.v1.").size());
      const bool open = name == "Control/Hello" || name == "Control/Status";
      const bool expected = open || Expected().at(role).count(name) > 0;
      const absl::Status status = Call(role, path);
      EXPECT_EQ(!IsDenied(status), expected) << RoleName(role) << " " << path << ": " << status;
      allowed += expected && !open;
    }
  }
  size_t rows = 0;
  for (const auto& row : Expected()) rows += row.second.size();
  EXPECT_EQ(allowed, rows) << "a row names an RPC that the server does not have";
}

TEST_F(RoleGuardTest, UnknownRpcsAreDenied) {
  for (const char* path : {"/eps.v1.Control/Unknown", "/other.Service/Call"}) {
    EXPECT_EQ(Call(v1::ROLE_ADMIN, path).code(), absl::StatusCode::kPermissionDenied) << path;
  }
}

TEST_F(RoleGuardTest, AConnectionMayNotFloodTheServer) {
  const auto guard = RoleGuard::Create("eps", TokenRules());
  ASSERT_TRUE(guard.ok()) << guard.status();
  CertifiedPeer flood("spiffe://eps/eps/viewer");
  CertifiedPeer calm("spiffe://eps/eps/viewer");
  const auto call = [&guard](CertifiedPeer* peer) {
    RoleGuard::OutputMetadata consumed;
    RoleGuard::OutputMetadata response;
    return (*guard)->Process({{":path", "/eps.v1.Control/Hello"}}, peer, &consumed, &response);
  };
  grpc::Status status;
  int calls = 0;
  for (; calls < 1'000'000 && status.ok(); ++calls) status = call(&flood);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << calls;
  EXPECT_GT(calls, static_cast<int>(CallRate::kBurst));
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(call(&calm).ok()) << "each has a limit of its own";
}

TEST_F(RoleGuardTest, HealthIsOpenToAll) {
  const absl::Status status = Call(v1::ROLE_VIEWER, "/grpc.health.v1.Health/Check");
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(RoleGuardTest, PlaintextGetsNoAnswer) {
  const auto stub = v1::Control::NewStub(
      grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + SecuredServer::kTimeout);
  v1::HelloReply reply;
  EXPECT_EQ(stub->Hello(&context, v1::HelloRequest(), &reply).error_code(),
            grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace eps
