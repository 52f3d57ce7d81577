#ifndef EPS_BASE_PLUGIN_CHECK_GUARDED_ARRAY_H_
#define EPS_BASE_PLUGIN_CHECK_GUARDED_ARRAY_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"

namespace eps {

// Bytes between two inaccessible pages. They are mapped twice: for the plug-in, maybe read-only,
// and for the checker. An access outside of the pages ends the process with SIGSEGV. Create it
// before the process is fenced; it stays mapped until the process ends. Thread-compatible.
class GuardedArray {
 public:
  enum class Access { kReadWrite, kReadOnly };

  // The array has room for at least `bytes`. Internal if the kernel refuses.
  static absl::StatusOr<GuardedArray> New(size_t bytes, Access access);

  // The bytes as the plug-in sees them. They begin right after an inaccessible page and end right
  // before one.
  uint8_t* shown() const { return shown_; }
  // The same bytes, always writable.
  uint8_t* own() const { return own_; }
  size_t size() const { return size_; }

 private:
  GuardedArray(uint8_t* shown, uint8_t* own, size_t size) : shown_(shown), own_(own), size_(size) {}

  uint8_t* shown_;
  uint8_t* own_;
  size_t size_;
};

}  // namespace eps

#endif  // EPS_BASE_PLUGIN_CHECK_GUARDED_ARRAY_H_
