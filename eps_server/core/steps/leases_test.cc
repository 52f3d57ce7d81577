// Two worker processes that want the same parts of a durable eager job, in virtual time: who
// computes, what the messages of the other one do, and what a lead that dies remembers.

#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "eps_server/core/shard_core.h"
#include "eps_server/core/testing/durable_cluster.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using testing::HasSubstr;

constexpr uint64_t kTokens = 100;

// A worker process as the servers see it.
struct Worker {
  uint64_t nonce = 0;
  StreamId session;
  std::map<uint32_t, uint64_t> generations;  // of its leases, by part
};

class LeasesTest : public testing::Test {
 protected:
  // Starts a job of two parts on two shards. With logs, a shard that dies stays in its term.
  void Start(bool logs) {
    DurableDisks::Options options;
    options.shards = 2;
    if (logs) options.log_steps = {4, 4};
    training_ = std::make_unique<DurableTraining>(
        SmallDurableSpec(Clip::kNone, Mode::kEager, "fp32"), options, /*fetches=*/false);
    training_->Import();
    cluster().Run();
    ASSERT_EQ(cluster().core(ShardId(0)).state(), v1::JOB_STATE_RUNNING);
    a_ = Worker{0xa, cluster().NewStream(), {}};
    b_ = Worker{0xb, cluster().NewStream(), {}};
  }
  CoreCluster& cluster() { return training_->cluster(); }
  v1::StatusReply Lead() { return cluster().Status(ShardId(0)); }

  template <class Leases>
  static void Adopt(Worker* worker, const Leases& leases) {
    worker->generations.clear();
    for (const v1::Lease& lease : leases) worker->generations[lease.part()] = lease.generation();
  }
  void Join(Worker* worker) {
    v1::JoinRequest request;
    request.set_worker_nonce(worker->nonce);
    for (uint32_t p = 0; p < 2; ++p) request.add_parts(p);
    const StreamId stream = cluster().NewStream();
    cluster().Send(ShardId(0), event::Join{stream, request});
    cluster().Run();
    const auto& reply = std::get<v1::JoinReply>(cluster().answers.replies[stream].front());
    cluster().term = reply.term();
    Adopt(worker, reply.leases());
  }
  // Returns whether the session goes on.
  bool Beat(Worker* worker, bool leave = false) {
    v1::Beat beat;
    beat.set_job_id(cluster().spec().id().value());
    beat.set_worker_nonce(worker->nonce);
    beat.set_term(cluster().term);
    beat.set_waits(true);
    beat.set_leave(leave);
    cluster().Send(ShardId(0), event::Beat{worker->session, beat});
    cluster().Run();
    const auto& notices = cluster().answers.replies[worker->session];
    if (!notices.empty()) Adopt(worker, std::get<v1::Notice>(notices.back()).leases());
    return cluster().answers.closed.count(worker->session) == 0;
  }
  // Returns the status with which BeginStep or a probe ended; OK if it was answered.
  absl::Status Begin(const Worker& worker, ShardId shard, uint64_t step, bool probe = false) {
    v1::BeginStepRequest request;
    request.set_job_id(cluster().spec().id().value());
    request.set_term(cluster().term);
    request.set_step(step);
    request.set_worker_nonce(worker.nonce);
    request.set_probe(probe);
    for (const auto& [part, generation] : worker.generations) {
      request.add_parts(part);
      request.add_generations(generation);
      if (step < 2) continue;
      v1::PartLoss* const loss = request.add_losses();
      loss->set_part(part);
      loss->set_step(step - 1);
      loss->set_tokens(kTokens);
    }
    const StreamId stream = cluster().NewStream();
    cluster().Send(shard, event::BeginStep{stream, request});
    cluster().Run();
    if (cluster().answers.replies.count(stream) > 0) return absl::OkStatus();
    const auto closed = cluster().answers.closed.find(stream);
    return closed == cluster().answers.closed.end() ? absl::UnavailableError("parked")
                                                    : closed->second;
  }
  void BeginEverywhere(const Worker& worker, uint64_t step) {
    for (uint32_t s = 0; s < 2; ++s) {
      const absl::Status begun = Begin(worker, ShardId(s), step);
      EXPECT_TRUE(begun.ok()) << begun;
    }
  }
  void ProbeEverywhere(const Worker& worker) {
    for (uint32_t s = 0; s < 2; ++s) {
      const absl::Status probed = Begin(worker, ShardId(s), 0, /*probe=*/true);
      EXPECT_TRUE(probed.ok()) << probed;
    }
  }
  // Pushes the gradients of the stages from the last one down to `lowest`. Returns the last ack.
  v1::Ack PushDownTo(const Worker& worker, uint64_t step, uint32_t lowest) {
    cluster().generations = worker.generations;
    const StreamId stream = cluster().NewStream();
    uint64_t tag = 0;
    for (auto s = static_cast<uint32_t>(cluster().spec().stages.size()); s-- > lowest;) {
      for (const ChunkId id : cluster().chunks().ChunksOfStage(StageId(s))) {
        const Chunk& chunk = cluster().chunks().chunk(id);
        for (uint32_t p = 0; p < 2; ++p) {
          tag = cluster().Push(stream, step, StageId(s), TreeRange{p, 1}, id,
                               TellingGradient(chunk, StageId(s), p, step), kTokens, worker.nonce);
        }
      }
    }
    cluster().Run();
    return cluster().answers.acks[tag];
  }
  // Asks for weights of stage 1, of part 0. Returns why that failed.
  absl::Status FetchMiddle(const Worker& worker, uint64_t version) {
    cluster().generations = worker.generations;
    const StageId stage(1);
    const ChunkId chunk = cluster().chunks().ChunksOfStage(stage).front();
    const uint64_t tag = cluster().Fetch(cluster().NewStream(), stage, chunk, version);
    cluster().Run();
    const auto failed = cluster().answers.failed_fetches.find(tag);
    return failed == cluster().answers.failed_fetches.end() ? absl::OkStatus() : failed->second;
  }
  // Time passes, with Beats of the workers every two seconds.
  void Pass(uint64_t seconds, std::vector<Worker*> alive) {
    for (uint64_t s = 0; s < seconds; s += 2) {
      cluster().Advance(2000);
      for (Worker* const worker : alive) Beat(worker);
    }
  }

