// The protocol of a shard, tested on real cores over real DRAM backends in one thread.

#include "eps_server/core/shard_core.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_format.h"
#include "base/checksum.h"
#include "base/job/layout/model_layout.h"
#include "eps_server/core/testing/core_cluster.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using testing::HasSubstr;

JobSpec SmallSpec(uint32_t parts, Clip clip = Clip::kNone, Mode mode = Mode::kEager) {
  JobSpec spec;
  spec.name = "core-test";
  spec.model.type = ModelType::kSynthetic;
  spec.model.synthetic.n_layer = 4;
  spec.model.synthetic.n_embd = 64;
  spec.model.synthetic.tied = true;
  EXPECT_TRUE(BuildLayout(0.01, &spec).ok());
  spec.chunk_elements = 2048;
  spec.training.steps = 3;
  spec.training.parts = parts;
  spec.training.clip = clip;
  spec.training.mode = mode;
  spec.training.max_grad_norm = 0.25;
  spec.data.tokens = 100'000;
  spec.data.sha256 = std::string(64, '0');
  EXPECT_TRUE(spec.Validate().ok()) << spec.Validate();
  return spec;
}

constexpr uint64_t kTokens = 100;

v1::PartLoss Loss(uint32_t part, uint64_t step) {
  v1::PartLoss loss;
  loss.set_part(part);
  loss.set_step(step);
  loss.set_loss_sum(50.0 + part);
  loss.set_tokens(kTokens);
  return loss;
}

// Pushes everything that `part` contributes to `step`, from the top stage down.
std::vector<uint64_t> PushAll(CoreCluster* cluster, StreamId stream, uint32_t part, uint64_t step,
                              uint64_t nonce, int copies = 1) {
  std::vector<uint64_t> tags;
  for (size_t s = cluster->spec().stages.size(); s-- > 0;) {
    const StageId stage(static_cast<uint32_t>(s));
    for (ChunkId id : cluster->chunks().ChunksOfStage(stage)) {
      for (int copy = 0; copy < copies; ++copy) {
        tags.push_back(
            cluster->Push(stream, step, stage, TreeRange{part, 1}, id,
                          TellingGradient(cluster->chunks().chunk(id), stage, part, step), kTokens,
                          nonce + static_cast<uint64_t>(copy)));
      }
    }
  }
  return tags;
}

std::string DigestOf(CoreCluster* cluster) {
  Sha256 sha;
  for (const Bytes& state : cluster->States()) sha.Update(state.view());
  return ToHex(sha.Finish());
}

// Trains to the end. Returns the digest of weights and optimizer state, then each step's norm.
std::string Train(const JobSpec& spec, CoreCluster::Options options, int copies = 1) {
  CoreCluster cluster(spec, options);
  cluster.InitializeAll();
  const StreamId watch = cluster.NewStream();
  cluster.Send(ShardId(0), event::Watch{watch, 0});
  const StreamId stream = cluster.NewStream();
  std::vector<uint32_t> parts;
  for (uint32_t p = 0; p < spec.training.parts; ++p) parts.push_back(p);
  for (uint64_t step = 1; step <= spec.training.steps; ++step) {
    std::vector<v1::PartLoss> losses;
    for (uint32_t p : parts) {
      if (step > 1) losses.push_back(Loss(p, step - 1));
    }
    EXPECT_TRUE(cluster.Begin(step, parts, 7, losses)) << "step " << step;
    // The order of parts depends on the seed, too.
    for (uint32_t p = 0; p < parts.size(); ++p) {
      const uint32_t part = (p + static_cast<uint32_t>(options.seed)) % parts.size();
      PushAll(&cluster, stream, part, step, 1000 * (part + 1), copies);
    }
    cluster.Run();
  }
  std::vector<v1::PartLoss> losses;
  for (uint32_t p : parts) losses.push_back(Loss(p, spec.training.steps));
  EXPECT_TRUE(cluster.Begin(spec.training.steps + 1, parts, 7, losses));
  EXPECT_TRUE(cluster.begun[0].done());
  EXPECT_EQ(cluster.core(ShardId(0)).state(), v1::JOB_STATE_DONE);
  for (uint32_t s = 0; s < options.shards; ++s) {
    EXPECT_EQ(cluster.account(ShardId(s)).live_bytes(MemoryKind::kContribution), 0u);
  }
  std::string result = DigestOf(&cluster);
  for (const effect::ReplyMessage& reply : cluster.answers.replies[watch]) {
    absl::StrAppendFormat(&result, " %a", std::get<effect::SharedRecord>(reply)->grad_norm());
  }
  return result;
}

