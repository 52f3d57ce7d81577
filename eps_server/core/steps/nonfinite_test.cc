// Steps whose gradient is not finite: either the job fails and names the gradient, or every shard
// skips the step as if it had not occurred.

#include <cmath>
#include <limits>
#include <map>

#include "base/checksum.h"
#include "base/job/layout/model_layout.h"
#include "compression/codec.h"
#include "eps_server/core/testing/core_cluster.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using testing::HasSubstr;

constexpr uint64_t kTokens = 100;
constexpr uint64_t kNonce = 7;
constexpr uint32_t kParts = 2;

JobSpec SpecWith(Nonfinite nonfinite, Clip clip = Clip::kExact, Mode mode = Mode::kSealed) {
  JobSpec spec;
  spec.model.type = ModelType::kSynthetic;
  spec.model.synthetic.n_layer = 4;
  spec.model.synthetic.n_embd = 64;
  spec.model.synthetic.tied = true;
  EXPECT_TRUE(BuildLayout(0.01, &spec).ok());
  spec.chunk_elements = 2048;
  spec.schedule.name = "linear";  // a different rate for each update
  spec.training.steps = 4;
  spec.training.parts = kParts;
  spec.training.clip = clip;
  spec.training.mode = mode;
  spec.training.nonfinite = nonfinite;
  spec.training.max_grad_norm = 0.25;
  spec.data.tokens = 100'000;
  spec.data.sha256 = std::string(64, '0');
  EXPECT_TRUE(spec.Validate().ok()) << spec.Validate();
  return spec;
}

// Returns a gradient that admission refuses because of its last value.
std::vector<float> Poisoned(const Chunk& chunk) {
  std::vector<float> g(chunk.elements, 0.5f);
  g.back() = std::numeric_limits<float>::quiet_NaN();
  return g;
}

// One worker that hosts both parts.
class Trainer {
 public:
  Trainer(JobSpec spec, CoreCluster::Options options) : cluster(std::move(spec), options) {
    cluster.Send(ShardId(0), event::Watch{watch, 0});
  }

  bool Begin(uint64_t step) {
    std::vector<v1::PartLoss> losses;
    for (uint32_t part = 0; step > 1 && part < kParts; ++part) {
      v1::PartLoss loss;
      loss.set_part(part);
      loss.set_step(step - 1);
      loss.set_loss_sum(50.0 + part);
      loss.set_tokens(kTokens);
      losses.push_back(loss);
    }
    return cluster.Begin(step, {0, 1}, kNonce, losses);
  }

  // Pushes all gradients of the data step `data` as those of `step`. If `poisoned` is not null, the
  // contribution of part 1 to that chunk is not finite. Gradients have the loss scale of the step.
  void Push(uint64_t step, uint64_t data, const ChunkId* poisoned = nullptr) {
    for (size_t s = cluster.spec().stages.size(); s-- > 0;) {
      const StageId stage(static_cast<uint32_t>(s));
      for (uint32_t part = 0; part < kParts; ++part) {
        for (ChunkId id : cluster.chunks().ChunksOfStage(stage)) {
          const Chunk& chunk = cluster.chunks().chunk(id);
          const bool bad = poisoned != nullptr && *poisoned == id && part == 1;
          std::vector<float> gradient =
              bad ? Poisoned(chunk) : TellingGradient(chunk, stage, part, data);
          const int scale_log2 = -cluster.begun[0].loss_scale_log2();
          for (float& g : gradient) g = std::ldexp(g, scale_log2);
          tags.push_back(
              cluster.Push(stream, step, stage, TreeRange{part, 1}, id, gradient, kTokens, kNonce));
        }
      }
    }
    cluster.Run();
  }

  void Step(uint64_t step, uint64_t data, const ChunkId* poisoned = nullptr) {
    ASSERT_TRUE(Begin(step)) << "step " << step;
    Push(step, data, poisoned);
  }

  std::string Digest() {
    Sha256 sha;
    for (const Bytes& state : cluster.States()) sha.Update(state.view());
    return ToHex(sha.Finish());
  }

  std::vector<v1::StepRecord> Records() {
    std::vector<v1::StepRecord> records;
    for (const effect::ReplyMessage& reply : cluster.answers.replies[watch]) {
      records.push_back(*std::get<effect::SharedRecord>(reply));
    }
    return records;
  }

