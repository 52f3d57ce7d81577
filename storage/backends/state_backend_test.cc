#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "base/job/initial_values.h"
#include "base/job/layout/model_layout.h"
#include "base/numerics/flush_denormals.h"
#include "base/testing/manual_executor.h"
#include "base/testing/test_specs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/state_backend.h"
#include "storage/testing/backend_harness.h"
#include "storage/testing/backends_under_test.h"

namespace eps {
namespace {

using ::testing::HasSubstr;

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
  uint32_t Next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state_ >> 32);
  }

 private:
  uint64_t state_;
};

// Values over many binades, with zeros and denormals, so that sums depend on their order.
std::vector<float> SomeGradient(uint64_t seed, uint64_t n) {
  Random random(seed);
  std::vector<float> values(n);
  for (float& v : values) {
    const uint32_t r = random.Next();
    v = std::ldexp(static_cast<float>(static_cast<int32_t>(r)), -31 - static_cast<int>(r % 24));
    if (r % 97 == 0) v = 0.0f;
    if (r % 89 == 0) v = 1e-39f;
  }
  return values;
}

// Returns the seed of the gradient of one (use, part) of a chunk at a step.
uint64_t GradientSeed(ChunkId chunk, uint64_t step, uint32_t use, uint32_t part) {
  return ((uint64_t{chunk.value()} * 1000 + step) * 10 + use) * 2000 + part;
}

// The element-wise sum of `range` along the tree (docs/protocol.md).
float TreeSum(const std::vector<std::vector<float>>& parts, TreeRange range, uint64_t element) {
  if (range.count == 1) return parts[range.first][element];
  uint32_t left = 1;
  while (left * 2 < range.count) left *= 2;
  return TreeSum(parts, TreeRange{range.first, left}, element) +
         TreeSum(parts, TreeRange{range.first + left, range.count - left}, element);
}

constexpr float kNormScale = 1.0f / 12;

// One chunk's state, updated with plain loops over elements.
struct Reference {
  std::vector<std::vector<float>> arrays;  // weights, then the fields of the rule

  // Returns the sum of squares.
  double Update(const JobSpec& spec, const Chunk& chunk,
                const std::vector<std::vector<std::vector<float>>>& gradients,
                const StepScalars& step) {
    ScopedFlushDenormals flush;
    const uint32_t parts = static_cast<uint32_t>(gradients[0].size());
    std::vector<float> sum(chunk.elements);
    for (uint64_t e = 0; e < chunk.elements; ++e) {
      for (size_t use = 0; use < gradients.size(); ++use) {
        const float s = TreeSum(gradients[use], TreeRange{0, parts}, e);
        sum[e] = use == 0 ? s : sum[e] + s;
      }
    }
    for (const Segment& s : chunk.segments) {
      const double wd = spec.groups[s.group.value()].weight_decay;
      for (uint64_t e = s.offset; e < s.offset + s.elements(); ++e) Step(spec, wd, step, sum[e], e);
    }
    return SumOfSquares(chunk, sum, kNormScale);
  }

  std::string Bytes() const {
    std::string bytes;
    for (const std::vector<float>& array : arrays) {
      bytes.append(reinterpret_cast<const char*>(array.data()), 4 * array.size());
    }
    return bytes;
  }

 private:
  void Step(const JobSpec& spec, double weight_decay, const StepScalars& step, float gradient,
            uint64_t e) {
    const OptimizerSpec& o = spec.optimizer;
    if (o.name == OptimizerName::kSgd) {
      return StepOfSgd(o, static_cast<float>(weight_decay), step, gradient, e);
    }
    float& weight = arrays[0][e];
    float& exp_avg = arrays[1][e];
    float& exp_avg_sq = arrays[2][e];
    const float decay = static_cast<float>(1.0 - step.lr * weight_decay);
    const float correction = static_cast<float>(1.0 / std::sqrt(step.bias_correction2));
    const float size = static_cast<float>(step.lr / step.bias_correction1);
    const float g = gradient * step.grad_scale;
    exp_avg = static_cast<float>(o.beta1) * exp_avg + static_cast<float>(1.0 - o.beta1) * g;
    exp_avg_sq =
        static_cast<float>(o.beta2) * exp_avg_sq + (static_cast<float>(1.0 - o.beta2) * g) * g;
    const float d = std::sqrt(exp_avg_sq) * correction + static_cast<float>(o.eps);
    weight = weight * decay - (size * exp_avg) / d;
  }