TEST(ShardCore, StateIgnoresOrderDuplicatesAndShardCount) {
  const JobSpec spec = SmallSpec(3);
  const std::string expected = Train(spec, {1, 0, {}});
  for (uint32_t shards : {1u, 2u, 3u}) {
    for (uint64_t seed : {1u, 2u, 3u, 4u, 5u}) {
      EXPECT_EQ(Train(spec, {shards, seed, {}}), expected) << shards << " shards, seed " << seed;
    }
  }
  EXPECT_EQ(Train(spec, {2, 9, {}}, /*copies=*/3), expected) << "every push three times";
}

TEST(ShardCore, LaggedClippingIgnoresShardCount) {
  const JobSpec spec = SmallSpec(2, Clip::kLagged);
  const std::string expected = Train(spec, {1, 0, {}});
  for (uint64_t seed : {1u, 2u, 3u}) {
    EXPECT_EQ(Train(spec, {2, seed, {}}), expected);
    EXPECT_EQ(Train(spec, {3, seed, {}}), expected);
  }
  EXPECT_NE(Train(SmallSpec(2, Clip::kNone), {1, 0, {}}), expected) << "clipping does something";
}

TEST(ShardCore, SealedClippingUsesTheStepsOwnNorm) {
  const JobSpec spec = SmallSpec(3, Clip::kExact, Mode::kSealed);
  const std::string expected = Train(spec, {1, 0, {}});
  for (uint32_t shards : {1u, 2u, 3u, 20u}) {
    for (uint64_t seed : {1u, 2u, 3u}) {
      EXPECT_EQ(Train(spec, {shards, seed, {}}), expected) << shards << " shards, seed " << seed;
    }
  }
  EXPECT_EQ(Train(spec, {2, 4, {}}, /*copies=*/3), expected) << "every push three times";
}

TEST(ShardCore, SealedAndEagerAgreeWhereBothApply) {
  for (Clip clip : {Clip::kNone, Clip::kLagged}) {
    for (uint32_t parts : {1u, 3u}) {
      EXPECT_EQ(Train(SmallSpec(parts, clip, Mode::kSealed), {2, 3, {}}),
                Train(SmallSpec(parts, clip, Mode::kEager), {2, 3, {}}));
    }
  }
}

TEST(ShardCore, SealedModeUpdatesAfterTheLastContribution) {
  const JobSpec spec = SmallSpec(1, Clip::kExact, Mode::kSealed);
  CoreCluster cluster(spec, {2, 0, {}});
  cluster.InitializeAll();
  ASSERT_TRUE(cluster.Begin(1, {0}, 7));
  const StreamId stream = cluster.NewStream();
  const std::string initial = DigestOf(&cluster);
  // Pushes everything but one chunk of the first stage; then the worker dies.
  const ChunkId last = cluster.chunks().ChunksOfStage(StageId(0)).back();
  for (size_t s = spec.stages.size(); s-- > 0;) {
    const StageId stage(static_cast<uint32_t>(s));
    for (ChunkId id : cluster.chunks().ChunksOfStage(stage)) {
      if (stage == StageId(0) && id == last) continue;
      cluster.Push(stream, 1, stage, TreeRange{0, 1}, id,
                   TellingGradient(cluster.chunks().chunk(id), stage, 0, 1), kTokens, 7);
    }
  }
  cluster.Run();
  EXPECT_EQ(DigestOf(&cluster), initial);
  for (uint32_t s = 0; s < 2; ++s) cluster.Send(ShardId(s), event::StreamClosed{stream});
  cluster.FireTimers();
  EXPECT_EQ(cluster.core(ShardId(0)).state(), v1::JOB_STATE_RUNNING) << "nothing is lost";
  // A replacement may still fetch the old version, and sends only the missing chunk.
  ASSERT_TRUE(cluster.Begin(1, {0}, 8));
  const StreamId replacement = cluster.NewStream();
  const uint64_t fetched = cluster.Fetch(replacement, StageId(0), last, 0);
  cluster.Run();
  EXPECT_EQ(cluster.answers.fetched.count(fetched), 1u);
  const int counted = cluster.begun[0].have_size() + cluster.begun[1].have_size();
  EXPECT_GT(counted, 4);
  cluster.Push(replacement, 1, StageId(0), TreeRange{0, 1}, last,
               TellingGradient(cluster.chunks().chunk(last), StageId(0), 0, 1), kTokens, 8);
  cluster.Run();
  EXPECT_EQ(cluster.Status(ShardId(0)).step(), 2u);
  EXPECT_EQ(cluster.Status(ShardId(1)).step(), 2u);
  EXPECT_NE(DigestOf(&cluster), initial);
}

