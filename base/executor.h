#ifndef EPS_BASE_EXECUTOR_H_
#define EPS_BASE_EXECUTOR_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/mutex.h"

namespace eps {

// The kinds of work of a server. A lane goes before those after it.
enum class Lane : uint8_t {
  kCore,        // the protocol: short tasks that start and complete the work of all other lanes
  kClient,      // a client waits for it: checksums, opening a payload, encoding for a fetch
  kUpdate,      // reductions, updates, and the copies of cuts for which an update waits
  kBackground,  // nobody waits for it: scrubs and records of cuts
};
inline constexpr size_t kLanes = 4;

// A queue in lanes, first in, first out in each. Not synchronized.
//
// Credits, limits of calls and the steps of a job bound what clients can put into the first two
// lanes, but a server that many clients keep busy may never find them empty. So a lane that waits
// while kPatience items of lanes before it are taken gives the next item.
template <class T>
class LaneQueue {
 public:
  static constexpr int kPatience = 64;

  void Push(Lane lane, T item) {
    lines_[static_cast<size_t>(lane)].items.push_back(std::move(item));
    ++size_;
  }
  bool empty() const { return size_ == 0; }
  // Removes the next item and returns it. REQUIRES !empty().
  T Pop() {
    EPS_CHECK(!empty());
    const size_t next = Next();
    for (size_t later = next + 1; later < kLanes; ++later) {
      if (!lines_[later].items.empty()) ++lines_[later].passed_over;
    }
    Line& line = lines_[next];
    T item = std::move(line.items.front());
    line.items.pop_front();
    line.passed_over = 0;
    --size_;
    return item;
  }

 private:
  // The items of one lane.
  struct Line {
    std::deque<T> items;
    int passed_over = 0;  // how often a lane before this one was chosen since this one was
  };

  size_t Next() const {
    for (size_t i = kLanes; i-- > 0;) {
      if (lines_[i].passed_over >= kPatience) return i;
    }
    size_t first = 0;
    while (lines_[first].items.empty()) ++first;
    return first;
  }

  std::array<Line, kLanes> lines_;
  size_t size_ = 0;
};

// Runs tasks on other threads. Tasks never block on each other.
class Executor {
 public:
  virtual ~Executor() = default;
  // Thread-safe. Never blocks, and never runs `task` inside the call.
  virtual void Post(std::function<void()> task) = 0;
  // Returns the executor for tasks of that lane, which lives as long as this one. An executor
  // without lanes returns itself. Thread-safe.
  virtual Executor* lane(Lane) { return this; }
};

// A fixed number of threads over one queue in lanes, with denormals flushed. A thread that is free
// takes the first task of the first lane, so a task waits at most for one running task per thread
// and for the tasks of its own lane and those before it (but see LaneQueue). The destructor runs
// the tasks that are still queued.
class ThreadPool final : public Executor {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool() override;
  // Posts to Lane::kClient.
  void Post(std::function<void()> task) override;
  Executor* lane(Lane lane) override { return lanes_[static_cast<size_t>(lane)].get(); }
  int threads() const { return static_cast<int>(threads_.size()); }

 private:
  class LaneOfPool;

  void PostTo(Lane lane, std::function<void()> task) EPS_EXCLUDES(mu_);
  void Run();

  Mutex mu_;
  CondVar wake_;
  LaneQueue<std::function<void()>> queue_ EPS_GUARDED_BY(mu_);
  bool stopping_ EPS_GUARDED_BY(mu_) = false;
  std::vector<std::unique_ptr<Executor>> lanes_;  // by Lane
  std::vector<std::thread> threads_;
};

// Runs posted tasks one at a time, in order, on a borrowed executor, for example the tasks of one
// (shard, job). Tasks that were posted before destruction still run: keep the state that they share
// alive.
class Sequence final : public Executor {
 public:
  static constexpr int kShortTasks = 64;
  static constexpr int kLongTasks = 1;

  // `burst`: how many tasks run before other tasks of the executor get a turn.
  explicit Sequence(Executor* executor, int burst = kShortTasks);
  void Post(std::function<void()> task) override;
  // Runs `task` in that lane of the executor. It waits for the tasks before it in their lanes.
  void PostTo(Lane lane, std::function<void()> task);

 private:
  struct State;
  void PostOn(Executor* executor, std::function<void()> task);

  std::shared_ptr<State> state_;
};

}  // namespace eps

#endif  // EPS_BASE_EXECUTOR_H_