  uint64_t Counter(ShardId shard, const std::string& name) {
    return cluster.Status(shard).counters().count(name) > 0
               ? cluster.Status(shard).counters().at(name)
               : 0;
  }

  CoreCluster cluster;
  const StreamId watch = cluster.NewStream();
  const StreamId stream = cluster.NewStream();
  std::vector<uint64_t> tags;
};

TEST(Skip, SkippedStepLeavesNoTrace) {
  for (const Clip clip : {Clip::kNone, Clip::kLagged, Clip::kExact}) {
    const JobSpec spec = SpecWith(Nonfinite::kSkip, clip);
    Trainer without(spec, {1, 0, {}});
    without.cluster.InitializeAll();
    without.Step(1, /*data=*/1);
    without.Step(2, /*data=*/3);
    without.Step(3, /*data=*/4);
    const std::string expected = without.Digest();
    for (uint32_t shards : {1u, 2u, 3u}) {
      for (uint64_t seed : {0u, 1u, 2u, 3u}) {
        SCOPED_TRACE(testing::Message()
                     << NameOf(clip) << ", " << shards << " shards, seed " << seed);
        Trainer trainer(spec, {shards, seed, {}});
        trainer.cluster.InitializeAll();
        const auto chunks = static_cast<uint32_t>(trainer.cluster.chunks().chunks().size());
        const ChunkId poisoned(static_cast<uint32_t>(seed * 5 + shards) % chunks);
        trainer.Step(1, 1);
        const std::string before = trainer.Digest();
        trainer.Step(2, 2, &poisoned);
        EXPECT_EQ(trainer.Digest(), before) << "the skipped step changed something";
        trainer.Step(3, 3);
        trainer.Step(4, 4);
        EXPECT_EQ(trainer.Digest(), expected);
        EXPECT_TRUE(trainer.Begin(5));
        EXPECT_TRUE(trainer.cluster.begun[0].done());
        for (uint64_t tag : trainer.tags) {
          EXPECT_EQ(trainer.cluster.answers.acks.at(tag).outcome(), v1::Ack::ACCEPTED);
        }
        for (uint32_t s = 0; s < shards; ++s) {
          EXPECT_EQ(trainer.cluster.Status(ShardId(s)).version(), 3u);
          EXPECT_EQ(trainer.Counter(ShardId(s), "skipped_steps"), 1u);
          const size_t uses = trainer.cluster.chunks().chunk(poisoned).uses.size();
          EXPECT_EQ(trainer.Counter(ShardId(s), "nonfinite"),
                    trainer.cluster.OwnerOf(poisoned) == ShardId(s) ? uses : 0u);
          EXPECT_EQ(trainer.cluster.account(ShardId(s)).live_bytes(MemoryKind::kContribution), 0u);
        }
      }
    }
  }
}

TEST(Skip, MarksTheRecordAndContinuesUpdateNumbers) {
  Trainer trainer(SpecWith(Nonfinite::kSkip), {2, 0, {}});
  trainer.cluster.InitializeAll();
  const ChunkId poisoned(3);
  trainer.Step(1, 1);
  trainer.Step(2, 2, &poisoned);
  EXPECT_EQ(trainer.cluster.Status(ShardId(0)).step(), 3u);
  trainer.Step(3, 3);
  EXPECT_EQ(trainer.cluster.begun[1].version(), 1u) << "step 3 reads what step 2 read";
  trainer.Step(4, 4);
  ASSERT_TRUE(trainer.Begin(5));
  const std::vector<v1::StepRecord> records = trainer.Records();
  ASSERT_EQ(records.size(), 4u);
  const bool skipped[] = {false, true, false, false};
  const uint64_t versions[] = {1, 1, 2, 3};
  for (size_t i = 0; i < records.size(); ++i) {
    SCOPED_TRACE(i + 1);
    EXPECT_EQ(records[i].step(), i + 1);
    EXPECT_EQ(records[i].skipped(), skipped[i]);
    EXPECT_EQ(records[i].version(), versions[i]);
    EXPECT_EQ(records[i].update(), versions[i]);
    EXPECT_EQ(std::isnan(records[i].grad_norm()), skipped[i]);
    EXPECT_EQ(records[i].tokens(), kTokens * kParts);
  }
  EXPECT_EQ(records[1].lr(), records[2].lr()) << "the rate belongs to the update, not to the step";
  EXPECT_GT(records[0].lr(), records[1].lr());
}

