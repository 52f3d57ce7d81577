#include "planner/simulator/run_tally.h"

#include <cstddef>
#include <utility>

namespace eps::planner::simulator {

void RunTally::Note(const Event& event) {
  ++result_.event_count;
  if (event.kind == EventKind::kWorkerFailed) ++result_.worker_failures;
  if (event.kind == EventKind::kServerFailed) ++result_.server_failures;
  if (event.kind == EventKind::kRolledBack) ++result_.rollbacks;
  if (result_.events.size() < scenario_.max_events) result_.events.push_back(event);
}

void RunTally::AddTraining(Seconds time, uint32_t workers, double share, const StepTimes& times) {
  worker_time_ += workers * time;
  for (size_t r = 0; r < kResourceCount; ++r) {
    const uint32_t machines =
        IsOfWorkers(static_cast<Resource>(r)) ? workers : scenario_.shape.servers;
    busy_[r] += share * machines * times.busy[r];
  }
}

void RunTally::LoseSteps(uint64_t steps, Seconds useful, Seconds within) {
  result_.useful = result_.useful - useful;
  result_.lost += useful + within;
  result_.lost_steps += steps;
}

void RunTally::Stop(Seconds at) {
  if (!stopped_at_) stopped_at_ = at;
}

void RunTally::EndStop(Seconds at, uint32_t workers) {
  if (!stopped_at_) return;
  result_.down += at - *stopped_at_;
  worker_time_ += workers * (at - *stopped_at_);
  stopped_at_.reset();
}

void RunTally::BeginRecovery(Seconds died_at, const Place& place) {
  if (lost_place_) return;
  lost_place_ = place;
  recovery_began_ = died_at;
}

void RunTally::ReachPlace(Seconds at, const Place& place) {
  if (!lost_place_ || place.before(*lost_place_)) return;
  Seconds back = at;
  if (place.step == lost_place_->step) back = at - (place.within - lost_place_->within);
  const Seconds recovery = back - recovery_began_;
  recovery_sum_ += recovery;
  ++result_.recoveries;
  result_.worst_recovery = Max(result_.worst_recovery, recovery);
  lost_place_.reset();
}

SimulationResult RunTally::Finish(Seconds wall, const Place& place) {
  result_.steps = place.step;
  result_.unfinished = place.within;
  result_.wall = wall;
  if (result_.recoveries > 0) {
    result_.mean_recovery = recovery_sum_ / static_cast<double>(result_.recoveries);
  }
  for (size_t r = 0; r < kResourceCount; ++r) {
    const Seconds machine_time =
        IsOfWorkers(static_cast<Resource>(r)) ? worker_time_ : scenario_.shape.servers * wall;
    result_.utilization[r] = busy_[r] / machine_time;
  }
  result_.tokens_per_second = static_cast<double>(scenario_.work.tokens) *
                              static_cast<double>(result_.steps) / wall.value();
  return std::move(result_);
}

}  // namespace eps::planner::simulator
