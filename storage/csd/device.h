#ifndef EPS_STORAGE_CSD_DEVICE_H_
#define EPS_STORAGE_CSD_DEVICE_H_

// A storage device with memory of its own, as its host sees it: bytes cross the host link only by
// HostRead and HostWrite, and the internal link only by Copy.

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "storage/csd/link_bytes.h"

namespace eps {

// Where bytes lie in a device.
struct Place {
  enum class Where : uint8_t {
    kMedia,  // durable after Sync
    kDram,   // gone with the device's process
  };
  Where where = Where::kMedia;
  uint64_t offset = 0;  // a multiple of kDiskBlock (storage/disk/disk.h)

  Place At(uint64_t bytes) const { return {where, offset + bytes}; }
};
// "8192 of the medium"
std::string Describe(const Place& place);

// The most bytes of an encoded kernel, and of its result.
inline constexpr uint64_t kMaxKernelBytes = 4096;

// The properties of a device. Plain value.
struct DeviceInfo {
  std::string name;  // for errors and metrics
  uint64_t media_bytes = 0;
  uint64_t dram_bytes = 0;
  // Whether kernels decode gradients and encode weights. Otherwise both cross the host link in
  // FP32.
  bool has_codecs = true;
};

// Returns the error that a Device gives for a transfer of `bytes` that begins at `place`, or OK.
// `operation` is for the error.
absl::Status CheckTransfer(const DeviceInfo& info, const char* operation, Place place,
                           uint64_t bytes);
// The same for a Copy.
absl::Status CheckCopy(const DeviceInfo& info, Place from, Place to, uint64_t bytes);

// One device, used by one process at a time. Thread-safe. Each transfer calls `done` once, on any
// thread and never on the caller's stack; keep the memory valid until then. Offsets and sizes are
// multiples of kDiskBlock, and so are addresses of host memory. Transfers that overlap in a place
// and are in flight together give any mixture: wait for the first. Errors name the device and the
// place: OutOfRange past the end of media or memory; InvalidArgument for no multiple of a block;
// Internal if the medium fails.
class Device {
 public:
  using Done = std::function<void(absl::Status)>;
  using KernelDone = std::function<void(absl::StatusOr<std::string>)>;

  virtual ~Device() = default;  // REQUIRES that all operations have completed
  virtual const DeviceInfo& info() const = 0;
  // Returns unused device memory of that size, which stays allocated as long as the device.
  // ResourceExhausted names the wanted and the free bytes.
  virtual absl::StatusOr<Place> Allocate(uint64_t bytes) = 0;
  virtual void HostWrite(absl::Span<const uint8_t> from, Place to, Purpose purpose, Done done) = 0;
  virtual void HostRead(Place from, absl::Span<uint8_t> into, Purpose purpose, Done done) = 0;
  // Between medium and device memory, in either direction. InvalidArgument within one of them.
  virtual void Copy(Place from, Place to, uint64_t bytes, Purpose purpose, Done done) = 0;
  // Runs an encoded kernel (storage/csd/kernels) over device memory, and passes its result on, at
  // most kMaxKernelBytes like the kernel. Neither counts as bytes of a link. FailedPrecondition if
  // the device has no kernels; other errors are those of KernelRunner.
  virtual void Run(std::string kernel, Place memory, uint64_t bytes, KernelDone done) = 0;
  // Once this completes, the writes to the medium that completed before the call survive a power
  // cut. The content of the medium is unknown after an error.
  virtual void Sync(Done done) = 0;
  virtual LinkBytes link_bytes() const = 0;
};

}  // namespace eps

#endif  // EPS_STORAGE_CSD_DEVICE_H_
