#include "worker/exec/queues/torch_queues.h"

#include <array>
#include <chrono>
#include <thread>
#include <utility>

#include "ATen/ops/empty.h"
#include "ATen/ops/from_blob.h"
#include "base/bytes.h"
#include "base/log.h"
#include "base/machine/shared_regions.h"
#include "base/mutex.h"
#include "base/trace/trace_log.h"
#include "c10/core/Event.h"
#include "c10/core/StreamGuard.h"
#include "c10/core/impl/VirtualGuardImpl.h"
#include "c10/util/Exception.h"

namespace eps {
namespace {

// The pause between two polls of an event: short compared with any work that is waited for. Unlike
// LibTorch's own waiting, it leaves the core to the threads that decode and encode.
constexpr std::chrono::microseconds kPollInterval{20};

// An event of LibTorch's streams, waited for by polling.
class TorchEvent final : public DeviceEvent {
 public:
  explicit TorchEvent(const c10::Stream& stream) : event_(stream.device_type()) {
    event_.record(stream);
  }
  // With a time, counted from another event with a time, at the moment `base_ns`.
  TorchEvent(const c10::Stream& stream, std::shared_ptr<const TorchEvent> base, int64_t base_ns)
      : event_(stream.device_type(), c10::EventFlag::BACKEND_DEFAULT),
        base_(std::move(base)),
        base_ns_(base_ns) {
    event_.record(stream);
  }
  bool done() const override { return event_.query(); }
  bool WaitUntil(std::chrono::steady_clock::time_point deadline) const override {
    while (!event_.query()) {
      if (std::chrono::steady_clock::now() >= deadline) return false;
      std::this_thread::sleep_for(kPollInterval);
    }
    return true;
  }
  int64_t time_ns() const override {
    return base_ns_ + static_cast<int64_t>(base_->event_.elapsedTime(event_) * 1e6);
  }
  void BlockStream(const c10::Stream& stream) const { event_.block(stream); }

 private:
  c10::Event event_;
  const std::shared_ptr<const TorchEvent> base_;
  const int64_t base_ns_ = 0;
};

// Registers shared memory with the driver.
SharedRegions::User UserOf(const CudaKernels& kernels) {
  SharedRegions::User user;
  user.attach = [kernels](absl::Span<const uint8_t> region, SharedRegions::Access access) {
    const int writable = access == SharedRegions::Access::kWrite ? 1 : 0;
    const int error = kernels.register_host(region.data(), region.size(), writable);
    if (error == 0) return true;
    EPS_LOG_INFO("the device copies shared memory through a buffer: registering "
                 << region.size() << " bytes: " << kernels.error_text(error));
    return false;
  };
  user.detach = [kernels](absl::Span<const uint8_t> region) {
    kernels.unregister_host(region.data());
  };
  return user;
}

// LibTorch's streams as queues.
class TorchQueues final : public DeviceQueues {
 public:
  TorchQueues(c10::Device device, std::optional<CudaKernels> kernels)
      : device_(device),
        kernels_(std::move(kernels)),
        guard_(device.type()),
        streams_{guard_.getStream(device),
                 guard_.getStreamFromGlobalPool(device),
                 guard_.getStreamFromGlobalPool(device),
                 guard_.getStreamFromGlobalPool(device),
                 guard_.getStreamFromGlobalPool(device),
                 guard_.getStreamFromGlobalPool(device)} {}

  at::Tensor New(DeviceQueue queue, at::IntArrayRef shape, at::ScalarType type) override {
    const c10::StreamGuard on_stream(StreamOf(queue));
    return at::empty(shape, at::TensorOptions().device(device_).dtype(type));
  }

  void KeepFor(DeviceQueue user, const at::Tensor& tensor) override {
    guard_.recordDataPtrOnStream(tensor.storage().data_ptr(), StreamOf(user));
  }

  // LibTorch rounds pinned memory up to a power of two, so ours is registered.
  at::Tensor NewPinned(uint64_t bytes) override {
    const auto size = static_cast<int64_t>(bytes);
    const auto options = at::TensorOptions().dtype(at::kByte);
    if (kernels_.has_value()) {
      const auto memory = std::make_shared<Buffer>(bytes);
      uint8_t* const begin = memory->data();
      if (kernels_->register_host(begin, bytes, /*writable=*/1) == 0) {
        const auto unregister = [memory, kernels = *kernels_](void* registered) {
          kernels.unregister_host(registered);
        };
        return at::from_blob(begin, {size}, unregister, options);
      }
    }
    return at::empty({size}, options.pinned_memory(true));
  }

