#include "verify/shard_oracle.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <variant>

#include "common/check.h"
#include "common/flush_denormals.h"
#include "common/tree_add.h"
#include "compression/codec.h"
#include "spec/reduction_tree.h"
#include "spec/schedule.h"

namespace eps {
namespace {

MicroBatchResult Add(MicroBatchResult left, MicroBatchResult right) {
  for (size_t stage = 0; stage < left.gradient.size(); ++stage) {
    for (size_t use = 0; use < left.gradient[stage].size(); ++use) {
      std::vector<float>& sum = left.gradient[stage][use];
      TreeAdd(sum.data(), right.gradient[stage][use].data(), sum.size(), sum.data());
    }
  }
  left.loss.sum += right.loss.sum;
  left.loss.tokens += right.loss.tokens;
  return left;
}

}  // namespace

ShardOracle::ShardOracle(const JobSpec& spec, ReferenceModel* model, BatchSource* batches)
    : spec_(spec), model_(model), batches_(batches), chunks_(ChunkMap::Build(spec)) {
  std::vector<ChunkId> all;
  for (const Chunk& chunk : chunks_.chunks()) all.push_back(chunk.id);
  auto backend = NewDramBackend(spec, chunks_, all, &threads_, &account_, completions_.Sink());
  EPS_CHECK_MSG(backend.ok(), backend.status());
  backend_ = *std::move(backend);
  for (const ChunkId chunk : all) {
    const OpId op = completions_.Next();
    backend_->Initialize(op, chunk);
    Wait(op);
  }
}

StepFigures ShardOracle::RunStep() {
  const ScopedFlushDenormals flush;
  const std::vector<TensorValues> now = Read();
  ++step_;
  StageInputs inputs;
  for (const StageSpec& stage : spec_.stages) {
    inputs.emplace_back();
    for (const TensorUse& use : stage.uses) {
      inputs.back().push_back(now[0][use.tensor.value()].data());
    }
  }
  StepFigures figures;
  TreeAccumulator<double, double (*)(double, double)> losses(
      spec_.training.parts, +[](double a, double b) { return a + b; });
  std::vector<UseGradients> parts;
  for (uint32_t part = 0; part < spec_.training.parts; ++part) {
    LossSum loss;
    parts.push_back(RunPart(part, inputs, &loss));
    losses.Insert({part, 1}, loss.sum);
    figures.tokens += loss.tokens;
  }
  const auto tokens = static_cast<double>(figures.tokens);
  figures.loss = losses.Take() / tokens;
  figures.lr = LearningRate(spec_.schedule, spec_.optimizer.lr, step_, spec_.training.steps);
  figures.grad_norm = Update(parts, Scalars(figures.lr, 1.0 / tokens), 1.0 / tokens);
  last_norm_ = figures.grad_norm;
  return figures;
}

UseGradients ShardOracle::RunPart(uint32_t part, const StageInputs& inputs, LossSum* loss) {
  const uint32_t g = spec_.training.micro_batches;
  TreeAccumulator<MicroBatchResult, decltype(&Add)> sum(g, &Add);
  for (uint32_t j = g; j-- > 0;) {
    auto result = model_->Run(inputs, *batches_->Get(Step(step_), part * g + j));
    EPS_CHECK_MSG(result.ok(), result.status());
    sum.Insert({j, 1}, *std::move(result));
  }
  MicroBatchResult whole = sum.Take();
  *loss = whole.loss;
  return std::move(whole.gradient);
}

StepScalars ShardOracle::Scalars(double lr, double scale) const {
  double clip = 1.0;
  if (spec_.training.clip == Clip::kLagged && step_ > 1) {
    clip = std::min(1.0, spec_.training.max_grad_norm / (last_norm_ + 1e-6));
  }
  StepScalars scalars;
  scalars.update = step_;
  scalars.lr = lr;
  scalars.bias_correction1 = 1.0 - IntegerPower(spec_.optimizer.beta1, step_);
  scalars.bias_correction2 = 1.0 - IntegerPower(spec_.optimizer.beta2, step_);
  scalars.grad_scale = static_cast<float>(scale * clip);
  return scalars;
}

BackendValue ShardOracle::Wait(OpId op) {
  BackendDone done = completions_.Take(op);
  EPS_CHECK_MSG(done.status.ok(), done.status);
  return std::move(done.value);
}

Bytes ShardOracle::Encoded(const Chunk& chunk, StageId stage, const UseGradients& gradient) const {
  const auto& uses = spec_.stages[stage.value()].uses;
  std::vector<float> elements(chunk.elements);
  for (const Segment& s : chunk.segments) {
    size_t use = 0;
    while (uses[use].tensor != s.tensor) ++use;
    const std::vector<float>& values = gradient[stage.value()][use];
    std::memcpy(elements.data() + s.offset, values.data() + s.tensor_offset,
                s.elements() * sizeof(float));
  }
  return Bytes::CopyOf(absl::string_view(reinterpret_cast<const char*>(elements.data()),
                                         elements.size() * sizeof(float)));
}

double ShardOracle::Update(const std::vector<UseGradients>& parts, const StepScalars& scalars,
                           double scale) {
  const Codec* const codec = *FindCodec("fp32");
  double sum = 0;
  for (const Chunk& chunk : chunks_.chunks()) {
    UpdateRequest request;
    request.chunk = chunk.id;
    request.from = Version(step_ - 1);
    request.to = Version(step_);
    request.parts = static_cast<uint32_t>(parts.size());
    request.step = scalars;
    request.norm_scale = static_cast<float>(scale);
    for (uint32_t part = request.parts; part-- > 0;) {
      for (uint32_t use = 0; use < chunk.uses.size(); ++use) {
        auto data =
            codec->Open(chunk, Encoded(chunk, chunk.uses[use], parts[part]), Content::kGradient);
        EPS_CHECK_MSG(data.ok(), data.status());
        request.inputs.push_back({use, TreeRange{part, 1}, *std::move(data)});
      }
    }
    const OpId op = completions_.Next();
    backend_->Update(op, std::move(request));
    sum += std::get<UpdateResult>(Wait(op)).sum_squares;
  }
  return std::sqrt(sum);
}

std::vector<TensorValues> ShardOracle::Read() {
  std::vector<TensorValues> arrays(1 + StateFields(spec_.optimizer).size());
  for (TensorValues& array : arrays) {
    for (const TensorSpec& tensor : spec_.tensors) array.emplace_back(tensor.elements());
  }
  for (const Chunk& chunk : chunks_.chunks()) {
    const OpId op = completions_.Next();
    backend_->ReadState(op, chunk.id, Version(step_));
    const Bytes state = std::get<Bytes>(Wait(op));
    for (size_t field = 0; field < arrays.size(); ++field) {
      for (const Segment& s : chunk.segments) {
        const uint64_t first = field * chunk.elements + s.offset;
        std::memcpy(arrays[field][s.tensor.value()].data() + s.tensor_offset,
                    state.data() + first * sizeof(float), s.elements() * sizeof(float));
      }
    }
  }
  return arrays;
}

}  // namespace eps
