// Cuts, crashes and recovery of real cores in one thread.

#include "eps_server/core/cuts/recovery.h"

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "base/job/layout/model_layout.h"
#include "base/testing/tally.h"
#include "eps_server/core/testing/core_cluster.h"
#include "eps_server/core/testing/core_training.h"
#include "eps_server/core/testing/memory_cuts.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

constexpr uint64_t kTokens = CoreTraining::kTokens;
constexpr uint64_t kSteps = 7;

JobSpec Spec(uint32_t parts, Clip clip, Mode mode, const std::string& gradients = "fp32") {
  JobSpec spec;
  spec.name = "recovery-test";
  spec.model.type = ModelType::kSynthetic;
  spec.model.synthetic.n_layer = 3;
  spec.model.synthetic.n_embd = 64;
  spec.model.synthetic.tied = true;
  EXPECT_TRUE(BuildLayout(0.01, &spec).ok());
  spec.chunk_elements = 2048;
  spec.training.steps = kSteps;
  spec.training.parts = parts;
  spec.training.clip = clip;
  spec.training.mode = mode;
  spec.training.max_grad_norm = 0.25;
  spec.codecs.gradients = gradients;
  spec.data.tokens = 100'000;
  spec.data.sha256 = std::string(64, '0');
  EXPECT_TRUE(spec.Validate().ok()) << spec.Validate();
  return spec;
}

// The cuts that the shards of a cluster leave, and a cluster on them.
struct Disks {
  Disks(uint32_t shards, uint64_t seed, uint64_t cut_steps) : disks(shards) {
    options.shards = shards;
    options.seed = seed;
    options.limits.cut_steps = cut_steps;
    options.new_backend = [this](const JobSpec& spec, const ChunkMap& chunks,
                                 std::vector<ChunkId> owned, ShardId shard, Executor* executor,
                                 MemoryAccount* account, BackendDoneFn done) {
      return disks[shard.value()].Open(spec, chunks, std::move(owned), executor, account,
                                       std::move(done));
    };
    options.on_crash = [this](ShardId shard) { disks[shard.value()].CutOff(); };
  }

  std::vector<MemoryCuts> disks;
  CoreCluster::Options options;
};

class Training : private Disks, public CoreTraining {
 public:
  Training(const JobSpec& spec, uint32_t shards, uint64_t seed, uint64_t cut_steps)
      : Disks(shards, seed, cut_steps), CoreTraining(spec, options) {}
};

std::string Undisturbed(const JobSpec& spec) {
  Training training(spec, 1, 0, 0);
  const absl::Status finished = training.Finish([] {});
  EXPECT_TRUE(finished.ok()) << finished;
  return training.End().digest;
}

struct Story {
  const char* name;
  Clip clip;
  Mode mode;
  const char* gradients;
  OptimizerName optimizer = OptimizerName::kAdamW;
};
constexpr Story kStories[] = {
    {"eager", Clip::kNone, Mode::kEager, "fp32"},
    {"lagged", Clip::kLagged, Mode::kEager, "bf16"},
    {"exact", Clip::kExact, Mode::kSealed, "fp32"},
    {"adapting", Clip::kExact, Mode::kSealed, "fp32", OptimizerName::kLamb},
};

class RecoveryTest : public testing::TestWithParam<Story> {};

