#ifndef EPS_BASE_BYTES_H_
#define EPS_BASE_BYTES_H_

// Memory for payloads: a Buffer has one owner, who writes it; Bytes are the same memory after
// Freeze, shared and immutable.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/memory_account.h"

namespace eps {

class Buffer;
struct MemoryBlock;  // private to bytes.cc

// Reference-counted immutable bytes; copies share the memory and may be made on any thread. The
// memory stays charged to its account until the last reference drops.
class Bytes {
 public:
  Bytes() = default;
  // A private copy of `data`, charged to no account. For small data and tests.
  static Bytes CopyOf(absl::string_view data);
  // Memory of somebody else, charged to no account. Keep it, unchanged, as long as any copy lives.
  static Bytes Borrow(absl::Span<const uint8_t> memory);
  // The same, but the bytes keep `owner` alive, and with it the memory.
  static Bytes Borrow(absl::Span<const uint8_t> memory, std::shared_ptr<const void> owner);

  const uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  absl::string_view view() const {
    return absl::string_view(reinterpret_cast<const char*>(data_), size_);
  }
  // A part of these bytes, which keeps all of their memory alive. REQUIRES offset + size <= size().
  Bytes Sub(size_t offset, size_t size) const;
  // Allocates memory for data derived from these bytes, charged to the same account and kind.
  Buffer NewBeside(size_t size) const;

 private:
  friend class Buffer;
  std::shared_ptr<const MemoryBlock> owner_;
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

// Move-only, 64-byte aligned, uninitialised memory from a process-wide pool, which reuses memory
// that has been faulted in (the first touch costs more than a copy). Thread-compatible.
class Buffer {
 public:
  Buffer() = default;
  // Charges `size` bytes of `kind` to `account` (may be null) until freed, unless its MemorySource
  // gives them. Never fails: the caller decides on admission; running out of memory ends the
  // process.
  explicit Buffer(size_t size, MemoryKind kind = MemoryKind::kScratch,
                  MemoryAccount* account = nullptr);
  Buffer(Buffer&&) noexcept = default;
  Buffer& operator=(Buffer&&) noexcept = default;

  uint8_t* data() { return data_; }
  const uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  float* floats() { return reinterpret_cast<float*>(data_); }
  const float* floats() const { return reinterpret_cast<const float*>(data_); }
  // Turns the memory, or its first `size` bytes, into immutable bytes.
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
