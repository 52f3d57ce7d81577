// Certificates and tokens of one job: every role calls every RPC of a real server, for its own job
// and for a foreign one.

#include "eps_server/rpc/calls/caller_scope.h"

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "base/testing/test_specs.h"
#include "eps/v1/control.grpc.pb.h"
#include "eps/v1/scheduler.pb.h"
#include "eps_server/rpc/role_guard.h"
#include "eps_server/rpc/testing/certified_peer.h"
#include "eps_server/rpc/testing/secured_server.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "gtest/gtest.h"
#include "wire/security/peer_role.h"

namespace eps {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::MessageFactory;

constexpr v1::Role kRoles[] = {v1::ROLE_WORKER, v1::ROLE_DRIVER, v1::ROLE_SCHEDULER, v1::ROLE_ADMIN,
                               v1::ROLE_VIEWER};
constexpr std::chrono::milliseconds kPatience{500};
constexpr char kJob[] = "own";
constexpr char kScheduler[] = "/eps.v1.Scheduler/";
constexpr char kControl[] = "/eps.v1.Control/";

// A server that runs job "own" of its board, whose board also has job "other".
class CallerScopeTest : public testing::Test {
 protected:
  CallerScopeTest() {
    for (const char* name : {kJob, "other"}) {
      v1::SubmitJobRequest request;
      request.set_request_id("submit");
      request.set_name(name);
      request.set_owner("service");
      request.set_config("training.steps: 3\n");
      v1::SubmitJobReply reply;
      Call(admin_, "Scheduler/SubmitJob", request, &reply);
      (name == std::string(kJob) ? own_ : other_) = reply.job();
    }
    v1::ClaimJobRequest claim;
    claim.set_request_id("claim");
    claim.set_driver_nonce(std::string(32, 'a'));
    claim.set_host("here");
    claim.set_name(kJob);
    v1::ClaimJobReply claimed;
    Call(driver_, "Scheduler/ClaimJob", claim, &claimed);
    create_.set_request_id("create");
    create_.set_spec_text(spec_.ToText());
    create_.add_servers(server_.address());
    create_.mutable_lease()->set_board(claimed.board());
    create_.mutable_lease()->set_generation(claimed.job().driver().generation());
    v1::CreateJobReply created;
    Call(driver_, "Control/CreateJob", create_, &created);
    EXPECT_NE(created.job_id(), 0u);
  }

  static void Call(const std::shared_ptr<grpc::Channel>& channel, const std::string& rpc,
                   const Message& request, Message* reply) {
    const absl::Status status =
        CallRpc(channel, "/eps.v1." + rpc, request.SerializeAsString(), reply);
    EXPECT_TRUE(status.ok()) << rpc << ": " << status;
  }

  // Returns a request of the RPC that names job "own" in every field that names a job.
  std::string RequestOf(const std::string& path) const {
    if (path == absl::StrCat(kControl, "CreateJob")) return create_.SerializeAsString();
    const std::string method = absl::StrReplaceAll(path.substr(1), {{"/", "."}});
    const auto* const rpc =
        google::protobuf::DescriptorPool::generated_pool()->FindMethodByName(method);
    const Descriptor& type = *rpc->input_type();
    std::unique_ptr<Message> request(
        MessageFactory::generated_factory()->GetPrototype(&type)->New());
    for (int i = 0; i < type.field_count(); ++i) {
      const FieldDescriptor* const field = type.field(i);
      const google::protobuf::Reflection& fields = *request->GetReflection();
      if (field->name() == "name") fields.SetString(request.get(), field, kJob);
      if (field->name() == "job_id") fields.SetUInt64(request.get(), field, spec_.id().value());
      if (field->name() == "uid") fields.SetUInt64(request.get(), field, own_.uid());
      if (rpc->name() == "Trace" && field->name() == "steps") {
        fields.SetUInt32(request.get(), field, 1);
      }
    }
    return request->SerializeAsString();
  }

