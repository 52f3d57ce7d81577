#ifndef EPS_BASE_MEMORY_ACCOUNT_H_
#define EPS_BASE_MEMORY_ACCOUNT_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"

namespace eps {

// The purpose of a byte of memory. The planner and the status page use the same kinds.
enum class MemoryKind : int {
  kState = 0,     // master weights and optimizer state at rest
  kContribution,  // received gradients that wait for their update
  kFetch,         // encoded weights on their way to a worker
  kResidual,      // elements that sparse gradients left out (error feedback), at their home
  kImport,        // state on its way in or out (ImportState, ExportState, checkpoints)
  kStage,         // worker: weights and gradients of the stages in flight
  kStash,         // worker: stage inputs kept between forward and backward
  kScratch,       // bounded working memory of kernels and codecs
  kCount
};
const char* MemoryKindName(MemoryKind kind);

// Gives memory to Buffers in place of the process's pool. Thread-safe.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  // Returns at least `size` bytes that begin with a page, or null if there is no room. The source
  // has charged them itself. They return to it with the last copy of the pointer, which may outlive
  // the source.
  virtual std::shared_ptr<uint8_t> Allocate(size_t size) = 0;
};

// Live and peak bytes by kind, against one limit over all kinds. Thread-safe, lock-free.
// The account outlives every Buffer and Bytes that is charged to it.
class MemoryAccount {
 public:
  static constexpr int kKinds = static_cast<int>(MemoryKind::kCount);
  static constexpr uint64_t kNoLimit = UINT64_MAX;

  explicit MemoryAccount(uint64_t limit_bytes = kNoLimit) : limit_bytes_(limit_bytes) {}

  // Charges unconditionally. For memory that was admitted elsewhere.
  void Charge(MemoryKind kind, uint64_t bytes);
  // Charges if the total stays within the limit; else returns ResourceExhausted, which states the
  // wanted, live and limiting numbers of bytes.
  absl::Status TryCharge(MemoryKind kind, uint64_t bytes);
  void Release(MemoryKind kind, uint64_t bytes);

  // Makes Buffers of a kind ask `source` for their memory, and the pool if it has no room; null
  // ends that. The source is borrowed: end it only when nobody makes such Buffers.
  void SetSource(MemoryKind kind, MemorySource* source_or_null);
  MemorySource* source_or_null(MemoryKind kind) const;

  uint64_t limit_bytes() const { return limit_bytes_; }
  uint64_t live_bytes() const { return total_.load(std::memory_order_relaxed); }
  uint64_t peak_bytes() const { return total_peak_.load(std::memory_order_relaxed); }
  uint64_t live_bytes(MemoryKind kind) const;
  uint64_t peak_bytes(MemoryKind kind) const;

 private:
  void UpdatePeaks(MemoryKind kind, uint64_t kind_live, uint64_t total_live);

  const uint64_t limit_bytes_;
  std::atomic<uint64_t> total_{0};
  std::atomic<uint64_t> total_peak_{0};
  std::array<std::atomic<uint64_t>, kKinds> live_{};
  std::array<std::atomic<uint64_t>, kKinds> peak_{};
  std::array<std::atomic<MemorySource*>, kKinds> sources_{};
};

}  // namespace eps

#endif  // EPS_BASE_MEMORY_ACCOUNT_H_
