// Every role calls every RPC of a real server, over TLS.

#include "eps_server/rpc/role_guard.h"

#include <unistd.h>

#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "eps/v1/control.grpc.pb.h"
#include "eps_server/server.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "wire/channel.h"
#include "wire/grpc_status.h"
#include "wire/security/certificates.h"
#include "wire/security/identity.h"
#include "wire/security/peer_role.h"

namespace eps {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kTimeout{300};
constexpr v1::Role kRoles[] = {v1::ROLE_WORKER,    v1::ROLE_SERVER, v1::ROLE_DRIVER,
                               v1::ROLE_SCHEDULER, v1::ROLE_ADMIN,  v1::ROLE_VIEWER};

// A server with a certificate, and one client for each role.
class RoleGuardTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = absl::StrCat(testing::TempDir(), "/role-guard-", getpid());
    fs::remove_all(folder_);
    ASSERT_TRUE(CreateAuthority(folder_ + "/ca", 1).ok());
    SetProcessIdentity(MakeIdentity(v1::ROLE_SERVER));
    ServerOptions options;
    options.listen = "127.0.0.1:0";
    options.threads = 2;
    options.memory_limit_bytes = uint64_t{1} << 28;
    auto server = Server::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    for (const v1::Role role : kRoles) {
      channels_[role] = grpc::CreateChannel(server_->address(), MakeIdentity(role)->ForClients());
    }
  }
  static void TearDownTestSuite() {
    channels_.clear();
    server_.reset();
    fs::remove_all(folder_);
  }

  static std::shared_ptr<const Identity> MakeIdentity(v1::Role role) {
    CertificateRequest request;
    request.role = role;
    request.trust_domain = "eps";
    request.hosts = {"127.0.0.1"};
    request.days = 1;
    SecurityOptions options;
    options.dir = absl::StrCat(folder_, "/", RoleName(role));
    options.on_loopback = true;
    EXPECT_TRUE(IssueCertificate(folder_ + "/ca", request, options.dir).ok());
    auto identity = Identity::Load(options);
    EXPECT_TRUE(identity.ok()) << identity.status();
    return *std::move(identity);
  }

  // Calls an RPC with an empty request, and returns its status.
  static absl::Status Call(v1::Role role, const std::string& path) {
    grpc::GenericStub stub(channels_.at(role));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kTimeout);
    grpc::CompletionQueue queue;
    const auto call = stub.PrepareCall(&context, path, &queue);
    const auto wait = [&queue] {
      void* tag = nullptr;
      bool ok = false;
      return queue.Next(&tag, &ok) && ok;
    };
    call->StartCall(nullptr);
    wait();
    const grpc::Slice empty;
    if (call->Write(grpc::ByteBuffer(&empty, 1), nullptr); wait()) {
      call->WritesDone(nullptr);
      wait();
    }
    grpc::ByteBuffer reply;
    for (bool more = true; more;) {
      call->Read(&reply, nullptr);
      more = wait();
    }
    grpc::Status status;
    call->Finish(&status, nullptr);
    wait();
    return FromGrpc(status, "");
  }
  static bool IsDenied(const absl::Status& status) {
    return absl::IsPermissionDenied(status) && absl::StrContains(status.message(), "may not call");
  }

  static std::string folder_;
  static std::unique_ptr<Server> server_;
  static std::map<v1::Role, std::shared_ptr<grpc::Channel>> channels_;
};

std::string RoleGuardTest::folder_;
std::unique_ptr<Server> RoleGuardTest::server_;
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
        "Data/BeginStep", "Data/Fetch", "Data/Push", "Scheduler/SubmitJob", "Scheduler/ListJobs",
        "Scheduler/WatchJobs", "Scheduler/ClaimJob", "Scheduler/ReportJob"}},
      {v1::ROLE_SCHEDULER,
       {"Control/WatchSteps", "Scheduler/SubmitJob", "Scheduler/ListJobs", "Scheduler/WatchJobs",
        "Scheduler/UpdateJob", "Scheduler/CheckpointJob", "Scheduler/RemoveJob",
        "Scheduler/DrainWorker", "Scheduler/DrainServer"}},
      {v1::ROLE_ADMIN,
       {"Control/GetJob", "Control/ExportState", "Control/WatchSteps", "Scheduler/SubmitJob",
        "Scheduler/ListJobs", "Scheduler/WatchJobs", "Scheduler/UpdateJob",
        "Scheduler/CheckpointJob", "Scheduler/RemoveJob", "Scheduler/DrainWorker",
        "Scheduler/DrainServer"}},
      {v1::ROLE_VIEWER, {"Control/WatchSteps", "Scheduler/ListJobs", "Scheduler/WatchJobs"}},
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

TEST_F(RoleGuardTest, HealthIsOpenToAll) {
  const absl::Status status = Call(v1::ROLE_VIEWER, "/grpc.health.v1.Health/Check");
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(RoleGuardTest, PlaintextGetsNoAnswer) {
  const auto stub = v1::Control::NewStub(
      grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kTimeout);
  v1::HelloReply reply;
  EXPECT_EQ(stub->Hello(&context, v1::HelloRequest(), &reply).error_code(),
            grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace eps