TEST_P(RecoveryTest, CrashesAtAnyTimeChangeNoBit) {
  const Story story = GetParam();
  JobSpec spec = Spec(2, story.clip, story.mode, story.gradients);
  spec.optimizer.name = story.optimizer;
  const std::string expected = Undisturbed(spec);
  uint64_t crashes = 0;
  uint64_t terms = 0;
  const uint64_t seeds = std::getenv("EPS_LONG") != nullptr ? 5000 : 60;
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    const auto shards = static_cast<uint32_t>(1 + seed % 3);
    Training training(spec, shards, seed, /*cut_steps=*/1 + seed % 3);
    Dice dice(seed);
    uint64_t left = 6;
    const auto between = [&] {
      CoreCluster& cluster = training.cluster();
      for (uint32_t s = 0; s < shards; ++s) {
        if (!cluster.IsUp(ShardId(s)) && dice(8) == 0) cluster.Restart(ShardId(s));
      }
      if (left > 0 && dice(60) == 0) {
        const ShardId victim(static_cast<uint32_t>(dice(shards)));
        if (cluster.IsUp(victim)) {
          cluster.Crash(victim);
          --left;
          ++crashes;
        }
      }
      cluster.RunSome(dice(12));
    };
    const absl::Status finished = training.Finish(between);
    ASSERT_TRUE(finished.ok()) << "seed " << seed << ": " << finished;
    while (left > 0 && dice(3) == 0) --left;
    EXPECT_EQ(training.End().digest, expected) << "seed " << seed;
    terms += training.cluster().Status(ShardId(0)).term();
  }
  EXPECT_GT(crashes, 100u);
  EXPECT_GT(terms, 100u);
}

v1::Promised Promised(uint64_t term, bool opened,
                      const std::vector<std::pair<uint64_t, uint64_t>>& cuts) {
  v1::Promised promised;
  promised.set_term(term);
  promised.set_opened(opened);
  for (const auto& cut : cuts) *promised.add_cuts() = ToProto({Step(cut.first), Term(cut.second)});
  return promised;
}

// Returns the common cut of two shards from their promises of term 3.
absl::StatusOr<std::optional<CutId>> Common(Recovery* recovery, const v1::Promised& first,
                                            const v1::Promised& second) {
  recovery->Begin(Term(3));
  EXPECT_FALSE(recovery->OnPromised(ShardId(0), first));
  EXPECT_TRUE(recovery->OnPromised(ShardId(1), second));
  return recovery->HighestCommon();
}

TEST(RecoveryStory, IgnoresPushesOfAnEarlierTerm) {
  const JobSpec spec = Spec(1, Clip::kNone, Mode::kEager);
  Training training(spec, 1, 0, 1);
  CoreCluster& cluster = training.cluster();
  training.Import();
  cluster.Run();
  cluster.Crash(ShardId(0));
  cluster.Restart(ShardId(0));
  cluster.Run();
  ASSERT_EQ(cluster.Status(ShardId(0)).term(), 2u);
  const StageId stage(static_cast<uint32_t>(spec.stages.size() - 1));
  const ChunkId chunk = cluster.chunks().ChunksOfStage(stage)[0];
  const std::vector<float> gradient = TellingGradient(cluster.chunks().chunk(chunk), stage, 0, 1);
  for (const uint64_t term : {1, 2}) {
    cluster.term = term;
    const uint64_t tag =
        cluster.Push(cluster.NewStream(), 1, stage, TreeRange{0, 1}, chunk, gradient, kTokens, 9);
    cluster.Run();
    EXPECT_EQ(cluster.answers.acks[tag].outcome(), term == 1 ? v1::Ack::STALE : v1::Ack::ACCEPTED);
  }
}

