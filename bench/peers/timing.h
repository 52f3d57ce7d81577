#ifndef EPS_BENCH_PEERS_TIMING_H_
#define EPS_BENCH_PEERS_TIMING_H_

#include <cstddef>
#include <string>
#include <vector>

namespace eps {

// Median and extremes of the figures of several rounds.
struct Spread {
  double median = 0;
  double low = 0;
  double high = 0;
};
// Returns the spread of `values`. REQUIRES at least one value.
Spread SpreadOf(std::vector<double> values);

// Prints "NAME: median [low..high], goal >= GOAL: reached" (or MISSED) for ratios of which larger
// is better. Returns whether the median reaches the goal.
bool ReportRatio(const std::string& name, const std::vector<double>& ratios, double goal);

// Returns the processor's name as the system reports it, else "unknown".
std::string MachineName();

// Memory on huge pages where available, with every page touched. Exits with 71 if memory is
// exhausted.
class PageArray {
 public:
  explicit PageArray(size_t bytes);
  ~PageArray();
  PageArray(const PageArray&) = delete;
  PageArray& operator=(const PageArray&) = delete;

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  const size_t bytes_;
  void* mapped_ = nullptr;
  void* data_ = nullptr;
};

}  // namespace eps

#endif  // EPS_BENCH_PEERS_TIMING_H_
