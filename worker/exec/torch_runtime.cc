#include "worker/exec/torch_runtime.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Context.h"
#include "ATen/core/Tensor.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/from_blob.h"
#include "absl/strings/str_cat.h"
#include "c10/core/CachingDeviceAllocator.h"
#include "c10/core/Event.h"
#include "c10/core/impl/VirtualGuardImpl.h"
#include "common/bytes.h"
#include "common/check.h"
#include "common/flush_denormals.h"
#include "common/status_macros.h"
#include "common/tree_add.h"
#include "worker/exec/tensor_memory.h"
#include "worker/exec/torch_device.h"
#include "worker/exec/torch_guard.h"
#include "worker/exec/torch_stage.h"
#include "worker/models/gpt2.h"

namespace eps {
namespace {

using at::Tensor;

constexpr uint64_t kTensorAlignment = 64;

std::vector<int64_t> ShapeOf(const TensorSpec& tensor) {
  if (tensor.rank == 1) return {tensor.cols};
  return {tensor.rows, tensor.cols};
}

// Releases a charge that was made before it. `account` may be null.
class Charge {
 public:
  Charge(MemoryAccount* account, MemoryKind kind, uint64_t bytes)
      : account_(account), kind_(kind), bytes_(bytes) {}
  ~Charge() {
    if (account_ != nullptr) account_->Release(kind_, bytes_);
  }
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;

 private:
  MemoryAccount* const account_;
  const MemoryKind kind_;
  const uint64_t bytes_;
};

// Counts bytes into (or, negative, out of) the CPU's device account for as long as it lives.
class DeviceCount {
 public:
  explicit DeviceCount(int64_t bytes) : bytes_(bytes) { TensorMemory::Get().Adjust(bytes_); }
  ~DeviceCount() { TensorMemory::Get().Adjust(-bytes_); }
  DeviceCount(const DeviceCount&) = delete;
  DeviceCount& operator=(const DeviceCount&) = delete;

 private:
  const int64_t bytes_;
};

// One block of memory for all tensors of a stage, each at an aligned offset.
class TorchHostStage final : public HostStage {
 public:
  TorchHostStage(const JobSpec& spec, StageId stage, bool pinned, MemoryAccount* account) {
    for (const TensorUse& use : spec.stages[stage.value()].uses) {
      offsets_.push_back(bytes_);
      const uint64_t tensor_bytes = spec.tensors[use.tensor.value()].elements() * sizeof(float);
      bytes_ += (tensor_bytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
    }
    if (pinned) {
      if (account != nullptr) account->Charge(MemoryKind::kStage, bytes_);
      pinned_charge_ = std::make_unique<Charge>(account, MemoryKind::kStage, bytes_);
      pinned_ = at::empty({static_cast<int64_t>(bytes_)},
                          at::TensorOptions().dtype(at::kByte).pinned_memory(true));
      data_ = pinned_.mutable_data_ptr<uint8_t>();
    } else {
      buffer_ = Buffer(bytes_, MemoryKind::kStage, account);
      data_ = buffer_.data();
    }
  }
  float* tensor(size_t use) override { return reinterpret_cast<float*>(data_ + offsets_[use]); }
  uint64_t bytes() const override { return bytes_; }
  // The memory of one use as a tensor, without a copy.
  Tensor view(size_t use, const std::vector<int64_t>& shape) const {
    int64_t elements = 1;
    for (const int64_t n : shape) elements *= n;
    if (pinned_.defined()) {
      return pinned_.narrow(0, static_cast<int64_t>(offsets_[use]), elements * 4)
          .view(at::kFloat)
          .view(shape);
    }
    return at::from_blob(data_ + offsets_[use], shape, at::TensorOptions().dtype(at::kFloat));
  }

 private:
  std::vector<uint64_t> offsets_;
  uint64_t bytes_ = 0;
  uint8_t* data_ = nullptr;
  Buffer buffer_;
  Tensor pinned_;
  std::unique_ptr<Charge> pinned_charge_;
};

// `status` keeps an error of making the object until the next call that can return one.
class TorchWeights final : public StageWeights {
 public:
  StageTensors tensors;
  std::shared_ptr<HostStage> host;
  std::unique_ptr<DeviceCount> counted;  // on a CPU
  absl::Status status;
};

class TorchGradient final : public StageGradient {
 public:
  StageTensors tensors;
  absl::Status status;
};

// Keeps a stashed tensor out of the device's count as long as no activation on the device shares
// its memory: a CPU stashes without a copy, and counts as if there were one.
class OffDevice {
 public:
  explicit OffDevice(uint64_t bytes) : bytes_(static_cast<int64_t>(bytes)) { Leave(); }
  void Enter() {
    ++on_device_;
    count_ = nullptr;
  }
  void Leave() {
    if (--on_device_ == 0) count_ = std::make_unique<DeviceCount>(-bytes_);
  }

