#ifndef EPS_BENCH_PEERS_TIMING_H_
#define EPS_BENCH_PEERS_TIMING_H_

#include <cstddef>
#include <string>
#include <vector>

namespace eps {

// Median and extremes of figures that came in rounds.
struct Spread {
  double median = 0;
  double low = 0;
  double high = 0;
};
// REQUIRES at least one value.
Spread SpreadOf(std::vector<double> values);

// Prints "NAME: median [low..high], goal >= GOAL: reached" (or MISSED) of ratios that are better
// the larger they are. Returns whether the median reaches the goal.
bool ReportRatio(const std::string& name, const std::vector<double>& ratios, double goal);

// The processor's name as the system tells it, "unknown" if it does not.
std::string MachineName();

// Memory on huge pages where there are any, every page touched. Process exits with
// 71 if there is none.
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
