#ifndef EPS_SERVER_SHELL_TIMER_QUEUE_H_
#define EPS_SERVER_SHELL_TIMER_QUEUE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <thread>
#include <utility>

#include "base/mutex.h"

namespace eps {

// Runs functions after a delay, on one thread of its own. Functions must be short; one that blocks
// says why in a comment. Thread-safe.
class TimerQueue {
 public:
  using Clock = std::chrono::steady_clock;
  using Handle = uint64_t;

  TimerQueue();
  // Calls Stop().
  ~TimerQueue();

  // Runs `fn` once, `after` from now. Drops it if Stop() was called.
  Handle Schedule(std::chrono::milliseconds after, std::function<void()> fn);
  // Removes the function if it has not started. Does not wait for one that is running.
  void Cancel(Handle handle);
  // Drops pending functions and joins the thread; no function runs afterwards. May be called twice,
  // but not from a scheduled function.
  void Stop();

 private:
  using Key = std::pair<Clock::time_point, Handle>;  // handles grow, so ties run in Schedule order

  void Run();

  Mutex mu_;
  CondVar wake_;
  std::map<Key, std::function<void()>> queue_ EPS_GUARDED_BY(mu_);
  std::map<Handle, Clock::time_point> times_ EPS_GUARDED_BY(mu_);
  Handle next_ EPS_GUARDED_BY(mu_) = 1;
  bool stopping_ EPS_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace eps

#endif  // EPS_SERVER_SHELL_TIMER_QUEUE_H_