 private:
  const int64_t bytes_;
  int on_device_ = 1;  // activations
  std::unique_ptr<DeviceCount> count_;
};

class TorchActivation final : public Activation {
 public:
  explicit TorchActivation(Tensor t) : tensor(std::move(t)) {}
  ~TorchActivation() override {
    if (const auto stashed = stashed_.lock()) stashed->Leave();
  }
  uint64_t bytes() const override { return tensor.nbytes(); }
  // Its memory is that of a stashed tensor.
  void ShareWith(const std::shared_ptr<OffDevice>& stashed) const {
    if (stashed == nullptr) return;
    EPS_CHECK(stashed_.expired());
    stashed->Enter();
    stashed_ = stashed;
  }
  Tensor tensor;

 private:
  mutable std::weak_ptr<OffDevice> stashed_;
};

// An activation in host memory, charged to the stash as long as it lives.
class StashedActivation final : public Activation {
 public:
  StashedActivation(Tensor t, std::unique_ptr<Charge> c, bool shares_memory)
      : tensor(std::move(t)),
        off_device(shares_memory ? std::make_shared<OffDevice>(tensor.nbytes()) : nullptr),
        charge_(std::move(c)) {}
  uint64_t bytes() const override { return tensor.nbytes(); }
  const Tensor tensor;
  const std::shared_ptr<OffDevice> off_device;  // null on a device that copies

 private:
  const std::unique_ptr<Charge> charge_;
};

const TorchWeights& WeightsOf(const StageWeights& weights) {
  return static_cast<const TorchWeights&>(weights);
}

Tensor TensorOf(const ActivationPtr& activation) {
  return activation == nullptr ? Tensor() : static_cast<const TorchActivation&>(*activation).tensor;
}

// A TorchStage behind the interface of the relay: handles in and out, exceptions caught.
class TorchProgram final : public StageProgram {
 public:
  TorchProgram(const StageSpec& spec, std::unique_ptr<TorchStage> stage)
      : spec_(spec), stage_(std::move(stage)) {}

  const StageSpec& spec() const override { return spec_; }

  absl::StatusOr<ActivationPtr> Forward(const StageWeights& weights, const MicroBatch& batch,
                                        const ActivationPtr& in) override {
    EPS_RETURN_IF_ERROR(WeightsOf(weights).status);
    ActivationPtr out;
    EPS_RETURN_IF_ERROR(CatchTorch(absl::StrCat("stage ", spec_.name, ", forward"), [&] {
      const at::NoGradGuard no_grad;
      out = std::make_shared<TorchActivation>(
          stage_->Forward(WeightsOf(weights).tensors, batch, TensorOf(in)));
    }));
    return out;
  }