TEST(Skip, CountsAPoisonedContributionExactlyOnce) {
  Trainer trainer(SpecWith(Nonfinite::kSkip), {2, 0, {}});
  CoreCluster& cluster = trainer.cluster;
  cluster.InitializeAll();
  ASSERT_TRUE(trainer.Begin(1));
  const StageId stage(2);  // its tensors are not tied, so two parts complete it
  const Chunk& chunk = cluster.chunks().chunk(cluster.chunks().ChunksOfStage(stage)[0]);
  const auto push = [&](uint32_t part, const std::vector<float>& values, uint64_t nonce) {
    const uint64_t tag = cluster.Push(trainer.stream, 1, stage, TreeRange{part, 1}, chunk.id,
                                      values, kTokens, nonce);
    cluster.Run();
    return cluster.answers.acks.at(tag).outcome();
  };
  const std::vector<float> good = TellingGradient(chunk, stage, 1, 1);
  EXPECT_EQ(push(1, Poisoned(chunk), 1), v1::Ack::ACCEPTED);
  EXPECT_EQ(push(1, Poisoned(chunk), 1), v1::Ack::DUPLICATE) << "a retry";
  EXPECT_EQ(push(1, Poisoned(chunk), 2), v1::Ack::DUPLICATE) << "another process";
  EXPECT_EQ(push(1, good, 2), v1::Ack::DUPLICATE) << "the first wins, finite or not";
  EXPECT_EQ(push(1, good, 1), v1::Ack::CONFLICT) << "the same process, other bytes";
  const ShardId owner = cluster.OwnerOf(chunk.id);
  EXPECT_EQ(trainer.Counter(owner, "nonfinite"), 1u);
  EXPECT_EQ(cluster.account(owner).live_bytes(MemoryKind::kContribution), 0u);

  ASSERT_TRUE(trainer.Begin(1)) << "a replacement";
  const v1::BeginStepReply& reply = cluster.begun[owner.value()];
  ASSERT_EQ(reply.have_size(), 1);
  EXPECT_EQ(reply.have(0).chunk(), chunk.id.value());
  EXPECT_EQ(reply.have(0).part_first(), 1u);

  // In the opposite order, a poisoned repetition of a counted contribution has no effect.
  EXPECT_EQ(push(0, TellingGradient(chunk, stage, 0, 1), 1), v1::Ack::ACCEPTED);
  EXPECT_EQ(push(0, Poisoned(chunk), 2), v1::Ack::DUPLICATE);
  EXPECT_EQ(cluster.account(owner).live_bytes(MemoryKind::kContribution), 0u)
      << "the chunk has no gradient, whatever the other parts push";
  trainer.Push(1, 1);
  EXPECT_EQ(cluster.Status(owner).step(), 2u);
  EXPECT_EQ(cluster.Status(owner).version(), 0u);
}

TEST(Skip, ManyPoisonedContributionsSkipOneStep) {
  Trainer trainer(SpecWith(Nonfinite::kSkip), {3, 5, {}});
  CoreCluster& cluster = trainer.cluster;
  cluster.InitializeAll();
  const std::string before = trainer.Digest();
  ASSERT_TRUE(trainer.Begin(1));
  for (size_t s = cluster.spec().stages.size(); s-- > 0;) {
    const StageId stage(static_cast<uint32_t>(s));
    for (ChunkId id : cluster.chunks().ChunksOfStage(stage)) {
      for (uint32_t part = 0; part < kParts; ++part) {
        cluster.Push(trainer.stream, 1, stage, TreeRange{part, 1}, id,
                     Poisoned(cluster.chunks().chunk(id)), kTokens, kNonce);
      }
    }
  }
  cluster.Run();
  EXPECT_EQ(trainer.Digest(), before);
  for (uint32_t s = 0; s < 3; ++s) {
    EXPECT_EQ(cluster.Status(ShardId(s)).step(), 2u);
    EXPECT_EQ(trainer.Counter(ShardId(s), "skipped_steps"), 1u);
  }
}