  void StepOfSgd(const OptimizerSpec& o, float weight_decay, const StepScalars& step,
                 float gradient, uint64_t e) {
    float& weight = arrays[0][e];
    const float g = gradient * step.grad_scale + weight_decay * weight;
    float direction = g;
    if (o.momentum != 0) {
      direction = static_cast<float>(o.momentum) * arrays[1][e] + g;
      arrays[1][e] = direction;
    }
    weight = weight - static_cast<float>(step.lr) * direction;
  }

  static double SumOfSquares(const Chunk& chunk, const std::vector<float>& sum, float scale) {
    double lanes[16] = {};
    ForEachTile(chunk, [&](const Tile& tile) {
      const Segment& s = chunk.segments[tile.segment];
      for (uint32_t r = 0; r < tile.rows; ++r) {
        for (uint32_t c = 0; c < tile.cols; ++c) {
          const float x = scale * sum[tile.offset(s) + uint64_t{r} * s.cols + c];
          lanes[c % 16] += double{x} * double{x};
        }
      }
    });
    for (int width = 8; width > 0; width /= 2) {
      for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
    }
    return lanes[0];
  }
};

StepScalars StepAt(uint64_t t) {
  StepScalars step;
  step.lr = 1e-2 / static_cast<double>(t);
  step.bias_correction1 = 1 - std::pow(0.9, static_cast<double>(t));
  step.bias_correction2 = 1 - std::pow(0.999, static_cast<double>(t));
  step.grad_scale = 0.7f / 12;
  step.update = t;
  return step;
}

// Encodes a gradient as a worker would send it.
std::shared_ptr<const EncodedChunk> OpenGradient(absl::string_view codec_name, const Chunk& chunk,
                                                 const std::vector<float>& values,
                                                 MemoryAccount* account) {
  const Codec* codec = *FindCodec(codec_name);
  EncodeOptions options;
  options.kind = MemoryKind::kContribution;
  options.account = account;
  auto opened = codec->Open(chunk, options.axis, EncodeChunk(*codec, chunk, options, values.data()),
                            Content::kGradient);
  EXPECT_TRUE(opened.ok()) << opened.status();
  return *opened;
}

// A backend over a job's whole state.
class Shard {
 public:
  Shard(const BackendUnderTest& kind, const JobSpec& spec, int threads)
      : spec_(spec), chunks_(ChunkMap::Build(spec_)), pool_(threads) {
    std::vector<ChunkId> owned;
    for (const Chunk& c : chunks_.chunks()) owned.push_back(c.id);
    auto backend = kind.make(spec_, chunks_, owned, &pool_, &account_, completions_.Sink());
    status_ = backend.status();
    if (backend.ok()) backend_ = std::move(*backend);
  }

  const absl::Status& status() const { return status_; }
  const JobSpec& spec() const { return spec_; }
  const ChunkMap& chunks() const { return chunks_; }
  MemoryAccount& account() { return account_; }
  Completions& completions() { return completions_; }
  void DropBackend() { backend_.reset(); }

  // Begins an operation under the next id, and returns the id.
  OpId Submit(Request request) {
    const OpId op = completions_.Next();
    backend_->Submit(op, std::move(request));
    return op;
  }
  // Performs one operation.
  BackendDone Await(Request request) { return completions_.Take(Submit(std::move(request))); }

  void InitializeAll() {
    for (const Chunk& c : chunks_.chunks()) {
      EXPECT_TRUE(Await(InitializeRequest{c.id}).status.ok());
    }
  }

