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
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/numerics/flush_denormals.h"
#include "base/numerics/tree_add.h"
#include "base/status_macros.h"
#include "c10/core/CachingDeviceAllocator.h"
#include "c10/core/impl/VirtualGuardImpl.h"
#include "worker/exec/cuda_library.h"
#include "worker/exec/device_copies.h"
#include "worker/exec/device_queues.h"
#include "worker/exec/stash_tensors.h"
#include "worker/exec/tensor_memory.h"
#include "worker/exec/torch_activations.h"
#include "worker/exec/torch_device.h"
#include "worker/exec/torch_gradient.h"
#include "worker/exec/torch_guard.h"
#include "worker/exec/torch_host_stage.h"
#include "worker/exec/torch_results.h"
#include "worker/exec/torch_stage.h"

namespace eps {
namespace {

using at::Tensor;

// `status` holds an error of the object's creation until a later call can return it.
class TorchWeights final : public StageWeights {
 public:
  StageTensors tensors;
  StageTensors for_input_gradient;                        // the second copy, or the tensor itself
  std::shared_ptr<HostStage> host;                        // set on a CPU
  std::unique_ptr<DeviceCount> counted;                   // set on a CPU
  std::shared_ptr<const DeviceCopies::LoadedStage> lent;  // set on a device
  absl::Status status;
};

const TorchWeights& WeightsOf(const StageWeights& weights) {
  return static_cast<const TorchWeights&>(weights);
}

Tensor TensorOf(const ActivationPtr& activation) {
  return activation == nullptr ? Tensor() : static_cast<const TorchActivation&>(*activation).tensor;
}

// A gradient that is being copied to the host.
class TorchPendingCopy final : public PendingCopy {
 public:
  TorchPendingCopy(std::string what, DeviceEventPtr copied)
      : what_(std::move(what)), copied_(std::move(copied)) {}
  absl::Status Wait() override {
    return CatchTorch(what_, [this] { WaitFor(*copied_); });
  }

 private:
  const std::string what_;
  const DeviceEventPtr copied_;
};

// A loss that is being copied from a device.
class TorchLateLoss final : public LateLoss {
 public:
  TorchLateLoss(std::string what, std::vector<int32_t> labels, DeviceCopies::Stashed label_log_p)
      : what_(std::move(what)), labels_(std::move(labels)), label_log_p_(std::move(label_log_p)) {}
  absl::StatusOr<LossSum> Wait() override {
    EPS_RETURN_IF_ERROR(CatchTorch(what_, [this] { WaitFor(*label_log_p_.copied); }));
    return LossOf(labels_, label_log_p_.host);
  }

 private:
  const std::string what_;
  const std::vector<int32_t> labels_;
  const DeviceCopies::Stashed label_log_p_;
};

// A TorchStage with the relay's interface: converts handles and catches exceptions.
class TorchProgram final : public StageProgram {
 public:
  // `copies` is null on a CPU and must outlive the program.
  TorchProgram(const StageSpec& spec, std::unique_ptr<TorchStage> stage, const StashCodec& stash,
               DeviceCopies* copies)
      : spec_(spec), stage_(std::move(stage)), stash_(stash), copies_(copies) {}

  const StageSpec& spec() const override { return spec_; }
  at::ScalarType type() const { return stage_->type(); }

  absl::StatusOr<ActivationPtr> Forward(const StageWeights& weights, const MicroBatch& batch,
                                        const ActivationPtr& in) override {
    EPS_RETURN_IF_ERROR(WeightsOf(weights).status);
    ActivationPtr out;
    EPS_RETURN_IF_ERROR(CatchTorch(absl::StrCat("stage ", spec_.name, ", forward"), [&] {
      const at::NoGradGuard no_grad;
      out = Stashable(stage_->Forward(WeightsOf(weights).tensors, batch, TensorOf(in)));
      if (copies_ != nullptr) copies_->EndOfMicroBatch();
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
      const TorchWeights& w = WeightsOf(weights);
      TorchBackward out = stage_->Backward(w.tensors, w.for_input_gradient, batch, TensorOf(in),
                                           TensorOf(grad_out), loss_scale_log2);
      if (out.grad_in.defined()) {
        result.grad_in = std::make_shared<TorchActivation>(std::move(out.grad_in));
      }
      auto gradient = std::make_unique<TorchGradient>();
      gradient->tensors = std::move(out.gradient);
      result.gradient = std::move(gradient);
      if (out.label_log_p.defined()) TakeLoss(batch, out.label_log_p, &result);
      if (copies_ != nullptr) copies_->EndOfMicroBatch();
    }));
    if (result.late_loss == nullptr || late_losses_) return result;
    EPS_ASSIGN_OR_RETURN(result.loss, result.late_loss->Wait());
    result.late_loss = nullptr;
    return result;
  }

