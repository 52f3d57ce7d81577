#include "planner/papers/flow_network.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <utility>

namespace eps::planner {
namespace {

// Relative: times and rates that differ by less count as equal, so that simultaneous ends share one
// event.
constexpr double kRounding = 1e-12;
constexpr Seconds kNever(std::numeric_limits<double>::infinity());

}  // namespace

// One run: the active flows, the running work and the current time.
class FlowNetwork::Simulation {
 public:
  explicit Simulation(const FlowNetwork& network)
      : network_(network),
        missing_(network.tasks_.size()),
        followers_(network.tasks_.size()),
        waiting_(network.resources_),
        running_(network.resources_) {
    schedule_.finish.resize(network.tasks_.size());
    for (uint32_t i = 0; i < network.tasks_.size(); ++i) {
      const Task& task = network.tasks_[i];
      missing_[i] = task.after.size();
      for (TaskId before : task.after) followers_[before.value()].push_back(i);
      if (missing_[i] == 0) Start(i);
    }
  }

  Schedule Run() {
    while (true) {
      FillResources();
      ShareLinks();
      const Seconds step = UntilNextEvent();
      if (step == kNever) return schedule_;
      Advance(step);
    }
  }

 private:
  struct ActiveFlow {
    uint32_t task = 0;
    Bytes left;
    BytesPerSecond rate;
  };
  struct ActiveWork {
    uint32_t task = 0;
    Seconds finish;
  };

  void Start(uint32_t id) {
    const Task& task = network_.tasks_[id];
    if (task.on.has_value()) {
      waiting_[task.on->value()].insert(id);
    } else {
      flows_.push_back({id, task.bytes, BytesPerSecond()});
    }
  }

  void Finish(uint32_t id) {
    schedule_.finish[id] = now_;
    for (uint32_t follower : followers_[id]) {
      if (--missing_[follower] == 0) Start(follower);
    }
  }

  void FillResources() {
    for (uint32_t r = 0; r < running_.size(); ++r) {
      if (running_[r].has_value() || waiting_[r].empty()) continue;
      const uint32_t id = *waiting_[r].begin();
      waiting_[r].erase(waiting_[r].begin());
      running_[r] = ActiveWork{id, now_ + network_.tasks_[id].duration};
    }
  }

  // Progressive filling: the rates of all flows rise together until a link is full; the flows on
  // that link keep their rate, and the others continue to rise.
  void ShareLinks() {
    std::vector<BytesPerSecond> left = network_.links_;
    std::vector<ActiveFlow*> rising;
    for (ActiveFlow& flow : flows_) rising.push_back(&flow);
    while (!rising.empty()) {
      std::vector<double> cost(left.size());
      for (const ActiveFlow* flow : rising) {
        for (const Crossing& c : PathOf(*flow)) cost[c.link.value()] += c.cost;
      }
      BytesPerSecond level = kNoLimit;
      for (size_t l = 0; l < left.size(); ++l) {
        if (cost[l] > 0) level = Min(level, left[l] / cost[l]);
      }
      std::vector<bool> full(left.size());
      for (size_t l = 0; l < left.size(); ++l) {
        full[l] = cost[l] > 0 && left[l] / cost[l] <= (1 + kRounding) * level;
      }
      const auto stays = std::stable_partition(rising.begin(), rising.end(), [&](ActiveFlow* flow) {
        return level != kNoLimit && !CrossesAny(*flow, full);
      });
      for (auto it = stays; it != rising.end(); ++it) {
        (*it)->rate = level;
        for (const Crossing& c : PathOf(**it)) {
          if (left[c.link.value()] != kNoLimit) {
            left[c.link.value()] = left[c.link.value()] - c.cost * level;
          }
        }
      }
      rising.erase(stays, rising.end());
    }
  }

  const std::vector<Crossing>& PathOf(const ActiveFlow& flow) const {
    return network_.tasks_[flow.task].path;
  }

  bool CrossesAny(const ActiveFlow& flow, const std::vector<bool>& full) const {
    const std::vector<Crossing>& path = PathOf(flow);
    return std::any_of(path.begin(), path.end(),
                       [&](const Crossing& c) { return full[c.link.value()]; });
  }

  Seconds UntilNextEvent() const {
    Seconds step = kNever;
    for (const ActiveFlow& flow : flows_) step = Min(step, flow.left / flow.rate);
    for (const std::optional<ActiveWork>& work : running_) {
      if (work.has_value()) step = Min(step, work->finish - now_);
    }
    return step;
  }

  void Advance(Seconds step) {
    const Seconds last = (1 + kRounding) * step;  // latest end that belongs to this event
    std::vector<uint32_t> finished;
    std::vector<ActiveFlow> going;
    for (ActiveFlow& flow : flows_) {
      if (flow.left / flow.rate <= last) {
        finished.push_back(flow.task);
      } else {
        flow.left = flow.left - flow.rate * step;
        going.push_back(flow);
      }
    }
    flows_ = std::move(going);
    for (std::optional<ActiveWork>& work : running_) {
      if (work.has_value() && work->finish - now_ <= last) {
        finished.push_back(work->task);
        work.reset();
      }
    }
    now_ += step;
    std::sort(finished.begin(), finished.end());
    for (uint32_t id : finished) Finish(id);
  }

  const FlowNetwork& network_;
  Schedule schedule_;
  Seconds now_;
  std::vector<size_t> missing_;  // by task: predecessors that have not finished
  std::vector<std::vector<uint32_t>> followers_;
  std::vector<ActiveFlow> flows_;
  std::vector<std::set<uint32_t>> waiting_;  // by resource: ready tasks
  std::vector<std::optional<ActiveWork>> running_;
};

Seconds FlowNetwork::Schedule::end() const {
  Seconds end;
  for (Seconds time : finish) end = Max(end, time);
  return end;
}

LinkId FlowNetwork::AddLink(BytesPerSecond capacity) {
  links_.push_back(capacity);
  return LinkId(static_cast<uint32_t>(links_.size() - 1));
}

ResourceId FlowNetwork::AddResource() { return ResourceId(resources_++); }

TaskId FlowNetwork::AddFlow(Bytes bytes, std::vector<Crossing> path, std::vector<TaskId> after) {
  tasks_.push_back({bytes, std::move(path), Seconds(), std::nullopt, std::move(after)});
  return TaskId(static_cast<uint32_t>(tasks_.size() - 1));
}

TaskId FlowNetwork::AddWork(Seconds duration, ResourceId on, std::vector<TaskId> after) {
  tasks_.push_back({Bytes(), {}, duration, on, std::move(after)});
  return TaskId(static_cast<uint32_t>(tasks_.size() - 1));
}

FlowNetwork::Schedule FlowNetwork::Run() const { return Simulation(*this).Run(); }

}  // namespace eps::planner
