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
#include "base/job/layout/step_memory.h"
#include "base/numerics/flush_denormals.h"
#include "base/numerics/tree_add.h"
#include "base/status_macros.h"
#include "c10/core/CachingDeviceAllocator.h"
#include "c10/core/impl/VirtualGuardImpl.h"
#include "worker/exec/cuda_library.h"
#include "worker/exec/queues/device_arrivals.h"
#include "worker/exec/queues/device_copies.h"
#include "worker/exec/queues/device_departures.h"
#include "worker/exec/queues/device_queues.h"
#include "worker/exec/queues/device_slots.h"
#include "worker/exec/queues/job_chunks.h"
#include "worker/exec/queues/torch_queues.h"
#include "worker/exec/tensor_memory.h"
#include "worker/exec/torch_device.h"
#include "worker/exec/torch_gradient.h"
#include "worker/exec/torch_guard.h"
#include "worker/exec/torch_host_stage.h"
#include "worker/exec/torch_program.h"
#include "worker/exec/torch_stage.h"
#include "worker/exec/torch_stash.h"

namespace eps {
namespace {

using at::Tensor;

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

// The runtime of one device.
class TorchRuntime final : public StageRuntime {
 public:
  // `profile` is the device's.
  TorchRuntime(const JobSpec& spec, c10::Device device, std::string profile,
               const StashCodec& stash, MemoryAccount* account)
      : spec_(spec),
        device_(device),
        profile_(std::move(profile)),
        stash_(stash),
        account_(account) {
    if (device_.is_cpu()) {
      TensorMemory::Get().ResetPeak();
    } else {
      at::globalContext().lazyInitDevice(device_.type());
      guard_ = std::make_unique<c10::impl::VirtualGuardImpl>(device_.type());
      guard_->setDevice(device_);
      const auto kernels = LoadCudaKernels(CudaKernelPaths());
      if (kernels.ok()) kernels_ = *kernels;
      chunks_ = JobChunks::Build(spec_);
      if (chunks_ != nullptr) arrivals_ = DeviceArrivals::New(*chunks_, kernels_.has_value());
      SlotSizes sizes;
      sizes.decoded = LargestStage(spec_);
      copies_ = std::make_unique<DeviceCopies>(NewTorchQueues(device_, kernels_),
                                               arrivals_ != nullptr ? arrivals_->sizes() : sizes,
                                               account_);
      if (chunks_ != nullptr) {
        departures_ = std::make_unique<DeviceDepartures>(chunks_.get(), copies_.get(), account_);
      }
    }
    // Else threads of a CPU add the gradient of aten::index in any order. With a mere warning, the
    // attention's backward pass on a device would do so.
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
    at::globalContext().setDeterministicFillUninitializedMemory(false);
  }

  absl::Status AddStages(TorchStageFactory new_stage, const RuntimeOptions& options) {
    for (uint32_t i = 0; i < spec_.stages.size(); ++i) {
      absl::StatusOr<std::unique_ptr<TorchStage>> made;
      EPS_RETURN_IF_ERROR(CatchTorch(absl::StrCat("making stage ", Name(StageId(i))),
                                     [&] { made = new_stage(spec_, StageId(i)); }));
      EPS_ASSIGN_OR_RETURN(std::unique_ptr<TorchStage> stage, std::move(made));
      programs_.push_back(std::make_unique<TorchProgram>(spec_, StageId(i), std::move(stage),
                                                         stash_, copies_.get()));
    }
    keeps_ = options.keep == "auto";
    activations_ = std::make_unique<TorchStash>(spec_, stash_, options, programs_[0]->type(),
                                                device_, copies_.get(), account_);
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

  absl::StatusOr<std::unique_ptr<ArrivingWeights>> NewArrival(StageId stage,
                                                              bool backward) override {
    std::unique_ptr<ArrivingWeights> arriving;
    if (arrivals_ == nullptr) return arriving;
    EPS_RETURN_IF_ERROR(CatchTorch(
        absl::StrCat("making room for stage ", Name(stage)),
        [&] {
          std::shared_ptr<DeviceSlots::Slot> slot = copies_->slots().Take(stage);
          auto sink = arrivals_->NewSink(stage, backward, slot.get());
          arriving =
              std::make_unique<Arrival>(this, stage, backward, std::move(slot), std::move(sink));
        },
        kPinnedMemoryKeys));
    return arriving;
  }

  std::shared_ptr<const StageWeights> Load(StageId stage,
                                           std::shared_ptr<HostStage> host) override {
    auto weights = std::make_shared<TorchWeights>();
    weights->status = CatchTorch(absl::StrCat("loading stage ", Name(stage)), [&] {
      const auto& memory = static_cast<const TorchHostStage&>(*host);
      if (arrivals_ != nullptr && arrivals_->sizes().type != at::kFloat) {
        // Slots have no room for FP32. Comparisons and measurements come here; the rest arrives.
        FillFrom(memory.all().to(device_), stage, memory.layout(), weights.get());
        return;
      }
      if (!device_.is_cpu()) {
        weights->lent = copies_->slots().Take(stage);
        weights->lent->CopyFrom(memory.all(), host);
        FillFromSlot(stage, memory.layout(), weights.get());
        return;
      }
      FillFrom(memory.all(), stage, memory.layout(), weights.get());
      if (programs_[stage.value()]->type() != at::kFloat) return;  // LibTorch counts the copies
      weights->counted = std::make_unique<DeviceCount>(static_cast<int64_t>(host->bytes()));
      weights->host = host;
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
        copied = copies_->CopyGradients(copies);
        return;
      }
      for (const auto& [tensor, host] : copies) host.copy_(tensor);
    }));
    if (copied == nullptr) return std::unique_ptr<PendingCopy>();
    return std::unique_ptr<PendingCopy>(
        std::make_unique<TorchPendingCopy>(std::move(what), std::move(copied)));
  }