TEST(ShardCore, RecordsEveryStepExactlyOnce) {
  const JobSpec spec = SmallSpec(2);
  CoreCluster cluster(spec, {2, 5, {}});
  cluster.InitializeAll();
  const StreamId watch = cluster.NewStream();
  cluster.Send(ShardId(0), event::Watch{watch, 0});
  const StreamId stream = cluster.NewStream();
  for (uint64_t step = 1; step <= 3; ++step) {
    std::vector<v1::PartLoss> losses;
    if (step > 1) losses = {Loss(0, step - 1), Loss(1, step - 1)};
    ASSERT_TRUE(cluster.Begin(step, {0, 1}, 7, losses));
    PushAll(&cluster, stream, 0, step, 1);
    PushAll(&cluster, stream, 1, step, 2);
    cluster.Run();
  }
  ASSERT_TRUE(cluster.Begin(4, {0, 1}, 7, {Loss(0, 3), Loss(1, 3)}));
  ASSERT_TRUE(cluster.Begin(4, {0, 1}, 7, {Loss(0, 3), Loss(1, 3)})) << "a retry";
  ASSERT_EQ(cluster.answers.replies[watch].size(), 3u);
  for (uint64_t step = 1; step <= 3; ++step) {
    const auto& record = *std::get<effect::SharedRecord>(cluster.answers.replies[watch][step - 1]);
    EXPECT_EQ(record.step(), step);
    EXPECT_EQ(record.tokens(), 2 * kTokens);
    EXPECT_DOUBLE_EQ(record.loss(), 101.0 / 200.0);
    EXPECT_GT(record.grad_norm(), 0.0);
    EXPECT_DOUBLE_EQ(record.lr(), 1e-3);
  }
  EXPECT_TRUE(cluster.answers.closed.at(watch).ok());
}

TEST(ShardCore, TellsConflictsFromDuplicates) {
  CoreCluster cluster(SmallSpec(2), {1, 0, {}});
  cluster.InitializeAll();
  ASSERT_TRUE(cluster.Begin(1, {0, 1}, 7));
  const StreamId stream = cluster.NewStream();
  const StageId top(3);
  const ChunkId id = cluster.chunks().ChunksOfStage(top).back();
  const std::vector<float> gradient = TellingGradient(cluster.chunks().chunk(id), top, 0, 1);
  std::vector<float> other = gradient;
  other[5] += 1.0f;
  const auto push = [&](const std::vector<float>& g, uint64_t nonce) {
    const uint64_t tag = cluster.Push(stream, 1, top, TreeRange{0, 1}, id, g, kTokens, nonce);
    cluster.Run();
    return cluster.answers.acks.at(tag).outcome();
  };
  EXPECT_EQ(push(gradient, 11), v1::Ack::ACCEPTED);
  EXPECT_EQ(push(gradient, 11), v1::Ack::DUPLICATE);
  EXPECT_EQ(push(other, 12), v1::Ack::DUPLICATE) << "another process may send other bits";
  EXPECT_EQ(push(other, 11), v1::Ack::CONFLICT) << "the same process may not";
  EXPECT_EQ(cluster.Status(ShardId(0)).counters().at("accepted"), 1u);
}

