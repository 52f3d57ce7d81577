#ifndef EPS_WORKER_EXEC_CUDA_TESTING_GUARDED_BYTES_H_
#define EPS_WORKER_EXEC_CUDA_TESTING_GUARDED_BYTES_H_

// Memory that the calls of simulated_runner.h write to.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/check.h"

namespace eps {

// `bytes` bytes that begin `misalignment` bytes after a multiple of 16, all set to `garbage`.
class GuardedBytes {
 public:
  GuardedBytes(size_t bytes, size_t misalignment, uint8_t garbage)
      : bytes_(bytes),
        begin_(kGuard + misalignment),
        garbage_(garbage),
        memory_(begin_ + bytes + kGuard, garbage) {}
  uint8_t* data() { return memory_.data() + begin_; }
  std::string Read(size_t bytes) {
    EPS_CHECK(bytes <= bytes_);
    for (size_t i = 0; i < memory_.size(); ++i) {
      EPS_CHECK_MSG(
          (i >= begin_ && i < begin_ + bytes_) || memory_[i] == garbage_,
          "byte " << i << " was written, memory begins at " << begin_ << " and has " << bytes_);
    }
    return std::string(reinterpret_cast<const char*>(data()), bytes);
  }

 private:
  static constexpr size_t kGuard = 64;
  const size_t bytes_;
  const size_t begin_;
  const uint8_t garbage_;
  std::vector<uint8_t> memory_;
};

}  // namespace eps

#endif  // EPS_WORKER_EXEC_CUDA_TESTING_GUARDED_BYTES_H_