  // Whether a call ended because its caller may not reach the job.
  static bool IsForeign(const absl::Status& status) {
    return absl::IsPermissionDenied(status) &&
           (absl::StrContains(status.message(), "only, and this is another one") ||
            absl::StrContains(status.message(), "concerns all jobs"));
  }
  // Whether the role may call the RPC at all, and the RPC reaches a job.
  static bool Concerns(v1::Role role, const std::string& path) {
    static const AccessTable* const table = new AccessTable(AccessTable::Generated());
    return table->Check(path, role).ok() && path != absl::StrCat(kControl, "Hello");
  }
  // These show what the caller may see, and refuse nothing.
  static bool Shows(const std::string& path) {
    return path == absl::StrCat(kControl, "Status") ||
           path == absl::StrCat(kScheduler, "ListJobs") ||
           path == absl::StrCat(kScheduler, "WatchJobs");
  }

  SecuredServer server_;
  const JobSpec spec_ = TinySyntheticSpec();
  const std::shared_ptr<grpc::Channel> admin_ = server_.Connect(v1::ROLE_ADMIN);
  const std::shared_ptr<grpc::Channel> driver_ = server_.Connect(v1::ROLE_DRIVER);
  v1::Job own_;
  v1::Job other_;
  v1::CreateJobRequest create_;
};

TEST_F(CallerScopeTest, ForeignersReachNoJob) {
  size_t denied = 0;
  for (const v1::Role role : kRoles) {
    const auto by_name = server_.Connect(role, "other");
    const auto by_uid = server_.Connect(role, "", server_.TokenOf(role, other_.uid()));
    // A token cannot widen a certificate.
    const auto both = server_.Connect(role, "other", server_.TokenOf(role, own_.uid()));
    for (const std::string& path : AccessTable::Generated().Paths()) {
      if (!Concerns(role, path) || Shows(path)) continue;
      for (const auto& channel : {by_name, by_uid, both}) {
        const absl::Status status = CallRpc(channel, path, RequestOf(path));
        EXPECT_TRUE(IsForeign(status)) << RoleName(role) << " " << path << ": " << status;
        ++denied;
      }
    }
  }
  EXPECT_GT(denied, 100u);
  v1::StatusReply status;
  Call(admin_, "Control/Status", v1::StatusRequest(), &status);
  EXPECT_EQ(status.job_id(), spec_.id().value());
}

TEST_F(CallerScopeTest, OwnersReachTheirJob) {
  for (const v1::Role role : kRoles) {
    const auto by_name = server_.Connect(role, kJob);
    const auto by_uid = server_.Connect(role, "", server_.TokenOf(role, own_.uid()));
    const auto both = server_.Connect(role, kJob, server_.TokenOf(role, own_.uid()));
    for (const std::string& path : AccessTable::Generated().Paths()) {
      // These two end the server, or the job of the later calls.
      if (path == absl::StrCat(kScheduler, "DrainServer")) continue;
      if (path == absl::StrCat(kScheduler, "RemoveJob")) continue;
      if (!Concerns(role, path) || path == absl::StrCat(kScheduler, "WatchJobs")) continue;
      for (const auto& channel : {by_name, by_uid, both}) {
        // Some calls wait for other workers.
        const absl::Status status = CallRpc(channel, path, RequestOf(path), nullptr, kPatience);
        EXPECT_FALSE(IsForeign(status)) << RoleName(role) << " " << path << ": " << status;
      }
    }
  }
}

TEST_F(CallerScopeTest, AStatusShowsNoForeignJob) {
  v1::StatusReply status;
  Call(server_.Connect(v1::ROLE_WORKER, "other"), "Control/Status", v1::StatusRequest(), &status);
  EXPECT_EQ(status.server(), server_.address());
  EXPECT_NE(status.incarnation(), 0u);
  status.clear_server();
  status.clear_incarnation();
  EXPECT_EQ(status.SerializeAsString(), "") << status.DebugString();
  Call(server_.Connect(v1::ROLE_WORKER, kJob), "Control/Status", v1::StatusRequest(), &status);
  EXPECT_EQ(status.job_id(), spec_.id().value());
}

TEST_F(CallerScopeTest, ListsShowTheOwnJobOnly) {
  for (const auto& viewer :
       {server_.Connect(v1::ROLE_VIEWER, kJob),
        server_.Connect(v1::ROLE_VIEWER, "", server_.TokenOf(v1::ROLE_VIEWER, own_.uid()))}) {
    v1::ListJobsReply jobs;
    Call(viewer, "Scheduler/ListJobs", v1::ListJobsRequest(), &jobs);
    ASSERT_EQ(jobs.jobs_size(), 1);
    EXPECT_EQ(jobs.jobs(0).name(), kJob);
    v1::ListJobsRequest named;
    named.set_name("other");
    Call(viewer, "Scheduler/ListJobs", named, &jobs);
    EXPECT_EQ(jobs.jobs_size(), 0);
  }
}

TEST_F(CallerScopeTest, WatchersSeeTheOwnJobOnly) {
  v1::ListJobsReply jobs;
  Call(admin_, "Scheduler/ListJobs", v1::ListJobsRequest(), &jobs);
  v1::WatchJobsRequest watch;
  watch.set_board(jobs.board());  // from the beginning: "own" was submitted first
  const auto viewer = server_.Connect(v1::ROLE_VIEWER, "other");
  v1::JobEvent event;
  CallRpc(viewer, absl::StrCat(kScheduler, "WatchJobs"), watch.SerializeAsString(), &event)
      .IgnoreError();
  EXPECT_EQ(event.job().name(), "other") << event.DebugString();
}

TEST_F(CallerScopeTest, ADriverClaimsItsJobOnly) {
  v1::ClaimJobRequest claim;
  claim.set_request_id("claim");
  claim.set_driver_nonce(std::string(32, 'b'));
  claim.set_host("there");
  v1::ClaimJobReply claimed;
  const std::string token = server_.TokenOf(v1::ROLE_DRIVER, other_.uid());
  Call(server_.Connect(v1::ROLE_DRIVER, "", token), "Scheduler/ClaimJob", claim, &claimed);
  EXPECT_EQ(claimed.job().name(), "other");
}

TEST_F(CallerScopeTest, ANewJobMayHaveTheName) {
  const auto old_admin =
      server_.Connect(v1::ROLE_ADMIN, "", server_.TokenOf(v1::ROLE_ADMIN, other_.uid()));
  v1::RemoveJobRequest remove;
  remove.set_request_id("remove");
  remove.set_name("other");
  v1::UpdateJobRequest cancel;
  cancel.set_request_id("cancel");
  cancel.set_name("other");
  cancel.set_expected_generation(other_.generation());
  cancel.set_desired(v1::DESIRED_CANCEL);
  v1::UpdateJobReply cancelled;
  Call(old_admin, "Scheduler/UpdateJob", cancel, &cancelled);
  v1::RemoveJobReply removed;
  Call(old_admin, "Scheduler/RemoveJob", remove, &removed);
  v1::SubmitJobRequest again;
  again.set_request_id("submit");
  again.set_name("other");
  again.set_owner("service");
  again.set_config("training.steps: 4\n");
  EXPECT_TRUE(IsForeign(
      CallRpc(old_admin, absl::StrCat(kScheduler, "SubmitJob"), again.SerializeAsString())));
  v1::SubmitJobReply reply;
  Call(admin_, "Scheduler/SubmitJob", again, &reply);
  EXPECT_TRUE(IsForeign(
      CallRpc(old_admin, absl::StrCat(kScheduler, "RemoveJob"), remove.SerializeAsString())));
}

class TokenTest : public testing::Test {
 protected:
  static constexpr char kList[] = "/eps.v1.Scheduler/ListJobs";
  static absl::Status List(SecuredServer* server, const std::string& token) {
    return CallRpc(server->Connect(v1::ROLE_VIEWER, "", token), kList);
  }
  static void ExpectRefused(const absl::Status& status, const std::string& text) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), text)) << status;
  }
};

