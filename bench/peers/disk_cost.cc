#include "bench/peers/disk_cost.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>

#include "base/check.h"
#include "bench/peers/timing.h"

namespace eps {
namespace {

double CpuSeconds() {
  timespec t;
  EPS_CHECK(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t) == 0);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

}  // namespace

DiskCost CostOf(const std::function<void()>& run) {
  const auto start = std::chrono::steady_clock::now();
  const double cpu = CpuSeconds();
  run();
  return {std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(),
          CpuSeconds() - cpu};
}

void PrintSpeed(const char* name, uint64_t bytes, const std::vector<DiskCost>& costs) {
  std::vector<double> speeds, cpu;
  for (const DiskCost& cost : costs) {
    speeds.push_back(static_cast<double>(bytes) / cost.seconds / 1e6);
    cpu.push_back(cost.cpu_seconds / (static_cast<double>(bytes) / 1e9));
  }
  const Spread speed = SpreadOf(speeds);
  std::printf("%-22s %6.0f MB/s [%.0f..%.0f], %.2f processor s/GB\n", name, speed.median, speed.low,
              speed.high, SpreadOf(cpu).median);
}

std::vector<double> Ratios(const std::vector<DiskCost>& slow, const std::vector<DiskCost>& fast) {
  std::vector<double> ratios;
  for (size_t i = 0; i < std::min(slow.size(), fast.size()); ++i) {
    ratios.push_back(slow[i].seconds / fast[i].seconds);
  }
  return ratios;
}

}  // namespace eps