// A part's quota bounds what may be in flight. A skipped step returns all of it.
TEST(Skip, LeavesNothingChargedToTheQuotas) {
  const auto credits_ahead = [](Trainer* trainer, uint64_t step) {
    EXPECT_TRUE(trainer->Begin(step));
    trainer->cluster.hold_payloads = true;
    const uint64_t before = trainer->cluster.answers.credits;
    trainer->Push(step, step);
    return trainer->cluster.answers.credits - before;
  };
  const JobSpec spec = SpecWith(Nonfinite::kSkip);
  Trainer fresh(spec, {1, 0, {}});
  fresh.cluster.InitializeAll();
  const uint64_t expected = credits_ahead(&fresh, 1);
  ASSERT_LT(expected, fresh.tags.size()) << "the quota admits everything at once";
  Trainer trainer(spec, {1, 0, {}});
  trainer.cluster.InitializeAll();
  const ChunkId poisoned(3);
  for (uint64_t step = 1; step <= 3; ++step) trainer.Step(step, step, &poisoned);
  EXPECT_EQ(trainer.Counter(ShardId(0), "skipped_steps"), 3u);
  EXPECT_EQ(credits_ahead(&trainer, 4), expected);
}

// A border after a skipped step counts the step, and has the version and the norm of the last
// update. A job that resumes there trains to the same bits.
TEST(Skip, BorderAfterSkipResumesBitForBit) {
  const JobSpec spec = SpecWith(Nonfinite::kSkip, Clip::kLagged);
  const ChunkId poisoned(2);
  Trainer trainer(spec, {2, 0, {}});
  CoreCluster& cluster = trainer.cluster;
  cluster.InitializeAll();
  trainer.Step(1, 1);
  trainer.Step(2, 2, &poisoned);
  std::map<uint32_t, Bytes> states;
  v1::ExportStateReply border;
  for (uint32_t s = 0; s < 2; ++s) {
    const StreamId stream = cluster.NewStream();
    cluster.Send(ShardId(s), event::Export{stream, v1::ExportStateRequest()});
    cluster.Run();
    for (const auto& [header, state] : cluster.answers.exported[stream]) {
      if (s == 0) border = header;
      states[header.chunk()] = state;
    }
  }
  EXPECT_EQ(border.step(), 2u);
  EXPECT_EQ(border.version(), 1u);
  EXPECT_EQ(border.update(), 1u);
  EXPECT_GT(border.lagged_norm(), 0.0);

  Trainer resumed(spec, {3, 1, {}});
  std::vector<StreamId> streams;
  for (int s = 0; s < 3; ++s) streams.push_back(resumed.cluster.NewStream());
  for (const auto& [chunk, state] : states) {
    const ShardId owner = resumed.cluster.OwnerOf(ChunkId(chunk));
    resumed.cluster.Send(owner, event::ImportChunk{streams[owner.value()], ChunkId(chunk),
                                                   Version(border.version()), state});
  }
  for (uint32_t s = 0; s < 3; ++s) {
    resumed.cluster.Send(
        ShardId(s), event::ImportFinish{streams[s], Step(border.step()), Version(border.version()),
                                        border.update(), border.lagged_norm()});
  }
  resumed.cluster.Run();
  for (uint64_t step : {3u, 4u}) {
    trainer.Step(step, step);
    resumed.Step(step, step);
  }
  EXPECT_EQ(resumed.Digest(), trainer.Digest());
}

// Returns a job with training.precision=cmp, whose micro-batches have 2^8 rows.
JobSpec ScaledSpec(uint32_t initial_log2) {
  JobSpec spec = SpecWith(Nonfinite::kSkip);
  spec.training.precision = Precision::kCmp;
  spec.training.loss_scale.initial_log2 = initial_log2;
  spec.training.loss_scale.window = 2;
  spec.training.loss_scale.hysteresis = 1;
  return spec;
}
constexpr int kRowsLog2 = 8;

TEST(LossScale, ScaledGradientsGiveTheSameBits) {
  Trainer plain(SpecWith(Nonfinite::kSkip), {2, 0, {}});
  Trainer scaled(ScaledSpec(16), {2, 0, {}});
  for (Trainer* const trainer : {&plain, &scaled}) {
    trainer->cluster.InitializeAll();
    for (uint64_t step = 1; step <= 4; ++step) trainer->Step(step, step);
  }
  EXPECT_EQ(plain.cluster.begun[0].loss_scale_log2(), 0);
  EXPECT_EQ(scaled.cluster.begun[0].loss_scale_log2(), kRowsLog2 - 17) << "after two steps";
  EXPECT_EQ(scaled.Digest(), plain.Digest());
}

