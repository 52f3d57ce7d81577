#ifndef EPS_SERVER_RPC_CALL_RATE_H_
#define EPS_SERVER_RPC_CALL_RATE_H_

#include <chrono>
#include <map>

#include "base/mutex.h"

namespace eps {

// Limits the calls per second of each connection, with a token bucket (RFC 2697 calls its size the
// burst). A worker, a driver or a person makes a few calls a second. Thread-safe.
class CallRate {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr double kPerSecond = 1000;
  static constexpr double kBurst = 2000;

  // Counts a call of a connection, and returns whether it may begin. `connection` is any address
  // that open connections do not share; a later connection with the same one continues its bucket.
  bool Admit(const void* connection, Clock::time_point now) EPS_EXCLUDES(mu_);

 private:
  // A full bucket is that of a new connection, so it need not be kept.
  struct Bucket {
    double calls = kBurst;
    Clock::time_point filled;
  };
  // The buckets that trigger a search for full ones.
  static constexpr size_t kSweepAt = 8192;

  static void Fill(Clock::time_point now, Bucket* bucket);
  void DropFull(Clock::time_point now) EPS_REQUIRES(mu_);

  Mutex mu_;
  std::map<const void*, Bucket> buckets_ EPS_GUARDED_BY(mu_);
  size_t sweep_at_ EPS_GUARDED_BY(mu_) = kSweepAt;
};

}  // namespace eps

#endif  // EPS_SERVER_RPC_CALL_RATE_H_