TEST(ShardCore, TwinWaitsAndReplacesALostContribution) {
  CoreCluster cluster(SmallSpec(1), {1, 0, {}});
  cluster.InitializeAll();
  ASSERT_TRUE(cluster.Begin(1, {0}, 7));
  const StageId top(3);
  const ChunkId id = cluster.chunks().ChunksOfStage(top).back();
  const std::vector<float> gradient = TellingGradient(cluster.chunks().chunk(id), top, 0, 1);
  cluster.hold_payloads = true;
  const StreamId first = cluster.NewStream();
  const StreamId second = cluster.NewStream();
  cluster.Push(first, 1, top, TreeRange{0, 1}, id, gradient, kTokens, 1);
  cluster.hold_payloads = false;
  const uint64_t twin = cluster.Push(second, 1, top, TreeRange{0, 1}, id, gradient, kTokens, 2);
  cluster.Run();
  EXPECT_EQ(cluster.answers.acks.count(twin), 0u) << "only one payload per key is in flight";
  // The first process dies before it has sent the payload; the second contribution replaces it.
  cluster.Send(ShardId(0), event::StreamClosed{first});
  cluster.Run();
  EXPECT_EQ(cluster.answers.acks.at(twin).outcome(), v1::Ack::ACCEPTED);
}

TEST(ShardCore, LateContributionsAreStale) {
  CoreCluster cluster(SmallSpec(1), {1, 0, {}});
  cluster.InitializeAll();
  ASSERT_TRUE(cluster.Begin(1, {0}, 7));
  const StreamId stream = cluster.NewStream();
  PushAll(&cluster, stream, 0, 1, 1);
  cluster.Run();
  const std::string before = DigestOf(&cluster);
  for (uint64_t tag : PushAll(&cluster, stream, 0, 1, 99)) {
    cluster.Run();
    EXPECT_EQ(cluster.answers.acks.at(tag).outcome(), v1::Ack::STALE);
    EXPECT_EQ(cluster.answers.acks.at(tag).step(), 2u);
  }
  EXPECT_EQ(DigestOf(&cluster), before);
}

TEST(ShardCore, MergesPartsExactlyAndRefusesOverlaps) {
  const JobSpec spec = SmallSpec(4);
  const auto run = [&](bool merged) {
    CoreCluster cluster(spec, {1, 0, {}});
    cluster.InitializeAll();
    EXPECT_TRUE(cluster.Begin(1, {0, 1, 2, 3}, 7));
    const StreamId stream = cluster.NewStream();
    for (size_t s = spec.stages.size(); s-- > 0;) {
      const StageId stage(static_cast<uint32_t>(s));
      for (ChunkId id : cluster.chunks().ChunksOfStage(stage)) {
        const Chunk& chunk = cluster.chunks().chunk(id);
        for (uint32_t p = 0; p < 4; p += 2) {
          std::vector<float> a = TellingGradient(chunk, stage, p, 1);
          const std::vector<float> b = TellingGradient(chunk, stage, p + 1, 1);
          if (!merged) {
            cluster.Push(stream, 1, stage, TreeRange{p, 1}, id, a, kTokens, 1);
            cluster.Push(stream, 1, stage, TreeRange{p + 1, 1}, id, b, kTokens, 1);
            continue;
          }
          for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
          const uint64_t tag =
              cluster.Push(stream, 1, stage, TreeRange{p, 2}, id, a, 2 * kTokens, 1);
          cluster.Run();
          EXPECT_EQ(cluster.answers.acks.at(tag).outcome(), v1::Ack::ACCEPTED);
          const uint64_t overlap =
              cluster.Push(stream, 1, stage, TreeRange{0, 4}, id, a, 4 * kTokens, 1);
          cluster.Run();
          if (p == 0) {
            EXPECT_EQ(cluster.answers.acks.at(overlap).outcome(), v1::Ack::REFUSED);
          }
        }
      }
    }
    cluster.Run();
    EXPECT_EQ(cluster.Status(ShardId(0)).step(), 2u);
    return DigestOf(&cluster);
  };
  EXPECT_EQ(run(true), run(false));
}

