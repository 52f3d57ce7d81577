// Leases: beating, waiting as a standby, losing a lease, and leaving.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "worker/client/testing/client_fixture.h"

namespace eps {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

class SessionTest : public ClientFixture {
 protected:
  // Connects, and joins on a thread of its own, for joins that wait.
  void StartJoin() {
    auto client = ParameterClient::Connect(options_);
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
    joining_ = std::thread([this] { joined_ = client_->Join(JoinOptions()); });
  }
  absl::StatusOr<JoinedJob> FinishJoin() {
    joining_.join();
    return joined_;
  }

  bool WaitForBeat(const std::function<bool(const v1::Beat&)>& condition) {
    return servers_[0]->WaitUntil(
        [&](const Seen& s) { return !s.beats.empty() && condition(s.beats.back()); });
  }

  void ExpectCode(const absl::Status& status, absl::StatusCode code, const std::string& named) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), named)) << status;
  }

  std::thread joining_;
  absl::StatusOr<JoinedJob> joined_ = absl::UnknownError("not joined");
};

TEST_F(SessionTest, BeatsAtOnceAndWithinTheLease) {
  StartServers(2);
  ChangeAll([](Script* s) {
    s->term = 5;
    s->leases.length_ms = 5000;
  });
  Join();
  ASSERT_TRUE(servers_[0]->WaitUntil([](const Seen& s) { return s.beats.size() >= 3; }));
  const Seen seen = servers_[0]->seen();
  EXPECT_EQ(seen.sessions, 1);
  for (size_t i = 0; i < seen.beats.size(); ++i) {
    const v1::Beat& beat = seen.beats[i];
    EXPECT_EQ(beat.job_id(), spec_.id().value());
    EXPECT_EQ(beat.worker_nonce(), seen.joins[0].worker_nonce());
    EXPECT_EQ(beat.term(), 5u);
    EXPECT_EQ(beat.step(), 0u);
    EXPECT_FALSE(beat.leave());
    if (i == 0) continue;
    EXPECT_LT(seen.beat_times[i] - seen.beat_times[i - 1], milliseconds(5000));
  }
  EXPECT_EQ(servers_[1]->seen().sessions, 0) << "only the lead grants leases";
}

TEST_F(SessionTest, BeatsSayWhatTheWorkerDoes) {
  StartServers(1);
  ChangeAll([](Script* s) { s->leases.length_ms = 50; });
  Join();
  EXPECT_TRUE(WaitForBeat([](const v1::Beat& b) { return !b.waits() && b.visits() == 0; }));
  ChangeAll([](Script* s) { s->park_begin_steps = true; });
  std::thread begin([this] { Begin(3); });
  EXPECT_TRUE(WaitForBeat([](const v1::Beat& b) { return b.waits() && b.step() == 0; }));
  ChangeAll([](Script* s) { s->park_begin_steps = false; });
  begin.join();
  EXPECT_TRUE(WaitForBeat([](const v1::Beat& b) { return !b.waits() && b.step() == 3; }));

  ChangeAll([](Script* s) { s->park_fetches = true; });
  std::thread fetch([this] { ExpectFetch(StageId(1), 2); });
  EXPECT_TRUE(WaitForBeat([](const v1::Beat& b) { return b.waits() && b.visits() == 0; }));
  ChangeAll([](Script* s) { s->park_fetches = false; });
  fetch.join();
  EXPECT_TRUE(WaitForBeat([](const v1::Beat& b) { return !b.waits() && b.visits() == 1; }));

  ChangeAll([](Script* s) { s->pushes.hold_credits = true; });
  StageMemory gradient = Gradient(StageId(1), 1);
  ASSERT_TRUE(Push(StageId(1), 0, &gradient).ok());
  EXPECT_TRUE(WaitForBeat([](const v1::Beat& b) { return !b.waits() && b.visits() == 2; }));
  std::thread flush([this] { EXPECT_TRUE(client_->Flush().ok()); });
  EXPECT_TRUE(WaitForBeat([](const v1::Beat& b) { return b.waits(); }));
  ChangeAll([](Script* s) { s->pushes.hold_credits = false; });
  flush.join();
  EXPECT_TRUE(WaitForBeat([](const v1::Beat& b) { return !b.waits(); }));
}