TEST(LossScale, AllShardsFollowAnOverflowInOne) {
  for (uint64_t seed : {0u, 1u, 2u}) {
    SCOPED_TRACE(seed);
    Trainer trainer(ScaledSpec(3), {3, seed, {}});
    CoreCluster& cluster = trainer.cluster;
    cluster.InitializeAll();
    const ChunkId poisoned(3);
    const int scales[] = {3, 2, 2, 3};  // of steps 1 to 4, the first of which overflows
    for (uint64_t step = 1; step <= 4; ++step) {
      trainer.Step(step, step, step == 1 ? &poisoned : nullptr);
      for (uint32_t s = 0; s < 3; ++s) {
        EXPECT_EQ(cluster.begun[s].loss_scale_log2(), kRowsLog2 - scales[step - 1])
            << "step " << step << ", shard " << s;
      }
    }
    ASSERT_TRUE(trainer.Begin(5));
    const std::vector<v1::StepRecord> records = trainer.Records();
    ASSERT_EQ(records.size(), 4u);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(records[i].loss_scale_log2(), scales[i]);
      EXPECT_EQ(records[i].skipped(), i == 0);
    }
  }
}

TEST(LossScale, OverflowAtOneEndsTheJob) {
  Trainer trainer(ScaledSpec(1), {2, 0, {}});
  CoreCluster& cluster = trainer.cluster;
  cluster.InitializeAll();
  const Chunk& chunk = cluster.chunks().chunk(cluster.chunks().ChunksOfStage(StageId(2))[0]);
  trainer.Step(1, 1, &chunk.id);
  EXPECT_EQ(cluster.core(ShardId(0)).state(), v1::JOB_STATE_RUNNING);
  trainer.Step(2, 2, &chunk.id);
  for (uint32_t s = 0; s < 2; ++s) {
    EXPECT_EQ(cluster.core(ShardId(s)).state(), v1::JOB_STATE_FAILED) << "shard " << s;
    const std::string why = cluster.Status(ShardId(s)).failure();
    EXPECT_THAT(why, HasSubstr("step 2: the gradient of " +
                               cluster.spec().tensors[chunk.segments[0].tensor.value()].name +
                               " (stage " + cluster.spec().stages[2].name + ") overflows"));
    EXPECT_THAT(why, HasSubstr("training.precision=bf16"));
  }
}

TEST(LossScale, ImportContinuesWithTheExportedScale) {
  Trainer trainer(ScaledSpec(5), {2, 0, {}});
  CoreCluster& cluster = trainer.cluster;
  cluster.InitializeAll();
  const ChunkId poisoned(2);
  trainer.Step(1, 1, &poisoned);
  trainer.Step(2, 2);
  const StreamId stream = cluster.NewStream();
  cluster.Send(ShardId(0), event::Export{stream, v1::ExportStateRequest()});
  cluster.Run();
  const LossScale scale = ToLossScale(cluster.answers.exported[stream][0].first.loss_scale());
  EXPECT_EQ(scale, (LossScale{4, 1, 0}));

  Trainer resumed(ScaledSpec(5), {1, 0, {}});
  const StreamId import = resumed.cluster.NewStream();
  resumed.cluster.Send(ShardId(0), event::ImportInitialize{import});
  resumed.cluster.Send(ShardId(0), event::ImportFinish{import, Step(2), Version(0), 0, 0.0, scale});
  resumed.cluster.Run();
  resumed.Step(3, 3);
  EXPECT_EQ(resumed.cluster.begun[0].loss_scale_log2(), kRowsLog2 - 4);
  resumed.Step(4, 4);
  EXPECT_EQ(resumed.cluster.begun[0].loss_scale_log2(), kRowsLog2 - 5) << "after two good steps";
}