  absl::StatusOr<LossSum> Loss(const StageWeights& weights, const MicroBatch& batch,
                               const ActivationPtr& in, Predictions* predictions_or_null) override {
    EPS_RETURN_IF_ERROR(WeightsOf(weights).status);
    BackwardResult result;
    EPS_RETURN_IF_ERROR(CatchTorch(absl::StrCat("stage ", spec_.name, ", loss"), [&] {
      const at::NoGradGuard no_grad;
      Tensor predicted;
      TakeLoss(batch,
               stage_->LabelLogP(WeightsOf(weights).tensors, batch, TensorOf(in),
                                 predictions_or_null != nullptr ? &predicted : nullptr),
               &result);
      if (predictions_or_null != nullptr) *predictions_or_null = PredictionsOf(predicted);
    }));
    return result.late_loss == nullptr ? result.loss : result.late_loss->Wait();
  }

  void AllowLateLosses() { late_losses_ = true; }

 private:
  // Wraps the activation that the stage passes on, with the values that the stash will return.
  ActivationPtr Stashable(Tensor y) const {
    if (stash_.exact()) return std::make_shared<TorchActivation>(std::move(y));
    const Tensor wide = y.to(at::kFloat);  // y itself if it is FP32
    Tensor encoded = EncodeForStash(stash_, wide);
    DecodeFromStash(stash_, encoded, wide);
    y = wide.to(type());
    return std::make_shared<TorchActivation>(std::move(y), std::move(encoded));
  }

  void TakeLoss(const MicroBatch& batch, const Tensor& label_log_p, BackwardResult* result) {
    if (copies_ == nullptr) {
      result->loss = LossOf(batch.labels, label_log_p);
      return;
    }
    result->loss.tokens = CountedTokens(batch);
    result->late_loss =
        std::make_unique<TorchLateLoss>(absl::StrCat("stage ", spec_.name, ", reading the loss"),
                                        batch.labels, copies_->CopyToStash(label_log_p));
  }

  const StageSpec& spec_;
  const std::unique_ptr<TorchStage> stage_;
  const StashCodec& stash_;
  DeviceCopies* const copies_;
  bool late_losses_ = false;
};

// The runtime of one device.
class TorchRuntime final : public StageRuntime {
 public:
  // `profile` is the device's.
  TorchRuntime(const JobSpec& spec, c10::Device device, std::string profile,
               const StashCodec& stash, const RuntimeOptions& options, MemoryAccount* account)
      : spec_(spec),
        device_(device),
        profile_(std::move(profile)),
        stash_(stash),
        stash_on_host_(options.stash == "host"),
        stash_room_(options.stash_host == 0 ? MemoryAccount::kNoLimit : options.stash_host),
        account_(account) {
    if (device_.is_cpu()) {
      TensorMemory::Get().ResetPeak();
    } else {
      at::globalContext().lazyInitDevice(device_.type());
      guard_ = std::make_unique<c10::impl::VirtualGuardImpl>(device_.type());
      guard_->setDevice(device_);
      copies_ = std::make_unique<DeviceCopies>(NewTorchQueues(device_), LargestStage(spec_));
      const auto kernels = LoadCudaKernels(CudaKernelPaths());
      if (kernels.ok()) kernels_ = *kernels;
    }
    // Else threads of a CPU add the gradient of aten::index in any order. With a mere warning, the
    // attention's backward pass on a device would do so.
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
    at::globalContext().setDeterministicFillUninitializedMemory(false);
  }

  absl::Status AddStages(TorchStageFactory new_stage) {
    for (uint32_t i = 0; i < spec_.stages.size(); ++i) {
      absl::StatusOr<std::unique_ptr<TorchStage>> made;
      EPS_RETURN_IF_ERROR(CatchTorch(absl::StrCat("making stage ", Name(StageId(i))),
                                     [&] { made = new_stage(spec_, StageId(i)); }));
      EPS_ASSIGN_OR_RETURN(std::unique_ptr<TorchStage> stage, std::move(made));
      programs_.push_back(
          std::make_unique<TorchProgram>(spec_.stages[i], std::move(stage), stash_, copies_.get()));
    }
    return absl::OkStatus();
  }