  absl::StatusOr<BackwardResult> Backward(const StageWeights& weights, const MicroBatch& batch,
                                          const ActivationPtr& in, const ActivationPtr& grad_out,
                                          int loss_scale_log2) override {
    EPS_RETURN_IF_ERROR(WeightsOf(weights).status);
    BackwardResult result;
    EPS_RETURN_IF_ERROR(CatchTorch(absl::StrCat("stage ", spec_.name, ", backward"), [&] {
      const at::NoGradGuard no_grad;
      TorchBackward out = stage_->Backward(WeightsOf(weights).tensors, batch, TensorOf(in),
                                           TensorOf(grad_out), loss_scale_log2);
      if (out.grad_in.defined()) {
        result.grad_in = std::make_shared<TorchActivation>(std::move(out.grad_in));
      }
      auto gradient = std::make_unique<TorchGradient>();
      gradient->tensors = std::move(out.gradient);
      result.gradient = std::move(gradient);
      result.loss = out.loss;
    }));
    return result;
  }

  absl::StatusOr<LossSum> Loss(const StageWeights& weights, const MicroBatch& batch,
                               const ActivationPtr& in) override {
    EPS_RETURN_IF_ERROR(WeightsOf(weights).status);
    LossSum loss;
    EPS_RETURN_IF_ERROR(CatchTorch(absl::StrCat("stage ", spec_.name, ", loss"), [&] {
      const at::NoGradGuard no_grad;
      loss = stage_->Loss(WeightsOf(weights).tensors, batch, TensorOf(in));
    }));
    return loss;
  }

 private:
  const StageSpec& spec_;
  const std::unique_ptr<TorchStage> stage_;
};

// x with denormals replaced by zeros of their sign: what a CPU with FTZ and DAZ reads and writes.
Tensor Flushed(const Tensor& x) {
  constexpr float kSmallestNormal = 1.17549435e-38f;
  return x.mul(0.0f).where(x.abs().lt(kSmallestNormal), x);
}

class TorchRuntime final : public StageRuntime {
 public:
  TorchRuntime(const JobSpec& spec, c10::Device device, int threads, bool stash_on_host,
               MemoryAccount* account)
      : spec_(spec),
        device_(device),
        threads_(threads),
        stash_on_host_(stash_on_host),
        account_(account) {
    if (device_.is_cpu()) {
      TensorMemory::Get().ResetPeak();
    } else {
      guard_ = std::make_unique<c10::impl::VirtualGuardImpl>(device_.type());
      guard_->setDevice(device_);
      copy_stream_ = guard_->getStreamFromGlobalPool(device_, /*isHighPriority=*/false);
      at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
      at::globalContext().setDeterministicFillUninitializedMemory(false);
    }
  }

  absl::Status AddStages() {
    for (uint32_t i = 0; i < spec_.stages.size(); ++i) {
      EPS_ASSIGN_OR_RETURN(std::unique_ptr<TorchStage> stage, NewGpt2Stage(spec_, StageId(i)));
      programs_.push_back(std::make_unique<TorchProgram>(spec_.stages[i], std::move(stage)));
    }
    return absl::OkStatus();
  }

  StageProgram& program(StageId stage) override { return *programs_[stage.value()]; }

  std::unique_ptr<HostStage> NewHostStage(StageId stage) override {
    return std::make_unique<TorchHostStage>(spec_, stage, !device_.is_cpu(), account_);
  }

  std::shared_ptr<const StageWeights> Load(StageId stage,
                                           std::shared_ptr<HostStage> host) override {
    auto weights = std::make_shared<TorchWeights>();
    weights->status = CatchTorch(absl::StrCat("loading stage ", Name(stage)), [&] {
      const auto& memory = static_cast<const TorchHostStage&>(*host);
      for (size_t use = 0; use < UsesOf(stage).size(); ++use) {
        weights->tensors.push_back(memory.view(use, Shape(stage, use)));
      }
      if (device_.is_cpu()) {
        weights->counted = std::make_unique<DeviceCount>(static_cast<int64_t>(host->bytes()));
      } else {
        CopyToDevice(&weights->tensors);
      }
    });
    weights->host = std::move(host);
    return weights;
  }