// If the shard refused a worker at once, the worker could only ask the lead, which does not know
// yet that the shard restarted, and would return with the same term.
TEST(RecoveryStory, RestartedShardHoldsRequestsUntilNewTerm) {
  const JobSpec spec = Spec(1, Clip::kNone, Mode::kEager);
  Training training(spec, 2, 0, 1);
  CoreCluster& cluster = training.cluster();
  training.Import();
  cluster.Run();
  ASSERT_TRUE(training.Begin(1));
  cluster.Crash(ShardId(1));
  cluster.Restart(ShardId(1));
  ASSERT_EQ(cluster.Status(ShardId(0)).term(), 1u) << "the lead does not know yet";
  ASSERT_EQ(cluster.Status(ShardId(1)).term(), 0u);
  const auto last = static_cast<uint32_t>(spec.stages.size() - 1);
  ChunkId chunk;
  for (const ChunkId id : cluster.chunks().ChunksOfStage(StageId(last))) {
    if (cluster.OwnerOf(id) == ShardId(1)) chunk = id;
  }
  ASSERT_EQ(cluster.OwnerOf(chunk), ShardId(1));
  const StreamId begin = cluster.SendBegin(1, {0}, 9, {})[1];
  const StreamId pushes = cluster.NewStream(), closed = cluster.NewStream();
  const std::vector<float> gradient =
      TellingGradient(cluster.chunks().chunk(chunk), StageId(last), 0, 1);
  const uint64_t push =
      cluster.Push(pushes, 1, StageId(last), TreeRange{0, 1}, chunk, gradient, kTokens, 9);
  const uint64_t fetch = cluster.Fetch(cluster.NewStream(), StageId(last), chunk, 0);
  const uint64_t gone = cluster.Fetch(closed, StageId(last), chunk, 0);
  cluster.Send(ShardId(1), event::StreamClosed{closed});
  EXPECT_EQ(cluster.answers.closed.count(begin) + cluster.answers.replies.count(begin), 0u);
  EXPECT_EQ(cluster.answers.acks.count(push), 0u);
  EXPECT_EQ(cluster.answers.failed_fetches.count(fetch), 0u);

  cluster.Run();
  ASSERT_EQ(cluster.Status(ShardId(0)).term(), 2u);
  EXPECT_TRUE(absl::IsAborted(cluster.answers.closed[begin])) << cluster.answers.closed[begin];
  EXPECT_EQ(cluster.answers.acks[push].outcome(), v1::Ack::STALE);
  EXPECT_TRUE(absl::IsAborted(cluster.answers.failed_fetches[fetch]))
      << cluster.answers.failed_fetches[fetch];
  EXPECT_EQ(cluster.answers.failed_fetches.count(gone), 0u) << "its stream is closed";
  const absl::Status finished = training.Finish([] {});
  EXPECT_TRUE(finished.ok()) << finished;
  EXPECT_EQ(training.End().digest, Undisturbed(spec));
}

TEST(RecoveryStory, FetchingOldWeightsRollsTheJobBack) {
  const JobSpec spec = Spec(2, Clip::kNone, Mode::kEager);
  for (const uint32_t shards : {1, 2}) {
    Training training(spec, shards, 0, 1);
    CoreCluster& cluster = training.cluster();
    training.Import();
    cluster.Run();
    const uint64_t term = cluster.Status(ShardId(0)).term();
    ASSERT_TRUE(training.Begin(1));
    const StreamId watch = cluster.NewStream();
    cluster.Send(ShardId(0), event::Watch{watch, 0});
    const StreamId stream = cluster.NewStream();
    const auto last = static_cast<uint32_t>(spec.stages.size() - 1);
    const StageId below(last - 1);
    for (const StageId stage : {StageId(last), below}) {
      for (ChunkId id : cluster.chunks().ChunksOfStage(stage)) {
        for (const uint32_t part : {0, 1}) {
          cluster.Push(stream, 1, stage, TreeRange{part, 1}, id,
                       TellingGradient(cluster.chunks().chunk(id), stage, part, 1), kTokens, 9);
        }
      }
    }
    cluster.Run();
    ASSERT_TRUE(cluster.Begin(1, {0}, 10));
    const uint64_t tag =
        cluster.Fetch(cluster.NewStream(), below, cluster.chunks().ChunksOfStage(below)[0], 0);
    cluster.Run();
    ASSERT_EQ(cluster.answers.failed_fetches.count(tag), 1u);
    EXPECT_TRUE(absl::IsAborted(cluster.answers.failed_fetches[tag]))
        << cluster.answers.failed_fetches[tag];
    EXPECT_TRUE(absl::IsAborted(cluster.answers.closed[watch])) << cluster.answers.closed[watch];
    EXPECT_EQ(cluster.Status(ShardId(0)).term(), term + 1);
    const absl::Status finished = training.Finish([] {});
    EXPECT_TRUE(finished.ok()) << finished;
    EXPECT_EQ(training.End().digest, Undisturbed(spec));
  }
}