  std::unique_ptr<DurableTraining> training_;
  Worker a_;
  Worker b_;
};

TEST_F(LeasesTest, TwoProcessesNeverRollBack) {
  Start(/*logs=*/false);
  Join(&a_);
  EXPECT_EQ(a_.generations, (std::map<uint32_t, uint64_t>{{0, 1}, {1, 1}}));
  ASSERT_TRUE(Beat(&a_));
  ProbeEverywhere(a_);
  BeginEverywhere(a_, 1);
  EXPECT_EQ(PushDownTo(a_, 1, 0).outcome(), v1::Ack::ACCEPTED);
  BeginEverywhere(a_, 2);
  Join(&b_);
  ASSERT_TRUE(Beat(&b_));
  EXPECT_TRUE(b_.generations.empty()) << "a standby";
  Pass(120, {&a_, &b_});
  EXPECT_TRUE(b_.generations.empty()) << "the first holder keeps its parts";
  EXPECT_EQ(Lead().term(), 1u);
  EXPECT_EQ(Lead().step(), 2u);

  Pass(12, {&b_});  // kA hangs
  EXPECT_EQ(b_.generations, (std::map<uint32_t, uint64_t>{{0, 2}, {1, 2}}));
  ProbeEverywhere(b_);
  // kA wakes up and continues where it was.
  EXPECT_FALSE(Beat(&a_));
  EXPECT_TRUE(absl::IsAborted(cluster().answers.closed[a_.session]));
  for (uint32_t s = 0; s < 2; ++s) {
    for (const bool probe : {false, true}) {
      EXPECT_TRUE(absl::IsAborted(Begin(a_, ShardId(s), 2, probe)));
    }
  }
  EXPECT_TRUE(absl::IsAborted(FetchMiddle(a_, 1)));
  EXPECT_EQ(PushDownTo(a_, 2, 0).outcome(), v1::Ack::FENCED);
  EXPECT_EQ(Lead().step(), 2u);
  BeginEverywhere(b_, 2);
  EXPECT_TRUE(FetchMiddle(b_, 1).ok());
  EXPECT_EQ(PushDownTo(b_, 2, 0).outcome(), v1::Ack::ACCEPTED);
  BeginEverywhere(b_, 3);
  EXPECT_EQ(Lead().term(), 1u);
  EXPECT_EQ(Lead().step(), 3u);
  EXPECT_EQ(Lead().counters().count("rollbacks"), 0u);
  EXPECT_TRUE(training_->disks().violation().ok()) << training_->disks().violation();
}