  absl::StatusOr<std::string> State(ChunkId chunk, Version version) {
    BackendDone done = Await(ReadStateRequest{chunk, version});
    if (!done.status.ok()) return done.status;
    return std::string(std::get<Bytes>(done.value).view());
  }

  absl::Status Write(ChunkId chunk, Version version, const std::string& state) {
    return Await(WriteStateRequest{chunk, version, Bytes::CopyOf(state)}).status;
  }

  std::shared_ptr<const EncodedChunk> Encode(const Chunk& chunk, const std::vector<float>& values,
                                             absl::string_view codec_name = "fp32") {
    return OpenGradient(codec_name, chunk, values, &account_);
  }

 private:
  const JobSpec spec_;
  const ChunkMap chunks_;
  MemoryAccount account_;
  Completions completions_;
  ThreadPool pool_;
  absl::Status status_;
  std::unique_ptr<StateBackend> backend_;
};

Reference ReferenceFrom(const std::string& state, uint64_t elements) {
  Reference r;
  for (size_t at = 0; at < state.size(); at += 4 * elements) {
    r.arrays.emplace_back(elements);
    std::memcpy(r.arrays.back().data(), state.data() + at, 4 * elements);
  }
  return r;
}

using Gradients = std::vector<std::vector<std::vector<float>>>;  // [use][part][element]

Gradients GradientsOf(const Chunk& chunk, uint64_t step, uint32_t parts) {
  Gradients gradients(chunk.uses.size());
  for (uint32_t use = 0; use < chunk.uses.size(); ++use) {
    for (uint32_t part = 0; part < parts; ++part) {
      gradients[use].push_back(
          SomeGradient(GradientSeed(chunk.id, step, use, part), chunk.elements));
    }
  }
  return gradients;
}

// Cuts the tree over parts at random nodes, as merging workers may do.
void CutTree(TreeRange node, Random* random, std::vector<TreeRange>* out) {
  if (node.count == 1 || random->Next() % 3 == 0) {
    out->push_back(node);
    return;
  }
  const uint32_t left = LeftLeaves(node.count);
  CutTree(TreeRange{node.first, left}, random, out);
  CutTree(TreeRange{node.first + left, node.count - left}, random, out);
}

enum class Merging { kNone, kRandom };