// Pushes all gradients of the first step, or only those for one shard.
void PushFirstStep(CoreCluster* cluster, std::optional<ShardId> only) {
  const StreamId stream = cluster->NewStream();
  for (size_t s = cluster->spec().stages.size(); s-- > 0;) {
    const StageId stage(static_cast<uint32_t>(s));
    for (ChunkId id : cluster->chunks().ChunksOfStage(stage)) {
      if (only.has_value() && cluster->OwnerOf(id) != *only) continue;
      for (uint32_t part = 0; part < cluster->spec().training.parts; ++part) {
        cluster->Push(stream, 1, stage, TreeRange{part, 1}, id,
                      TellingGradient(cluster->chunks().chunk(id), stage, part, 1), kTokens, 9);
      }
    }
  }
  cluster->Run();
}

// The worker that ended had sent its gradients to only one of the shards. The other one still has
// the step open, and the weights that it needs are gone.
TEST(RecoveryStory, LostGradientsRollTheJobBack) {
  const JobSpec spec = Spec(2, Clip::kNone, Mode::kEager);
  for (const ShardId only : {ShardId(0), ShardId(1)}) {
    Training training(spec, 2, 0, 1);
    CoreCluster& cluster = training.cluster();
    training.Import();
    cluster.Run();
    const uint64_t term = cluster.Status(ShardId(0)).term();
    ASSERT_TRUE(cluster.Begin(1, {0, 1}, 9));
    PushFirstStep(&cluster, only);
    EXPECT_EQ(cluster.Status(only).step(), 2u);
    EXPECT_EQ(cluster.Status(ShardId(1 - only.value())).step(), 1u);
    const absl::Status finished = training.Finish([] {});
    EXPECT_TRUE(finished.ok()) << finished;
    EXPECT_EQ(training.End().digest, Undisturbed(spec));
    EXPECT_EQ(cluster.Status(ShardId(0)).term(), term + 1);
  }
}

// Nothing is lost with a worker that reported before its last push: its replacement continues.
TEST(RecoveryStory, AWorkerThatReportedCanStop) {
  const JobSpec spec = Spec(2, Clip::kNone, Mode::kEager);
  Training training(spec, 2, 0, 1);
  CoreCluster& cluster = training.cluster();
  training.Import();
  cluster.Run();
  const uint64_t term = cluster.Status(ShardId(0)).term();
  ASSERT_TRUE(training.Begin(1));
  ASSERT_TRUE(training.ReportLosses(1));
  PushFirstStep(&cluster, std::nullopt);
  training.ReplaceWorker();
  const absl::Status finished = training.Finish([] {});
  EXPECT_TRUE(finished.ok()) << finished;
  EXPECT_EQ(training.End().digest, Undisturbed(spec));
  EXPECT_EQ(cluster.Status(ShardId(0)).term(), term);
}

TEST(RecoveryStory, NoDuplicateOfABeginRollsBack) {
  const JobSpec spec = Spec(2, Clip::kNone, Mode::kEager);
  Training training(spec, 2, 0, 1);
  CoreCluster& cluster = training.cluster();
  training.Import();
  cluster.Run();
  const uint64_t term = cluster.Status(ShardId(0)).term();
  ASSERT_TRUE(training.Begin(1));
  ASSERT_TRUE(training.ReportLosses(1));
  PushFirstStep(&cluster, std::nullopt);
  for (const uint64_t step : {0, 1, 2}) cluster.SendBegin(step, {0, 1}, 9, {});
  cluster.Run();
  EXPECT_EQ(cluster.Status(ShardId(0)).term(), term);
  EXPECT_EQ(cluster.Status(ShardId(0)).state(), v1::JOB_STATE_RUNNING);
}

