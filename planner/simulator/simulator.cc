#include "planner/simulator/simulator.h"

#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "planner/simulator/draws.h"

namespace eps::planner::simulator {
namespace {

// A run with more failures would take minutes to simulate and hardly progress.
constexpr uint64_t kMostFailures = 1'000'000;

constexpr auto kProcessors = static_cast<size_t>(Resource::kServerProcessors);

// The state of one simulation.
class Run {
 public:
  explicit Run(const Scenario& scenario)
      : scenario_(scenario),
        model_(scenario.work, scenario.hardware, scenario.hardware.workers.front(), scenario.shape),
        workers_(scenario.shape.workers),
        worker_points_(scenario.seed, DrawPurpose::kWorkerFailure,
                       scenario.most_workers() * scenario.worker_failures),
        server_points_(scenario.seed, DrawPurpose::kServerFailure,
                       scenario.shape.servers * scenario.server_failures) {
    if (scenario.duration > Seconds(0)) limit_ = scenario.duration;
  }

  absl::StatusOr<SimulationResult> Simulate();

 private:
  // The progress of training. Progress within a step is the time spent in it, its cut included.
  struct Place {
    uint64_t step = 0;
    Seconds within;
    bool before(const Place& other) const {
      return step < other.step || (step == other.step && within < other.within);
    }
  };

  bool done() const {
    return now_ >= limit_ || (scenario_.steps > 0 && place_.step >= scenario_.steps);
  }
  // True if a cut follows the step in flight.
  bool cut_follows() const {
    return scenario_.cut_steps > 0 && (place_.step + 1) % scenario_.cut_steps == 0;
  }
  // The length of the step in flight and its cut.
  Seconds length() const { return times_.duration + (cut_follows() ? scenario_.cut : Seconds(0)); }

  void BeginStep();
  StepTimes TimesOf(uint64_t step);
  void ChangeMembership();
  std::optional<Death> TakeFailure(Seconds before);
  void Train(Seconds time);
  void CompleteStep();
  void Fail(const Death& failure);
  void GoBackToCut();
  Seconds WithoutServer() const;
  void RepeatParts();
  void EndStop(Seconds at);
  void NoteRecovery();
  void Note(Seconds at, EventKind kind);
  SimulationResult Finish();

  const Scenario& scenario_;
  const StepModel model_;
  Seconds limit_{std::numeric_limits<double>::infinity()};

  Seconds now_;  // training resumes from here; a death may be earlier
  Place place_;
  StepTimes times_;  // of the step in flight
  uint32_t workers_;
  size_t next_change_ = 0;
  std::vector<WorkerClass> classes_;
  std::map<uint32_t, StepTimes> undisturbed_;  // by number of workers

  uint64_t cut_step_ = 0;  // the last durable step
  Seconds useful_since_cut_;
  Seconds processors_since_cut_;  // work of each server since the cut

  FailurePoints worker_points_;
  FailurePoints server_points_;
  size_t next_death_ = 0;  // index into the given deaths
  bool stopped_ = false;   // by deaths; no training has happened since
  Seconds stopped_at_;
  Seconds all_back_;                 // when all dead processes have restarted
  std::optional<Place> lost_place_;  // a recovery lasts until this place is reached again
  Seconds recovery_began_;
  Seconds recovery_sum_;