TEST_F(SessionTest, RequestsNameTheGenerationsOfTheirParts) {
  StartServers(2);
  ChangeAll([](Script* s) { s->leases.parts = {3, 1}; });
  Join();
  Begin();
  for (uint32_t stage = 0; stage < 3; ++stage) ExpectFetch(StageId(stage), 0);
  std::vector<StageMemory> gradients;
  for (const uint32_t part : {1, 3}) {
    gradients.push_back(Gradient(StageId(1), static_cast<float>(part)));
  }
  ASSERT_TRUE(client_->ReportLosses({{PartId(1), 1, 7}, {PartId(3), 1, 7}}).ok());
  ASSERT_TRUE(Push(StageId(1), 1, &gradients[0]).ok());
  ASSERT_TRUE(Push(StageId(1), 3, &gradients[1]).ok());
  ASSERT_TRUE(client_->Flush().ok());
  for (auto& server : servers_) {
    const Seen seen = server->seen();
    std::vector<v1::BeginStepRequest> requests = seen.begins;
    requests.insert(requests.end(), seen.probes.begin(), seen.probes.end());
    requests.insert(requests.end(), seen.reports.begin(), seen.reports.end());
    EXPECT_EQ(requests.size(), server == servers_[0] ? 3u : 2u);
    for (const v1::BeginStepRequest& request : requests) {
      ASSERT_EQ(request.parts_size(), 2);
      ASSERT_EQ(request.generations_size(), 2);
      for (const int i : {0, 1}) EXPECT_EQ(request.generations(i), 7 + request.parts(i));
    }
    EXPECT_FALSE(seen.fetches.empty());
    for (const v1::FetchRequest& fetch : seen.fetches) {
      EXPECT_EQ(fetch.generation(), 7 + fetch.part());
    }
    EXPECT_FALSE(seen.headers.empty());
    for (const v1::PushHeader& header : seen.headers) {
      ASSERT_EQ(header.generations_size(), 1);
      EXPECT_EQ(header.generations(0), 7 + header.key().part_first());
    }
  }
}

TEST_F(SessionTest, AStandbyGetsItsLeasesLater) {
  StartServers(2);
  ChangeAll([](Script* s) {
    s->leases.standby = true;
    s->leases.length_ms = 50;
  });
  StartJoin();
  ASSERT_TRUE(WaitForBeat([](const v1::Beat& b) { return b.waits() && b.step() == 0; }));
  EXPECT_EQ(servers_[0]->seen().probes.size(), 0u) << "a standby asks no shard for anything";
  ChangeAll([](Script* s) {
    s->leases.standby = false;
    s->leases.parts = {2};
  });
  const absl::StatusOr<JoinedJob> job = FinishJoin();
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->parts, std::vector<PartId>{PartId(2)});
  EXPECT_FALSE(job->done);
  const Seen seen = servers_[1]->seen();
  ASSERT_EQ(seen.probes.size(), 1u);
  EXPECT_EQ(seen.probes[0].parts(0), 2u);
  EXPECT_EQ(seen.probes[0].generations(0), 9u);
}

TEST_F(SessionTest, AStandbyEndsWithTheJob) {
  StartServers(1);
  ChangeAll([](Script* s) { s->leases.standby = true; });
  StartJoin();
  ASSERT_TRUE(WaitForBeat([](const v1::Beat&) { return true; }));
  ChangeAll([](Script* s) { s->leases.job_done = true; });
  const absl::StatusOr<JoinedJob> job = FinishJoin();
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_TRUE(job->done);
}

TEST_F(SessionTest, AnInterruptEndsAStandby) {
  StartServers(1);
  std::atomic<bool> interrupted{false};
  options_.interrupted = [&] { return interrupted.load(); };
  ChangeAll([](Script* s) { s->leases.standby = true; });
  StartJoin();
  ASSERT_TRUE(WaitForBeat([](const v1::Beat&) { return true; }));
  interrupted = true;
  ExpectCode(FinishJoin().status(), absl::StatusCode::kCancelled, "standby");
}

TEST_F(SessionTest, AnInterruptEndsAParkedJoin) {
  StartServers(1);
  std::atomic<bool> interrupted{false};
  options_.interrupted = [&] { return interrupted.load(); };
  ChangeAll([](Script* s) { s->importing = true; });
  StartJoin();
  ASSERT_TRUE(servers_[0]->WaitUntil([](const Seen& s) { return !s.joins.empty(); }));
  interrupted = true;
  ExpectCode(FinishJoin().status(), absl::StatusCode::kCancelled, "Join");
}

TEST_F(SessionTest, ReopensTheSessionWithItsNonce) {
  StartServers(1);
  ChangeAll([](Script* s) {
    s->leases.length_ms = 50;
    s->leases.session_ends.assign(2, grpc::Status(grpc::StatusCode::UNAVAILABLE, "scripted break"));
  });
  Join();
  ASSERT_TRUE(
      servers_[0]->WaitUntil([](const Seen& s) { return s.sessions == 3 && s.beats.size() >= 5; }));
  const Seen seen = servers_[0]->seen();
  for (const v1::Beat& beat : seen.beats) {
    EXPECT_EQ(beat.worker_nonce(), seen.joins[0].worker_nonce());
  }
  Begin();
}

TEST_F(SessionTest, AnEndedSessionFailsTheClient) {
  struct Case {
    grpc::StatusCode code;
    absl::StatusCode expected;
  };
  for (const Case& c :
       {Case{grpc::StatusCode::ABORTED, absl::StatusCode::kAborted},
        Case{grpc::StatusCode::FAILED_PRECONDITION, absl::StatusCode::kFailedPrecondition}}) {
    servers_.clear();
    StartServers(1);
    ChangeAll([](Script* s) {
      s->leases.length_ms = 50;
      s->park_begin_steps = true;
    });
    Join();
    ChangeAll([&](Script* s) { s->leases.session_ends = {grpc::Status(c.code, "scripted end")}; });
    const absl::Status status = client_->BeginStep(Step(1)).status();
    ExpectCode(status, c.expected, "scripted end");
    ExpectCode(status, c.expected, servers_[0]->address());
    client_ = nullptr;
  }
}