TEST_F(LeasesTest, OnlyTheHolderRollsBack) {
  Start(/*logs=*/false);
  Join(&a_);
  Beat(&a_);
  ProbeEverywhere(a_);
  BeginEverywhere(a_, 1);
  PushDownTo(a_, 1, 0);
  BeginEverywhere(a_, 2);
  PushDownTo(a_, 2, 1);  // stage 1 is at version 2
  Join(&b_);
  Beat(&b_);
  Pass(12, {&b_});
  ProbeEverywhere(b_);
  EXPECT_TRUE(absl::IsAborted(FetchMiddle(a_, 1))) << "a late duplicate";
  EXPECT_FALSE(FetchMiddle(Worker{0xc, StreamId(), {}}, 1).ok()) << "no lease";
  EXPECT_EQ(Lead().term(), 1u);
  EXPECT_FALSE(FetchMiddle(b_, 1).ok());
  EXPECT_EQ(Lead().term(), 2u) << "its predecessor's step cannot be repeated";
  EXPECT_TRUE(absl::IsAborted(cluster().answers.closed[b_.session])) << "the session of term 1";
  Worker next{0xd, cluster().NewStream(), {}};
  Join(&next);
  EXPECT_EQ(next.generations.at(0), 1u) << "a term begins without leases and fences";
  ProbeEverywhere(next);
  BeginEverywhere(next, 2);
  EXPECT_EQ(PushDownTo(next, 2, 0).outcome(), v1::Ack::ACCEPTED);
  EXPECT_EQ(Lead().step(), 3u);
}

TEST_F(LeasesTest, ALeadThatReturnsKnowsItsGrants) {
  Start(/*logs=*/true);
  Join(&a_);
  Beat(&a_);
  ProbeEverywhere(a_);
  Beat(&a_, /*leave=*/true);
  Join(&b_);
  Beat(&b_);
  EXPECT_EQ(b_.generations.at(0), 2u);
  ProbeEverywhere(b_);
  Pass(8, {});
  cluster().Crash(ShardId(0));
  cluster().Restart(ShardId(0));
  cluster().Run();
  ASSERT_EQ(Lead().term(), 1u);
  Pass(8, {});  // 16 s since the last Beat: the lease has its full length again
  b_.session = cluster().NewStream();
  EXPECT_TRUE(Beat(&b_));
  EXPECT_EQ(b_.generations.at(0), 2u);
  for (uint32_t s = 0; s < 2; ++s) {
    const absl::Status old = Begin(a_, ShardId(s), 1);
    EXPECT_TRUE(absl::IsAborted(old)) << old;
  }
  BeginEverywhere(b_, 1);
  Beat(&b_, /*leave=*/true);
  Worker next{0xd, cluster().NewStream(), {}};
  Join(&next);
  EXPECT_EQ(next.generations.at(0), 3u);
  ProbeEverywhere(next);
  BeginEverywhere(next, 1);
}

TEST_F(LeasesTest, GrantsAreDurableBeforeTheyAreSaid) {
  Start(/*logs=*/true);
  Join(&a_);
  EXPECT_EQ(a_.generations.at(0), 1u);
  cluster().Crash(ShardId(0));
  cluster().Restart(ShardId(0));
  cluster().Run();
  ASSERT_EQ(Lead().term(), 1u);
  Join(&b_);
  EXPECT_TRUE(b_.generations.empty()) << "the lead knows that another process has the parts";
  EXPECT_TRUE(Beat(&a_));
  EXPECT_EQ(a_.generations.at(0), 1u);
}

