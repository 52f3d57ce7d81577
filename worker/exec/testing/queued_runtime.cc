#include "worker/exec/testing/queued_runtime.h"

#include <utility>

#include "base/check.h"
#include "base/numerics/tree_add.h"
#include "worker/exec/torch_host_stage.h"

namespace eps {
namespace {

using at::Tensor;

float* FloatsOf(const Tensor& tensor) { return tensor.mutable_data_ptr<float>(); }

// Weights in a slot.
class SlotWeights final : public StageWeights {
 public:
  SlotWeights(std::shared_ptr<DeviceSlots::Slot> slot, StageLayout layout)
      : slot_(std::move(slot)), layout_(std::move(layout)) {
    slot_->Ready();
  }
  const float* tensor(size_t use) const { return FloatsOf(TensorIn(slot_->bytes(), layout_, use)); }
  const float* for_input_gradient(size_t use) const {
    if (!layout_.has_second_copy(use)) return tensor(use);
    return FloatsOf(SecondCopyIn(slot_->bytes(), layout_, use));
  }

 private:
  const std::shared_ptr<DeviceSlots::Slot> slot_;
  const StageLayout layout_;
};

// An activation on the device.
class DeviceActivation final : public Activation {
 public:
  explicit DeviceActivation(Tensor t) : tensor(std::move(t)) {}
  uint64_t bytes() const override { return tensor.nbytes(); }
  const Tensor tensor;
};

// An activation in the stash.
class HostActivation final : public Activation {
 public:
  explicit HostActivation(DeviceCopies::Stashed s) : stashed(std::move(s)) {}
  uint64_t bytes() const override { return stashed.host.nbytes(); }
  const DeviceCopies::Stashed stashed;
};

// A gradient on the device, by use.
class DeviceGradient final : public StageGradient {
 public:
  std::vector<Tensor> tensors;
};

// A copy of a gradient to the host.
class QueuedCopy final : public PendingCopy {
 public:
  explicit QueuedCopy(DeviceEventPtr copied) : copied_(std::move(copied)) {}
  absl::Status Wait() override {
    WaitFor(*copied_);
    return absl::OkStatus();
  }

 private:
  const DeviceEventPtr copied_;
};

const Tensor& TensorOf(const ActivationPtr& activation) {
  return static_cast<const DeviceActivation&>(*activation).tensor;
}

// One tensor of a stage, as the device's work sees it.
struct Use {
  const float* weights = nullptr;
  const float* for_input = nullptr;
  float* gradient = nullptr;
  size_t elements = 0;
};

// y = x / 2 + the weights, folded onto y.
void Forward(const std::vector<Use>& uses, const float* x, size_t width, float* y) {
  for (size_t i = 0; i < width; ++i) y[i] = 0.5f * (x == nullptr ? 1.0f : x[i]);
  for (const Use& use : uses) {
    for (size_t k = 0; k < use.elements; ++k) y[k % width] += 0.125f * use.weights[k];
  }
}

// dW = x dy + W / 16, dx = dy / 2 + the second copies, folded.
void Backward(const std::vector<Use>& uses, const float* x, const float* dy, size_t width,
              float* dx) {
  for (const Use& use : uses) {
    for (size_t k = 0; k < use.elements; ++k) {
      const size_t i = k % width;
      use.gradient[k] = (x == nullptr ? 1.0f : x[i]) * dy[i] + 0.0625f * use.weights[k];
    }
  }
  if (dx == nullptr) return;
  for (size_t i = 0; i < width; ++i) dx[i] = 0.5f * dy[i];
  for (const Use& use : uses) {
    for (size_t k = 0; k < use.elements; ++k) dx[k % width] += 0.03125f * use.for_input[k];
  }
}

}  // namespace

// One stage of the model. An activation has the width of the job's synthetic model.
class QueuedRuntime::Program final : public StageProgram {
 public:
  Program(QueuedRuntime* runtime, StageId stage)
      : runtime_(*runtime),
        stage_(runtime->spec_.stages[stage.value()]),
        last_(stage.value() + 1 == runtime->spec_.stages.size()),
        width_(static_cast<size_t>(runtime->spec_.model.synthetic.n_embd)) {}

  const StageSpec& spec() const override { return stage_; }

  absl::StatusOr<ActivationPtr> Forward(const StageWeights& weights, const MicroBatch&,
                                        const ActivationPtr& in) override {
    const std::vector<Use> uses = UsesOf(weights);
    const Tensor y = NewActivation();
    const float* const x = in == nullptr ? nullptr : FloatsOf(TensorOf(in));
    Enqueue(1, [uses, x, width = width_, out = FloatsOf(y)] { eps::Forward(uses, x, width, out); });
    return ActivationPtr(std::make_shared<DeviceActivation>(y));
  }

