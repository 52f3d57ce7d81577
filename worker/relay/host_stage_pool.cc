#include "worker/relay/host_stage_pool.h"

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "worker/relay/weight_copies.h"

namespace eps {
namespace {

using Shape = std::vector<uint64_t>;  // elements of each array

Shape ShapeOf(const JobSpec& spec, StageId stage, bool backward) {
  Shape shape;
  for (const TensorUse& use : spec.stages[stage.value()].uses) {
    const uint64_t elements = spec.tensors[use.tensor.value()].elements();
    shape.push_back(elements);
    if (backward) shape.push_back(HasSecondCopy(spec, use) ? elements : 0);
  }
  return shape;
}

}  // namespace

// Shared with the HostStages in use, so that they can return after the pool is destroyed.
struct HostStagePool::State {
  struct Idle {
    Shape shape;
    std::unique_ptr<HostStage> stage;
  };

  explicit State(size_t keep) : keep(keep) {}

  // Removes the longest idle ones beyond `keep`; the caller destroys the result without the lock.
  std::vector<Idle> Trim() EPS_REQUIRES(mu) {
    std::vector<Idle> dropped;
    while (!idle.empty() && idle.size() + in_use > keep) {
      dropped.push_back(std::move(idle.front()));
      idle.pop_front();
    }
    return dropped;
  }

  const size_t keep;
  Mutex mu;
  CondVar returned;
  std::deque<Idle> idle EPS_GUARDED_BY(mu);
  size_t in_use EPS_GUARDED_BY(mu) = 0;
};

HostStagePool::HostStagePool(StageRuntime* runtime, const JobSpec* spec, size_t keep)
    : runtime_(runtime), spec_(spec), state_(std::make_shared<State>(keep)) {}

absl::StatusOr<std::shared_ptr<HostStage>> HostStagePool::Take(StageId stage) {
  return Take(stage, /*backward=*/false);
}

absl::StatusOr<std::shared_ptr<HostStage>> HostStagePool::TakeForBackward(StageId stage) {
  return Take(stage, /*backward=*/true);
}

absl::StatusOr<std::shared_ptr<HostStage>> HostStagePool::Take(StageId stage, bool backward) {
  Shape shape = ShapeOf(*spec_, stage, backward);
  std::unique_ptr<HostStage> found;
  std::vector<State::Idle> dropped;
  {
    MutexLock lock(&state_->mu);
    ++state_->in_use;
    for (auto it = state_->idle.begin(); it != state_->idle.end(); ++it) {
      if (it->shape != shape) continue;
      found = std::move(it->stage);
      state_->idle.erase(it);
      break;
    }
    dropped = state_->Trim();
  }
  dropped.clear();
  if (found == nullptr) {
    absl::StatusOr<std::unique_ptr<HostStage>> made =
        backward ? runtime_->NewBackwardStage(stage) : runtime_->NewHostStage(stage);
    if (!made.ok()) {
      MutexLock lock(&state_->mu);
      --state_->in_use;
      state_->returned.NotifyAll();
      return made.status();
    }
    found = *std::move(made);
  }
  return std::shared_ptr<HostStage>(
      found.release(), [state = state_, shape = std::move(shape)](HostStage* p) mutable {
        std::vector<State::Idle> dropped;
        MutexLock lock(&state->mu);
        --state->in_use;
        state->idle.push_back({std::move(shape), std::unique_ptr<HostStage>(p)});
        dropped = state->Trim();
        state->returned.NotifyAll();
      });
}

std::shared_ptr<void> HostStagePool::Count() {
  MutexLock lock(&state_->mu);
  ++state_->in_use;
  return std::shared_ptr<void>(nullptr, [state = state_](void*) {
    MutexLock lock(&state->mu);
    --state->in_use;
    state->returned.NotifyAll();
  });
}

std::shared_ptr<HostStage> HostStagePool::Adopt(std::unique_ptr<HostStage> stage) {
  return std::shared_ptr<HostStage>(stage.release(), [counted = Count()](HostStage* p) mutable {
    delete p;
    counted = nullptr;
  });
}

bool HostStagePool::WaitUntilFewerInUse(size_t count, std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  MutexLock lock(&state_->mu);
  while (state_->in_use >= count) {
    if (!state_->returned.WaitUntil(&state_->mu, deadline) && state_->in_use >= count) return false;
  }
  return true;
}

}  // namespace eps