  StageGradientPtr Add(StageGradientPtr left, StageGradientPtr right) override {
    auto& sum = static_cast<TorchGradient&>(*left);
    auto& addend = static_cast<TorchGradient&>(*right);
    if (sum.status.ok()) sum.status = addend.status;
    if (!sum.status.ok()) return left;
    sum.status = CatchTorch("adding gradients", [&] {
      const at::NoGradGuard no_grad;
      for (size_t i = 0; i < sum.tensors.size(); ++i) {
        AddTensor(addend.tensors[i], &sum.tensors[i]);
        addend.tensors[i] = Tensor();
      }
    });
    return left;
  }

  absl::Status ToHost(StageId stage, const StageGradient& gradient, HostStage* out) override {
    const auto& from = static_cast<const TorchGradient&>(gradient);
    EPS_RETURN_IF_ERROR(from.status);
    return CatchTorch(absl::StrCat("copying the gradient of stage ", Name(stage)), [&] {
      const auto& memory = static_cast<const TorchHostStage&>(*out);
      for (size_t use = 0; use < from.tensors.size(); ++use) {
        memory.view(use, Shape(stage, use)).copy_(from.tensors[use], /*non_blocking=*/true);
      }
      if (!device_.is_cpu()) guard_->synchronizeStream(guard_->getStream(device_));
    });
  }

  absl::StatusOr<ActivationPtr> Stash(ActivationPtr activation) override {
    if (!stash_on_host_) return activation;
    const auto& from = static_cast<const TorchActivation&>(*activation);
    const Tensor& tensor = from.tensor;
    if (account_ != nullptr) {
      const absl::Status room = account_->TryCharge(MemoryKind::kStash, tensor.nbytes());
      if (!room.ok()) {
        return absl::Status(room.code(),
                            absl::StrCat("stashing an activation: ", room.message(),
                                         "; lower training.micro_batches or micro_batch_size"));
      }
    }
    auto charge = std::make_unique<Charge>(account_, MemoryKind::kStash, tensor.nbytes());
    std::shared_ptr<StashedActivation> stashed;
    EPS_RETURN_IF_ERROR(CatchTorch("stashing an activation", [&] {
      Tensor host = tensor;  // a CPU keeps it where it is
      if (!device_.is_cpu()) {
        host = at::empty(tensor.sizes(), at::TensorOptions().dtype(at::kFloat).pinned_memory(true));
        host.copy_(tensor, /*non_blocking=*/true);
      }
      stashed =
          std::make_shared<StashedActivation>(std::move(host), std::move(charge), device_.is_cpu());
    }));
    from.ShareWith(stashed->off_device);
    return stashed;
  }

  absl::StatusOr<ActivationPtr> Unstash(ActivationPtr stashed) override {
    if (!stash_on_host_) return stashed;
    const auto& from = static_cast<const StashedActivation&>(*stashed);
    std::shared_ptr<TorchActivation> activation;
    EPS_RETURN_IF_ERROR(CatchTorch("fetching an activation from the stash", [&] {
      activation = std::make_shared<TorchActivation>(from.tensor.to(
          at::TensorOptions().device(device_), /*non_blocking=*/true, /*copy=*/false));
    }));
    activation->ShareWith(from.off_device);
    return activation;
  }

  DeviceMemory device_memory() const override {
    DeviceMemory memory;
    if (device_.is_cpu()) {
      memory.live_bytes = TensorMemory::Get().live_bytes();
      memory.peak_bytes = TensorMemory::Get().peak_bytes();
      return memory;
    }
    const auto stats = c10::getDeviceAllocator(device_.type())->getDeviceStats(device_.index());
    memory.live_bytes = static_cast<uint64_t>(stats.allocated_bytes[0].current);
    memory.peak_bytes = static_cast<uint64_t>(stats.allocated_bytes[0].peak);
    return memory;
  }

  std::string compute_profile() const override { return ComputeProfileOf(device_, threads_); }

