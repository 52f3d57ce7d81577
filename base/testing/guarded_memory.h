#ifndef EPS_BASE_TESTING_GUARDED_MEMORY_H_
#define EPS_BASE_TESTING_GUARDED_MEMORY_H_

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

#include "base/check.h"

namespace eps {

// Memory for tests that ends at an inaccessible page, so that a kernel that reads or writes one
// byte too far ends the test.
class GuardedMemory {
 public:
  explicit GuardedMemory(size_t size) : size_(size) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    mapped_ = (size + page - 1) / page * page + page;
    base_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EPS_CHECK(base_ != MAP_FAILED);
    uint8_t* guard = static_cast<uint8_t*>(base_) + mapped_ - page;
    EPS_CHECK(mprotect(guard, page, PROT_NONE) == 0);
    data_ = guard - size_;
  }
  ~GuardedMemory() { munmap(base_, mapped_); }
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;

  uint8_t* data() { return data_; }
  // REQUIRES a size that is a multiple of 4.
  float* floats() { return reinterpret_cast<float*>(data_); }
  size_t size() const { return size_; }

 private:
  const size_t size_;
  size_t mapped_ = 0;
  void* base_ = nullptr;
  uint8_t* data_ = nullptr;
};

}  // namespace eps

#endif  // EPS_BASE_TESTING_GUARDED_MEMORY_H_
