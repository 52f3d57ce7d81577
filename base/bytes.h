#ifndef EPS_BASE_BYTES_H_
#define EPS_BASE_BYTES_H_

// Buffer: memory that one owner writes. Bytes: the same memory, frozen, shared and immutable.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/memory_account.h"

namespace eps {

class Buffer;
struct MemoryBlock;  // private to bytes.cc

// Reference-counted immutable bytes; copies share the memory. Thread-safe count. The memory stays
// charged to its account until the last reference drops.
class Bytes {
 public:
  Bytes() = default;
  // A private copy of `data`, charged to nobody: small things and tests.
  static Bytes CopyOf(absl::string_view data);

  const uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  absl::string_view view() const {
    return absl::string_view(reinterpret_cast<const char*>(data_), size_);
  }
  // A piece of these bytes that keeps the whole alive. REQUIRES offset + size <= size().
  Bytes Sub(size_t offset, size_t size) const;
  // Memory for what is made of these bytes, charged as they are.
  Buffer NewBeside(size_t size) const;

 private:
  friend class Buffer;
  std::shared_ptr<const MemoryBlock> owner_;
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

// Move-only, 64-byte aligned, uninitialised memory from a process-wide pool: memory that was once
// faulted in is used again (first touch costs more than the copy). Thread-compatible.
class Buffer {
 public:
  Buffer() = default;
  // Charges `size` bytes of `kind` to `account` (may be null) until freed. Never fails: admission
  // is the caller's; out of memory ends the process.
  explicit Buffer(size_t size, MemoryKind kind = MemoryKind::kScratch,
                  MemoryAccount* account = nullptr);
  Buffer(Buffer&&) noexcept = default;
  Buffer& operator=(Buffer&&) noexcept = default;

  uint8_t* data() { return data_; }
  const uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  float* floats() { return reinterpret_cast<float*>(data_); }
  const float* floats() const { return reinterpret_cast<const float*>(data_); }
  // Gives the memory up as immutable bytes; the first `size` bytes of it if given.
  Bytes Freeze() &&;
  Bytes Freeze(size_t size) &&;

 private:
  std::shared_ptr<MemoryBlock> block_;
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

// Frees the pool's idle memory. For tests and for the end of a phase.
void TrimBufferPool();

}  // namespace eps

#endif  // EPS_BASE_BYTES_H_