TEST_F(SessionTest, AnAbsentLeadFailsTheClient) {
  StartServers(2);
  Join();
  Begin();
  client_ = nullptr;
  options_.rpc_timeout = milliseconds(300);
  ChangeAll([](Script* s) { s->leases.standby = true; });
  StartJoin();
  ASSERT_TRUE(servers_[0]->WaitUntil([](const Seen& s) { return s.sessions == 2; }));
  servers_[0]->Stop();
  const absl::Status status = FinishJoin().status();
  ExpectCode(status, absl::StatusCode::kUnavailable, servers_[0]->address());
  ExpectCode(status, absl::StatusCode::kUnavailable, "a lease for this standby");
}

TEST_F(SessionTest, ALostLeaseFailsTheClient) {
  struct Case {
    void (*change)(Script*);
    std::string named;
  };
  const std::vector<Case> cases = {
      {[](Script* s) { s->leases.parts = {0}; }, "the lease of part 1, generation 8, is over"},
      {[](Script* s) { s->leases.generation = 17; }, "the lease of part 0, generation 7, is over"},
      {[](Script* s) { s->term = 2; }, "term moved from 1 to 2"},
  };
  for (const Case& c : cases) {
    servers_.clear();
    StartServers(1);
    ChangeAll([](Script* s) {
      s->leases.parts = {0, 1};
      s->park_begin_steps = true;
    });
    Join();
    std::thread lose([&] {
      EXPECT_TRUE(servers_[0]->WaitUntil([](const Seen& s) { return !s.begins.empty(); }));
      ChangeAll(c.change);
    });
    ExpectCode(client_->BeginStep(Step(1)).status(), absl::StatusCode::kAborted, c.named);
    lose.join();
    client_ = nullptr;
  }
}

TEST_F(SessionTest, LeavesWhenEverythingIsCounted) {
  StartServers(1);
  ChangeAll([](Script* s) { s->pushes.hold_credits = true; });
  Join();
  Begin();
  const size_t chunks = chunks_.ChunksOfStage(StageId(1)).size();
  StageMemory gradient = Gradient(StageId(1), 1);
  ASSERT_TRUE(Push(StageId(1), 0, &gradient).ok());
  std::thread credit([&] {
    EXPECT_TRUE(servers_[0]->WaitUntil([&](const Seen& s) { return s.headers.size() == chunks; }));
    ChangeAll([](Script* s) { s->pushes.hold_credits = false; });
  });
  const absl::Status status = client_->Leave();
  EXPECT_TRUE(status.ok()) << status;
  credit.join();
  const Seen seen = servers_[0]->seen();
  EXPECT_TRUE(seen.beats.back().leave());
  EXPECT_EQ(seen.beats.back().worker_nonce(), seen.joins[0].worker_nonce());
  EXPECT_EQ(seen.counted_at_leave, chunks);
  // It sends nothing afterwards.
  EXPECT_EQ(client_->BeginStep(Step(2)).status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(servers_[0]->seen().begins.size(), 1u);
  client_ = nullptr;
  EXPECT_TRUE(servers_[0]->seen().beats.back().leave());
}

TEST_F(SessionTest, RepeatsALeaveThatWasLost) {
  StartServers(1);
  ChangeAll([](Script* s) { s->leases.length_ms = 3'600'000; });
  Join();
  ASSERT_TRUE(WaitForBeat([](const v1::Beat&) { return true; }));
  ChangeAll([](Script* s) {
    s->leases.session_ends = {grpc::Status(grpc::StatusCode::UNAVAILABLE, "scripted break")};
  });
  const absl::Status status = client_->Leave();
  EXPECT_TRUE(status.ok()) << status;
  const Seen seen = servers_[0]->seen();
  EXPECT_EQ(seen.sessions, 2);
  EXPECT_EQ(std::count_if(seen.beats.begin(), seen.beats.end(),
                          [](const v1::Beat& b) { return b.leave(); }),
            2);
}

TEST_F(SessionTest, ALeaveWithoutAnswerNamesTheLead) {
  StartServers(1);
  options_.rpc_timeout = milliseconds(200);
  ChangeAll([](Script* s) { s->leases.answer_leave = false; });
  Join();
  const absl::Status status = client_->Leave();
  ExpectCode(status, absl::StatusCode::kUnavailable, servers_[0]->address());
  ExpectCode(status, absl::StatusCode::kUnavailable, "the end of this worker's session");
}

TEST_F(SessionTest, AFinishedJobNeedsNoLeave) {
  StartServers(1);
  Join();
  ASSERT_TRUE(client_->BeginStep(Step(spec_.training.steps + 1)).ok());
  servers_[0]->Stop();
  const absl::Status status = client_->Leave();
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace eps