TEST(Skip, WaitsForExportOfThePreviousBorder) {
  Trainer trainer(SpecWith(Nonfinite::kSkip), {1, 0, {}});
  CoreCluster& cluster = trainer.cluster;
  cluster.InitializeAll();
  trainer.Step(1, 1);
  ASSERT_TRUE(trainer.Begin(2));
  const StreamId stream = cluster.NewStream();
  cluster.Send(ShardId(0), event::Export{stream, v1::ExportStateRequest()});
  const ChunkId poisoned(0);
  // The export reads chunk by chunk, while all gradients arrive at once.
  trainer.Push(2, 2, &poisoned);
  ASSERT_EQ(cluster.answers.exported[stream].size(), cluster.chunks().chunks().size());
  for (const auto& [header, state] : cluster.answers.exported[stream]) EXPECT_EQ(header.step(), 1u);
  EXPECT_EQ(cluster.answers.closed.count(stream), 1u);
  EXPECT_EQ(cluster.Status(ShardId(0)).step(), 3u);
}

TEST(Halt, FailsEveryShardAndNamesTheGradient) {
  for (const Mode mode : {Mode::kEager, Mode::kSealed}) {
    SCOPED_TRACE(NameOf(mode));
    Trainer trainer(SpecWith(Nonfinite::kHalt, Clip::kLagged, mode), {2, 0, {}});
    CoreCluster& cluster = trainer.cluster;
    cluster.InitializeAll();
    trainer.Step(1, 1);
    ASSERT_TRUE(trainer.Begin(2));
    const StageId stage(2);
    const Chunk& chunk = cluster.chunks().chunk(cluster.chunks().ChunksOfStage(stage)[0]);
    const uint64_t tag = cluster.Push(trainer.stream, 2, stage, TreeRange{1, 1}, chunk.id,
                                      Poisoned(chunk), kTokens, kNonce);
    cluster.Run();
    EXPECT_EQ(cluster.answers.acks.at(tag).outcome(), v1::Ack::REFUSED);
    EXPECT_EQ(cluster.answers.acks.at(tag).retry_after_ms(), 0u);
    for (uint32_t s = 0; s < 2; ++s) {
      EXPECT_EQ(cluster.core(ShardId(s)).state(), v1::JOB_STATE_FAILED) << "shard " << s;
      const std::string why = cluster.Status(ShardId(s)).failure();
      const std::string tensor = cluster.spec().tensors[chunk.segments.back().tensor.value()].name;
      for (const std::string& text :
           {std::string("step 2: the gradient of ") + tensor + " (stage ",
            std::string("stage ") + cluster.spec().stages[2].name + ", part 1)",
            std::string("is not finite"), std::string("nan"), std::string("lower optimizer.lr"),
            std::string("training.nonfinite=skip with training.mode=sealed")}) {
        EXPECT_THAT(why, HasSubstr(text));
      }
    }
    ASSERT_EQ(cluster.answers.closed.count(trainer.watch), 1u);
    const absl::Status& told = cluster.answers.closed.at(trainer.watch);
    EXPECT_EQ(told.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(told.message()), HasSubstr("--resume=latest"));
  }
}

TEST(Halt, IgnoresLatePoisonedContributions) {
  Trainer trainer(SpecWith(Nonfinite::kHalt), {1, 0, {}});
  CoreCluster& cluster = trainer.cluster;
  cluster.InitializeAll();
  ASSERT_TRUE(trainer.Begin(1));
  const StageId stage(3);
  const Chunk& chunk = cluster.chunks().chunk(cluster.chunks().ChunksOfStage(stage)[0]);
  // The contribution has credit as the sum of both parts; then each part contributes alone.
  cluster.hold_payloads = true;
  const StreamId slow = cluster.NewStream();
  const uint64_t tag =
      cluster.Push(slow, 1, stage, TreeRange{0, 2}, chunk.id, Poisoned(chunk), 2 * kTokens, kNonce);
  cluster.Run();
  cluster.hold_payloads = false;
  trainer.Push(1, 1);
  EXPECT_EQ(cluster.Status(ShardId(0)).step(), 2u);
  absl::Status refused =
      (*FindCodec("fp32"))
          ->Open(chunk, Axis::kRow,
                 EncodeChunk(**FindCodec("fp32"), chunk, EncodeOptions(), Poisoned(chunk).data()),
                 Content::kGradient)
          .status();
  ASSERT_TRUE(InadmissibleElement(refused).has_value());
  cluster.Send(ShardId(0), event::PushInvalid{slow, tag, refused});
  cluster.Run();
  EXPECT_EQ(cluster.answers.acks.at(tag).outcome(), v1::Ack::STALE);
  EXPECT_EQ(cluster.core(ShardId(0)).state(), v1::JOB_STATE_RUNNING);
}

}  // namespace
}  // namespace eps
