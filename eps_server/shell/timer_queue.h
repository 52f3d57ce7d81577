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

// Runs functions later, on one thread of its own: they must be short and may block only where the
// comment of their owner says why. Thread-safe.
class TimerQueue {
 public:
  using Clock = std::chrono::steady_clock;
  using Handle = uint64_t;

  TimerQueue();
  // As Stop().
  ~TimerQueue();

  // Runs `fn` once, `after` from now. After Stop() the function is dropped.
  Handle Schedule(std::chrono::milliseconds after, std::function<void()> fn);
  // The function will not run, unless it is running or has run.
  void Cancel(Handle handle);
  // Drops what waits and joins the thread: no function runs afterwards. May be called twice, not
  // from a scheduled function.
  void Stop();

 private:
  using Key = std::pair<Clock::time_point, Handle>;  // ties run in the order of Schedule

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
