#include "base/bytes.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/mutex.h"

namespace eps {
namespace {

constexpr size_t kAlignment = 64;
// Blocks of at least this size begin with a page, so that a disk can write them where they are.
constexpr size_t kPage = 4096;
// Blocks of at least this size begin with huge pages, if the kernel gives them: codecs write past
// the caches, which takes up to a quarter longer where each 4 KiB need an address translation.
constexpr size_t kHugePage = size_t{2} << 20;

// Idle blocks by rounded size. Sizes of a run repeat (chunks, slices), so exact classes reuse well.
class BufferPool {
 public:
  static BufferPool& Get() {
    static BufferPool* pool = new BufferPool();  // never destroyed: Bytes may outlive main()
    return *pool;
  }

  static size_t RoundUp(size_t size) {
    // Multiples of 1/8 of the enclosing power of two: at most 12.5 % waste above 4 KiB.
    size_t unit = 512;
    while (unit * 16 < size) unit *= 2;
    return (size + unit - 1) / unit * unit;
  }

  uint8_t* Allocate(size_t rounded) EPS_EXCLUDES(mu_) {
    {
      MutexLock lock(&mu_);
      auto it = idle_.find(rounded);
      if (it != idle_.end() && !it->second.empty()) {
        uint8_t* p = it->second.back();
        it->second.pop_back();
        return p;
      }
    }
    const size_t huge = rounded / kHugePage * kHugePage;
    const size_t alignment = huge > 0 ? kHugePage : rounded < kPage ? kAlignment : kPage;
    void* p = nullptr;
    const int error = posix_memalign(&p, alignment, rounded);
    EPS_CHECK_MSG(error == 0, "out of memory: " << rounded << " bytes");
    if (huge > 0) madvise(p, huge, MADV_HUGEPAGE);  // a refusal costs only time
    return static_cast<uint8_t*>(p);
  }

  void Free(uint8_t* p, size_t rounded) EPS_EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    idle_[rounded].push_back(p);
  }

  void Trim() EPS_EXCLUDES(mu_) {
    std::unordered_map<size_t, std::vector<uint8_t*>> idle;
    {
      MutexLock lock(&mu_);
      idle.swap(idle_);
    }
    for (auto& [size, blocks] : idle) {
      for (uint8_t* p : blocks) std::free(p);
    }
  }

 private:
  Mutex mu_;
  std::unordered_map<size_t, std::vector<uint8_t*>> idle_ EPS_GUARDED_BY(mu_);
};

}  // namespace

struct MemoryBlock {
  MemoryBlock(size_t size, MemoryKind kind, MemoryAccount* account)
      : size(size), rounded(BufferPool::RoundUp(size)), kind(kind), account(account) {
    if (account != nullptr) {
      MemorySource* const source = account->source_or_null(kind);
      if (source != nullptr) given = source->Allocate(size);
    }
    data = given.get();
    if (data != nullptr) return;
    data = BufferPool::Get().Allocate(rounded);
    if (account != nullptr) account->Charge(kind, size);
  }
  ~MemoryBlock() {
    if (given != nullptr) return;
    BufferPool::Get().Free(data, rounded);
    if (account != nullptr) account->Release(kind, size);
  }
  MemoryBlock(const MemoryBlock&) = delete;
  MemoryBlock& operator=(const MemoryBlock&) = delete;

  const size_t size;
  const size_t rounded;
  const MemoryKind kind;
  MemoryAccount* const account;
  std::shared_ptr<uint8_t> given;  // by the account's source; null: the block is of the pool
  uint8_t* data;
};

Buffer::Buffer(size_t size, MemoryKind kind, MemoryAccount* account) : size_(size) {
  if (size == 0) return;
  block_ = std::make_shared<MemoryBlock>(size, kind, account);
  data_ = block_->data;
}

Bytes Buffer::Freeze() && { return std::move(*this).Freeze(size_); }

Bytes Buffer::Freeze(size_t size) && {
  EPS_CHECK(size <= size_);
  Bytes bytes;
  bytes.data_ = data_;
  bytes.size_ = size;
  bytes.owner_ = std::move(block_);
  data_ = nullptr;
  size_ = 0;
  return bytes;
}

Bytes Bytes::CopyOf(absl::string_view data) {
  Buffer buffer(data.size());
  if (!data.empty()) std::memcpy(buffer.data(), data.data(), data.size());
  return std::move(buffer).Freeze();
}

Bytes Bytes::Borrow(absl::Span<const uint8_t> memory) {
  Bytes bytes;
  bytes.data_ = memory.data();
  bytes.size_ = memory.size();
  return bytes;
}

Bytes Bytes::Borrow(absl::Span<const uint8_t> memory, std::shared_ptr<const void> owner) {
  Bytes bytes = Borrow(memory);
  bytes.owner_ = std::shared_ptr<const MemoryBlock>(std::move(owner), nullptr);
  return bytes;
}

Bytes Bytes::Sub(size_t offset, size_t size) const {
  EPS_CHECK(offset <= size_ && size <= size_ - offset);
  Bytes bytes = *this;
  bytes.data_ += offset;
  bytes.size_ = size;
  return bytes;
}

Buffer Bytes::NewBeside(size_t size) const {
  return owner_ == nullptr ? Buffer(size) : Buffer(size, owner_->kind, owner_->account);
}

void TrimBufferPool() { BufferPool::Get().Trim(); }

}  // namespace eps