  absl::StatusOr<BackwardResult> Backward(const StageWeights& weights, const MicroBatch& batch,
                                          const ActivationPtr& in, const ActivationPtr& grad_out,
                                          int, StageGradientPtr sum_or_null) override {
    std::vector<Use> uses = UsesOf(weights);
    auto gradient = std::make_unique<DeviceGradient>();
    for (Use& use : uses) {
      gradient->tensors.push_back(runtime_.queues_->New(
          DeviceQueue::kCompute, {static_cast<int64_t>(use.elements)}, at::kFloat));
      use.gradient = FloatsOf(gradient->tensors.back());
    }
    const Tensor y = NewActivation();
    Tensor dx;
    if (in != nullptr) dx = NewActivation();
    const float* const x = in == nullptr ? nullptr : FloatsOf(TensorOf(in));
    const float* const given = grad_out == nullptr ? nullptr : FloatsOf(TensorOf(grad_out));
    Enqueue(3, [uses, x, given, width = width_, out = FloatsOf(y),
                to = dx.defined() ? FloatsOf(dx) : nullptr] {
      eps::Forward(uses, x, width, out);
      eps::Backward(uses, x, given == nullptr ? out : given, width, to);
    });
    BackwardResult result;
    result.gradient = sum_or_null == nullptr
                          ? std::move(gradient)
                          : runtime_.Add(std::move(sum_or_null), std::move(gradient));
    if (dx.defined()) result.grad_in = std::make_shared<DeviceActivation>(dx);
    if (last_) result.loss = {1.0, CountedTokens(batch)};
    return result;
  }

  absl::StatusOr<LossSum> Loss(const StageWeights&, const MicroBatch&, const ActivationPtr&,
                               Predictions*) override {
    return absl::UnimplementedError("these tests evaluate nothing");
  }

 private:
  std::vector<Use> UsesOf(const StageWeights& weights) const {
    const auto& slot = static_cast<const SlotWeights&>(weights);
    std::vector<Use> uses;
    for (size_t use = 0; use < stage_.uses.size(); ++use) {
      uses.push_back({slot.tensor(use), slot.for_input_gradient(use), nullptr,
                      runtime_.spec_.tensors[stage_.uses[use].tensor.value()].elements()});
    }
    return uses;
  }

  Tensor NewActivation() const {
    return runtime_.queues_->New(DeviceQueue::kCompute, {static_cast<int64_t>(width_)}, at::kFloat);
  }

  void Enqueue(int passes, std::function<void()> work) const {
    double weights = 0;
    for (const TensorUse& use : stage_.uses) {
      weights += static_cast<double>(runtime_.spec_.tensors[use.tensor.value()].elements());
    }
    runtime_.queues_->Compute(std::move(work),
                              passes * weights * runtime_.options_.operations_per_weight);
    runtime_.copies_.EndOfMicroBatch();
  }

  QueuedRuntime& runtime_;
  const StageSpec& stage_;
  const bool last_;
  const size_t width_;
};

// Weights that arrive in a slot.
class QueuedRuntime::Arrival final : public ArrivingWeights {
 public:
  Arrival(std::shared_ptr<DeviceSlots::Slot> slot, std::shared_ptr<StageSink> sink,
          StageLayout layout)
      : slot_(std::move(slot)), sink_(std::move(sink)), layout_(std::move(layout)) {}
  std::shared_ptr<StageSink> sink() override { return sink_; }
  std::shared_ptr<const StageWeights> Load() override {
    return std::make_shared<SlotWeights>(std::move(slot_), layout_);
  }

