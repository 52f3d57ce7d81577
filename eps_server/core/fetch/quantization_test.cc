// Residuals of sparse gradients, and weights that are quantized just in time: who receives them,
// and how often they are encoded.

#include <map>
#include <string>

#include "base/job/layout/model_layout.h"
#include "compression/codec_table.h"
#include "eps_server/core/testing/core_cluster.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using testing::HasSubstr;

constexpr uint64_t kTokens = 100;
constexpr uint64_t kSteps = 4;
constexpr uint64_t kVersion0 = 0;

JobSpec Spec(ResidualHome home, uint32_t parts = 1) {
  JobSpec spec;
  spec.model.type = ModelType::kSynthetic;
  spec.model.synthetic.n_layer = 4;
  spec.model.synthetic.n_embd = 64;
  EXPECT_TRUE(BuildLayout(0.01, &spec).ok());
  spec.chunk_elements = 2048;
  spec.training.steps = kSteps;
  spec.training.parts = parts;
  spec.training.clip = Clip::kNone;
  spec.training.mode = Mode::kSealed;
  spec.training.nonfinite = Nonfinite::kSkip;
  spec.codecs.weights = "mx6";
  spec.codecs.gradients = "topk:0.05";
  spec.codecs.residual = "bf16";
  spec.codecs.residual_home = home;
  spec.data.tokens = 100'000;
  spec.data.sha256 = std::string(64, '0');
  EXPECT_TRUE(spec.Validate().ok()) << spec.Validate();
  return spec;
}

// Returns a residual whose elements are all `value`.
Bytes Residual(const Chunk& chunk, float value) {
  const std::vector<float> elements(chunk.elements, value);
  return EncodeChunk(**FindCodec("bf16"), chunk, EncodeOptions(), elements.data());
}

// One worker that hosts all parts. The tests watch the first chunk of stage 1, `block`.
class Trainer {
 public:
  explicit Trainer(JobSpec spec, uint32_t shards = 1, CoreLimits limits = {})
      : cluster(std::move(spec), {shards, 0, limits}) {
    block = cluster.chunks().ChunksOfStage(StageId(1)).front();
  }

  const Chunk& chunk() { return cluster.chunks().chunk(block); }
  bool IsSparse(ChunkId id) { return codecs.residual_or_null(id, Step(1)) != nullptr; }

  bool Begin(uint64_t step, uint64_t nonce = 7) {
    std::vector<uint32_t> parts;
    std::vector<v1::PartLoss> losses;
    for (uint32_t p = 0; p < cluster.spec().training.parts; ++p) {
      parts.push_back(p);
      if (step == 1) continue;
      v1::PartLoss loss;
      loss.set_part(p);
      loss.set_step(step - 1);
      loss.set_tokens(kTokens);
      losses.push_back(loss);
    }
    return cluster.Begin(step, parts, nonce, losses);
  }

  // Pushes every contribution of the step and checks that each is accepted. `left_out` is the value
  // of the residuals; with `poison`, the contributions to `block` hold a NaN.
  void PushOthers(uint64_t step, float left_out, bool with_residuals, bool poison = false) {
    const auto all = static_cast<uint32_t>(cluster.spec().training.parts);
    PushWith(step, left_out, with_residuals ? all : 0, poison);
  }
  // The same; only the first `parts_with_residuals` parts bring residuals.
  void PushWith(uint64_t step, float left_out, uint32_t parts_with_residuals, bool poison = false) {
    for (const Chunk& c : cluster.chunks().chunks()) {
      for (const StageId use : c.uses) {
        for (uint32_t p = 0; p < cluster.spec().training.parts; ++p) {
          std::vector<float> gradient(c.elements, 0.25f);
          if (poison && c.id == block) gradient[3] = std::numeric_limits<float>::quiet_NaN();
          const bool brings = p < parts_with_residuals && IsSparse(c.id);
          const Bytes residual = brings ? Residual(c, left_out) : Bytes();
          const uint64_t tag = cluster.Push(stream, step, use, TreeRange{p, 1}, c.id, gradient,
                                            kTokens, 7, residual);
          cluster.Run();
          ASSERT_EQ(cluster.answers.acks.at(tag).outcome(), v1::Ack::ACCEPTED)
              << cluster.answers.acks.at(tag).message();
        }
      }
    }
  }