  StageProgram& program(StageId stage) override { return *programs_[stage.value()]; }

  void AllowLateLosses() override {
    for (const auto& program : programs_) program->AllowLateLosses();
  }

  absl::StatusOr<std::unique_ptr<HostStage>> NewHostStage(StageId stage) override {
    return NewStage(stage, /*backward=*/false);
  }
  absl::StatusOr<std::unique_ptr<HostStage>> NewBackwardStage(StageId stage) override {
    return NewStage(stage, /*backward=*/true);
  }

  std::shared_ptr<const StageWeights> Load(StageId stage,
                                           std::shared_ptr<HostStage> host) override {
    auto weights = std::make_shared<TorchWeights>();
    weights->status = CatchTorch(absl::StrCat("loading stage ", Name(stage)), [&] {
      const auto& memory = static_cast<const TorchHostStage&>(*host);
      const StageLayout& layout = memory.layout();
      if (!device_.is_cpu()) weights->lent = copies_->LoadStage(memory.all(), host);
      const Tensor& bytes = device_.is_cpu() ? memory.all() : weights->lent->bytes;
      const at::ScalarType type = programs_[stage.value()]->type();
      for (size_t use = 0; use < spec_.stages[stage.value()].uses.size(); ++use) {
        weights->tensors.push_back(TensorIn(bytes, layout, use).to(type));
        weights->for_input_gradient.push_back(layout.has_second_copy(use)
                                                  ? SecondCopyIn(bytes, layout, use).to(type)
                                                  : weights->tensors.back());
      }
      if (type != at::kFloat) {
        weights->lent = nullptr;  // the tensors are copies, which LibTorch counts
      } else if (device_.is_cpu()) {
        weights->counted = std::make_unique<DeviceCount>(static_cast<int64_t>(host->bytes()));
        weights->host = host;
      }
    });
    return weights;
  }

