#ifndef EPS_BENCH_PEERS_DISK_COST_H_
#define EPS_BENCH_PEERS_DISK_COST_H_

#include <cstdint>
#include <functional>
#include <vector>

namespace eps {

// Time of one operation.
struct DiskCost {
  double seconds = 0;
  double cpu_seconds = 0;  // of all threads of this process, and of the kernel for them
};

DiskCost CostOf(const std::function<void()>& run);

// Prints "NAME MB/s [low..high], processor s/GB" for operations that moved `bytes` each.
void PrintSpeed(const char* name, uint64_t bytes, const std::vector<DiskCost>& costs);

// Returns the time of each slow operation / that of the fast one of the same round.
std::vector<double> Ratios(const std::vector<DiskCost>& slow, const std::vector<DiskCost>& fast);

}  // namespace eps

#endif  // EPS_BENCH_PEERS_DISK_COST_H_