TEST(ShardCore, QuotaBoundsAPartThatRunsAhead) {
  const JobSpec spec = SmallSpec(2);
  CoreCluster cluster(spec, {1, 0, {}});
  cluster.InitializeAll();
  cluster.Join(7);
  ASSERT_TRUE(cluster.Begin(1, {0}, 7));
  ASSERT_TRUE(cluster.Begin(1, {1}, 8));
  const StreamId fast = cluster.NewStream();
  const StreamId slow = cluster.NewStream();
  PushAll(&cluster, fast, 0, 1, 1);
  cluster.Run();
  std::vector<ChunkId> owned;
  for (const Chunk& chunk : cluster.chunks().chunks()) owned.push_back(chunk.id);
  const uint64_t budget = ShardCore::ContributionBudget(spec, cluster.chunks(), owned, ~0ull);
  const v1::StatusReply status = cluster.Status(ShardId(0));
  ASSERT_GT(status.waits_size(), 0);
  EXPECT_THAT(status.waits(0).what(), HasSubstr("Push of chunk"));
  EXPECT_THAT(status.waits(0).waits_for(), HasSubstr("oldest stage"));
  uint64_t accepted = 0;
  for (const auto& [t, a] : cluster.answers.acks) accepted += a.outcome() == v1::Ack::ACCEPTED;
  EXPECT_LT(accepted, 9u);
  EXPECT_LE(status.counters().at("accepted_bytes"), budget / 2);
  // The slow part is admitted, and both parts finish.
  PushAll(&cluster, slow, 1, 1, 2);
  cluster.Run();
  EXPECT_EQ(cluster.Status(ShardId(0)).step(), 2u);
  EXPECT_EQ(cluster.Status(ShardId(0)).waits_size(), 0);
}

TEST(ShardCore, AdmitsOldestStageDespiteFullQuota) {
  const JobSpec spec = SmallSpec(1);
  CoreCluster cluster(spec, {1, 0, {}});
  cluster.InitializeAll();
  ASSERT_TRUE(cluster.Begin(1, {0}, 7));
  const StreamId stream = cluster.NewStream();
  const auto push_stage = [&](StageId stage) {
    std::vector<uint64_t> tags;
    for (ChunkId id : cluster.chunks().ChunksOfStage(stage)) {
      tags.push_back(cluster.Push(stream, 1, stage, TreeRange{0, 1}, id,
                                  TellingGradient(cluster.chunks().chunk(id), stage, 0, 1), kTokens,
                                  1));
    }
    cluster.Run();
    return tags;
  };
  // Payloads are held, so that what is admitted keeps its quota: stages 1 and 2 out of order.
  cluster.hold_payloads = true;
  push_stage(StageId(1));
  push_stage(StageId(2));
  EXPECT_GT(cluster.Status(ShardId(0)).waits_size(), 0) << "the quota is full";
  const uint64_t credits = cluster.answers.credits;
  const size_t top = push_stage(StageId(3)).size();
  EXPECT_EQ(cluster.answers.credits, credits + top);
}

