#include "base/plugin/check/call_threads.h"

#include <chrono>

namespace eps {
namespace {

// Waits go on after it; it is no deadline.
constexpr std::chrono::milliseconds kTurn{1000};

}  // namespace

CallThreads::CallThreads(size_t count) {
  for (size_t i = 0; i < count; ++i) threads_.emplace_back([this, i] { Serve(i); });
}

CallThreads::~CallThreads() {
  {
    MutexLock lock(&mu_);
    stopped_ = true;
    changed_.NotifyAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

void CallThreads::Run(const std::function<void(size_t)>& work) {
  MutexLock lock(&mu_);
  work_ = &work;
  at_work_ = threads_.size();
  ++round_;
  changed_.NotifyAll();
  while (at_work_ > 0) changed_.WaitFor(&mu_, kTurn);
}

void CallThreads::Serve(size_t index) {
  for (uint64_t done = 0;; ++done) {
    const std::function<void(size_t)>* work = nullptr;
    {
      MutexLock lock(&mu_);
      while (!stopped_ && round_ == done) changed_.WaitFor(&mu_, kTurn);
      if (stopped_) return;
      work = work_;
    }
    (*work)(index);
    MutexLock lock(&mu_);
    if (--at_work_ == 0) changed_.NotifyAll();
  }
}

}  // namespace eps
