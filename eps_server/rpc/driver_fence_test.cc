// Which driver may create a job, import its state and set its gate: the rules D3 to D5 of
// docs/protocol.md.

#include <future>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/job/drivers/driver_lease.h"
#include "base/testing/test_specs.h"
#include "eps/v1/scheduler.grpc.pb.h"
#include "eps_server/jobs/testing/board_requests.h"
#include "eps_server/rpc/testing/durable_servers.h"
#include "gtest/gtest.h"
#include "wire/grpc_status.h"

namespace eps {
namespace {

constexpr DriverLease kNoLease;

// The board of the lead has given leases.
class DriverFenceTest : public DurableServersTest {
 protected:
  DriverFenceTest() {
    v1::SubmitJobReply submitted;
    EXPECT_TRUE(board()->SubmitJob(NewContext().get(), SubmitOf("a"), &submitted).ok());
    v1::ClaimJobReply claimed;
    EXPECT_TRUE(board()->ClaimJob(NewContext().get(), ClaimOf(1, "a"), &claimed).ok());
    early_ = {claimed.board(), claimed.job().driver().generation()};
    late_ = {early_.board, early_.generation + 1};
  }
  absl::Status Create(const DriverLease& lease, v1::CreateJobReply* reply = nullptr) {
    v1::CreateJobRequest request;
    request.set_request_id("create");
    request.set_spec_text(spec_.ToText());
    for (const std::string& address : addresses_) request.add_servers(address);
    if (lease.exists()) SetMessage(lease, request.mutable_lease());
    v1::CreateJobReply unused;
    return FromGrpc(clients_[0]->control().CreateJob(NewContext().get(), request,
                                                     reply != nullptr ? reply : &unused),
                    "");
  }
  // Sends initialize and finish to a server.
  absl::Status Import(size_t server, const DriverLease& lease) {
    const auto context = NewContext();
    v1::ImportStateReply reply;
    const auto stream = clients_[server]->control().ImportState(context.get(), &reply);
    v1::ImportStateRequest request;
    request.set_job_id(spec_.id().value());
    if (lease.exists()) SetMessage(lease, request.mutable_lease());
    request.set_initialize(true);
    stream->Write(request);
    request.clear_initialize();
    request.set_finish(true);
    stream->Write(request);
    stream->WritesDone();
    return FromGrpc(stream->Finish(), "");
  }
  absl::Status Gate(const DriverLease& lease, const std::string& holder = "driver") {
    v1::GateRequest request;
    request.set_holder(holder);
    request.set_step(5);
    request.set_number(++gate_number_);
    return Gate(lease, request);
  }
  absl::Status Gate(const DriverLease& lease, v1::GateRequest request) {
    request.set_job_id(spec_.id().value());
    if (lease.exists()) SetMessage(lease, request.mutable_lease());
    v1::GateReply reply;
    return FromGrpc(clients_[0]->control().Gate(NewContext().get(), request, &reply), "");
  }
  // The driver sets its gate to step 5, or lifts it.
  absl::Status SetNumbered(uint64_t number) {
    v1::GateRequest request;
    request.set_holder("driver");
    request.set_step(5);
    request.set_number(number);
    return Gate(early_, request);
  }
  absl::Status LiftNumbered(uint64_t number) {
    v1::GateRequest request;
    request.set_holder("driver");
    request.set_number(number);
    return Gate(early_, request);
  }
  void CreateAndWait(const DriverLease& lease) {
    const absl::Status created = Create(lease);
    ASSERT_TRUE(created.ok()) << created;
    WaitFor(v1::JOB_STATE_IMPORTING);
  }
  v1::Job TheJob() {
    v1::ListJobsReply jobs;
    EXPECT_TRUE(board()->ListJobs(NewContext().get(), {}, &jobs).ok());
    return jobs.jobs(0);
  }
  // Waits until exactly these holders, in their order, have gates.
  void WaitForHolders(const std::string& expected) {
    std::string holders;
    EXPECT_TRUE(clients_[0]->WaitForStatus([&](const v1::StatusReply& status) {
      holders.clear();
      for (const v1::HeldGate& gate : status.gates()) holders += gate.holder();
      return holders == expected;
    })) << holders;
  }
  static void ExpectFenced(const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  }

