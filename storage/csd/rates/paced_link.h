#ifndef EPS_STORAGE_CSD_RATES_PACED_LINK_H_
#define EPS_STORAGE_CSD_RATES_PACED_LINK_H_

// Makes links as slow as those of other hardware. A transfer reserves each link that it crosses,
// slice by slice, and waits until the last of them is through.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

namespace eps {

using PaceClock = std::chrono::steady_clock;

// A link that carries one thing at a time. Thread-safe, lock-free.
class PacedLink {
 public:
  // Reserves the link for that long, from `earliest` on and after all that is reserved already.
  // Returns the end.
  PaceClock::time_point Reserve(PaceClock::time_point earliest, PaceClock::duration time);

 private:
  std::atomic<PaceClock::rep> free_at_{0};
};

// A link and the bytes per second with which a transfer crosses it; 0 takes no time.
struct Crossing {
  PacedLink* link = nullptr;
  double rate = 0;
};

// One transfer, from its construction on. Not thread-safe. The links must outlive it.
class PacedTransfer {
 public:
  explicit PacedTransfer(std::vector<Crossing> links);

  bool waits() const { return !links_.empty(); }
  // Blocks until the next `bytes` have crossed all links. They cross in slices of at most
  // kPacedSlice, so that transfers share a link in turns. A slice begins at the end of the slice
  // before it, even if this thread wakes up late, but no more than kPacedLateness ago: a link does
  // not catch up on time for which it was idle.
  void Await(uint64_t bytes);

 private:
  std::vector<Crossing> links_;  // those with a rate
  PaceClock::time_point at_;     // the end of what has crossed
};

inline constexpr uint64_t kPacedSlice = uint64_t{128} << 10;
inline constexpr std::chrono::milliseconds kPacedLateness{5};

}  // namespace eps

#endif  // EPS_STORAGE_CSD_RATES_PACED_LINK_H_