TEST(ShardCore, FetchWaitsForItsVersion) {
  CoreCluster cluster(SmallSpec(1), {2, 4, {}});
  cluster.InitializeAll();
  cluster.Join(7);
  ASSERT_TRUE(cluster.Begin(1, {0}, 7));
  const StreamId fetch = cluster.NewStream();
  const StreamId push = cluster.NewStream();
  const StageId stage(1);
  const ChunkId id = cluster.chunks().ChunksOfStage(stage).front();
  const uint64_t now = cluster.Fetch(fetch, stage, id, 0);
  const uint64_t next = cluster.Fetch(fetch, stage, id, 1);
  const uint64_t beyond = cluster.Fetch(fetch, stage, id, 2);
  cluster.Run();
  EXPECT_EQ(cluster.answers.fetched.count(now), 1u);
  EXPECT_EQ(cluster.answers.fetched.count(next), 0u) << "parked";
  EXPECT_EQ(cluster.answers.failed_fetches.at(beyond).code(), absl::StatusCode::kOutOfRange);
  const v1::StatusReply status = cluster.Status(cluster.OwnerOf(id));
  ASSERT_EQ(status.waits_size(), 1);
  EXPECT_THAT(status.waits(0).waits_for(), HasSubstr("gradient of part 0"));
  PushAll(&cluster, push, 0, 1, 1);
  cluster.Run();
  EXPECT_EQ(cluster.answers.fetched.count(next), 1u);
  EXPECT_NE(cluster.answers.fetched[now].view(), cluster.answers.fetched[next].view());
  const uint64_t gone = cluster.Fetch(fetch, stage, id, 0);
  cluster.Run();
  EXPECT_THAT(std::string(cluster.answers.failed_fetches.at(gone).message()),
              HasSubstr("version 0 of chunk"));
}

TEST(ShardCore, ReplacementLearnsCountedContributions) {
  CoreCluster cluster(SmallSpec(2), {1, 0, {}});
  cluster.InitializeAll();
  ASSERT_TRUE(cluster.Begin(1, {0}, 7));
  const StreamId stream = cluster.NewStream();
  const StageId top(3);
  const ChunkId id = cluster.chunks().ChunksOfStage(top).back();
  cluster.Push(stream, 1, top, TreeRange{0, 1}, id,
               TellingGradient(cluster.chunks().chunk(id), top, 0, 1), kTokens, 7);
  cluster.Run();
  ASSERT_TRUE(cluster.Begin(1, {0}, 8)) << "another process takes over part 0";
  ASSERT_EQ(cluster.begun[0].have_size(), 1);
  EXPECT_EQ(cluster.begun[0].have(0).chunk(), id.value());
  EXPECT_EQ(cluster.begun[0].have(0).use_stage(), 3u);
  ASSERT_TRUE(cluster.Begin(1, {1}, 9));
  EXPECT_EQ(cluster.begun[0].have_size(), 0) << "part 1 has no counted contribution";
}

