#include "eps_server/shell/timer_queue.h"

#include <algorithm>

namespace eps {
namespace {

constexpr std::chrono::seconds kIdle{10};  // bounds the cost of a lost wake-up

}  // namespace

TimerQueue::TimerQueue() : thread_([this] { Run(); }) {}

TimerQueue::~TimerQueue() { Stop(); }

TimerQueue::Handle TimerQueue::Schedule(std::chrono::milliseconds after, std::function<void()> fn) {
  const Clock::time_point when = Clock::now() + after;
  Handle handle = 0;
  {
    MutexLock lock(&mu_);
    handle = next_++;
    if (stopping_) return handle;
    queue_.emplace(Key{when, handle}, std::move(fn));
    times_.emplace(handle, when);
  }
  wake_.NotifyOne();
  return handle;
}

void TimerQueue::Cancel(Handle handle) {
  // Declared before the lock and so destroyed after it: destructors in the function may take locks.
  std::function<void()> dropped;
  MutexLock lock(&mu_);
  const auto it = times_.find(handle);
  if (it == times_.end()) return;
  const auto entry = queue_.find(Key{it->second, handle});
  dropped = std::move(entry->second);
  queue_.erase(entry);
  times_.erase(it);
}

void TimerQueue::Stop() {
  std::map<Key, std::function<void()>> dropped;
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    dropped.swap(queue_);
    times_.clear();
  }
  wake_.NotifyOne();
  if (thread_.joinable()) thread_.join();
}

void TimerQueue::Run() {
  for (;;) {
    std::function<void()> fn;
    {
      MutexLock lock(&mu_);
      for (;;) {
        if (stopping_) return;
        const Clock::time_point now = Clock::now();
        if (queue_.empty()) {
          wake_.WaitUntil(&mu_, now + kIdle);
          continue;
        }
        const Key key = queue_.begin()->first;
        if (key.first > now) {
          wake_.WaitUntil(&mu_, std::min<Clock::time_point>(key.first, now + kIdle));
          continue;
        }
        fn = std::move(queue_.begin()->second);
        queue_.erase(queue_.begin());
        times_.erase(key.second);
        break;
      }
    }
    fn();
  }
}

}  // namespace eps
