#include "verify/testing/shard_oracle.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/job/optimizers.h"
#include "base/job/schedule.h"
#include "base/numerics/flush_denormals.h"
#include "base/numerics/reduction_tree.h"
#include "base/numerics/tree_add.h"
#include "compression/codec.h"
#include "optimizer/trust_ratio.h"
#include "storage/backends/dram_backend.h"

namespace eps {
namespace {

template <class Value>
Value Must(absl::StatusOr<Value> value) {
  EPS_CHECK_MSG(value.ok(), value.status());
  return *std::move(value);
}

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
    : spec_(spec),
      model_(model),
      batches_(batches),
      chunks_(ChunkMap::Build(spec)),
      codecs_(Must(CodecTable::Build(spec, chunks_))) {
  std::vector<ChunkId> all;
  for (const Chunk& chunk : chunks_.chunks()) all.push_back(chunk.id);
  auto backend = NewDramBackend(spec, chunks_, all, &threads_, &account_, completions_.Sink());
  EPS_CHECK_MSG(backend.ok(), backend.status());
  backend_ = *std::move(backend);
  for (const ChunkId chunk : all) {
    const OpId op = completions_.Next();
    backend_->Submit(op, InitializeRequest{chunk});
    Wait(op);
  }
}

StepFigures ShardOracle::RunStep() {
  const ScopedFlushDenormals flush;
  const std::vector<TensorValues> now = Read();
  ++step_;
  Fetch(now[0]);
  StepFigures figures;
  TreeAccumulator<double, double (*)(double, double)> losses(
      spec_.training.parts, +[](double a, double b) { return a + b; });
  std::vector<UseGradients> parts;
  for (uint32_t part = 0; part < spec_.training.parts; ++part) {
    LossSum loss;
    parts.push_back(RunPart(part, &loss));
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

UseGradients ShardOracle::RunPart(uint32_t part, LossSum* loss) {
  const uint32_t g = spec_.training.micro_batches;
  TreeAccumulator<MicroBatchResult, decltype(&Add)> sum(g, &Add);
  for (uint32_t j = g; j-- > 0;) {
    auto result = model_->Run(InputsOf(fetched_), InputsOf(fetched_for_input_gradient_),
                              *batches_->Get(Step(step_), part * g + j), /*loss_scale_log2=*/0);
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

StageInputs ShardOracle::InputsOf(const std::vector<TensorValues>& fetched) {
  StageInputs inputs;
  for (const TensorValues& stage : fetched) {
    inputs.emplace_back();
    for (const std::vector<float>& values : stage) inputs.back().push_back(values.data());
  }
  return inputs;
}

void ShardOracle::Fetch(const TensorValues& weights) {
  fetched_.clear();
  fetched_for_input_gradient_.clear();
  for (uint32_t s = 0; s < spec_.stages.size(); ++s) {
    TensorValues first;
    for (const TensorUse& use : spec_.stages[s].uses) first.push_back(weights[use.tensor.value()]);
    TensorValues second = first;
    for (const ChunkId id : chunks_.ChunksOfStage(StageId(s))) {
      const WeightAxes axes = codecs_.axes(StageId(s), id, /*backward=*/true);
      Pass(chunks_.chunk(id), s, axes.first, &first);
      Pass(chunks_.chunk(id), s, axes.has_second ? axes.second : axes.first, &second);
    }
    fetched_.push_back(std::move(first));
    fetched_for_input_gradient_.push_back(std::move(second));
  }
}

void ShardOracle::Pass(const Chunk& chunk, uint32_t stage, Axis axis, TensorValues* by_use) const {
  const Codec& codec = codecs_.weights(chunk.id);
  std::vector<float> elements = Gather(chunk, stage, *by_use);
  EncodeOptions options;
  options.axis = axis;
  Bytes bytes = EncodeChunk(codec, chunk, options, elements.data());
  DecodeChunk(*Must(codec.Open(chunk, axis, std::move(bytes), Content::kWeights)), chunk,
              elements.data());
  const bool matrix = spec_.tensors[chunk.segments.front().tensor.value()].rank != 1;
  if (matrix && spec_.codecs.backward_weights == BackwardWeights::kDecodeOnce) {
    const Codec& bf16 = **FindCodec("bf16");
    bytes = EncodeChunk(bf16, chunk, EncodeOptions(), elements.data());
    DecodeChunk(*Must(bf16.Open(chunk, Axis::kRow, std::move(bytes), Content::kWeights)), chunk,
                elements.data());
  }
  for (const Segment& s : chunk.segments) {
    std::memcpy((*by_use)[UseOf(stage, s.tensor)].data() + s.tensor_offset,
                elements.data() + s.offset, s.elements() * sizeof(float));
  }
}

size_t ShardOracle::UseOf(uint32_t stage, TensorId tensor) const {
  size_t use = 0;
  while (spec_.stages[stage].uses[use].tensor != tensor) ++use;
  return use;
}

std::vector<float> ShardOracle::Gather(const Chunk& chunk, uint32_t stage,
                                       const TensorValues& by_use) const {
  std::vector<float> elements(chunk.elements);
  for (const Segment& s : chunk.segments) {
    std::memcpy(elements.data() + s.offset, by_use[UseOf(stage, s.tensor)].data() + s.tensor_offset,
                s.elements() * sizeof(float));
  }
  return elements;
}

uint64_t ShardOracle::CountOf(const Codec& codec, const Chunk& chunk, StageId stage, uint32_t part,
                              const TensorValues& by_use) {
  const absl::Span<const Chunk> chunks = chunks_.ChunksOfTensor(chunk.id);
  std::vector<uint64_t>& counts = counts_[{part, stage, chunks.front().id}];
  if (chunk.id == chunks.front().id) {  // the other chunks still hold the previous residuals
    std::vector<float> sums;
    counts = codec.CountsOf(chunks, [&](size_t i) {
      sums = Gather(chunks[i], stage.value(), by_use);
      const auto residual = residuals_.find({part, stage, chunks[i].id});
      for (size_t j = 0; residual != residuals_.end() && j < sums.size(); ++j) {
        sums[j] += residual->second[j];
      }
      return sums.data();
    });
  }
  return counts[chunk.id.value() - chunks.front().id.value()];
}

Bytes ShardOracle::Push(const Chunk& chunk, StageId stage, uint32_t part,
                        const UseGradients& gradient) {
  const std::vector<float> elements = Gather(chunk, stage.value(), gradient[stage.value()]);
  const Codec& codec = codecs_.gradient(chunk.id, Step(step_));
  const Codec* const of_residual = codecs_.residual_or_null(chunk.id, Step(step_));
  EncodeOptions options;
  if (codec.traits().whole_tensors) {
    options.count = CountOf(codec, chunk, stage, part, gradient[stage.value()]);
  }
  if (of_residual == nullptr) return EncodeChunk(codec, chunk, options, elements.data());
  std::vector<float>& residual = residuals_[{part, stage, chunk.id}];
  residual.resize(chunk.elements);
  options.residual_or_null = residual.data();
  Bytes bytes = EncodeChunk(codec, chunk, options, elements.data());
  Bytes kept = EncodeChunk(*of_residual, chunk, EncodeOptions(), residual.data());
  DecodeChunk(*Must(of_residual->Open(chunk, Axis::kRow, std::move(kept), Content::kWeights)),
              chunk, residual.data());
  return bytes;
}

double ShardOracle::Update(const std::vector<UseGradients>& parts, const StepScalars& scalars,
                           double scale) {
  std::vector<UpdateRequest> requests;
  for (const Chunk& chunk : chunks_.chunks()) {
    UpdateRequest& request = requests.emplace_back();
    request.chunk = chunk.id;
    request.from = Version(step_ - 1);
    request.to = Version(step_);
    request.parts = static_cast<uint32_t>(parts.size());
    request.step = scalars;
    request.norm_scale = static_cast<float>(scale);
    for (uint32_t part = request.parts; part-- > 0;) {
      for (uint32_t use = 0; use < chunk.uses.size(); ++use) {
        Bytes bytes = Push(chunk, chunk.uses[use], part, parts[part]);
        auto data = Must(codecs_.gradient(chunk.id, Step(step_))
                             .Open(chunk, Axis::kRow, std::move(bytes), Content::kGradient));
        request.inputs.push_back({use, TreeRange{part, 1}, std::move(data)});
      }
    }
  }
  if (RowOf(spec_.optimizer.name).adapts) SetTrustRatios(&requests);
  double sum = 0;
  for (UpdateRequest& request : requests) {
    const OpId op = completions_.Next();
    backend_->Submit(op, std::move(request));
    sum += std::get<UpdateResult>(Wait(op)).sum_squares;
  }
  return std::sqrt(sum);
}

// Measures all chunks, and gives each segment the trust ratio of its tensor.
void ShardOracle::SetTrustRatios(std::vector<UpdateRequest>* requests) {
  std::vector<SegmentSquares> tensors(spec_.tensors.size());
  for (const UpdateRequest& request : *requests) {
    const OpId op = completions_.Next();
    backend_->Submit(op, MeasureRequest{request});
    const auto measured = std::get<MeasureResult>(Wait(op));
    const std::vector<Segment>& segments = chunks_.chunk(request.chunk).segments;
    for (size_t i = 0; i < segments.size(); ++i) {
      tensors[segments[i].tensor.value()].weights += measured.segments[i].weights;
      tensors[segments[i].tensor.value()].steps += measured.segments[i].steps;
    }
  }
  for (UpdateRequest& request : *requests) {
    for (const Segment& segment : chunks_.chunk(request.chunk).segments) {
      const ParameterGroup& group = spec_.groups[segment.group.value()];
      request.trust_ratios.push_back(
          HasTrustRatio(spec_.optimizer, group) ? TrustRatio(tensors[segment.tensor.value()]) : 1);
    }
  }
}

std::vector<TensorValues> ShardOracle::Read() {
  std::vector<TensorValues> arrays(1 + StateFields(spec_.optimizer).size());
  for (TensorValues& array : arrays) {
    for (const TensorSpec& tensor : spec_.tensors) array.emplace_back(tensor.elements());
  }
  for (const Chunk& chunk : chunks_.chunks()) {
    const OpId op = completions_.Next();
    backend_->Submit(op, ReadStateRequest{chunk.id, Version(step_)});
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
