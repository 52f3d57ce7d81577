#include "storage/testing/shard_under_test.h"

#include <cmath>
#include <cstring>
#include <variant>

#include "base/numerics/flush_denormals.h"
#include "base/numerics/reduction_tree.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

constexpr float kNormScale = 1.0f / 12;

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

double SumOfSquares(const Chunk& chunk, const std::vector<float>& sum, float scale) {
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

}  // namespace

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

StepScalars StepAt(uint64_t t) {
  StepScalars step;
  step.lr = 1e-2 / static_cast<double>(t);
  step.bias_correction1 = 1 - std::pow(0.9, static_cast<double>(t));
  step.bias_correction2 = 1 - std::pow(0.999, static_cast<double>(t));
  step.grad_scale = 0.7f / 12;
  step.update = t;
  return step;
}

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

// ---------------------------------------------------------------- PlainState

PlainState::PlainState(const std::string& state, uint64_t elements) {
  for (size_t at = 0; at < state.size(); at += 4 * elements) {
    arrays_.emplace_back(elements);
    std::memcpy(arrays_.back().data(), state.data() + at, 4 * elements);
  }
}

double PlainState::Update(const JobSpec& spec, const Chunk& chunk, const Gradients& gradients,
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

std::string PlainState::Bytes() const {
  std::string bytes;
  for (const std::vector<float>& array : arrays_) {
    bytes.append(reinterpret_cast<const char*>(array.data()), 4 * array.size());
  }
  return bytes;
}

void PlainState::Step(const JobSpec& spec, double weight_decay, const StepScalars& step,
                      float gradient, uint64_t e) {
  const OptimizerSpec& o = spec.optimizer;
  if (o.name == OptimizerName::kSgd) {
    return StepOfSgd(o, static_cast<float>(weight_decay), step, gradient, e);
  }
  float& weight = arrays_[0][e];
  float& exp_avg = arrays_[1][e];
  float& exp_avg_sq = arrays_[2][e];
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

void PlainState::StepOfSgd(const OptimizerSpec& o, float weight_decay, const StepScalars& step,
                           float gradient, uint64_t e) {
  float& weight = arrays_[0][e];
  const float g = gradient * step.grad_scale + weight_decay * weight;
  float direction = g;
  if (o.momentum != 0) {
    direction = static_cast<float>(o.momentum) * arrays_[1][e] + g;
    arrays_[1][e] = direction;
  }
  weight = weight - static_cast<float>(step.lr) * direction;
}

// ---------------------------------------------------------------- ShardUnderTest

ShardUnderTest::ShardUnderTest(const BackendUnderTest& kind, const JobSpec& spec, int threads,
                               uint64_t memory_limit)
    : spec_(spec), chunks_(ChunkMap::Build(spec_)), account_(memory_limit), pool_(threads) {
  std::vector<ChunkId> owned;
  for (const Chunk& c : chunks_.chunks()) owned.push_back(c.id);
  auto backend = kind.make(spec_, chunks_, owned, &pool_, &account_, completions_.Sink());
  status_ = backend.status();
  if (backend.ok()) backend_ = std::move(*backend);
}

OpId ShardUnderTest::Submit(Request request) {
  const OpId op = completions_.Next();
  backend_->Submit(op, std::move(request));
  return op;
}

void ShardUnderTest::InitializeAll() {
  for (const Chunk& c : chunks_.chunks()) {
    EXPECT_TRUE(Await(InitializeRequest{c.id}).status.ok());
  }
}

absl::StatusOr<std::string> ShardUnderTest::State(ChunkId chunk, Version version) {
  BackendDone done = Await(ReadStateRequest{chunk, version});
  if (!done.status.ok()) return done.status;
  return std::string(std::get<Bytes>(done.value).view());
}

absl::Status ShardUnderTest::Write(ChunkId chunk, Version version, const std::string& state) {
  return Await(WriteStateRequest{chunk, version, Bytes::CopyOf(state)}).status;
}

std::shared_ptr<const EncodedChunk> ShardUnderTest::Encode(const Chunk& chunk,
                                                           const std::vector<float>& values,
                                                           absl::string_view codec_name) {
  return OpenGradient(codec_name, chunk, values, &account_);
}

UpdateRequest RequestOf(ShardUnderTest* shard, const Chunk& chunk, const Gradients& gradients,
                        uint64_t step, Merging merging) {
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

}  // namespace eps