// Returns the request of a step with its inputs in a scrambled order.
UpdateRequest RequestOf(Shard* shard, const Chunk& chunk, const Gradients& gradients, uint64_t step,
                        Merging merging) {
  UpdateRequest request;
  request.chunk = chunk.id;
  request.from = Version(step - 1);
  request.to = Version(step);
  request.parts = static_cast<uint32_t>(gradients[0].size());
  request.step = StepAt(step);
  request.norm_scale = kNormScale;
  Random random(step * 77 + chunk.id.value());
  for (uint32_t use = 0; use < gradients.size(); ++use) {
    std::vector<TreeRange> ranges;
    if (merging == Merging::kRandom) {
      CutTree(TreeRange{0, request.parts}, &random, &ranges);
    } else {
      for (uint32_t part = 0; part < request.parts; ++part) ranges.push_back(TreeRange{part, 1});
    }
    for (const TreeRange range : ranges) {
      ScopedFlushDenormals flush;
      std::vector<float> merged(chunk.elements);
      for (uint64_t e = 0; e < chunk.elements; ++e) {
        merged[e] = TreeSum(gradients[use], range, e);
      }
      request.inputs.push_back({use, range, shard->Encode(chunk, merged)});
    }
  }
  for (size_t i = request.inputs.size(); i > 1; --i) {
    std::swap(request.inputs[i - 1], request.inputs[random.Next() % i]);
  }
  return request;
}

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
  Shard shard(backend, spec, param.threads);
  ASSERT_TRUE(shard.status().ok()) << shard.status();
  shard.InitializeAll();
  std::vector<Reference> references;
  std::set<size_t> use_counts;
  for (const Chunk& c : shard.chunks().chunks()) {
    references.push_back(ReferenceFrom(*shard.State(c.id, Version(0)), c.elements));
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

// The contract of every backend, wherever it keeps the state.
class StateBackendTest : public testing::TestWithParam<BackendUnderTest> {
 protected:
  const BackendUnderTest& kind() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Backends, StateBackendTest, testing::ValuesIn(BackendsUnderTest()),
                         testing::PrintToStringParamName());

// The update reads bf16 in place and mx9 tile by tile.
TEST_P(StateBackendTest, UpdateTakesLossyContributionsAsDecoded) {
  for (const char* codec_name : {"bf16", "mx9"}) {
    Shard shard(kind(), RaggedSpec(), 1);
    shard.InitializeAll();
    const Chunk& chunk = shard.chunks().chunk(ChunkId(0));
    Reference reference = ReferenceFrom(*shard.State(chunk.id, Version(0)), chunk.elements);
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

TEST_P(StateBackendTest, UpdateDropsItsContributionsBeforeItCompletes) {
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

TEST_P(StateBackendTest, UpdateFlushesDenormalSumsOnEveryThread) {
  const JobSpec spec = RaggedSpec();
  const ChunkMap chunks = ChunkMap::Build(spec);
  const Chunk& chunk = *std::find_if(chunks.chunks().begin(), chunks.chunks().end(),
                                     [](const Chunk& c) { return c.uses.size() == 1; });
  MemoryAccount account;
  ManualExecutor executor;
  Completions completions;
  auto backend = *kind().make(spec, chunks, {chunk.id}, &executor, &account, completions.Sink());
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
  executor.RunAll();
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
  std::string Fetch(Shard* shard, const Chunk& chunk, Version version, Axis axis) {
    const BackendDone done = shard->Await(ReadRequest{chunk.id, version, &codec(), axis});
    EXPECT_TRUE(done.status.ok()) << done.status;
    return std::string(std::get<Bytes>(done.value).view());
  }

  UpdateResult Run(Shard* shard, UpdateRequest request, bool stats) {
    BackendDone done =
        stats ? shard->Await(StatsRequest{std::move(request)}) : shard->Await(std::move(request));
    EXPECT_TRUE(done.status.ok()) << done.status;
    return std::get<UpdateResult>(std::move(done.value));
  }
};

TEST_P(EncodeTest, EqualsALaterRead) {
  if (codec().traits().uses_residual) return;
  Shard shard(kind(), RaggedSpec(), 1);
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

TEST_P(StateBackendTest, UpdateRefusesIncompleteStepsUnchanged) {
  Shard shard(kind(), RaggedSpec(), 2);
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

TEST_P(StateBackendTest, OperationsOnAChunkKeepCallOrder) {
  Shard shard(kind(), RaggedSpec(), 8);
  shard.InitializeAll();
  const Chunk& chunk = shard.chunks().chunk(ChunkId(0));
  constexpr uint64_t kSteps = 20;
  std::vector<OpId> reads, updates;
  const Codec* codec = *FindCodec("fp32");
  for (uint64_t step = 1; step <= kSteps; ++step) {
    reads.push_back(shard.Submit(ReadRequest{chunk.id, Version(step - 1), codec, Axis::kRow}));
    updates.push_back(
        shard.Submit(RequestOf(&shard, chunk, GradientsOf(chunk, 1, 1), step, Merging::kNone)));
  }
  std::set<std::string> seen;
  for (uint64_t i = 0; i < kSteps; ++i) {
    const BackendDone read = shard.completions().Take(reads[i]);
    ASSERT_TRUE(read.status.ok()) << read.status;
    seen.insert(std::string(std::get<Bytes>(read.value).view()));
    EXPECT_TRUE(shard.completions().Take(updates[i]).status.ok());
  }
  EXPECT_EQ(seen.size(), kSteps);
}

TEST_P(StateBackendTest, ReadReturnsStableBytes) {
  Shard shard(kind(), RaggedSpec(), 1);
  shard.InitializeAll();
  const Chunk& chunk = shard.chunks().chunk(ChunkId(0));
  const std::string state = *shard.State(chunk.id, Version(0));
  for (const char* name : {"fp32", "bf16"}) {
    const Codec* codec = *FindCodec(name);
    const BackendDone done = shard.Await(ReadRequest{chunk.id, Version(0), codec, Axis::kRow});
    ASSERT_TRUE(done.status.ok()) << done.status;
    const Bytes bytes = std::get<Bytes>(done.value);
    const Bytes expected =
        EncodeChunk(*codec, chunk, EncodeOptions(), reinterpret_cast<const float*>(state.data()));
    std::string changed = state;
    changed[0] = static_cast<char>(changed[0] + 1);
    ASSERT_TRUE(shard.Write(chunk.id, Version(0), changed).ok());
    EXPECT_TRUE(bytes.view() == expected.view());
    ASSERT_TRUE(shard.Write(chunk.id, Version(0), state).ok());
  }
}

TEST_P(StateBackendTest, ReadNamesBothVersions) {
  Shard shard(kind(), RaggedSpec(), 1);
  const ChunkId chunk(1);
  EXPECT_THAT(std::string(shard.State(chunk, Version(0)).status().message()),
              HasSubstr("chunk 1: version 0 wanted, it has no content yet"));
  shard.InitializeAll();
  const BackendDone done =
      shard.Await(ReadRequest{chunk, Version(3), *FindCodec("fp32"), Axis::kRow});
  EXPECT_EQ(done.status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(done.status.message()),
              HasSubstr("chunk 1: version 3 wanted, version 0 is here"));
}

TEST_P(StateBackendTest, InitializeSetsSpecValuesAndZeroState) {
  Shard shard(kind(), RaggedSpec(), 2);
  shard.InitializeAll();
  for (const Chunk& chunk : shard.chunks().chunks()) {
    const Reference r = ReferenceFrom(*shard.State(chunk.id, Version(0)), chunk.elements);
    for (const Segment& s : chunk.segments) {
      std::vector<float> expected(s.elements());
      FillInitialValues(shard.spec(), s.tensor, s.tensor_offset, absl::MakeSpan(expected));
      EXPECT_EQ(std::memcmp(expected.data(), r.arrays[0].data() + s.offset, 4 * s.elements()), 0);
    }
    for (int field : {1, 2}) EXPECT_THAT(r.arrays[field], ::testing::Each(0.0f));
  }
}

TEST_P(StateBackendTest, WriteStateRefusesWrongSize) {
  Shard shard(kind(), RaggedSpec(), 1);
  const Chunk& chunk = shard.chunks().chunk(ChunkId(2));
  std::string state(12 * chunk.elements, '\0');
  for (size_t i = 0; i < state.size(); ++i) state[i] = static_cast<char>(i * 31 % 127);
  EXPECT_TRUE(shard.Write(chunk.id, Version(17), state).ok());
  EXPECT_TRUE(*shard.State(chunk.id, Version(17)) == state);
  const absl::Status refused = shard.Write(chunk.id, Version(18), state.substr(1));
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("expected " + std::to_string(state.size()) + " bytes (3 arrays of"));
  EXPECT_TRUE(*shard.State(chunk.id, Version(17)) == state);
}

TEST_P(StateBackendTest, DestructorAwaitsOperationsInFlight) {
  Shard shard(kind(), RaggedSpec(), 2);
  std::vector<OpId> ops;
  for (const Chunk& c : shard.chunks().chunks()) {
    ops.push_back(shard.Submit(InitializeRequest{c.id}));
  }
  shard.DropBackend();
  for (const OpId op : ops) EXPECT_TRUE(shard.completions().Take(op).status.ok());
}

}  // namespace
}  // namespace eps