  std::array<Seconds, kResourceCount> busy_{};  // of all machines together
  Seconds worker_time_;                         // of all workers together
  SimulationResult result_;
};

StepTimes Run::TimesOf(uint64_t step) {
  if (scenario_.jitter > 0) {
    return model_.Run(Disturbed(classes_, scenario_.jitter, scenario_.seed, step), workers_);
  }
  const auto [found, is_new] = undisturbed_.try_emplace(workers_);
  if (is_new) found->second = model_.Run(classes_, workers_);
  return found->second;
}

void Run::BeginStep() {
  ChangeMembership();
  times_ = TimesOf(place_.step);
}

void Run::ChangeMembership() {
  const auto& changes = scenario_.membership;
  const size_t first = next_change_;
  for (; next_change_ < changes.size() && changes[next_change_].at <= now_; ++next_change_) {
    workers_ = static_cast<uint32_t>(workers_ + changes[next_change_].workers);
  }
  if (next_change_ > first) Note(now_, EventKind::kWorkersChanged);
  if (next_change_ > first || classes_.empty()) {
    const auto slow = static_cast<uint32_t>(std::lround(scenario_.slow_fraction * workers_));
    classes_ = DealParts(workers_, scenario_.work.parts, slow, scenario_.slow_factor);
  }
}

// Removes and returns the next death before `before`, if there is one.
std::optional<Death> Run::TakeFailure(Seconds before) {
  struct Kind {
    FailurePoints* points;
    PerSecond rate;
  };
  const Kind kinds[] = {{&worker_points_, workers_ * scenario_.worker_failures},
                        {&server_points_, scenario_.shape.servers * scenario_.server_failures}};
  const Kind* earliest = nullptr;
  for (const Kind& kind : kinds) {
    FailurePoints& points = *kind.points;
    while (points.next().at < before && points.next().height >= kind.rate) points.Take();
    if (points.next().at < before &&
        (earliest == nullptr || points.next().at < earliest->points->next().at)) {
      earliest = &kind;
    }
  }
  const Seconds drawn = earliest == nullptr ? before : earliest->points->next().at;
  if (next_death_ < scenario_.deaths.size() && scenario_.deaths[next_death_].at < drawn) {
    return scenario_.deaths[next_death_++];
  }
  if (earliest == nullptr) return std::nullopt;
  earliest->points->Take();
  return Death{drawn, earliest == &kinds[0]};
}

// Trains for `time` without disturbance, at most to the end of the step and its cut.
void Run::Train(Seconds time) {
  if (stopped_) Note(now_, EventKind::kResumed);
  EndStop(now_);
  const Seconds before = Min(place_.within, times_.duration);
  place_.within += time;
  now_ += time;
  worker_time_ += workers_ * time;
  const double share = (Min(place_.within, times_.duration) - before) / times_.duration;
  for (size_t r = 0; r < kResourceCount; ++r) {
    const uint32_t machines =
        IsOfWorkers(static_cast<Resource>(r)) ? workers_ : scenario_.shape.servers;
    busy_[r] += share * machines * times_.busy[r];
  }
  NoteRecovery();
}

void Run::CompleteStep() {
  const bool cut = cut_follows();
  result_.useful += times_.duration;
  useful_since_cut_ += times_.duration;
  processors_since_cut_ += times_.busy[kProcessors];
  place_ = {place_.step + 1, Seconds(0)};
  if (cut) {
    result_.cuts += scenario_.cut;
    cut_step_ = place_.step;
    useful_since_cut_ = Seconds(0);
    processors_since_cut_ = Seconds(0);
  }
  NoteRecovery();
}

void Run::GoBackToCut() {
  result_.useful = result_.useful - useful_since_cut_;
  result_.lost += useful_since_cut_ + place_.within;
  result_.lost_steps += place_.step - cut_step_;
  ++result_.rollbacks;
  place_ = {cut_step_, Seconds(0)};
  useful_since_cut_ = Seconds(0);
  processors_since_cut_ = Seconds(0);
}

void Run::Fail(const Death& failure) {
  if (failure.at > now_) Train(failure.at - now_);
  Note(failure.at, failure.of_worker ? EventKind::kWorkerFailed : EventKind::kServerFailed);
  ++(failure.of_worker ? result_.worker_failures : result_.server_failures);
  const bool replays = !failure.of_worker && scenario_.replay == Replay::kLog;
  if (replays && !stopped_) Train(WithoutServer());
  if (!stopped_) stopped_at_ = now_;
  stopped_ = true;
  if (!lost_place_) {
    lost_place_ = place_;
    recovery_began_ = failure.at;
  }
  const Seconds back =
      failure.at + (failure.of_worker ? scenario_.worker_restart : scenario_.server_restart);
  all_back_ = Max(all_back_, back);

  if (replays) {
    // The replay includes the contributions sent while the server was down.
    const double share = Min(place_.within, times_.duration) / times_.duration;
    now_ = Max(now_, back + processors_since_cut_ + share * times_.busy[kProcessors]);
  } else if (failure.of_worker &&
             (scenario_.replay == Replay::kFrontier || scenario_.work.sealed)) {
    RepeatParts();
    now_ = Max(now_, back);
  } else {
    GoBackToCut();
    Note(failure.at, EventKind::kRolledBack);
    times_ = TimesOf(place_.step);
    now_ = all_back_;  // logs that were being replayed are no longer needed
  }
}

// Returns how long workers continue while a server that will replay its log is down: on average
// half a visit and the visits fetched ahead, but not beyond the step.
Seconds Run::WithoutServer() const {
  const double visits = 2 * static_cast<double>(scenario_.work.stages.size()) - 1;
  const Seconds in_hand = (scenario_.shape.prefetch + 0.5) / visits * times_.duration;
  const Seconds rest = Max(times_.duration - place_.within, Seconds(0));
  return Min(Min(in_hand, rest), Min(scenario_.server_restart, limit_ - now_));
}

// Keeps the contributions of the step that the dead worker had sent; its other work is repeated.
void Run::RepeatParts() {
  if (place_.within >= times_.duration) return;  // everything had been sent
  const bool frontier = scenario_.replay == Replay::kFrontier;
  const Seconds again = frontier ? Min(place_.within, times_.forward) : place_.within;
  result_.lost += again;
  place_.within = place_.within - again;
}

// Ends the stop at time `at`, when training resumes or the run ends.
void Run::EndStop(Seconds at) {
  if (!stopped_) return;
  stopped_ = false;
  result_.down += at - stopped_at_;
  worker_time_ += workers_ * (at - stopped_at_);
}

void Run::NoteRecovery() {
  if (!lost_place_ || place_.before(*lost_place_)) return;
  Seconds back = now_;
  if (place_.step == lost_place_->step) back = now_ - (place_.within - lost_place_->within);
  const Seconds recovery = back - recovery_began_;
  recovery_sum_ += recovery;
  ++result_.recoveries;
  result_.worst_recovery = Max(result_.worst_recovery, recovery);
  lost_place_.reset();
}

void Run::Note(Seconds at, EventKind kind) {
  ++result_.event_count;
  if (result_.events.size() < scenario_.max_events) {
    result_.events.push_back({at, kind, place_.step, workers_});
  }
}

absl::StatusOr<SimulationResult> Run::Simulate() {
  ChangeMembership();
  result_.step = model_.Run(classes_, workers_);
  if (result_.step.duration == Seconds(0)) {
    return absl::InvalidArgumentError("stages: expected a step that takes time, found 0 s");
  }
  BeginStep();
  while (!done()) {
    const Seconds end = now_ + (length() - place_.within);
    const std::optional<Death> failure = TakeFailure(Min(end, limit_));
    if (failure) {
      Fail(*failure);
    } else if (end <= limit_) {
      Train(end - now_);
      CompleteStep();
      BeginStep();
    } else {
      Train(limit_ - now_);
    }
    const uint64_t failures = result_.worker_failures + result_.server_failures;
    if (failures > kMostFailures) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "worker_failures, server_failures: expected a run that ends, found ", place_.step,
          " steps done after ", failures, " failures and ", now_.value(), " s"));
    }
  }
  return Finish();
}

