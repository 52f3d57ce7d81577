#include "storage/csd/rates/paced_link.h"

#include <algorithm>
#include <cerrno>
#include <ctime>

namespace eps {
namespace {

// Shorter waits are left to the next slice: the system wakes no thread more precisely.
constexpr std::chrono::microseconds kShortest{20};

void SleepUntil(PaceClock::time_point time) {
  if (time <= PaceClock::now() + kShortest) return;
  const auto since = time.time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since);
  const timespec until = {static_cast<std::time_t>(seconds.count()),
                          static_cast<long>(std::chrono::nanoseconds(since - seconds).count())};
  // A fenced process may not call anything else.
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
  }
}

}  // namespace

PaceClock::time_point PacedLink::Reserve(PaceClock::time_point earliest, PaceClock::duration time) {
  PaceClock::rep free_at = free_at_.load(std::memory_order_relaxed);
  PaceClock::rep end = 0;
  do {
    end = std::max(free_at, earliest.time_since_epoch().count()) + time.count();
  } while (!free_at_.compare_exchange_weak(free_at, end, std::memory_order_relaxed));
  return PaceClock::time_point(PaceClock::duration(end));
}

PacedTransfer::PacedTransfer(std::vector<Crossing> links) : links_(std::move(links)) {
  links_.erase(std::remove_if(links_.begin(), links_.end(),
                              [](const Crossing& crossing) { return crossing.rate <= 0; }),
               links_.end());
  if (!links_.empty()) at_ = PaceClock::now();
}

void PacedTransfer::Await(uint64_t bytes) {
  if (links_.empty()) return;
  while (bytes > 0) {
    const uint64_t slice = std::min(bytes, kPacedSlice);
    bytes -= slice;
    const PaceClock::time_point begin = std::max(at_, PaceClock::now() - kPacedLateness);
    for (const Crossing& crossing : links_) {
      const std::chrono::duration<double> time(static_cast<double>(slice) / crossing.rate);
      const auto through =
          crossing.link->Reserve(begin, std::chrono::duration_cast<PaceClock::duration>(time));
      at_ = std::max(at_, through);
    }
    SleepUntil(at_);
  }
}

}  // namespace eps
