#include "base/executor.h"

#include <deque>
#include <utility>

#include "base/check.h"
#include "base/numerics/flush_denormals.h"

namespace eps {

class ThreadPool::LaneOfPool final : public Executor {
 public:
  LaneOfPool(ThreadPool* pool, Lane lane) : pool_(pool), lane_(lane) {}
  void Post(std::function<void()> task) override { pool_->PostTo(lane_, std::move(task)); }
  Executor* lane(Lane lane) override { return pool_->lane(lane); }

 private:
  ThreadPool* const pool_;
  const Lane lane_;
};

ThreadPool::ThreadPool(int threads) {
  EPS_CHECK(threads >= 1);
  for (size_t i = 0; i < kLanes; ++i) {
    lanes_.push_back(std::make_unique<LaneOfPool>(this, static_cast<Lane>(i)));
  }
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

void ThreadPool::Post(std::function<void()> task) { PostTo(Lane::kClient, std::move(task)); }

void ThreadPool::PostTo(Lane lane, std::function<void()> task) {
  {
    MutexLock lock(&mu_);
    queue_.Push(lane, std::move(task));
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
      task = queue_.Pop();
    }
    task();
  }
}

struct Sequence::State {
  struct Task {
    Executor* executor;
    std::function<void()> run;
  };

  Executor* executor;
  int burst;
  Mutex mu;
  std::deque<Task> queue EPS_GUARDED_BY(mu);
  bool running EPS_GUARDED_BY(mu) = false;

  // Runs a bounded burst of tasks of one executor, then goes to the back of the queue of the next
  // task's executor: sequences share threads.
  static void Run(const std::shared_ptr<State>& self, Executor* here) {
    for (int left = self->burst;; --left) {
      Task task;
      {
        MutexLock lock(&self->mu);
        if (self->queue.empty()) {
          self->running = false;
          return;
        }
        Executor* const next = self->queue.front().executor;
        if (left == 0 || next != here) {
          return next->Post([self, next] { Run(self, next); });
        }
        task = std::move(self->queue.front());
        self->queue.pop_front();
      }
      task.run();
    }
  }
};

Sequence::Sequence(Executor* executor, int burst) : state_(std::make_shared<State>()) {
  EPS_CHECK(burst >= 1);
  state_->executor = executor;
  state_->burst = burst;
}

void Sequence::Post(std::function<void()> task) { PostOn(state_->executor, std::move(task)); }

void Sequence::PostTo(Lane lane, std::function<void()> task) {
  PostOn(state_->executor->lane(lane), std::move(task));
}

void Sequence::PostOn(Executor* executor, std::function<void()> task) {
  {
    MutexLock lock(&state_->mu);
    state_->queue.push_back({executor, std::move(task)});
    if (state_->running) return;
    state_->running = true;
  }
  executor->Post([state = state_, executor] { State::Run(state, executor); });
}

}  // namespace eps
