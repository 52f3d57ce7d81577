#ifndef EPS_BASE_EXECUTOR_H_
#define EPS_BASE_EXECUTOR_H_

#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace eps {

// Runs tasks on other threads. Tasks never block on each other.
class Executor {
 public:
  virtual ~Executor() = default;
  // Thread-safe. Never blocks, and never runs `task` inside the call.
  virtual void Post(std::function<void()> task) = 0;
};

// A fixed number of threads over one queue, with denormals flushed. The destructor runs the tasks
// that are still queued.
class ThreadPool final : public Executor {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool() override;
  void Post(std::function<void()> task) override EPS_EXCLUDES(mu_);
  int threads() const { return static_cast<int>(threads_.size()); }

 private:
  void Run();

  Mutex mu_;
  CondVar wake_;
  std::deque<std::function<void()>> queue_ EPS_GUARDED_BY(mu_);
  bool stopping_ EPS_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

// Runs posted tasks one at a time, in order, on a borrowed executor, for example the tasks of one
// (shard, job). Tasks that were posted before destruction still run: keep the state that they share
// alive.
class Sequence final : public Executor {
 public:
  explicit Sequence(Executor* executor);
  void Post(std::function<void()> task) override;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace eps

#endif  // EPS_BASE_EXECUTOR_H_
