#ifndef EPS_STORAGE_CSD_KERNEL_RUNNER_H_
#define EPS_STORAGE_CSD_KERNEL_RUNNER_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace eps {

// The bytes that a kernel passes through a device's updater. Plain value.
struct UpdaterWork {
  uint64_t bytes = 0;         // of state and gradient, as they lie in the device's memory
  bool decompresses = false;  // the gradient, first
};

// The computations that a device can carry out in its own memory. Immutable, thread-safe; the
// caller excludes concurrent calls on the same memory.
class KernelRunner {
 public:
  virtual ~KernelRunner() = default;
  // Runs an encoded kernel (storage/csd/kernels) over `memory`. Returns its encoded result.
  // DataLoss if the kernel or the memory is damaged; then the memory is as it was.
  virtual absl::StatusOr<std::string> Run(absl::string_view kernel,
                                          absl::Span<uint8_t> memory) const = 0;
  // Returns nothing for a kernel that only streams bytes on their way, and for a damaged one.
  virtual UpdaterWork WorkOf(absl::string_view kernel) const = 0;
};

}  // namespace eps

#endif  // EPS_STORAGE_CSD_KERNEL_RUNNER_H_
