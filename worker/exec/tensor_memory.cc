#include "worker/exec/tensor_memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "c10/core/Allocator.h"
#include "c10/core/CPUAllocator.h"

namespace eps {
namespace {

// Precedes every block, so that freeing needs no table. As long as the data's alignment.
struct alignas(64) BlockHeader {
  size_t bytes;       // as requested; 0 if they do not count
  size_t size_class;  // bytes allocated, header included
};

constexpr size_t kLargeBytes = 64 << 10;  // malloc serves smaller blocks
constexpr size_t kHugePage = size_t{2} << 20;

// Rounds up to a multiple of an eighth of the largest power of two that is contained, so that few
// classes serve all shapes and less than an eighth is wasted.
size_t SizeClass(size_t bytes) {
  if (bytes < kLargeBytes) return bytes;
  const size_t step = (size_t{1} << (63 - __builtin_clzll(bytes))) / 8;
  return (bytes + step - 1) / step * step;
}

// LibTorch's CPU allocator on top of TensorMemory.
class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* data = TensorMemory::Get().Allocate(bytes);
    return {data, data, &Delete, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Delete; }
  void copy_data(void* dest, const void* src, std::size_t count) const override {
    std::memcpy(dest, src, count);
  }

 private:
  static void Delete(void* data) { TensorMemory::Get().Free(data); }
};

}  // namespace

TensorMemory& TensorMemory::Get() {
  // Never destroyed: tensors with static lifetime are freed after main.
  static TensorMemory* const memory = new TensorMemory;
  static const bool installed = [] {
    c10::SetCPUAllocator(new CountingAllocator);
    return true;
  }();
  static_cast<void>(installed);
  return *memory;
}

void TensorMemory::Adjust(int64_t bytes) {
  const uint64_t live =
      live_.fetch_add(static_cast<uint64_t>(bytes), std::memory_order_relaxed) + bytes;
  if (bytes <= 0) return;
  uint64_t peak = peak_.load(std::memory_order_relaxed);
  while (live > peak && !peak_.compare_exchange_weak(peak, live, std::memory_order_relaxed)) {
  }
}

void* TensorMemory::Allocate(size_t bytes) {
  if (bytes == 0) return nullptr;
  const size_t size_class = SizeClass(bytes + sizeof(BlockHeader));
  void* block = nullptr;
  if (size_class >= kLargeBytes) {
    const MutexLock lock(&mu_);
    auto it = idle_.find(size_class);
    if (it != idle_.end() && !it->second.empty()) {
      block = it->second.back();
      it->second.pop_back();
      idle_bytes_ -= size_class;
    }
  }
  if (block == nullptr) {
    const size_t alignment = size_class >= kHugePage ? kHugePage : alignof(BlockHeader);
    if (posix_memalign(&block, alignment, size_class) != 0) throw std::bad_alloc();
    if (size_class >= kHugePage) madvise(block, size_class, MADV_HUGEPAGE);
  }
  auto* header = static_cast<BlockHeader*>(block);
  header->bytes = bytes;
  header->size_class = size_class;
  Adjust(static_cast<int64_t>(bytes));
  return header + 1;
}

uint64_t TensorMemory::Exclude(void* data) {
  BlockHeader* header = static_cast<BlockHeader*>(data) - 1;
  const size_t bytes = std::exchange(header->bytes, 0);
  Adjust(-static_cast<int64_t>(bytes));
  return bytes;
}

void TensorMemory::Free(void* data) {
  if (data == nullptr) return;
  BlockHeader* header = static_cast<BlockHeader*>(data) - 1;
  const size_t size_class = header->size_class;
  Adjust(-static_cast<int64_t>(header->bytes));
  if (size_class >= kLargeBytes) {
    const MutexLock lock(&mu_);
    if (idle_bytes_ + size_class <= peak_bytes()) {
      idle_[size_class].push_back(header);
      idle_bytes_ += size_class;
      return;
    }
  }
  std::free(header);
}

}  // namespace eps