SimulationResult Run::Finish() {
  result_.steps = place_.step;
  result_.unfinished = place_.within;
  result_.wall = Min(now_, limit_);
  EndStop(result_.wall);
  if (result_.recoveries > 0) {
    result_.mean_recovery = recovery_sum_ / static_cast<double>(result_.recoveries);
  }
  for (size_t r = 0; r < kResourceCount; ++r) {
    const Seconds machine_time = IsOfWorkers(static_cast<Resource>(r))
                                     ? worker_time_
                                     : scenario_.shape.servers * result_.wall;
    result_.utilization[r] = busy_[r] / machine_time;
  }
  result_.tokens_per_second = static_cast<double>(scenario_.work.tokens) *
                              static_cast<double>(result_.steps) / result_.wall.value();
  return std::move(result_);
}

}  // namespace

const char* EventKindName(EventKind kind) {
  switch (kind) {
    case EventKind::kWorkerFailed:
      return "worker failed";
    case EventKind::kServerFailed:
      return "server failed";
    case EventKind::kRolledBack:
      return "rolled back";
    case EventKind::kResumed:
      return "resumed";
    case EventKind::kWorkersChanged:
      return "workers changed";
  }
  return "unknown";
}

absl::StatusOr<SimulationResult> Simulate(const Scenario& scenario) {
  EPS_RETURN_IF_ERROR(scenario.Validate());
  return Run(scenario).Simulate();
}

}  // namespace eps::planner::simulator
