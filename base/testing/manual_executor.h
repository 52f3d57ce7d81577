#ifndef EPS_BASE_TESTING_MANUAL_EXECUTOR_H_
#define EPS_BASE_TESTING_MANUAL_EXECUTOR_H_

// For reproducible tests: the test decides when, and in which order, tasks run.

#include <cstddef>
#include <deque>
#include <functional>
#include <utility>

#include "base/executor.h"
#include "base/numerics/flush_denormals.h"

namespace eps {

// Holds posted tasks until the test runs them. For one thread.
class ManualExecutor final : public Executor {
 public:
  void Post(std::function<void()> task) override { tasks_.push_back(std::move(task)); }
  bool empty() const { return tasks_.empty(); }
  size_t size() const { return tasks_.size(); }

  // Runs the task at `index`, in the order in which they were posted.
  void Run(size_t index) {
    std::function<void()> task = std::move(tasks_[index]);
    tasks_.erase(tasks_.begin() + static_cast<std::ptrdiff_t>(index));
    ScopedFlushDenormals flush;
    task();
  }
  // Runs all tasks, and those that they post, first in, first out.
  void RunAll() {
    while (!tasks_.empty()) Run(0);
  }

 private:
  std::deque<std::function<void()>> tasks_;
};

}  // namespace eps

#endif  // EPS_BASE_TESTING_MANUAL_EXECUTOR_H_
