#include "eps_server/rpc/call_rate.h"

#include <algorithm>
#include <iterator>

namespace eps {

bool CallRate::Admit(const void* connection, Clock::time_point now) {
  MutexLock lock(&mu_);
  if (buckets_.size() >= sweep_at_) DropFull(now);
  Bucket& bucket = buckets_[connection];
  Fill(now, &bucket);
  if (bucket.calls < 1) return false;
  bucket.calls -= 1;
  return true;
}

void CallRate::Fill(Clock::time_point now, Bucket* bucket) {
  const double seconds = std::chrono::duration<double>(now - bucket->filled).count();
  bucket->calls = std::min(kBurst, bucket->calls + kPerSecond * std::max(seconds, 0.0));
  bucket->filled = now;
}

void CallRate::DropFull(Clock::time_point now) {
  for (auto it = buckets_.begin(); it != buckets_.end();) {
    Fill(now, &it->second);
    it = it->second.calls >= kBurst ? buckets_.erase(it) : std::next(it);
  }
  sweep_at_ = std::max(kSweepAt, 2 * buckets_.size());
}

}  // namespace eps