  std::shared_ptr<const StageWeights> WithoutValues(StageId stage) override {
    auto weights = std::make_shared<TorchWeights>();
    weights->status = CatchTorch(absl::StrCat("preparing stage ", Name(stage)), [&] {
      const StageLayout layout(spec_, spec_.stages[stage.value()], /*backward=*/false);
      weights->tensors = TensorsWithoutValues(layout);
      weights->for_input_gradient = weights->tensors;
    });
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
        if (!sum.tensors[i].defined()) continue;  // frozen
        AddTensor(addend.tensors[i], &sum.tensors[i]);
        addend.tensors[i] = Tensor();
      }
    });
    return left;
  }

  bool in_host_memory() const override { return device_.is_cpu(); }

  absl::StatusOr<std::unique_ptr<HostStage>> MoveToHost(StageId stage,
                                                        StageGradientPtr gradient) override {
    auto& from = static_cast<TorchGradient&>(*gradient);
    EPS_RETURN_IF_ERROR(from.status);
    std::unique_ptr<HostStage> host;
    EPS_RETURN_IF_ERROR(CatchTorch(absl::StrCat("moving the gradient of stage ", Name(stage)), [&] {
      host = MoveTensorsToHost(std::move(from.tensors), account_);
    }));
    return host;
  }

  absl::Status ToHost(StageId stage, const StageGradient& gradient, HostStage* out) override {
    EPS_ASSIGN_OR_RETURN(const auto pending, StartToHost(stage, gradient, out));
    return pending == nullptr ? absl::OkStatus() : pending->Wait();
  }

  absl::StatusOr<std::unique_ptr<PendingCopy>> StartToHost(StageId stage,
                                                           const StageGradient& gradient,
                                                           HostStage* out) override {
    const auto& from = static_cast<const TorchGradient&>(gradient);
    EPS_RETURN_IF_ERROR(from.status);
    std::string what = absl::StrCat("copying the gradient of stage ", Name(stage));
    DeviceEventPtr copied;
    EPS_RETURN_IF_ERROR(CatchTorch(what, [&] {
      const auto& memory = static_cast<const TorchHostStage&>(*out);
      std::vector<std::pair<Tensor, Tensor>> copies;
      for (size_t use = 0; use < from.tensors.size(); ++use) {
        if (!from.tensors[use].defined()) continue;  // frozen
        copies.emplace_back(from.tensors[use], TensorIn(memory.all(), memory.layout(), use));
      }
      if (!device_.is_cpu()) {
        copied = copies_->CopyToHost(copies);
        return;
      }
      for (const auto& [tensor, host] : copies) host.copy_(tensor);
    }));
    if (copied == nullptr) return std::unique_ptr<PendingCopy>();
    return std::unique_ptr<PendingCopy>(
        std::make_unique<TorchPendingCopy>(std::move(what), std::move(copied)));
  }

  absl::StatusOr<ActivationPtr> Stash(ActivationPtr activation) override {
    const auto& from = static_cast<const TorchActivation&>(*activation);
    if (!stash_on_host_) {
      if (!from.encoded().defined()) return activation;
      return ActivationPtr(std::make_shared<TorchActivation>(Tensor(), from.encoded()));
    }
    const bool encoded = from.encoded().defined();
    const Tensor tensor = encoded ? from.encoded() : from.tensor;
    EPS_ASSIGN_OR_RETURN(StashCharge charge, ChargeStash(tensor.nbytes()));
    if (encoded) from.DropEncoded();
    std::shared_ptr<StashedActivation> stashed;
    EPS_RETURN_IF_ERROR(CatchTorch(
        "stashing an activation",
        [&] {
          stashed = device_.is_cpu()  // a CPU keeps the tensor where it is
                        ? std::make_shared<StashedActivation>(tensor, encoded, std::move(charge))
                        : std::make_shared<StashedActivation>(copies_->CopyToStash(tensor), encoded,
                                                              std::move(charge));
        },
        kPinnedMemoryKeys));
    if (!encoded) from.ShareWith(stashed->off_device);
    return stashed;
  }

  absl::StatusOr<ActivationPtr> Unstash(ActivationPtr stashed) override {
    std::shared_ptr<TorchActivation> activation;
    if (!stash_on_host_) {
      const auto& from = static_cast<const TorchActivation&>(*stashed);
      if (from.tensor.defined()) return stashed;
      EPS_RETURN_IF_ERROR(CatchTorch("decoding an activation of the stash", [&] {
        activation = std::make_shared<TorchActivation>(Decoded(from.encoded()));
      }));
      return ActivationPtr(std::move(activation));
    }
    const auto& from = static_cast<const StashedActivation&>(*stashed);
    EPS_RETURN_IF_ERROR(CatchTorch("fetching an activation from the stash", [&] {
      const Tensor tensor =
          device_.is_cpu() ? from.tensor : copies_->CopyFromStash({from.tensor, from.copied});
      activation = std::make_shared<TorchActivation>(from.encoded ? Decoded(tensor) : tensor);
      if (!from.encoded) activation->ShareWith(from.off_device);
    }));
    return ActivationPtr(std::move(activation));
  }

  DeviceMemory device_memory() const override {
    DeviceMemory memory;
    if (device_.is_cpu()) {
      memory.live_bytes = TensorMemory::Get().live_bytes();
      memory.peak_bytes = TensorMemory::Get().peak_bytes();
      return memory;
    }
    // Figures of a failing device stay 0; the next call that computes reports the failure.
    static_cast<void>(CatchTorch("reading the device's memory", [&] {
      const auto stats = c10::getDeviceAllocator(device_.type())->getDeviceStats(device_.index());
      memory.live_bytes = static_cast<uint64_t>(stats.allocated_bytes[0].current);
      memory.peak_bytes = static_cast<uint64_t>(stats.allocated_bytes[0].peak);
    }));
    return memory;
  }

  std::string compute_profile() const override { return profile_; }

 private:
  const std::string& Name(StageId stage) const { return spec_.stages[stage.value()].name; }
  absl::StatusOr<std::unique_ptr<HostStage>> NewStage(StageId stage, bool backward) const {
    return TorchHostStage::New(Name(stage),
                               StageLayout(spec_, spec_.stages[stage.value()], backward),
                               /*pinned=*/!device_.is_cpu(), account_);
  }

  // Charges the stash in host memory, to its own limit and to the worker's account.
  absl::StatusOr<StashCharge> ChargeStash(uint64_t bytes) {
    for (MemoryAccount* const account : {&stash_room_, account_}) {
      if (account == nullptr) continue;
      const absl::Status room = account->TryCharge(MemoryKind::kStash, bytes);
      if (room.ok()) continue;
      if (account != &stash_room_) stash_room_.Release(MemoryKind::kStash, bytes);
      return absl::Status(
          room.code(),
          absl::StrCat("stashing an activation in host memory: ", room.message(),
                       "; raise worker.stash_host, choose a worker.stash_codec of fewer bytes, or "
                       "lower training.micro_batches or micro_batch_size"));
    }
    return StashCharge{std::make_unique<Charge>(&stash_room_, MemoryKind::kStash, bytes),
                       std::make_unique<Charge>(account_, MemoryKind::kStash, bytes)};
  }

  Tensor Decoded(const Tensor& encoded) const {
    Tensor out = at::empty(encoded.sizes(), encoded.options().dtype(at::kFloat));
    DecodeFromStash(stash_, encoded, out);
    return out.to(programs_[0]->type());  // all stages have one type
  }

  // *left = *left + right, by TreeAdd or, on a device, with the same bits.
  void AddTensor(const Tensor& right, Tensor* left) {
    EPS_CHECK(left->is_contiguous() && right.is_contiguous() && left->sizes() == right.sizes());
    if (!device_.is_cpu()) return AddOnDevice(right, left);
    const ScopedFlushDenormals flush;
    float* sum = left->mutable_data_ptr<float>();
    TreeAdd(sum, right.const_data_ptr<float>(), static_cast<size_t>(left->numel()), sum);
  }

  // Uses our kernel if its library exists, otherwise LibTorch's operators, which access the memory
  // several times.
  void AddOnDevice(const Tensor& right, Tensor* left) {
    if (!kernels_.has_value()) {
      *left = Flushed(Flushed(*left).add_(Flushed(right)));
      return;
    }
    float* const sum = left->mutable_data_ptr<float>();
    const int error =
        kernels_->tree_add(sum, right.const_data_ptr<float>(), static_cast<uint64_t>(left->numel()),
                           sum, guard_->getStream(device_).native_handle());
    TORCH_CHECK(error == 0, "adding gradients on ", device_.str(), ": ",
                kernels_->error_text(error));
  }

  const JobSpec& spec_;
  const c10::Device device_;
  const std::string profile_;
  const StashCodec& stash_;
  const bool stash_on_host_;
  MemoryAccount stash_room_;  // limited by worker.stash_host
  MemoryAccount* const account_;
  // Set on a device other than the CPU.
  std::unique_ptr<c10::impl::VirtualGuardImpl> guard_;
  std::optional<CudaKernels> kernels_;
  std::unique_ptr<DeviceCopies> copies_;

  std::vector<std::unique_ptr<TorchProgram>> programs_;
};

}  // namespace

