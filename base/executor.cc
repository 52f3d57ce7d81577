#include "base/executor.h"

#include <utility>

#include "base/check.h"
#include "base/numerics/flush_denormals.h"

namespace eps {

ThreadPool::ThreadPool(int threads) {
  EPS_CHECK(threads >= 1);
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

ThreadPool::~ThreadPool() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  wake_.NotifyAll();
  for (std::thread& t : threads_) t.join();
}

void ThreadPool::Post(std::function<void()> task) {
  {
    MutexLock lock(&mu_);
    queue_.push_back(std::move(task));
  }
  wake_.NotifyOne();
}

void ThreadPool::Run() {
  ScopedFlushDenormals flush;
  for (;;) {
    std::function<void()> task;
    {
      MutexLock lock(&mu_);
      while (queue_.empty() && !stopping_) wake_.WaitFor(&mu_, std::chrono::seconds(10));
      if (queue_.empty()) return;
      task = std::move(queue_.front());
      queue_.pop_front();
    }
    task();
  }
}

struct Sequence::State {
  Executor* executor;
  Mutex mu;
  std::deque<std::function<void()>> queue EPS_GUARDED_BY(mu);
  bool running EPS_GUARDED_BY(mu) = false;

  // Runs a bounded burst, then goes to the back of the executor's queue: sequences share threads.
  static void Run(const std::shared_ptr<State>& self) {
    constexpr int kBurst = 64;
    for (int i = 0; i < kBurst; ++i) {
      std::function<void()> task;
      {
        MutexLock lock(&self->mu);
        if (self->queue.empty()) {
          self->running = false;
          return;
        }
        task = std::move(self->queue.front());
        self->queue.pop_front();
      }
      task();
    }
    self->executor->Post([self] { Run(self); });
  }
};

Sequence::Sequence(Executor* executor) : state_(std::make_shared<State>()) {
  state_->executor = executor;
}

void Sequence::Post(std::function<void()> task) {
  {
    MutexLock lock(&state_->mu);
    state_->queue.push_back(std::move(task));
    if (state_->running) return;
    state_->running = true;
  }
  state_->executor->Post([state = state_] { State::Run(state); });
}

}  // namespace eps