TEST_F(LeasesTest, AShardThatReturnsKnowsItsFences) {
  Start(/*logs=*/true);
  Join(&a_);
  Beat(&a_);
  Beat(&a_, /*leave=*/true);
  Join(&b_);
  ProbeEverywhere(b_);
  cluster().Crash(ShardId(1));
  cluster().Restart(ShardId(1));
  cluster().Run();
  ASSERT_EQ(Lead().term(), 1u);
  const absl::Status old = Begin(a_, ShardId(1), 1);
  EXPECT_TRUE(absl::IsAborted(old)) << old;
  EXPECT_THAT(std::string(old.message()), HasSubstr("generation 2 has begun"));
  BeginEverywhere(b_, 1);
}

TEST_F(LeasesTest, AStrangerFencesNobodyOut) {
  for (const bool logs : {false, true}) {
    Start(logs);
    Join(&a_);
    Beat(&a_);
    ProbeEverywhere(a_);
    BeginEverywhere(a_, 1);
    const uint64_t never = uint64_t{1} << 63;
    const Worker stranger{0xe, StreamId(), {{0, never}, {1, never}}};
    for (uint32_t s = 0; s < 2; ++s) {
      for (const bool probe : {false, true}) {
        EXPECT_FALSE(Begin(stranger, ShardId(s), 1, probe).ok());
      }
    }
    EXPECT_FALSE(FetchMiddle(stranger, 0).ok());
    EXPECT_EQ(PushDownTo(stranger, 1, 0).outcome(), v1::Ack::REFUSED);
    EXPECT_TRUE(FetchMiddle(a_, 0).ok());
    EXPECT_EQ(PushDownTo(a_, 1, 0).outcome(), v1::Ack::ACCEPTED);
    BeginEverywhere(a_, 2);
    EXPECT_EQ(Lead().step(), 2u);
    EXPECT_EQ(Lead().term(), 1u);
  }
}

TEST_F(LeasesTest, AShardThatReturnsHearsOfGrants) {
  Start(/*logs=*/true);
  Join(&a_);
  Beat(&a_);
  ProbeEverywhere(a_);
  Beat(&a_, /*leave=*/true);
  cluster().Crash(ShardId(1));
  Join(&b_);
  EXPECT_EQ(b_.generations.at(0), 2u);
  cluster().Restart(ShardId(1));
  cluster().Run();
  ASSERT_EQ(Lead().term(), 1u);
  ProbeEverywhere(b_);
  BeginEverywhere(b_, 1);
}

TEST_F(LeasesTest, ALateDuplicateChangesNothing) {
  Start(/*logs=*/false);
  Join(&a_);
  Beat(&a_);
  ProbeEverywhere(a_);
  BeginEverywhere(a_, 1);
  PushDownTo(a_, 1, 1);
  Join(&b_);
  Beat(&b_);
  Pass(12, {&b_});
  ProbeEverywhere(b_);
  const auto state = [this] {
    std::string text;
    for (uint32_t s = 0; s < 2; ++s) {
      v1::StatusReply status = cluster().Status(ShardId(s));
      status.clear_counters();
      status.clear_stage_times();
      text += status.ShortDebugString();
    }
    return text;
  };
  const std::string before = state();
  Beat(&a_);
  for (uint32_t s = 0; s < 2; ++s) {
    for (const uint64_t step : {0, 1, 2}) EXPECT_FALSE(Begin(a_, ShardId(s), step).ok());
    EXPECT_FALSE(Begin(a_, ShardId(s), 0, /*probe=*/true).ok());
  }
  for (const uint64_t version : {0, 1}) EXPECT_FALSE(FetchMiddle(a_, version).ok());
  PushDownTo(a_, 1, 0);
  EXPECT_EQ(state(), before);
}

}  // namespace
}  // namespace eps