absl::StatusOr<std::string> TorchComputeProfile(const RuntimeOptions& options) {
  EPS_ASSIGN_OR_RETURN(const c10::Device device, ChooseDevice(options.device, options.local_rank));
  return ComputeProfileOf(device, ResolveThreads(options.threads, options.local_count));
}

std::string TorchCuda() { return CudaFinding(); }

absl::StatusOr<std::unique_ptr<StageRuntime>> NewTorchRuntime(const JobSpec& spec,
                                                              TorchStageFactory new_stage,
                                                              const RuntimeOptions& options,
                                                              MemoryAccount* account) {
  if (options.stash != "host" && options.stash != "device") {
    return absl::InvalidArgumentError(
        absl::StrCat("worker.stash is \"", options.stash, "\"; expected host or device"));
  }
  EPS_ASSIGN_OR_RETURN(const StashCodec* const stash, StashCodec::Find(spec.codecs.stash));
  EPS_ASSIGN_OR_RETURN(const c10::Device device, ChooseDevice(options.device, options.local_rank));
  const int threads = ResolveThreads(options.threads, options.local_count);
  TensorMemory::Get();
  EPS_RETURN_IF_ERROR(PrepareThreads(threads));
  EPS_ASSIGN_OR_RETURN(std::string profile, ComputeProfileOf(device, threads));
  std::unique_ptr<TorchRuntime> runtime;
  EPS_RETURN_IF_ERROR(CatchTorch("making the runtime", [&] {
    runtime =
        std::make_unique<TorchRuntime>(spec, device, std::move(profile), *stash, options, account);
  }));
  EPS_RETURN_IF_ERROR(runtime->AddStages(new_stage));
  return std::unique_ptr<StageRuntime>(std::move(runtime));
}

}  // namespace eps
