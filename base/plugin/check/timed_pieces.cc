#include "base/plugin/check/timed_pieces.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>

namespace eps {

void* MapTimedMemory(size_t bytes) {
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

double TimePieces(size_t n, size_t piece, const std::function<void(size_t at, size_t n)>& each) {
  const auto begin = std::chrono::steady_clock::now();
  for (size_t at = 0; at < n; at += piece) each(at, std::min(piece, n - at));
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace eps