  absl::StatusOr<std::unique_ptr<LeavingGradient>> StartEncoding(StageId stage, Step step,
                                                                 const StageGradient& gradient,
                                                                 GradientRooms* rooms) override {
    std::unique_ptr<LeavingGradient> leaving;
    if (departures_ == nullptr || !departures_->Encodes(stage, step)) return leaving;
    const auto& from = static_cast<const TorchGradient&>(gradient);
    EPS_RETURN_IF_ERROR(from.status);
    EPS_RETURN_IF_ERROR(CatchTorch(
        absl::StrCat("encoding the gradient of stage ", Name(stage)),
        [&] { leaving = departures_->Start(stage, step, from.tensors, rooms); },
        kPinnedMemoryKeys));
    return leaving;
  }

  absl::Status BeginStash(uint64_t inputs, uint64_t gradients) override {
    EPS_RETURN_IF_ERROR(activations_->Begin(inputs, gradients));
    const auto last = static_cast<uint32_t>(programs_.size() - 1);
    uint32_t first = last;  // that keeps its passes
    if (keeps_ && gradients > 0) {
      const auto room = static_cast<double>(activations_->device_room_left());
      first = FirstKeptStage(spec_, gradients, room).value();
    }
    for (uint32_t s = 0; s < last; ++s) {
      programs_[s]->BeginStep(/*keeps=*/s >= first && CanKeep(spec_, StageId(s)));
    }
    return absl::OkStatus();
  }
  absl::StatusOr<ActivationPtr> Stash(ActivationPtr activation) override {
    return activations_->Stash(std::move(activation));
  }
  absl::StatusOr<ActivationPtr> Unstash(ActivationPtr stashed) override {
    return activations_->Unstash(std::move(stashed));
  }
  void WillUnstash(const ActivationPtr& stashed) override { activations_->WillUnstash(stashed); }

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
  // Weights that arrive in a slot of the device.
  class Arrival final : public ArrivingWeights {
   public:
    Arrival(TorchRuntime* runtime, StageId stage, bool backward,
            std::shared_ptr<DeviceSlots::Slot> slot, std::shared_ptr<StageSink> sink)
        : runtime_(runtime),
          stage_(stage),
          backward_(backward),
          slot_(std::move(slot)),
          sink_(std::move(sink)) {}
    std::shared_ptr<StageSink> sink() override { return sink_; }
    std::shared_ptr<const StageWeights> Load() override {
      auto weights = std::make_shared<TorchWeights>();
      weights->status = CatchTorch(absl::StrCat("loading stage ", runtime_->Name(stage_)), [&] {
        weights->lent = std::move(slot_);
        const StageLayout layout(runtime_->spec_, runtime_->spec_.stages[stage_.value()], backward_,
                                 runtime_->arrivals_->sizes().type);
        runtime_->FillFromSlot(stage_, layout, weights.get());
      });
      return weights;
    }

   private:
    TorchRuntime* const runtime_;
    const StageId stage_;
    const bool backward_;
    std::shared_ptr<DeviceSlots::Slot> slot_;
    const std::shared_ptr<StageSink> sink_;
  };