 private:
  std::shared_ptr<DeviceSlots::Slot> slot_;
  const std::shared_ptr<StageSink> sink_;
  const StageLayout layout_;
};

QueuedRuntime::QueuedRuntime(const JobSpec& spec, std::unique_ptr<TestQueues> queues,
                             const QueuedOptions& options)
    : spec_(spec),
      options_(options),
      queues_(queues.get()),
      chunks_(JobChunks::Build(spec)),
      arrivals_(DeviceArrivals::New(*chunks_, /*has_codecs=*/true)),
      copies_(std::move(queues), arrivals_->sizes(), /*account_or_null=*/nullptr),
      departures_(chunks_.get(), &copies_, /*account=*/nullptr) {
  for (uint32_t s = 0; s < spec.stages.size(); ++s) {
    programs_.push_back(std::make_unique<Program>(this, StageId(s)));
  }
}

StageProgram& QueuedRuntime::program(StageId stage) { return *programs_[stage.value()]; }

absl::StatusOr<std::unique_ptr<HostStage>> QueuedRuntime::NewHostStage(StageId stage) {
  const StageSpec& s = spec_.stages[stage.value()];
  return TorchHostStage::New(s.name, StageLayout(spec_, s, false), /*pinned=*/false, nullptr);
}

absl::StatusOr<std::unique_ptr<HostStage>> QueuedRuntime::NewBackwardStage(StageId stage) {
  const StageSpec& s = spec_.stages[stage.value()];
  return TorchHostStage::New(s.name, StageLayout(spec_, s, true), /*pinned=*/false, nullptr);
}

absl::StatusOr<std::unique_ptr<ArrivingWeights>> QueuedRuntime::NewArrival(StageId stage,
                                                                           bool backward) {
  if (options_.codecs_on_host) return std::unique_ptr<ArrivingWeights>();
  auto slot = copies_.slots().Take(stage);
  auto sink = arrivals_->NewSink(stage, backward, slot.get());
  return std::unique_ptr<ArrivingWeights>(std::make_unique<Arrival>(
      std::move(slot), std::move(sink), StageLayout(spec_, spec_.stages[stage.value()], backward)));
}

std::shared_ptr<const StageWeights> QueuedRuntime::Load(StageId stage,
                                                        std::shared_ptr<HostStage> host) {
  const auto& memory = static_cast<const TorchHostStage&>(*host);
  auto slot = copies_.slots().Take(stage);
  slot->CopyFrom(memory.all(), host);
  return std::make_shared<SlotWeights>(std::move(slot), memory.layout());
}

std::shared_ptr<const StageWeights> QueuedRuntime::WithoutValues(StageId stage) {
  EPS_CHECK_MSG(false, "stage " << stage << " computes with all of its weights");
  return nullptr;
}

StageGradientPtr QueuedRuntime::Add(StageGradientPtr left, StageGradientPtr right) {
  const auto& sum = static_cast<const DeviceGradient&>(*left);
  const auto& addend = static_cast<const DeviceGradient&>(*right);
  for (size_t use = 0; use < sum.tensors.size(); ++use) {
    const auto n = static_cast<size_t>(sum.tensors[use].numel());
    queues_->Compute([n, to = FloatsOf(sum.tensors[use]),
                      from = FloatsOf(addend.tensors[use])] { TreeAdd(to, from, n, to); },
                     /*operations=*/0);
  }
  return left;
}

absl::Status QueuedRuntime::ToHost(StageId stage, const StageGradient& gradient, HostStage* out) {
  auto pending = StartToHost(stage, gradient, out);
  return pending.ok() ? (*pending)->Wait() : pending.status();
}

absl::StatusOr<std::unique_ptr<PendingCopy>> QueuedRuntime::StartToHost(
    StageId, const StageGradient& gradient, HostStage* out) {
  const auto& memory = static_cast<const TorchHostStage&>(*out);
  const auto& from = static_cast<const DeviceGradient&>(gradient);
  std::vector<std::pair<Tensor, Tensor>> copies;
  for (size_t use = 0; use < from.tensors.size(); ++use) {
    copies.emplace_back(from.tensors[use], TensorIn(memory.all(), memory.layout(), use).flatten());
  }
  return std::unique_ptr<PendingCopy>(std::make_unique<QueuedCopy>(copies_.CopyGradients(copies)));
}

absl::StatusOr<std::unique_ptr<LeavingGradient>> QueuedRuntime::StartEncoding(
    StageId stage, Step step, const StageGradient& gradient, GradientRooms* rooms) {
  if (options_.codecs_on_host || !departures_.Encodes(stage, step)) {
    return std::unique_ptr<LeavingGradient>();
  }
  return departures_.Start(stage, step, static_cast<const DeviceGradient&>(gradient).tensors,
                           rooms);
}

absl::StatusOr<ActivationPtr> QueuedRuntime::Stash(ActivationPtr activation) {
  return ActivationPtr(std::make_shared<HostActivation>(copies_.CopyToStash(TensorOf(activation))));
}

absl::StatusOr<ActivationPtr> QueuedRuntime::Unstash(ActivationPtr stashed) {
  return ActivationPtr(std::make_shared<DeviceActivation>(
      copies_.CopyFromStash(static_cast<const HostActivation&>(*stashed).stashed)));
}

}  // namespace eps
