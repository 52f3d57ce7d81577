#include "bench/peers/one_pass_world.h"

#include <chrono>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/job/layout/model_layout.h"
#include "base/testing/test_specs.h"
#include "storage/backends/dram_backend.h"

namespace eps {
namespace {

// Returns a value in [-0.5, 0.5) that depends only on i.
float Draw(uint64_t i) {
  return static_cast<float>((i * 0x9e3779b97f4a7c15u) >> 40) * 0x1p-24f - 0.5f;
}

Encoded Open(const char* codec_name, const Chunk& chunk, const std::vector<float>& values) {
  const Codec* codec = *FindCodec(codec_name);
  return *codec->Open(chunk, Axis::kRow, EncodeChunk(*codec, chunk, EncodeOptions(), values.data()),
                      Content::kGradient);
}

// Hides how a chunk can be read in place.
class Opaque final : public EncodedChunk {
 public:
  explicit Opaque(Encoded chunk) : chunk_(std::move(chunk)) {}
  void Read(const Tile& tile, bool accumulate, size_t ld, float* out) const override {
    chunk_->Read(tile, accumulate, ld, out);
  }
  const Bytes& bytes() const override { return chunk_->bytes(); }

 private:
  const Encoded chunk_;
};

uint64_t TotalOf(const ChunkMap& chunks) {
  uint64_t elements = 0;
  for (const Chunk& chunk : chunks.chunks()) elements += chunk.elements;
  return elements;
}

float* Floats(const PageArray& array) { return static_cast<float*>(array.data()); }

}  // namespace

JobSpec OnePassSpec(int mebi_parameters) {
  JobSpec spec = TinySyntheticSpec();
  spec.model.synthetic.n_layer = mebi_parameters;  // 1 Mi parameters each
  spec.model.synthetic.n_embd = kOnePassWidth;
  spec.model.synthetic.tied = false;
  spec.tensors.clear();
  spec.groups.clear();
  spec.stages.clear();
  spec.chunk_elements = 512 * kOnePassWidth;
  EPS_CHECK(BuildLayout(/*weight_decay=*/0.01, &spec).ok());
  return spec;
}

StepScalars OnePassStep() {
  StepScalars step;
  step.lr = 1e-3;
  step.bias_correction1 = 1 - std::pow(0.9, 100);
  step.bias_correction2 = 1 - std::pow(0.999, 100);
  step.update = 100;
  return step;
}

AdamWScalars OnePassScalars(const JobSpec& spec, const Chunk& chunk) {
  const OptimizerSpec& o = spec.optimizer;
  const StepScalars step = OnePassStep();
  const double decay = spec.groups[chunk.segments[0].group.value()].weight_decay;
  AdamWScalars s;
  s.decay = static_cast<float>(1.0 - step.lr * decay);
  s.beta1 = static_cast<float>(o.beta1);
  s.one_minus_beta1 = static_cast<float>(1.0 - o.beta1);
  s.beta2 = static_cast<float>(o.beta2);
  s.one_minus_beta2 = static_cast<float>(1.0 - o.beta2);
  s.rsqrt_correction2 = static_cast<float>(1.0 / std::sqrt(step.bias_correction2));
  s.eps = static_cast<float>(o.eps);
  s.step_size = static_cast<float>(step.lr / step.bias_correction1);
  return s;
}

Gradients::Gradients(const ChunkMap& chunks, uint32_t parts) : bf16(parts), opaque(parts) {
  for (const Chunk& chunk : chunks.chunks()) {
    std::vector<float> values(chunk.elements);
    for (uint32_t part = 0; part < parts; ++part) {
      const uint64_t first = (uint64_t{chunk.id.value()} * parts + part) << 32;
      for (uint64_t i = 0; i < chunk.elements; ++i) {
        values[i] = std::floor(256 * Draw(first + i)) * 0x1p-14f;
      }
      bf16[part].push_back(Open("bf16", chunk, values));
      opaque[part].push_back(std::make_shared<Opaque>(bf16[part].back()));
      if (part == 0) fp32.push_back(Open("fp32", chunk, values));
    }
  }
}

Arrays::Arrays(const ChunkMap& chunks)
    : elements_(TotalOf(chunks)),
      weight_(4 * elements_),
      exp_avg_(4 * elements_),
      exp_avg_sq_(4 * elements_),
      sum_(4 * elements_) {
  uint64_t offset = 0;
  for (const Chunk& chunk : chunks.chunks()) {
    offsets_.push_back(offset);
    offset += chunk.elements;
  }
  Reset();
}

void Arrays::Reset() {
  for (uint64_t i = 0; i < elements_; ++i) {
    Floats(weight_)[i] = 0.04f * Draw(i);
    Floats(exp_avg_)[i] = 1e-3f * Draw(i + 1);
    Floats(exp_avg_sq_)[i] = 1e-6f * (Draw(i + 2) + 0.6f);
  }
}

float* Arrays::SumOf(const Chunk& chunk) const { return Floats(sum_) + offsets_[chunk.id.value()]; }

AdamWTile Arrays::Row(const Chunk& chunk, const float* gradient) const {
  const uint64_t at = offsets_[chunk.id.value()];
  AdamWTile tile;
  tile.rows = 1;
  tile.cols = tile.ld = tile.grad_ld = chunk.elements;
  tile.grad = gradient;
  tile.weight = Floats(weight_) + at;
  tile.exp_avg = Floats(exp_avg_) + at;
  tile.exp_avg_sq = Floats(exp_avg_sq_) + at;
  return tile;
}

void Crew::ForEachChunk(const ChunkMap& chunks, const std::function<void(const Chunk&)>& visit) {
  const size_t n = chunks.chunks().size();
  const size_t threads = static_cast<size_t>(pool_.threads());
  Expect(threads);
  for (size_t t = 0; t < threads; ++t) {
    pool_.Post([this, t, n, threads, &chunks, &visit] {
      for (size_t i = n * t / threads; i < n * (t + 1) / threads; ++i) visit(chunks.chunks()[i]);
      Done();
    });
  }
  Wait();
}

void Crew::Expect(size_t tasks) {
  MutexLock lock(&mu_);
  left_ = tasks;
}

void Crew::Done() {
  MutexLock lock(&mu_);
  if (--left_ == 0) all_done_.NotifyAll();
}

void Crew::Wait() {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(5);
  MutexLock lock(&mu_);
  while (left_ > 0) EPS_CHECK(all_done_.WaitUntil(&mu_, deadline) || left_ == 0);
}

Server::Server(const JobSpec& spec, const ChunkMap& chunks, Crew* crew)
    : chunks_(chunks),
      crew_(crew),
      results_(chunks.chunks().size()),
      bytes_(chunks.chunks().size()) {
  std::vector<ChunkId> owned;
  for (const Chunk& chunk : chunks.chunks()) owned.push_back(chunk.id);
  auto backend = NewDramBackend(spec, chunks, owned, crew->pool(), &account_,
                                [this](BackendDone done) { Take(std::move(done)); });
  EPS_CHECK_MSG(backend.ok(), backend.status().message());
  backend_ = std::move(*backend);
}

void Server::ForEachChunk(const Operation& start) {
  crew_->Expect(chunks_.chunks().size());
  for (const Chunk& chunk : chunks_.chunks()) start(chunk, OpId(chunk.id.value()));
  crew_->Wait();
}

void Server::WriteState(const Arrays& arrays) {
  ForEachChunk([&](const Chunk& chunk, OpId op) {
    const AdamWTile row = arrays.Row(chunk, nullptr);
    const size_t bytes = 4 * chunk.elements;
    Buffer state(3 * bytes);
    std::memcpy(state.data(), row.weight, bytes);
    std::memcpy(state.data() + bytes, row.exp_avg, bytes);
    std::memcpy(state.data() + 2 * bytes, row.exp_avg_sq, bytes);
    backend_->Submit(op, WriteStateRequest{chunk.id, version_, std::move(state).Freeze()});
  });
}

UpdateRequest Server::RequestOf(const Chunk& chunk,
                                const std::vector<const std::vector<Encoded>*>& parts) const {
  UpdateRequest request;
  request.chunk = chunk.id;
  request.from = version_;
  request.to = version_.Next();
  request.parts = static_cast<uint32_t>(parts.size());
  for (uint32_t p = 0; p < request.parts; ++p) {
    request.inputs.push_back({0, TreeRange{p, 1}, (*parts[p])[chunk.id.value()]});
  }
  request.step = OnePassStep();
  return request;
}

void Server::Update(const std::vector<const std::vector<Encoded>*>& parts,
                    const std::vector<UpdateRequest::Encode>& encode) {
  ForEachChunk([&](const Chunk& chunk, OpId op) {
    UpdateRequest request = RequestOf(chunk, parts);
    request.encode = encode;
    backend_->Submit(op, std::move(request));
  });
  version_ = version_.Next();
}

void Server::Stats(const std::vector<const std::vector<Encoded>*>& parts) {
  ForEachChunk([&](const Chunk& chunk, OpId op) {
    backend_->Submit(op, ReduceRequest{RequestOf(chunk, parts)});
  });
}

std::vector<Bytes> Server::ReadState() {
  ForEachChunk([&](const Chunk& chunk, OpId op) {
    backend_->Submit(op, ReadStateRequest{chunk.id, version_});
  });
  return std::exchange(bytes_, std::vector<Bytes>(bytes_.size()));
}

void Server::Take(BackendDone done) {
  EPS_CHECK_MSG(done.status.ok(), done.status.message());
  if (auto* result = std::get_if<UpdateResult>(&done.value)) {
    results_[done.op.value()] = std::move(*result);
  } else if (auto* bytes = std::get_if<Bytes>(&done.value)) {
    bytes_[done.op.value()] = std::move(*bytes);
  }
  crew_->Done();
}

}  // namespace eps
