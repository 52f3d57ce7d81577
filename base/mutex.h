#ifndef EPS_BASE_MUTEX_H_
#define EPS_BASE_MUTEX_H_

// std::mutex with clang's thread-safety annotations. It replaces absl::Mutex, whose packaged
// library is not instrumented, so that the thread sanitizer reports false races through it.

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define EPS_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define EPS_THREAD_ATTRIBUTE(x)
#endif
#define EPS_CAPABILITY(x) EPS_THREAD_ATTRIBUTE(capability(x))
#define EPS_SCOPED_CAPABILITY EPS_THREAD_ATTRIBUTE(scoped_lockable)
#define EPS_GUARDED_BY(x) EPS_THREAD_ATTRIBUTE(guarded_by(x))
#define EPS_REQUIRES(...) EPS_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define EPS_EXCLUDES(...) EPS_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#define EPS_ACQUIRE(...) EPS_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define EPS_RELEASE(...) EPS_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
#define EPS_NO_THREAD_SAFETY_ANALYSIS EPS_THREAD_ATTRIBUTE(no_thread_safety_analysis)

namespace eps {

// A mutex; prefer MutexLock to Lock and Unlock.
class EPS_CAPABILITY("mutex") Mutex {
 public:
  void Lock() EPS_ACQUIRE() { mu_.lock(); }
  void Unlock() EPS_RELEASE() { mu_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mu_;
};

// Holds a mutex while alive.
class EPS_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex* mu) EPS_ACQUIRE(mu) : mu_(mu) { mu_->Lock(); }
  ~MutexLock() EPS_RELEASE() { mu_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mu_;
};

// A condition variable without Wait(): every wait has a deadline.
class CondVar {
 public:
  // Waits for a signal, at most until `deadline`, and returns false if it timed out. Spurious
  // returns are possible.
  bool WaitUntil(Mutex* mu, std::chrono::steady_clock::time_point deadline)
      EPS_REQUIRES(mu) EPS_NO_THREAD_SAFETY_ANALYSIS {
    std::unique_lock<std::mutex> lock(mu->mu_, std::adopt_lock);
    const bool in_time = cv_.wait_until(lock, deadline) == std::cv_status::no_timeout;
    lock.release();
    return in_time;
  }
  bool WaitFor(Mutex* mu, std::chrono::milliseconds timeout) EPS_REQUIRES(mu) {
    return WaitUntil(mu, std::chrono::steady_clock::now() + timeout);
  }
  void NotifyOne() { cv_.notify_one(); }
  void NotifyAll() { cv_.notify_all(); }

 private:
  std::condition_variable cv_;
};

}  // namespace eps

#endif  // EPS_BASE_MUTEX_H_