  void Copy(DeviceQueue queue, const at::Tensor& from, const at::Tensor& to) override {
    const c10::StreamGuard on_stream(StreamOf(queue));
    to.copy_(from, /*non_blocking=*/true);
  }

  bool Reaches(absl::Span<const uint8_t> memory) override {
    return kernels_.has_value() && SharedRegions::Get().Attached(memory, UserOf(*kernels_));
  }

  bool has_codecs() const override { return kernels_.has_value(); }

  void Decode(DeviceQueue queue, const SegmentCode& code, const at::Tensor& in,
              const at::Tensor& out) override {
    const Chunk chunk(code);
    const c10::StreamGuard on_stream(StreamOf(queue));
    void* const stream = StreamOf(queue).native_handle();
    const void* const from = in.const_data_ptr();
    const int error =
        out.scalar_type() == at::kFloat
            ? kernels_->decode_chunk(code.codec, &chunk.chunk, from, out.mutable_data_ptr<float>(),
                                     stream)
            : kernels_->decode_chunk_bf16(code.codec, &chunk.chunk, from,
                                          static_cast<uint16_t*>(out.mutable_data_ptr()), stream);
    CheckLaunch("decoding weights", code, error);
  }

  void Encode(DeviceQueue queue, const SegmentCode& code, const at::Tensor& in,
              const at::Tensor& out) override {
    const Chunk chunk(code);
    const c10::StreamGuard on_stream(StreamOf(queue));
    CheckLaunch("encoding a gradient", code,
                kernels_->encode_chunk(code.codec, code.truncate ? 1 : 0, &chunk.chunk,
                                       in.const_data_ptr<float>(), out.mutable_data_ptr(),
                                       StreamOf(queue).native_handle()));
  }

  void Checksum(DeviceQueue queue, const at::Tensor& in, const at::Tensor& out) override {
    const c10::StreamGuard on_stream(StreamOf(queue));
    auto* const crcs = reinterpret_cast<uint32_t*>(out.mutable_data_ptr<int32_t>());
    const int error =
        kernels_->crc32c(in.const_data_ptr(), in.nbytes(), crcs, StreamOf(queue).native_handle());
    TORCH_CHECK(error == 0, "checksum of ", in.nbytes(), " bytes on ", device_.str(), ": ",
                kernels_->error_text(error));
  }

  DeviceEventPtr Record(DeviceQueue queue) override {
    return std::make_shared<TorchEvent>(StreamOf(queue));
  }

  DeviceEventPtr RecordTime(DeviceQueue queue) override {
    {
      MutexLock lock(&mu_);
      if (base_ == nullptr) {
        auto base = std::make_shared<TorchEvent>(StreamOf(queue), nullptr, 0);
        WaitFor(*base);
        base_ns_ = TraceNowNs();
        base_ = std::move(base);
      }
    }
    return std::make_shared<TorchEvent>(StreamOf(queue), base_, base_ns_);
  }

  void Await(DeviceQueue queue, const DeviceEventPtr& event) override {
    static_cast<const TorchEvent&>(*event).BlockStream(StreamOf(queue));
  }

 private:
  // One segment, as the kernels take it.
  struct Chunk {
    explicit Chunk(const SegmentCode& code)
        : segment{code.rows, code.cols}, chunk{&segment, 1, code.column ? 1 : 0} {}
    Chunk(const Chunk&) = delete;
    Chunk& operator=(const Chunk&) = delete;
    const eps_cuda_segment segment;
    const eps_cuda_chunk chunk;
  };

  void CheckLaunch(const char* what, const SegmentCode& code, int error) const {
    TORCH_CHECK(error == 0, what, " in codec ", code.codec, " on ", device_.str(), ": ",
                kernels_->error_text(error));
  }

  const c10::Stream& StreamOf(DeviceQueue queue) const {
    return streams_[static_cast<size_t>(queue)];
  }

  const c10::Device device_;
  const std::optional<CudaKernels> kernels_;
  const c10::impl::VirtualGuardImpl guard_;
  const std::array<c10::Stream, kDeviceQueues> streams_;  // by DeviceQueue
  // A moment that the device's and the host's clock share; set by the first RecordTime.
  Mutex mu_;
  std::shared_ptr<const TorchEvent> base_;
  int64_t base_ns_ = 0;
};

}  // namespace

std::unique_ptr<DeviceQueues> NewTorchQueues(c10::Device device,
                                             std::optional<CudaKernels> kernels) {
  return std::make_unique<TorchQueues>(device, std::move(kernels));
}

}  // namespace eps