  // Fills the tensors of `weights` from `bytes`, a stage in `layout`.
  void FillFrom(const Tensor& bytes, StageId stage, const StageLayout& layout,
                TorchWeights* weights) const {
    const at::ScalarType type = programs_[stage.value()]->type();
    for (size_t use = 0; use < layout.uses(); ++use) {
      weights->tensors.push_back(TensorIn(bytes, layout, use).to(type));
      weights->for_input_gradient.push_back(layout.has_second_copy(use)
                                                ? SecondCopyIn(bytes, layout, use).to(type)
                                                : weights->tensors.back());
    }
  }

  // Fills the tensors of `weights` from its slot, in which everything has arrived.
  void FillFromSlot(StageId stage, const StageLayout& layout, TorchWeights* weights) const {
    weights->lent->Ready();
    FillFrom(weights->lent->bytes(), stage, layout, weights);
    // Copies in another type are tensors of LibTorch, and the slot is free.
    if (programs_[stage.value()]->type() != layout.type()) weights->lent = nullptr;
  }

  const std::string& Name(StageId stage) const { return spec_.stages[stage.value()].name; }
  absl::StatusOr<std::unique_ptr<HostStage>> NewStage(StageId stage, bool backward) const {
    return TorchHostStage::New(Name(stage),
                               StageLayout(spec_, spec_.stages[stage.value()], backward),
                               /*pinned=*/!device_.is_cpu(), account_);
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
  MemoryAccount* const account_;
  // Set on a device other than the CPU.
  std::unique_ptr<c10::impl::VirtualGuardImpl> guard_;
  std::optional<CudaKernels> kernels_;
  std::unique_ptr<JobChunks> chunks_;
  std::unique_ptr<DeviceArrivals> arrivals_;  // null if weights are decoded on the host
  std::unique_ptr<DeviceCopies> copies_;
  std::unique_ptr<DeviceDepartures> departures_;
  std::unique_ptr<TorchStash> activations_;  // set by AddStages
  bool keeps_ = false;                       // worker.keep=auto

  std::vector<std::unique_ptr<TorchProgram>> programs_;
};

}  // namespace

absl::StatusOr<std::string> TorchComputeProfile(const RuntimeOptions& options) {
  EPS_ASSIGN_OR_RETURN(const c10::Device device, ChooseDevice(options.device, options.local_rank));
  return ComputeProfileOf(device, ResolveThreads(options.threads, options.local_count));
}

absl::StatusOr<uint64_t> TorchDeviceMemory(const RuntimeOptions& options) {
  EPS_ASSIGN_OR_RETURN(const c10::Device device, ChooseDevice(options.device, options.local_rank));
  uint64_t bytes = 0;
  if (device.is_cpu()) return bytes;
  EPS_RETURN_IF_ERROR(CatchTorch("asking the device for its memory", [&] {
    at::globalContext().lazyInitDevice(device.type());
    bytes = c10::getDeviceAllocator(device.type())->getMemoryInfo(device.index()).second;
  }));
  return bytes;
}

std::string TorchCuda() { return CudaFinding(); }

absl::StatusOr<std::unique_ptr<StageRuntime>> NewTorchRuntime(const JobSpec& spec,
                                                              TorchStageFactory new_stage,
                                                              const RuntimeOptions& options,
                                                              MemoryAccount* account) {
  if (options.stash != "auto" && options.stash != "host" && options.stash != "device") {
    return absl::InvalidArgumentError(
        absl::StrCat("worker.stash is \"", options.stash, "\"; expected auto, host or device"));
  }
  if (options.keep != "none" && options.keep != "auto") {
    return absl::InvalidArgumentError(
        absl::StrCat("worker.keep is \"", options.keep, "\"; expected none or auto"));
  }
  EPS_ASSIGN_OR_RETURN(const StashCodec* const stash, StashCodec::Find(spec.codecs.stash));
  EPS_ASSIGN_OR_RETURN(const c10::Device device, ChooseDevice(options.device, options.local_rank));
  const int threads = ResolveThreads(options.threads, options.local_count);
  TensorMemory::Get();
  EPS_RETURN_IF_ERROR(PrepareThreads(threads));
  EPS_ASSIGN_OR_RETURN(std::string profile, ComputeProfileOf(device, threads));
  std::unique_ptr<TorchRuntime> runtime;
  EPS_RETURN_IF_ERROR(CatchTorch("making the runtime", [&] {
    runtime = std::make_unique<TorchRuntime>(spec, device, std::move(profile), *stash, account);
  }));
  EPS_RETURN_IF_ERROR(runtime->AddStages(new_stage, options));
  return std::unique_ptr<StageRuntime>(std::move(runtime));
}

}  // namespace eps