// Without cuts there is nothing to go back to.
TEST(RecoveryStory, LostGradientsNameTheCommandThatResumes) {
  CoreCluster cluster(Spec(2, Clip::kNone, Mode::kEager), [] {
    CoreCluster::Options options;
    options.shards = 2;
    return options;
  }());
  cluster.InitializeAll();
  ASSERT_TRUE(cluster.Begin(1, {0, 1}, 9));
  PushFirstStep(&cluster, ShardId(0));
  for (const Chunk& chunk : cluster.chunks().chunks()) {
    if (cluster.OwnerOf(chunk.id) != ShardId(0)) continue;
    const uint64_t tag = cluster.Fetch(cluster.NewStream(), chunk.uses.front(), chunk.id, 0);
    cluster.Run();
    const absl::Status failed = cluster.answers.failed_fetches[tag];
    EXPECT_TRUE(absl::IsFailedPrecondition(failed)) << failed;
    EXPECT_THAT(std::string(failed.message()), testing::HasSubstr("--resume=latest"));
    break;
  }
}

TEST(RecoveryStory, ATermInheritsTheComputeProfile) {
  Training training(Spec(2, Clip::kNone, Mode::kEager), 2, 0, 1);
  CoreCluster& cluster = training.cluster();
  training.Import();
  cluster.Run();
  const auto join = [&](uint32_t rank, const std::string& profile) {
    v1::JoinRequest request;
    request.set_worker_nonce(7 + rank);
    request.set_compute_profile(profile);
    request.set_worker_count(2);
    request.set_worker_rank(rank);
    const StreamId stream = cluster.NewStream();
    cluster.Send(ShardId(0), event::Join{stream, request});
    cluster.Run();
    return stream;
  };
  EXPECT_EQ(cluster.answers.replies[join(0, "profile a")].size(), 1u);
  ASSERT_TRUE(cluster.Begin(1, {0}, 7)) << "pins the profile";
  cluster.Crash(ShardId(1));
  cluster.Restart(ShardId(1));
  cluster.Run();
  ASSERT_EQ(cluster.Status(ShardId(0)).term(), 2u);
  const StreamId other = join(1, "profile b");
  EXPECT_TRUE(cluster.answers.replies[other].empty());
  EXPECT_THAT(std::string(cluster.answers.closed[other].message()),
              testing::HasSubstr("profile a"));
}

TEST(RecoveryStory, ALostPartWaitsForAWorker) {
  const JobSpec spec = Spec(2, Clip::kNone, Mode::kEager);
  Training training(spec, 2, 0, 1);
  CoreCluster& cluster = training.cluster();
  training.Import();
  cluster.Run();
  ASSERT_TRUE(training.Begin(1));
  const StreamId stream = cluster.NewStream();
  const StageId stage(static_cast<uint32_t>(spec.stages.size() - 1));
  for (ChunkId id : cluster.chunks().ChunksOfStage(stage)) {
    cluster.Push(stream, 1, stage, TreeRange{0, 1}, id,
                 TellingGradient(cluster.chunks().chunk(id), stage, 0, 1), kTokens, 9);
  }
  cluster.Run();
  for (uint32_t s = 0; s < 2; ++s) cluster.Send(ShardId(s), event::StreamClosed{stream});
  cluster.FireTimers();
  EXPECT_EQ(cluster.core(ShardId(0)).state(), v1::JOB_STATE_RUNNING);
  cluster.FireTimers();
  EXPECT_EQ(cluster.Status(ShardId(0)).term(), 1u) << "only a fetch by a holder rolls back";
  const absl::Status finished = training.Finish([] {});
  EXPECT_TRUE(finished.ok()) << finished;
  EXPECT_EQ(training.End().digest, Undisturbed(spec));
}