TEST(ShardCore, LostPartFailsTheJobAndWaiters) {
  CoreCluster cluster(SmallSpec(2), {2, 0, {}});
  cluster.InitializeAll();
  cluster.Join(7);
  ASSERT_TRUE(cluster.Begin(1, {0}, 7));
  ASSERT_TRUE(cluster.Begin(1, {1}, 8));
  const StreamId lost = cluster.NewStream();
  const StreamId other = cluster.NewStream();
  PushAll(&cluster, lost, 0, 1, 1);
  PushAll(&cluster, other, 1, 1, 2);
  // All gradients of step 1 arrived; then the worker of part 0 vanishes in step 2.
  cluster.Run();
  ASSERT_TRUE(cluster.Begin(2, {0, 1}, 7, {Loss(0, 1), Loss(1, 1)}));
  const StageId top(3);
  const ChunkId id = cluster.chunks().ChunksOfStage(top).back();
  const uint64_t waiting = cluster.Fetch(other, top, id, 2);
  EXPECT_FALSE(cluster.Begin(3, {1}, 8)) << "parked: step 2 is open";
  cluster.FireTimers();
  EXPECT_EQ(cluster.core(ShardId(0)).state(), v1::JOB_STATE_RUNNING) << "another may take over";
  cluster.FireTimers();
  EXPECT_EQ(cluster.core(ShardId(0)).state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(cluster.core(ShardId(1)).state(), v1::JOB_STATE_FAILED);
  EXPECT_THAT(std::string(cluster.answers.failed_fetches.at(waiting).message()),
              HasSubstr("part 0 was lost in step 2"));
  EXPECT_THAT(cluster.Status(ShardId(0)).failure(), HasSubstr("part 0 was lost"));
  for (uint32_t shard = 0; shard < 2; ++shard) {
    EXPECT_EQ(cluster.Status(ShardId(shard)).failure_code(), 69u);
  }
  EXPECT_FALSE(cluster.Begin(2, {0}, 9));
}

TEST(ShardCore, GateHoldsTheBorderForAnExport) {
  const JobSpec spec = SmallSpec(1);
  CoreCluster cluster(spec, {2, 6, {}});
  cluster.InitializeAll();
  ASSERT_TRUE(cluster.Begin(1, {0}, 7));
  const StreamId stream = cluster.NewStream();
  const StreamId gate = cluster.NewStream();
  cluster.Send(ShardId(0), event::Gate{gate, "driver", 1});
  std::vector<StreamId> exports = {cluster.NewStream(), cluster.NewStream()};
  v1::ExportStateRequest request;
  request.set_step(1);
  for (uint32_t s = 0; s < 2; ++s) {
    cluster.Send(ShardId(s), event::Export{exports[s], request});
  }
  cluster.Run();
  EXPECT_EQ(std::get<v1::GateReply>(cluster.answers.replies[gate].front()).step(), 1u);
  EXPECT_TRUE(cluster.answers.exported.empty()) << "step 1 is not complete";
  PushAll(&cluster, stream, 0, 1, 1);
  cluster.Run();
  EXPECT_FALSE(cluster.Begin(2, {0}, 7, {Loss(0, 1)})) << "gated";
  std::map<uint32_t, Bytes> states;
  for (StreamId e : exports) {
    EXPECT_TRUE(cluster.answers.closed.at(e).ok());
    for (const auto& [header, state] : cluster.answers.exported[e]) {
      EXPECT_EQ(header.step(), 1u);
      states[header.chunk()] = state;
    }
  }
  ASSERT_EQ(states.size(), cluster.chunks().chunks().size());

  // The rest of the run gives the same bits as a run that resumes from the export on one shard.
  const auto finish = [&](CoreCluster* c) {
    const StreamId s = c->NewStream();
    for (uint64_t step = 2; step <= 3; ++step) {
      EXPECT_TRUE(c->Begin(step, {0}, 7, {Loss(0, step - 1)}));
      PushAll(c, s, 0, step, 1);
      c->Run();
    }
    return DigestOf(c);
  };
  cluster.Send(ShardId(0), event::Gate{cluster.NewStream(), "driver", std::nullopt});
  cluster.Run();
  const std::string undisturbed = finish(&cluster);
  CoreCluster resumed(spec, {1, 0, {}});
  resumed.ImportAll(states, 1, 0);
  EXPECT_EQ(finish(&resumed), undisturbed);
}

TEST(ShardCore, JoinWaitsForWeightsAndSharesParts) {
  CoreCluster cluster(SmallSpec(3), {2, 0, {}});
  ShardAnswers& got = cluster.answers;
  v1::JoinRequest request;
  request.set_worker_nonce(1);
  request.set_compute_profile("profile a");
  request.set_worker_count(2);
  const StreamId early = cluster.NewStream();
  cluster.Send(ShardId(0), event::Join{early, request});
  cluster.Run();
  EXPECT_TRUE(got.replies[early].empty());
  cluster.InitializeAll();
  ASSERT_EQ(got.replies[early].size(), 1u);
  const auto& first = std::get<v1::JoinReply>(got.replies[early][0]);
  EXPECT_EQ(first.step(), 1u);
  ASSERT_EQ(first.leases_size(), 1);
  EXPECT_EQ(first.leases(0).part(), 0u);
  EXPECT_EQ(first.leases(0).generation(), 1u);
  EXPECT_EQ(first.lease_ms(), 10'000u);
  EXPECT_EQ(first.servers_size(), 2);
  EXPECT_EQ(JobSpec::Parse(first.spec_text())->Digest(), cluster.spec().Digest());
  request.set_worker_nonce(2);
  request.set_worker_rank(1);
  const StreamId late = cluster.NewStream();
  cluster.Send(ShardId(0), event::Join{late, request});
  const auto& second = std::get<v1::JoinReply>(got.replies[late][0]);
  ASSERT_EQ(second.leases_size(), 2);
  EXPECT_EQ(second.leases(1).part(), 2u);
  ASSERT_TRUE(cluster.Begin(1, {0}, 1));
  request.set_compute_profile("profile b");
  const StreamId other = cluster.NewStream();
  cluster.Send(ShardId(0), event::Join{other, request});
  EXPECT_THAT(std::string(got.closed.at(other).message()),
              HasSubstr("training.determinism=relaxed"));
  const StreamId wrong_shard = cluster.NewStream();
  cluster.Send(ShardId(1), event::Join{wrong_shard, request});
  EXPECT_THAT(std::string(got.closed.at(wrong_shard).message()),
              HasSubstr("ask shard 0, the lead"));
}

TEST(ShardCore, BordersThatDisagreeNeverOpen) {
  CoreCluster cluster(SmallSpec(1), {2, 0, {}});
  for (uint32_t s = 0; s < 2; ++s) {
    const StreamId stream = cluster.NewStream();
    cluster.Send(ShardId(s), event::ImportInitialize{stream});
    cluster.Send(ShardId(s), event::ImportFinish{stream, Step(s), Version(0), 0, 0});
  }
  cluster.Run();
  EXPECT_EQ(cluster.core(ShardId(0)).state(), v1::JOB_STATE_FAILED);
  EXPECT_THAT(cluster.Status(ShardId(0)).failure(), HasSubstr("import the same checkpoint"));
}

TEST(ShardCore, DetectsARestartedShard) {
  CoreCluster cluster(SmallSpec(1), {2, 0, {}});
  cluster.InitializeAll();
  v1::ShardMessage message;
  message.set_job_id(cluster.spec().id().value());
  message.set_term(1);
  message.mutable_register_()->set_incarnation(4711);
  cluster.Send(ShardId(0), event::FromShard{ShardId(1), message});
  EXPECT_THAT(cluster.Status(ShardId(0)).failure(), HasSubstr("shard 1 at shard-1 was restarted"));
}

TEST(ShardCore, RefusesInvalidContributions) {
  CoreCluster cluster(SmallSpec(2), {1, 0, {}});
  cluster.InitializeAll();
  ASSERT_TRUE(cluster.Begin(1, {0, 1}, 7));
  const StreamId stream = cluster.NewStream();
  const ChunkId id(1);
  const Chunk& chunk = cluster.chunks().chunk(id);
  const std::vector<float> g = TellingGradient(chunk, StageId(0), 0, 1);
  const auto outcome = [&](uint64_t step, StageId use, TreeRange parts) {
    const uint64_t tag = cluster.Push(stream, step, use, parts, id, g, kTokens, 1);
    cluster.Run();
    return cluster.answers.acks.at(tag);
  };
  EXPECT_EQ(outcome(1, StageId(2), {0, 1}).outcome(), v1::Ack::REFUSED) << "not its stage";
  EXPECT_EQ(outcome(1, chunk.uses[0], {1, 2}).outcome(), v1::Ack::REFUSED) << "no tree node";
  EXPECT_EQ(outcome(1, chunk.uses[0], {2, 1}).outcome(), v1::Ack::REFUSED) << "no such part";
  const v1::Ack early = outcome(2, chunk.uses[0], {0, 1});
  EXPECT_EQ(early.outcome(), v1::Ack::REFUSED);
  EXPECT_GT(early.retry_after_ms(), 0u) << "that step may begin later";
  std::vector<float> poisoned = g;
  poisoned[3] = std::numeric_limits<float>::quiet_NaN();
  const uint64_t tag =
      cluster.Push(stream, 1, chunk.uses[0], TreeRange{0, 1}, id, poisoned, kTokens, 1);
  cluster.Run();
  EXPECT_EQ(cluster.answers.acks.at(tag).outcome(), v1::Ack::REFUSED);
  EXPECT_EQ(cluster.answers.acks.at(tag).retry_after_ms(), 0u);
  EXPECT_EQ(cluster.account(ShardId(0)).live_bytes(MemoryKind::kContribution), 0u);
}

}  // namespace
}  // namespace eps