 private:
  const std::vector<TensorUse>& UsesOf(StageId stage) const {
    return spec_.stages[stage.value()].uses;
  }
  const std::string& Name(StageId stage) const { return spec_.stages[stage.value()].name; }
  std::vector<int64_t> Shape(StageId stage, size_t use) const {
    return ShapeOf(spec_.tensors[UsesOf(stage)[use].tensor.value()]);
  }

  // Copies on a stream of its own, while the stage before still computes; what is enqueued for
  // computing from now on waits for the copies.
  void CopyToDevice(StageTensors* tensors) {
    const c10::Stream compute_stream = guard_->exchangeStream(*copy_stream_);
    for (Tensor& tensor : *tensors) {
      tensor = tensor.to(at::TensorOptions().device(device_), /*non_blocking=*/true);
    }
    c10::Event copied(device_.type());
    copied.record(*copy_stream_);
    guard_->exchangeStream(compute_stream);
    copied.block(compute_stream);
    for (const Tensor& tensor : *tensors) {
      guard_->recordDataPtrOnStream(tensor.storage().data_ptr(), compute_stream);
    }
  }

  // *left = *left + right, by TreeAdd or, on a device, with the same bits.
  void AddTensor(const Tensor& right, Tensor* left) {
    EPS_CHECK(left->is_contiguous() && right.is_contiguous() && left->sizes() == right.sizes());
    if (!device_.is_cpu()) {
      *left = Flushed(Flushed(*left).add_(Flushed(right)));
      return;
    }
    const ScopedFlushDenormals flush;
    float* sum = left->mutable_data_ptr<float>();
    TreeAdd(sum, right.const_data_ptr<float>(), static_cast<size_t>(left->numel()), sum);
  }

  const JobSpec& spec_;
  const c10::Device device_;
  const int threads_;
  const bool stash_on_host_;
  MemoryAccount* const account_;
  std::vector<std::unique_ptr<TorchProgram>> programs_;
  std::unique_ptr<c10::impl::VirtualGuardImpl> guard_;  // of a device other than the CPU
  std::optional<c10::Stream> copy_stream_;              // of a device other than the CPU
};

}  // namespace

absl::StatusOr<std::string> TorchComputeProfile(const RuntimeOptions& options) {
  EPS_ASSIGN_OR_RETURN(const c10::Device device, ChooseDevice(options.device, options.local_rank));
  return ComputeProfileOf(device, ResolveThreads(options.threads, options.local_count));
}

std::string TorchCuda() { return CudaFinding(); }

absl::StatusOr<std::unique_ptr<StageRuntime>> NewTorchRuntime(const JobSpec& spec,
                                                              const RuntimeOptions& options,
                                                              MemoryAccount* account) {
  if (spec.model.type != ModelType::kGpt2) {
    return absl::InvalidArgumentError(absl::StrCat("the LibTorch runtime computes gpt2 models; ",
                                                   "the job's model.type is ",
                                                   ModelTypeName(spec.model.type)));
  }
  if (options.stash != "host" && options.stash != "device") {
    return absl::InvalidArgumentError(
        absl::StrCat("worker.stash is \"", options.stash, "\"; expected host or device"));
  }
  EPS_ASSIGN_OR_RETURN(const c10::Device device, ChooseDevice(options.device, options.local_rank));
  const int threads = ResolveThreads(options.threads, options.local_count);
  TensorMemory::Get();
  EPS_RETURN_IF_ERROR(PrepareThreads(threads));
  std::unique_ptr<TorchRuntime> runtime;
  EPS_RETURN_IF_ERROR(CatchTorch("making the runtime", [&] {
    runtime =
        std::make_unique<TorchRuntime>(spec, device, threads, options.stash == "host", account);
  }));
  EPS_RETURN_IF_ERROR(runtime->AddStages());
  return std::unique_ptr<StageRuntime>(std::move(runtime));
}

}  // namespace eps
