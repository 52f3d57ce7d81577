#include "bench/peers/timing.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

namespace eps {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

Spread SpreadOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values[values.size() / 2], values.front(), values.back()};
}

bool ReportRatio(const std::string& name, const std::vector<double>& ratios, double goal) {
  const Spread spread = SpreadOf(ratios);
  const bool reached = spread.median >= goal;
  std::printf("%-44s %5.2f [%.2f..%.2f]", name.c_str(), spread.median, spread.low, spread.high);
  if (goal > 0) std::printf("  goal >= %.2f: %s", goal, reached ? "reached" : "MISSED");
  std::printf("\n");
  return reached;
}

std::string MachineName() {
  std::ifstream info("/proc/cpuinfo");
  std::string line;
  while (std::getline(info, line)) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

PageArray::PageArray(size_t bytes) : bytes_(bytes) {
  mapped_ =
      mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped_ == MAP_FAILED) {
    std::fprintf(stderr, "cannot allocate %zu bytes\n", bytes);
    std::exit(71);
  }
  const uintptr_t address = reinterpret_cast<uintptr_t>(mapped_);
  data_ = reinterpret_cast<void*>((address + kHugePage - 1) / kHugePage * kHugePage);
  madvise(data_, bytes, MADV_HUGEPAGE);
  std::memset(data_, 0, bytes);
}

PageArray::~PageArray() { munmap(mapped_, bytes_ + kHugePage); }

}  // namespace eps