  // Returns the first element of the residual of part 0 at `block`, or "nothing" if it is empty.
  absl::StatusOr<std::string> Left(uint64_t version) {
    const uint64_t tag = cluster.FetchResidual(stream, StageId(1), PartId(0), block, version);
    cluster.Run();
    if (cluster.answers.failed_fetches.count(tag) > 0) return cluster.answers.failed_fetches[tag];
    const Bytes bytes = cluster.answers.residuals.at(tag).at(block.value());
    if (bytes.empty()) return std::string("nothing");
    float first = 0;
    std::vector<float> all(chunk().elements);
    DecodeChunk(**(*FindCodec("bf16"))->Open(chunk(), Axis::kRow, bytes, Content::kWeights),
                chunk(), all.data());
    first = all[0];
    return std::to_string(static_cast<int>(first));
  }

  uint64_t Counter(const std::string& name) {
    const auto status = cluster.Status(ShardId(0));
    return status.counters().count(name) > 0 ? status.counters().at(name) : 0;
  }

  CoreCluster cluster;
  const CodecTable codecs = *CodecTable::Build(cluster.spec(), cluster.chunks());
  const StreamId stream = cluster.NewStream();
  ChunkId block;
};

TEST(Residuals, ReachTheNextStepOfTheirPart) {
  Trainer trainer(Spec(ResidualHome::kServer));
  trainer.cluster.InitializeAll();
  ASSERT_TRUE(trainer.Begin(1));
  EXPECT_TRUE(trainer.cluster.begun[0].push_residuals());
  EXPECT_EQ(*trainer.Left(0), "nothing");
  trainer.PushOthers(1, 5.0f, /*with_residuals=*/true);
  ASSERT_TRUE(trainer.Begin(2));
  EXPECT_EQ(*trainer.Left(1), "5");
  trainer.PushOthers(2, 6.0f, true);
  ASSERT_TRUE(trainer.Begin(3));
  EXPECT_EQ(*trainer.Left(2), "6");
  EXPECT_EQ(trainer.Left(1).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(Residuals, StayInvisibleUntilTheStepEnds) {
  Trainer trainer(Spec(ResidualHome::kServer, /*parts=*/2));
  trainer.cluster.InitializeAll();
  ASSERT_TRUE(trainer.Begin(1));
  const std::vector<float> gradient(trainer.chunk().elements, 0.25f);
  trainer.cluster.Push(trainer.stream, 1, StageId(1), TreeRange{0, 1}, trainer.block, gradient,
                       kTokens, 7, Residual(trainer.chunk(), 5.0f));
  trainer.cluster.Run();
  EXPECT_EQ(*trainer.Left(0), "nothing");
}

TEST(Residuals, RevertWithASkippedStep) {
  Trainer trainer(Spec(ResidualHome::kServer));
  trainer.cluster.InitializeAll();
  ASSERT_TRUE(trainer.Begin(1));
  trainer.PushOthers(1, 5.0f, true);
  ASSERT_TRUE(trainer.Begin(2));
  trainer.PushOthers(2, 6.0f, true, /*poison=*/true);
  ASSERT_TRUE(trainer.Begin(3));
  EXPECT_EQ(trainer.cluster.begun[0].version(), 1u) << "the step was not skipped";
  EXPECT_EQ(*trainer.Left(1), "5");
}

TEST(Residuals, MustHaveTheExpectedSize) {
  Trainer trainer(Spec(ResidualHome::kServer));
  trainer.cluster.InitializeAll();
  ASSERT_TRUE(trainer.Begin(1));
  const std::vector<float> gradient(trainer.chunk().elements, 0.25f);
  for (const size_t bytes : {size_t{0}, size_t{2}, size_t{2} * gradient.size() + 2}) {
    const uint64_t tag =
        trainer.cluster.Push(trainer.stream, 1, StageId(1), TreeRange{0, 1}, trainer.block,
                             gradient, kTokens, 7, Bytes::CopyOf(std::string(bytes, '\0')));
    trainer.cluster.Run();
    EXPECT_EQ(trainer.cluster.answers.acks.at(tag).outcome(), v1::Ack::REFUSED);
    EXPECT_THAT(trainer.cluster.answers.acks.at(tag).message(), HasSubstr("a residual of"));
  }
}

TEST(Residuals, AWorkerThatLeavesBringsThem) {
  Trainer trainer(Spec(ResidualHome::kWorker, /*parts=*/2));
  CoreCluster& cluster = trainer.cluster;
  cluster.InitializeAll();
  ASSERT_TRUE(trainer.Begin(1));
  trainer.PushOthers(1, 5.0f, /*with_residuals=*/false);
  ASSERT_TRUE(cluster.Begin(2, {1}, 8));
  EXPECT_FALSE(cluster.begun[0].push_residuals());
  cluster.leaving = true;
  ASSERT_TRUE(cluster.Begin(2, {0}, 7));
  EXPECT_TRUE(cluster.begun[0].push_residuals());
  cluster.leaving = false;
  ASSERT_TRUE(cluster.Begin(2, {0}, 9));
  EXPECT_TRUE(cluster.begun[0].push_residuals()) << "its successor in the step does the same";
  trainer.PushWith(2, 6.0f, /*parts_with_residuals=*/1);
  ASSERT_TRUE(trainer.Begin(3));
  EXPECT_FALSE(cluster.begun[0].push_residuals()) << "only of that step";
  EXPECT_EQ(*trainer.Left(2), "6");
}

TEST(Residuals, StayWithTheWorkerUntilAGate) {
  Trainer trainer(Spec(ResidualHome::kWorker));
  trainer.cluster.InitializeAll();
  ASSERT_TRUE(trainer.Begin(1));
  EXPECT_FALSE(trainer.cluster.begun[0].push_residuals());
  EXPECT_EQ(*trainer.Left(0), "nothing");
  // A gate at a step that began without residuals can only hold after the next one.
  const StreamId gate = trainer.cluster.NewStream();
  trainer.cluster.Send(ShardId(0), event::Gate{gate, "driver", 1});
  EXPECT_EQ(std::get<v1::GateReply>(trainer.cluster.answers.replies[gate].front()).step(), 2u);
  trainer.cluster.Send(ShardId(0), event::Gate{trainer.cluster.NewStream(), "driver", 2});
  trainer.PushOthers(1, 5.0f, /*with_residuals=*/false);
  ASSERT_TRUE(trainer.Begin(2));
  EXPECT_TRUE(trainer.cluster.begun[0].push_residuals());
  const absl::Status gone = trainer.Left(1).status();
  EXPECT_EQ(gone.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(gone.message()), HasSubstr("--resume=latest"));
  trainer.PushOthers(2, 6.0f, true);
  const StreamId exported = trainer.cluster.NewStream();
  v1::ExportStateRequest request;
  request.set_step(2);
  trainer.cluster.Send(ShardId(0), event::Export{exported, request});
  trainer.cluster.Run();
  EXPECT_TRUE(trainer.cluster.answers.closed.at(exported).ok())
      << trainer.cluster.answers.closed.at(exported);
  size_t residuals = 0;
  for (const auto& [header, bytes] : trainer.cluster.answers.exported[exported]) {
    residuals += header.has_residual() ? 1 : 0;
  }
  EXPECT_GT(residuals, 0u);
  trainer.cluster.Send(ShardId(0), event::Gate{trainer.cluster.NewStream(), "driver", {}});
  trainer.cluster.Run();
  ASSERT_TRUE(trainer.Begin(3));
  EXPECT_EQ(*trainer.Left(2), "6");
}

TEST(Residuals, AreExportedAndImportedWithTheState) {
  const JobSpec spec = Spec(ResidualHome::kServer, /*parts=*/2);
  Trainer first(spec, /*shards=*/2);
  first.cluster.InitializeAll();
  ASSERT_TRUE(first.Begin(1));
  first.PushOthers(1, 5.0f, true);
  std::map<uint32_t, Bytes> states;
  std::vector<std::pair<v1::ExportStateReply, Bytes>> residuals;
  for (uint32_t s = 0; s < 2; ++s) {
    const StreamId stream = first.cluster.NewStream();
    v1::ExportStateRequest request;
    request.set_step(1);
    first.cluster.Send(ShardId(s), event::Export{stream, request});
    first.cluster.Run();
    for (const auto& [header, bytes] : first.cluster.answers.exported[stream]) {
      if (header.has_residual()) {
        residuals.emplace_back(header, bytes);
      } else {
        states[header.chunk()] = bytes;
      }
    }
  }
  size_t sparse = 0;
  for (const Chunk& chunk : first.cluster.chunks().chunks()) sparse += first.IsSparse(chunk.id);
  EXPECT_EQ(residuals.size(), 2 * sparse);
  Trainer second(spec);
  for (const auto& [header, bytes] : residuals) {
    second.cluster.Send(ShardId(0), event::ImportResidual{second.stream, ChunkId(header.chunk()),
                                                          StageId(header.residual().use_stage()),
                                                          PartId(header.residual().part()), bytes});
  }
  second.cluster.ImportAll(states, 1, 0.0);
  ASSERT_TRUE(second.Begin(2));
  EXPECT_EQ(*second.Left(1), "5");
}

TEST(Residuals, AreRefusedWhereNoCodecLeavesAny) {
  Trainer trainer(Spec(ResidualHome::kServer));
  trainer.cluster.InitializeAll();
  ASSERT_TRUE(trainer.Begin(1));
  for (const Chunk& chunk : trainer.cluster.chunks().chunks()) {
    if (trainer.IsSparse(chunk.id)) continue;
    const uint64_t tag = trainer.cluster.FetchResidual(trainer.stream, chunk.uses.front(),
                                                       PartId(0), chunk.id, kVersion0);
    trainer.cluster.Run();
    ASSERT_EQ(trainer.cluster.answers.failed_fetches.count(tag), 1u) << "not answered";
    EXPECT_THAT(std::string(trainer.cluster.answers.failed_fetches[tag].message()),
                HasSubstr("no codec leaves residuals"));
    return;
  }
  FAIL() << "all chunks are sparse";
}

TEST(Copies, AreSharedByAllWorkersThenFreed) {
  Trainer trainer(Spec(ResidualHome::kServer, /*parts=*/2));
  trainer.cluster.InitializeAll();
  ASSERT_TRUE(trainer.cluster.Begin(1, {0}, /*nonce=*/7));
  ASSERT_TRUE(trainer.cluster.Begin(1, {1}, /*nonce=*/8));
  const StreamId a = trainer.cluster.NewStream();
  const StreamId b = trainer.cluster.NewStream();
  const uint64_t first = trainer.cluster.Fetch(a, StageId(1), trainer.block, kVersion0);
  trainer.cluster.Run();
  const uint64_t second = trainer.cluster.Fetch(b, StageId(1), trainer.block, kVersion0);
  trainer.cluster.Run();
  EXPECT_EQ(trainer.Counter("encodes"), 1u);
  EXPECT_EQ(trainer.Counter("encoded_before"), 1u);
  EXPECT_TRUE(trainer.cluster.answers.fetched.at(first).view() ==
              trainer.cluster.answers.fetched.at(second).view());
  EXPECT_EQ(trainer.cluster.account(ShardId(0)).live_bytes(MemoryKind::kFetch),
            2 * trainer.cluster.answers.fetched.at(first).size() / 2)
      << "only the test holds it";
  trainer.cluster.Fetch(a, StageId(1), trainer.block, kVersion0);
  trainer.cluster.Run();
  EXPECT_EQ(trainer.Counter("encodes"), 2u) << "the copy is freed once both have it";
  // The backward pass is another visit.
  trainer.cluster.Fetch(a, StageId(1), trainer.block, kVersion0, /*backward=*/true);
  trainer.cluster.Run();
  EXPECT_EQ(trainer.Counter("encodes"), 3u);
}

TEST(Copies, AreMadeAheadOfTheFirstFetch) {
  CoreLimits limits;
  limits.jit_depth = 1;
  Trainer trainer(Spec(ResidualHome::kServer), 1, limits);
  trainer.cluster.InitializeAll();
  ASSERT_TRUE(trainer.Begin(1));
  const ChunkId embedding = trainer.cluster.chunks().ChunksOfStage(StageId(0)).front();
  trainer.cluster.Fetch(trainer.stream, StageId(0), embedding, kVersion0);
  trainer.cluster.Run();
  const uint64_t ahead = trainer.Counter("encodes");
  EXPECT_EQ(ahead, 1 + trainer.cluster.chunks().ChunksOfStage(StageId(1)).size());
  trainer.cluster.Fetch(trainer.stream, StageId(1), trainer.block, kVersion0);
  trainer.cluster.Run();
  EXPECT_EQ(trainer.Counter("encoded_before"), 1u);
  const auto status = trainer.cluster.Status(ShardId(0));
  ASSERT_GT(status.stage_times_size(), 1);
  EXPECT_EQ(status.stage_times(0).name(), trainer.cluster.spec().stages[0].name);
  EXPECT_GT(status.jit_saved_bytes(), 0u);
}

TEST(Copies, AreMadeByUpdatesForWaitingFetches) {
  Trainer waiting(Spec(ResidualHome::kServer));
  waiting.cluster.InitializeAll();
  ASSERT_TRUE(waiting.Begin(1));
  const uint64_t tag = waiting.cluster.Fetch(waiting.stream, StageId(1), waiting.block, 1);
  waiting.cluster.Run();
  EXPECT_EQ(waiting.cluster.answers.fetched.count(tag), 0u);
  waiting.PushOthers(1, 5.0f, true);
  ASSERT_TRUE(waiting.Begin(2));
  ASSERT_EQ(waiting.cluster.answers.fetched.count(tag), 1u);
  EXPECT_EQ(waiting.Counter("encoded_by_updates"), 1u);
  EXPECT_EQ(waiting.Counter("encodes"), 0u);
  const uint64_t again = waiting.cluster.Fetch(waiting.stream, StageId(1), waiting.block, 1);
  waiting.cluster.Run();
  EXPECT_EQ(waiting.Counter("encodes"), 1u);
  EXPECT_TRUE(waiting.cluster.answers.fetched.at(again).view() ==
              waiting.cluster.answers.fetched.at(tag).view());
}

}  // namespace
}  // namespace eps
