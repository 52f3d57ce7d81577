// Updates and reductions by every kind of backend.

#include <algorithm>
#include <cctype>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "base/testing/test_specs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/testing/shard_under_test.h"

namespace eps {
namespace {

using ::testing::HasSubstr;

struct UpdateCase {
  uint32_t parts;
  int threads;
  Merging merging;
  OptimizerName optimizer = OptimizerName::kAdamW;
  double momentum = 0;
};

std::string NameOf(const UpdateCase& c) {
  return std::to_string(c.parts) + "Parts" + std::to_string(c.threads) + "Threads" +
         (c.merging == Merging::kRandom ? "Merged" : "") +
         (c.optimizer == OptimizerName::kSgd ? "Sgd" : "") + (c.momentum > 0 ? "Momentum" : "");
}
void PrintTo(const UpdateCase& c, std::ostream* out) { *out << NameOf(c); }

class UpdateTest : public testing::TestWithParam<std::tuple<BackendUnderTest, UpdateCase>> {};

TEST_P(UpdateTest, EqualsPlainLoopsBitForBit) {
  const auto [backend, param] = GetParam();
  JobSpec spec = RaggedSpec();
  spec.optimizer.name = param.optimizer;
  spec.optimizer.momentum = param.momentum;
  ShardUnderTest shard(backend, spec, param.threads);
  ASSERT_TRUE(shard.status().ok()) << shard.status();
  shard.InitializeAll();
  std::vector<PlainState> references;
  std::set<size_t> use_counts;
  for (const Chunk& c : shard.chunks().chunks()) {
    references.emplace_back(*shard.State(c.id, Version(0)), c.elements);
    use_counts.insert(c.uses.size());
  }
  EXPECT_THAT(use_counts, testing::ElementsAre(1, 2));
  for (uint64_t step = 1; step <= 2; ++step) {
    std::vector<OpId> ops;
    std::vector<double> sums;
    for (const Chunk& c : shard.chunks().chunks()) {
      const Gradients gradients = GradientsOf(c, step, param.parts);
      sums.push_back(references[c.id.value()].Update(shard.spec(), c, gradients, StepAt(step)));
      ops.push_back(shard.Submit(RequestOf(&shard, c, gradients, step, param.merging)));
    }
    for (size_t i = 0; i < ops.size(); ++i) {
      const BackendDone done = shard.completions().Take(ops[i]);
      ASSERT_TRUE(done.status.ok()) << done.status;
      EXPECT_EQ(std::get<UpdateResult>(done.value).sum_squares, sums[i]) << "chunk " << i;
      const ChunkId id(static_cast<uint32_t>(i));
      ASSERT_TRUE(*shard.State(id, Version(step)) == references[i].Bytes()) << "chunk " << i;
    }
  }
}

std::vector<UpdateCase> UpdateCases() {
  std::vector<UpdateCase> cases;
  for (const uint32_t parts : {1u, 2u, 3u, 4u, 5u}) {
    cases.push_back({parts, 2, Merging::kNone});
    if (parts > 1) cases.push_back({parts, 2, Merging::kRandom});
  }
  cases.push_back({3, 1, Merging::kRandom});
  cases.push_back({3, 8, Merging::kRandom});
  cases.push_back({3, 2, Merging::kNone, OptimizerName::kSgd, 0.9});
  cases.push_back({1, 2, Merging::kNone, OptimizerName::kSgd, 0});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(PartsThreadsAndMerging, UpdateTest,
                         testing::Combine(testing::ValuesIn(BackendsUnderTest()),
                                          testing::ValuesIn(UpdateCases())),
                         [](const testing::TestParamInfo<UpdateTest::ParamType>& info) {
                           return std::get<0>(info.param).name + NameOf(std::get<1>(info.param));
                         });

// The contract of updates for every backend.
class UpdateContractTest : public testing::TestWithParam<BackendUnderTest> {
 protected:
  const BackendUnderTest& kind() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Backends, UpdateContractTest, testing::ValuesIn(BackendsUnderTest()),
                         testing::PrintToStringParamName());

// The update reads bf16 in place and mx9 tile by tile.
TEST_P(UpdateContractTest, UpdateTakesLossyContributionsAsDecoded) {
  for (const char* codec_name : {"bf16", "mx9"}) {
    ShardUnderTest shard(kind(), RaggedSpec(), 1);
    shard.InitializeAll();
    const Chunk& chunk = shard.chunks().chunk(ChunkId(0));
    PlainState reference(*shard.State(chunk.id, Version(0)), chunk.elements);
    Gradients gradients = GradientsOf(chunk, 1, 3);
    UpdateRequest request = RequestOf(&shard, chunk, gradients, 1, Merging::kNone);
    for (UpdateInput& input : request.inputs) {
      std::vector<float>& values = gradients[input.use][input.parts.first];
      input.data = shard.Encode(chunk, values, codec_name);
      DecodeChunk(*input.data, chunk, values.data());
    }
    const double squares = reference.Update(shard.spec(), chunk, gradients, StepAt(1));
    const BackendDone done = shard.Await(std::move(request));
    ASSERT_TRUE(done.status.ok()) << done.status;
    EXPECT_EQ(std::get<UpdateResult>(done.value).sum_squares, squares) << codec_name;
    EXPECT_TRUE(*shard.State(chunk.id, Version(1)) == reference.Bytes()) << codec_name;
  }
}

TEST_P(UpdateContractTest, UpdateDropsItsContributionsBeforeItCompletes) {
  const JobSpec spec = RaggedSpec();
  const ChunkMap chunks = ChunkMap::Build(spec);
  MemoryAccount account;
  ThreadPool pool(1);
  Completions completions;
  uint64_t charged_at_completion = 0;  // bytes that the operation still holds
  auto sink = completions.Sink();
  auto backend = *kind().make(spec, chunks, {ChunkId(0)}, &pool, &account, [&](BackendDone d) {
    charged_at_completion =
        account.live_bytes(MemoryKind::kContribution) + account.live_bytes(MemoryKind::kScratch);
    sink(std::move(d));
  });
  const uint64_t at_rest = account.live_bytes(MemoryKind::kScratch);
  const OpId init = completions.Next();
  backend->Submit(init, InitializeRequest{ChunkId(0)});
  completions.Take(init);
  const Chunk& chunk = chunks.chunk(ChunkId(0));
  UpdateRequest request;
  request.chunk = chunk.id;
  request.to = Version(1);
  request.parts = 1;
  request.step = StepAt(1);
  for (uint32_t use = 0; use < chunk.uses.size(); ++use) {
    const std::vector<float> zeros(chunk.elements);
    request.inputs.push_back({use, TreeRange{0, 1}, OpenGradient("fp32", chunk, zeros, &account)});
  }
  const OpId op = completions.Next();
  backend->Submit(op, std::move(request));
  EXPECT_TRUE(completions.Take(op).status.ok());
  EXPECT_EQ(charged_at_completion, at_rest);
}

TEST_P(UpdateContractTest, UpdateFlushesDenormalSumsOnEveryThread) {
  const JobSpec spec = RaggedSpec();
  const ChunkMap chunks = ChunkMap::Build(spec);
  const Chunk& chunk = *std::find_if(chunks.chunks().begin(), chunks.chunks().end(),
                                     [](const Chunk& c) { return c.uses.size() == 1; });
  MemoryAccount account;
  ThreadPool pool(2);
  Completions completions;
  auto backend = *kind().make(spec, chunks, {chunk.id}, &pool, &account, completions.Sink());
  backend->Submit(completions.Next(), InitializeRequest{chunk.id});
  // The right half sums to a denormal: (1.5e-38 + 0) + (-1.2e-38 + 0). The left one does not.
  const float parts[] = {1.2e-38f, 0, 0, 0, 1.5e-38f, 0, -1.2e-38f, 0};
  UpdateRequest request;
  request.chunk = chunk.id;
  request.to = Version(1);
  request.parts = 8;
  request.step = StepAt(1);
  request.norm_scale = 1e20f;
  for (uint32_t part = 0; part < 8; ++part) {
    const std::vector<float> values(chunk.elements, parts[part]);
    request.inputs.push_back({0, TreeRange{part, 1}, OpenGradient("fp32", chunk, values, nullptr)});
  }
  const OpId op = completions.Next();
  backend->Submit(op, std::move(request));
  const BackendDone done = completions.Take(op);
  ASSERT_TRUE(done.status.ok()) << done.status;
  const double square = double{1.2e-38f * 1e20f} * double{1.2e-38f * 1e20f};
  EXPECT_NEAR(std::get<UpdateResult>(done.value).sum_squares,
              square * static_cast<double>(chunk.elements),
              1e-6 * square * static_cast<double>(chunk.elements));
}

// Weights in every codec and along both axes, encoded by the update and read after it.
class EncodeTest : public testing::TestWithParam<std::tuple<BackendUnderTest, std::string>> {
 protected:
  const BackendUnderTest& kind() const { return std::get<0>(GetParam()); }
  const Codec& codec() const { return **FindCodec(std::get<1>(GetParam())); }

  // Returns the bytes that Read gives now.
  std::string Fetch(ShardUnderTest* shard, const Chunk& chunk, Version version, Axis axis) {
    const BackendDone done = shard->Await(ReadRequest{chunk.id, version, &codec(), axis});
    EXPECT_TRUE(done.status.ok()) << done.status;
    return std::string(std::get<Bytes>(done.value).view());
  }

  UpdateResult Run(ShardUnderTest* shard, UpdateRequest request, bool stats) {
    BackendDone done =
        stats ? shard->Await(ReduceRequest{std::move(request)}) : shard->Await(std::move(request));
    EXPECT_TRUE(done.status.ok()) << done.status;
    return std::get<UpdateResult>(std::move(done.value));
  }
};

TEST_P(EncodeTest, EqualsALaterRead) {
  if (codec().traits().uses_residual) return;
  ShardUnderTest shard(kind(), RaggedSpec(), 1);
  shard.InitializeAll();
  for (uint64_t step = 1; step <= 3; ++step) {
    for (const Chunk& chunk : shard.chunks().chunks()) {
      const uint32_t parts = static_cast<uint32_t>(step);
      UpdateRequest request = RequestOf(&shard, chunk, GradientsOf(chunk, step, parts), step,
                                        step == 2 ? Merging::kRandom : Merging::kNone);
      if (chunk.id.value() % 2 == 1) {
        request.reduced = Run(&shard, request, /*stats=*/true).reduced;
        request.inputs.clear();
      }
      request.encode = {{&codec(), Axis::kColumn}, {&codec(), Axis::kRow}};
      const uint64_t before = shard.account().live_bytes(MemoryKind::kFetch);
      const UpdateResult result = Run(&shard, std::move(request), /*stats=*/false);
      ASSERT_EQ(result.encoded.size(), 2u);
      EXPECT_EQ(shard.account().live_bytes(MemoryKind::kFetch) - before,
                result.encoded[0].size() + result.encoded[1].size());
      for (const size_t i : {0u, 1u}) {
        const Axis axis = i == 0 ? Axis::kColumn : Axis::kRow;
        EXPECT_TRUE(result.encoded[i].view() == Fetch(&shard, chunk, Version(step), axis))
            << "chunk " << chunk.id << ", step " << step << ", encoding " << i;
      }
    }
  }
}

std::string EncodeTestName(const testing::TestParamInfo<EncodeTest::ParamType>& info) {
  std::string name = std::get<0>(info.param).name + ("_" + std::get<1>(info.param));
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !std::isalnum(c); }, '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Codecs, EncodeTest,
                         testing::Combine(testing::ValuesIn(BackendsUnderTest()),
                                          testing::ValuesIn(CodecExamples())),
                         EncodeTestName);

struct BadRequest {
  const char* name;
  void (*spoil)(UpdateRequest*);
  absl::StatusCode code;
  const char* message;
};

TEST_P(UpdateContractTest, UpdateRefusesIncompleteStepsUnchanged) {
  ShardUnderTest shard(kind(), RaggedSpec(), 2);
  shard.InitializeAll();
  const Chunk& chunk = shard.chunks().chunk(ChunkId(0));
  ASSERT_EQ(chunk.uses.size(), 2u);
  const std::string before = *shard.State(chunk.id, Version(0));
  const Gradients gradients = GradientsOf(chunk, 1, 4);
  const UpdateRequest good = RequestOf(&shard, chunk, gradients, 1, Merging::kNone);
  const auto invalid = absl::StatusCode::kInvalidArgument;
  const BadRequest cases[] = {
      {"old version", [](UpdateRequest* r) { r->from = Version(1), r->to = Version(2); },
       absl::StatusCode::kFailedPrecondition, "version 1 wanted, version 0 is here"},
      {"leap", [](UpdateRequest* r) { r->to = Version(2); }, invalid, "version 0 to 2"},
      {"none", [](UpdateRequest* r) { r->inputs.clear(); }, invalid, "part 0 to use 0 is missing"},
      {"one less", [](UpdateRequest* r) { r->inputs.pop_back(); }, invalid, "is missing"},
      {"twice", [](UpdateRequest* r) { r->inputs.push_back(r->inputs[0]); }, invalid,
       "is there twice"},
      {"more parts", [](UpdateRequest* r) { r->parts = 5; }, invalid, "part 4 to use 0 is missing"},
      {"fewer parts", [](UpdateRequest* r) { r->parts = 3; }, invalid, "is no node"},
      {"no parts", [](UpdateRequest* r) { r->parts = 0; }, invalid, "is missing"},
      {"overlap",
       [](UpdateRequest* r) {
         r->inputs.push_back(r->inputs[0]);
         r->inputs.back().parts = TreeRange{0, 2};
       },
       invalid, "overlaps"},
      {"across the split",
       [](UpdateRequest* r) {
         r->inputs[0].parts = TreeRange{1, 2};
       },
       invalid, "is missing"},
      {"unknown use",
       [](UpdateRequest* r) {
         r->inputs.push_back(r->inputs[0]);
         r->inputs.back().use = 2;
       },
       invalid, "to use 2 is no node"},
      {"encoded with nothing", [](UpdateRequest* r) { r->encode.resize(1); }, invalid,
       "weights cannot be encoded with no codec"},
      {"no data", [](UpdateRequest* r) { r->inputs[0].data = nullptr; }, invalid, "has no data"},
      {"unknown chunk", [](UpdateRequest* r) { r->chunk = ChunkId(99'999); },
       absl::StatusCode::kNotFound, "chunk 99999"},
  };
  for (const BadRequest& bad : cases) {
    SCOPED_TRACE(bad.name);
    UpdateRequest request = good;
    bad.spoil(&request);
    const BackendDone done = shard.Await(std::move(request));
    EXPECT_EQ(done.status.code(), bad.code) << done.status;
    EXPECT_THAT(std::string(done.status.message()), HasSubstr(bad.message));
    EXPECT_TRUE(std::holds_alternative<absl::monostate>(done.value));
    EXPECT_TRUE(*shard.State(chunk.id, Version(0)) == before);
  }
}

}  // namespace
}  // namespace eps
