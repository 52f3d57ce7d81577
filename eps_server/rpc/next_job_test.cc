// Servers let go of a job that has ended on the board of their lead once they get another one.

#include <filesystem>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/testing/test_specs.h"
#include "eps/v1/scheduler.grpc.pb.h"
#include "eps_server/jobs/testing/board_requests.h"
#include "eps_server/rpc/testing/durable_servers.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

JobSpec SpecOf(const std::string& name) {
  JobSpec spec = TinySyntheticSpec();
  spec.name = name;
  return spec;
}

class NextJobTest : public DurableServersTest {
 protected:
  absl::Status Create(const std::string& name) {
    return clients_[0]->CreateJob(SpecOf(name), addresses_);
  }
  // Creates the job of that name, as the driver that has claimed it, and gives it a state.
  void Drive(const std::string& name) {
    v1::SubmitJobReply submitted;
    ASSERT_TRUE(board()->SubmitJob(NewContext().get(), SubmitOf(name), &submitted).ok());
    v1::ClaimJobReply claimed;
    ASSERT_TRUE(board()->ClaimJob(NewContext().get(), ClaimOf(1, name), &claimed).ok());
    job_ = claimed.job();
    const absl::Status created = Create(name);
    ASSERT_TRUE(created.ok()) << created;
    WaitFor(v1::JOB_STATE_IMPORTING);
    for (const auto& client : clients_) {
      const absl::Status imported = client->Initialize(SpecOf(name));
      ASSERT_TRUE(imported.ok()) << imported;
    }
    WaitFor(v1::JOB_STATE_RUNNING);
  }
  void End(uint32_t exit_code) {
    v1::ReportJobReply reply;
    const auto end = WithId(EndOf(job_, exit_code), SpecOf(job_.name()).id().value());
    ASSERT_TRUE(board()->ReportJob(NewContext().get(), end, &reply).ok());
  }
  bool HasState(size_t i, const std::string& name) const {
    return std::filesystem::exists(
        absl::StrFormat("%s/%d/job-%016x", folder_, i, SpecOf(name).id().value()));
  }
  std::string Held(size_t i) {
    v1::GetJobReply reply;
    const auto context = NewContext();
    if (!clients_[i]->control().GetJob(context.get(), v1::GetJobRequest(), &reply).ok()) return "";
    return JobSpec::Parse(reply.spec_text())->name;
  }

  v1::Job job_;  // that was driven last
};

TEST_F(NextJobTest, AJobInWorkKeepsItsServers) {
  Drive("first");
  const absl::Status refused = Create("second");
  EXPECT_EQ(refused.code(), absl::StatusCode::kAlreadyExists) << refused;
  EXPECT_TRUE(absl::StrContains(refused.message(), "first")) << refused;
  EXPECT_EQ(Held(0), "first");
}

TEST_F(NextJobTest, TakesThePlaceOfOneThatEnded) {
  Drive("first");
  End(0);
  EXPECT_EQ(Held(1), "first") << "until somebody needs its place";
  Drive("second");
  for (size_t i = 0; i < kServers; ++i) {
    EXPECT_EQ(Held(i), "second");
    EXPECT_TRUE(HasState(i, "second"));
    EXPECT_FALSE(HasState(i, "first")) << i;
  }
}

TEST_F(NextJobTest, RestartableJobsKeepTheirState) {
  Drive("first");
  End(69);
  Drive("second");
  EXPECT_EQ(Held(1), "second");
  for (size_t i = 0; i < kServers; ++i) EXPECT_TRUE(HasState(i, "first")) << i;
  End(0);
  const absl::Status back = Create("first");
  ASSERT_TRUE(back.ok()) << back;
  WaitFor(v1::JOB_STATE_RUNNING);  // it recovers its state
}

TEST_F(NextJobTest, RestartsDoNotBringItBack) {
  Drive("first");
  End(0);
  for (size_t i = 0; i < kServers; ++i) Start(i);
  EXPECT_EQ(Held(1), "first");
  Drive("second");
  // The lead has the second job, and a shard that was away still has the first one.
  for (size_t i = 0; i < kServers; ++i) Start(i);
  EXPECT_EQ(Held(0), "second");
  EXPECT_EQ(Held(1), "second");
}

TEST_F(NextJobTest, OnlyItsLeadMayTakeAShard) {
  Drive("first");
  End(0);
  v1::PrepareJobRequest request;
  request.set_spec_text(SpecOf("second").ToText());
  request.add_servers("127.0.0.1:1");
  request.add_servers(addresses_[1]);
  request.set_shard(1);
  request.set_term(1);
  request.add_left_jobs()->set_job_id(SpecOf("first").id().value());
  v1::PrepareJobReply reply;
  const grpc::Status refused = clients_[1]->shard().PrepareJob(NewContext().get(), request, &reply);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::ALREADY_EXISTS) << refused.error_message();
  EXPECT_EQ(Held(1), "first");
}

}  // namespace
}  // namespace eps