TEST_F(TokenTest, OnlyValidTokensAreAccepted) {
  SecuredServer server;
  EXPECT_TRUE(List(&server, server.TokenOf(v1::ROLE_VIEWER, 0)).ok());
  const TokenKey other_key = ParseTokenKeys(*NewTokenKeyLine())->front();
  ExpectRefused(List(&server, SignToken({0, v1::ROLE_VIEWER, 4'000'000'000}, other_key)),
                "no key of the server");
  ExpectRefused(List(&server, SignToken({0, v1::ROLE_VIEWER, 1'700'000'000}, server.token_key())),
                "it was over");
}

TEST_F(TokenTest, ATokenNeedsItsRole) {
  SecuredServer server;
  const auto guard = RoleGuard::Create("eps", {server.keys_file(), false});
  ASSERT_TRUE(guard.ok()) << guard.status();
  CertifiedPeer admin("spiffe://eps/eps/admin");
  const auto call = [&](v1::Role role) {
    RoleGuard::OutputMetadata consumed;
    RoleGuard::OutputMetadata response;
    const std::string token = server.TokenOf(role, 0);
    return (*guard)->Process({{":path", kList}, {kTokenMetadata, token}}, &admin, &consumed,
                             &response);
  };
  EXPECT_TRUE(call(v1::ROLE_ADMIN).ok());
  EXPECT_EQ(call(v1::ROLE_VIEWER).error_code(), grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(TokenTest, RequiredTokensMustBeSent) {
  SecuredServer server(/*tokens_required=*/true);
  ExpectRefused(List(&server, ""), "requires a token");
  ExpectRefused(CallRpc(server.Connect(v1::ROLE_VIEWER), "/eps.v1.Control/Status"),
                "requires a token");
  EXPECT_TRUE(List(&server, server.TokenOf(v1::ROLE_VIEWER, 0)).ok());
  // Probes have none, and neither have servers.
  EXPECT_TRUE(CallRpc(server.Connect(v1::ROLE_VIEWER), "/grpc.health.v1.Health/Check").ok());
  const absl::Status prepared =
      CallRpc(server.Connect(v1::ROLE_SERVER), "/eps.v1.Shard/PrepareJob");
  EXPECT_EQ(prepared.code(), absl::StatusCode::kInvalidArgument) << prepared;
}

TEST(ConnectionAgeTest, AConnectionEndsAtItsAge) {
  SecuredServer server(/*tokens_required=*/false, /*connection_age_ms=*/100);
  const auto viewer = server.Connect(v1::ROLE_VIEWER);
  v1::ListJobsReply jobs;
  // A call that takes longer than the rest of its connection is made again, as clients do.
  const auto list = [&] {
    const auto deadline = std::chrono::steady_clock::now() + SecuredServer::kTimeout;
    absl::Status status;
    do {
      status = CallRpc(viewer, absl::StrCat(kScheduler, "ListJobs"), "", &jobs);
    } while (absl::IsUnavailable(status) && std::chrono::steady_clock::now() < deadline);
    return status;
  };
  ASSERT_TRUE(list().ok());
  v1::WatchJobsRequest watch;
  watch.set_board(jobs.board());
  watch.set_from_revision(jobs.revision());
  // Without an end of the connection, the watch would last until the test ends it.
  const absl::Status ended =
      CallRpc(viewer, absl::StrCat(kScheduler, "WatchJobs"), watch.SerializeAsString());
  EXPECT_EQ(ended.code(), absl::StatusCode::kUnavailable) << ended;
  EXPECT_TRUE(list().ok());
}

}  // namespace
}  // namespace eps