TEST(Recovery, YoungestCommonCutMatchesStepAndTerm) {
  Recovery recovery({"a:1", "b:1"});
  const auto common = Common(&recovery, Promised(3, true, {{20, 1}, {40, 1}, {40, 2}}),
                             Promised(3, true, {{20, 1}, {40, 1}, {60, 1}}));
  ASSERT_TRUE(common.ok()) << common.status();
  EXPECT_EQ(**common, (CutId{Step(40), Term(1)}));
  // A cut of the same step in another term is another cut.
  const auto older = Common(&recovery, Promised(3, true, {{20, 1}, {40, 2}}),
                            Promised(3, true, {{20, 1}, {40, 1}}));
  EXPECT_EQ(**older, (CutId{Step(20), Term(1)}));
}

TEST(Recovery, NeverGuesses) {
  Recovery recovery({"a:1", "b:1"});
  const auto none = Common(&recovery, Promised(3, true, {{40, 1}}), Promised(3, false, {}));
  EXPECT_EQ(none.status().code(), absl::StatusCode::kNotFound);
  for (const char* said :
       {"shard 0 at a:1 has step 40 (term 1)", "shard 1 at b:1 has none", "storage.path"}) {
    EXPECT_NE(none.status().message().find(said), absl::string_view::npos) << none.status();
  }
  const auto other = Common(&recovery, Promised(3, true, {{40, 1}}), Promised(3, true, {{30, 1}}));
  EXPECT_EQ(other.status().code(), absl::StatusCode::kFailedPrecondition) << other.status();
  // No shard has more than imported state, which can be imported again.
  const auto imported = Common(&recovery, Promised(3, false, {{0, 1}}), Promised(3, false, {}));
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_FALSE(imported->has_value());
}

TEST(Recovery, NamesTheDamageOfAMissingCut) {
  Recovery recovery({"a:1", "b:1"});
  v1::Promised damaged = Promised(3, true, {});
  damaged.set_damage("job-7/slot-0 at 4096: bad checksum");
  const auto none = Common(&recovery, Promised(3, true, {{40, 1}}), damaged);
  EXPECT_EQ(none.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(none.status().message().find(
                "shard 1 at b:1 has none, and a damaged one: job-7/slot-0 at 4096: bad checksum"),
            absl::string_view::npos)
      << none.status();
}

TEST(Recovery, NeverRollsBackPastACommonCut) {
  Recovery recovery({"a:1", "b:1"});
  recovery.Begin(Term(2));
  EXPECT_FALSE(recovery.OnDurable(ShardId(0), {Step(40), Term(2)}));
  EXPECT_TRUE(recovery.OnDurable(ShardId(1), {Step(40), Term(2)}));
  const auto lost =
      Common(&recovery, Promised(3, true, {{20, 1}, {40, 2}}), Promised(3, true, {{20, 1}}));
  EXPECT_EQ(lost.status().code(), absl::StatusCode::kInternal);
}

TEST(Recovery, AnyNewProcessNeedsANewTerm) {
  Recovery recovery({"a:1", "b:1"});
  EXPECT_TRUE(recovery.OnRegister(ShardId(0), 7, Term(4)));
  EXPECT_FALSE(recovery.AllRegistered());
  EXPECT_TRUE(recovery.OnRegister(ShardId(1), 8, Term(9)));
  EXPECT_TRUE(recovery.AllRegistered());
  EXPECT_EQ(recovery.NextTerm(Term(4)), Term(10));
  EXPECT_FALSE(recovery.OnRegister(ShardId(1), 8, Term(9)));
  EXPECT_TRUE(recovery.OnRegister(ShardId(1), 80, Term(9)));
}

INSTANTIATE_TEST_SUITE_P(Stories, RecoveryTest, testing::ValuesIn(kStories),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace eps
