#ifndef EPS_WORKER_DATA_TOKEN_COUNTS_H_
#define EPS_WORKER_DATA_TOKEN_COUNTS_H_

#include <cmath>
#include <cstdint>
#include <vector>

namespace eps {

// Counts ids. Takes 8 bytes for each id up to the largest. Thread-compatible.
class TokenCounts {
 public:
  void Add(uint32_t id) {
    if (id >= counts_.size()) counts_.resize(uint64_t{id} + 1, 0);
    ++counts_[id];
    ++total_;
  }

  // Returns the entropy of the frequencies in nats; 0 without ids.
  double Entropy() const {
    double entropy = 0;
    for (const uint64_t count : counts_) {
      if (count == 0) continue;
      const double p = static_cast<double>(count) / static_cast<double>(total_);
      entropy -= p * std::log(p);
    }
    return entropy;
  }

 private:
  std::vector<uint64_t> counts_;
  uint64_t total_ = 0;
};

}  // namespace eps

#endif  // EPS_WORKER_DATA_TOKEN_COUNTS_H_