  const JobSpec spec_ = TinySyntheticSpec();
  DriverLease early_;
  DriverLease late_;
  uint64_t gate_number_ = 0;
};

TEST_F(DriverFenceTest, RefusesImportsOfAnEarlierDriver) {
  CreateAndWait(early_);
  CreateAndWait(late_);
  for (size_t i = 0; i < kServers; ++i) {
    const absl::Status fenced = Import(i, early_);
    ExpectFenced(fenced);
    EXPECT_TRUE(absl::StrContains(fenced.message(), absl::StrCat("generation ", late_.generation)))
        << fenced;
    ExpectFenced(Import(i, kNoLease));
    ExpectFenced(Import(i, {late_.board + 1, late_.generation}));
  }
  for (size_t i = 0; i < kServers; ++i) EXPECT_TRUE(Import(i, late_).ok()) << i;
  WaitFor(v1::JOB_STATE_RUNNING);
}

// The first driver dies when one of two shards has its weights.
TEST_F(DriverFenceTest, TheNextDriverBeginsTheImportAgain) {
  CreateAndWait(early_);
  ASSERT_TRUE(Import(0, early_).ok());
  CreateAndWait(late_);
  for (size_t i = 0; i < kServers; ++i) {
    const absl::Status imported = Import(i, late_);
    EXPECT_TRUE(imported.ok()) << i << ": " << imported;
  }
  WaitFor(v1::JOB_STATE_RUNNING);
}

// As `eps driver` starts its run again after it was killed.
TEST_F(DriverFenceTest, TheSameDriverBeginsTheImportAgain) {
  CreateAndWait(early_);
  ASSERT_TRUE(Import(0, early_).ok());
  CreateAndWait(early_);
  for (size_t i = 0; i < kServers; ++i) EXPECT_TRUE(Import(i, early_).ok()) << i;
  WaitFor(v1::JOB_STATE_RUNNING);
}

TEST_F(DriverFenceTest, RefusesGatesOfAnEarlierDriver) {
  CreateAndWait(late_);
  for (size_t i = 0; i < kServers; ++i) ASSERT_TRUE(Import(i, late_).ok());
  WaitFor(v1::JOB_STATE_RUNNING);
  ExpectFenced(Gate(early_));
  ExpectFenced(Gate(kNoLease));
  EXPECT_TRUE(Gate(late_).ok());
  EXPECT_TRUE(Gate(kNoLease, "save/somebody").ok()) << "others need no lease";
}

// The rule G22: what a killed driver has sent may arrive after the requests of its next process.
TEST_F(DriverFenceTest, LateRequestsOfKilledDriversChangeNothing) {
  CreateAndWait(early_);
  for (size_t i = 0; i < kServers; ++i) ASSERT_TRUE(Import(i, early_).ok());
  WaitFor(v1::JOB_STATE_RUNNING);
  v1::CreateJobReply killed, next;
  ASSERT_TRUE(Create(early_, &killed).ok());
  ASSERT_TRUE(Create(early_, &next).ok());
  ASSERT_TRUE(SetNumbered(killed.gate_number() + 7).ok());
  ASSERT_TRUE(LiftNumbered(next.gate_number() + 1).ok());
  ExpectFenced(SetNumbered(killed.gate_number() + 8));
  WaitForHolders("");
  EXPECT_TRUE(LiftNumbered(next.gate_number() + 1).ok()) << "a repeat";
}

TEST_F(DriverFenceTest, ARestartedLeadGivesHigherNumbers) {
  CreateAndWait(early_);
  for (size_t i = 0; i < kServers; ++i) ASSERT_TRUE(Import(i, early_).ok());
  WaitFor(v1::JOB_STATE_RUNNING);
  v1::CreateJobReply created, again;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Create(early_, &created).ok());
  for (size_t i = 0; i < kServers; ++i) Start(i);
  WaitFor(v1::JOB_STATE_RUNNING);
  // The driver does not notice that the lead was away.
  ASSERT_TRUE(SetNumbered(created.gate_number() + 1).ok());
  ASSERT_TRUE(Create(early_, &again).ok());
  EXPECT_GT(again.gate_number(), created.gate_number() + 1);
}

TEST_F(DriverFenceTest, RefusesARequestWithoutANumber) {
  CreateAndWait(early_);
  EXPECT_EQ(SetNumbered(0).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(DriverFenceTest, OnlyLaterDriversMayCreateTheJob) {
  CreateAndWait(late_);
  ExpectFenced(Create(early_));
  ExpectFenced(Create({late_.board + 1, late_.generation + 1}));
  const absl::Status without = Create(kNoLease);
  ExpectFenced(without);
  EXPECT_TRUE(absl::StrContains(without.message(), "eps job ls")) << without;
  EXPECT_TRUE(Create(late_).ok()) << "a repeat";
}

TEST_F(DriverFenceTest, AForeignLeaseCreatesNothing) {
  ExpectFenced(Create({late_.board + 1, late_.generation}));
  v1::GetJobReply reply;
  EXPECT_EQ(clients_[0]->control().GetJob(NewContext().get(), {}, &reply).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST_F(DriverFenceTest, RestartedServersKeepTheFence) {
  CreateAndWait(early_);
  ASSERT_TRUE(Create(late_).ok());
  for (size_t i = 0; i < kServers; ++i) Start(i);
  WaitFor(v1::JOB_STATE_IMPORTING);
  for (size_t i = 0; i < kServers; ++i) ExpectFenced(Import(i, early_));
  ExpectFenced(Create(early_));
  EXPECT_TRUE(Create(late_).ok());
}

TEST_F(DriverFenceTest, CreateJobWaitsForEveryShard) {
  CreateAndWait(early_);
  servers_[1].reset();
  auto created = std::async(std::launch::async, [this] { return Create(late_); });
  // The lead knows the later driver already, and the call must not have ended.
  ASSERT_TRUE(clients_[0]->WaitForStatus(
      [&](const v1::StatusReply&) { return Create(early_).code() == absl::StatusCode::kAborted; }));
  EXPECT_EQ(created.wait_for(std::chrono::milliseconds(300)), std::future_status::timeout);
  Start(1);
  const absl::Status status = created.get();
  EXPECT_TRUE(status.ok()) << status;
  WaitFor(v1::JOB_STATE_IMPORTING);
  ExpectFenced(Import(1, early_));
}

TEST_F(DriverFenceTest, AJobThatEndedNeedsNoLease) {
  CreateAndWait(early_);
  for (size_t i = 0; i < kServers; ++i) ASSERT_TRUE(Import(i, early_).ok());
  WaitFor(v1::JOB_STATE_RUNNING);
  v1::ReportJobReply reply;
  const auto end = WithId(EndOf(TheJob(), 0), spec_.id().value());
  ASSERT_TRUE(board()->ReportJob(NewContext().get(), end, &reply).ok());
  EXPECT_TRUE(Create(kNoLease).ok());
  EXPECT_TRUE(Gate(kNoLease).ok());
}

// The rules G16 and G20: what the board says reaches the job, also after a restart.
TEST_F(DriverFenceTest, TheBoardHoldsAPausedJob) {
  CreateAndWait(early_);
  for (size_t i = 0; i < kServers; ++i) ASSERT_TRUE(Import(i, early_).ok());
  WaitFor(v1::JOB_STATE_RUNNING);
  ASSERT_TRUE(Gate(early_).ok());
  WaitForHolders("driver");
  v1::ReportJobRequest leave = WithId(ReportOf(TheJob()), spec_.id().value());
  leave.set_ended(true);
  v1::ReportJobReply left;
  ASSERT_TRUE(board()->ReportJob(NewContext().get(), leave, &left).ok());
  WaitForHolders("");
  ExpectFenced(Gate(early_));
  v1::UpdateJobReply paused;
  const auto pause = UpdateOf(TheJob(), v1::DESIRED_PAUSE);
  ASSERT_TRUE(board()->UpdateJob(NewContext().get(), pause, &paused).ok());
  WaitForHolders("board");
  for (size_t i = 0; i < kServers; ++i) Start(i);
  WaitFor(v1::JOB_STATE_RUNNING);
  WaitForHolders("board");
}

}  // namespace
}  // namespace eps
