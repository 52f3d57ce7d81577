#include "planner/simulator/simulator.h"

#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "planner/simulator/draws.h"
#include "planner/simulator/run_tally.h"

namespace eps::planner::simulator {
namespace {

// A run with more failures would take minutes to simulate and hardly progress.
constexpr uint64_t kMostFailures = 1'000'000;

// Plays one scenario from event to event: it decides which step is in flight on which workers, who
// dies next, and when and where training resumes. A RunTally adds up the result. Borrows the
// scenario, which must outlive the run. Not thread-safe.
class Run {
 public:
  explicit Run(const Scenario& scenario)
      : scenario_(scenario),
        model_(scenario.work, scenario.hardware, scenario.hardware.workers.front(), scenario.shape),
        workers_(scenario.shape.workers),
        worker_points_(scenario.seed, DrawPurpose::kWorkerFailure,
                       scenario.most_workers() * scenario.worker_failures),
        server_points_(scenario.seed, DrawPurpose::kServerFailure,
                       scenario.shape.servers * scenario.server_failures),
        tally_(scenario) {}

  // Returns the errors of simulator.h. Call it once.
  absl::StatusOr<SimulationResult> Simulate();

 private:
  // The last durable step and the work since then.
  struct Cut {
    uint64_t step = 0;
    Seconds useful;
    Seconds processors;  // of each server
  };

  // The run ends here unless its steps end it earlier.
  Seconds limit() const {
    return scenario_.duration > Seconds(0) ? scenario_.duration
                                           : Seconds(std::numeric_limits<double>::infinity());
  }
  bool done() const {
    return now_ >= limit() || (scenario_.steps > 0 && place_.step >= scenario_.steps);
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
  void Note(Seconds at, EventKind kind) { tally_.Note({at, kind, place_.step, workers_}); }

  const Scenario& scenario_;
  const StepModel model_;

  Seconds now_;  // training resumes from here; a death may be earlier
  Place place_;
  StepTimes times_;  // of the step in flight
  Cut cut_;

  uint32_t workers_;
  size_t next_change_ = 0;  // index into the changes of the membership
  std::vector<WorkerClass> classes_;
  std::map<uint32_t, StepTimes> undisturbed_;  // by number of workers

  FailurePoints worker_points_;
  FailurePoints server_points_;
  size_t next_death_ = 0;  // index into the given deaths
  Seconds all_back_;       // when all dead processes have restarted

  RunTally tally_;
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
  if (tally_.stopped()) Note(now_, EventKind::kResumed);
  tally_.EndStop(now_, workers_);
  const Seconds before = Min(place_.within, times_.duration);
  place_.within += time;
  now_ += time;
  const double share = (Min(place_.within, times_.duration) - before) / times_.duration;
  tally_.AddTraining(time, workers_, share, times_);
  tally_.ReachPlace(now_, place_);
}

void Run::CompleteStep() {
  const bool cut = cut_follows();
  tally_.AddStep(times_.duration);
  cut_.useful += times_.duration;
  cut_.processors += times_.serving;
  place_ = {place_.step + 1, Seconds(0)};
  if (cut) {
    tally_.AddCut(scenario_.cut);
    cut_ = {place_.step, Seconds(0), Seconds(0)};
  }
  tally_.ReachPlace(now_, place_);
}

void Run::GoBackToCut() {
  tally_.LoseSteps(place_.step - cut_.step, cut_.useful, place_.within);
  place_ = {cut_.step, Seconds(0)};
  cut_ = {cut_.step, Seconds(0), Seconds(0)};
}

void Run::Fail(const Death& failure) {
  if (failure.at > now_) Train(failure.at - now_);
  Note(failure.at, failure.of_worker ? EventKind::kWorkerFailed : EventKind::kServerFailed);
  const bool replays = !failure.of_worker && scenario_.replay == Replay::kLog;
  if (replays && !tally_.stopped()) Train(WithoutServer());
  tally_.Stop(now_);
  tally_.BeginRecovery(failure.at, place_);
  const Seconds back =
      failure.at + (failure.of_worker ? scenario_.worker_restart : scenario_.server_restart);
  all_back_ = Max(all_back_, back);

  if (replays) {
    // The replay includes the contributions sent while the server was down.
    const double share = Min(place_.within, times_.duration) / times_.duration;
    now_ = Max(now_, back + cut_.processors + share * times_.serving);
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
  return Min(Min(in_hand, rest), Min(scenario_.server_restart, limit() - now_));
}

// Keeps the contributions of the step that the dead worker had sent; its other work is repeated.
void Run::RepeatParts() {
  if (place_.within >= times_.duration) return;  // everything had been sent
  const bool frontier = scenario_.replay == Replay::kFrontier;
  const Seconds again = frontier ? Min(place_.within, times_.forward) : place_.within;
  tally_.AddRepeat(again);
  place_.within = place_.within - again;
}

absl::StatusOr<SimulationResult> Run::Simulate() {
  ChangeMembership();
  const StepTimes undisturbed = model_.Run(classes_, workers_);
  if (undisturbed.duration == Seconds(0)) {
    return absl::InvalidArgumentError("stages: expected a step that takes time, found 0 s");
  }
  BeginStep();
  while (!done()) {
    const Seconds end = now_ + (length() - place_.within);
    const std::optional<Death> failure = TakeFailure(Min(end, limit()));
    if (failure) {
      Fail(*failure);
    } else if (end <= limit()) {
      Train(end - now_);
      CompleteStep();
      BeginStep();
    } else {
      Train(limit() - now_);
    }
    if (tally_.failures() > kMostFailures) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "worker_failures, server_failures: expected a run that ends, found ", place_.step,
          " steps done after ", tally_.failures(), " failures and ", now_.value(), " s"));
    }
  }
  const Seconds wall = Min(now_, limit());
  tally_.EndStop(wall, workers_);
  SimulationResult result = tally_.Finish(wall, place_);
  result.step = undisturbed;
  return result;
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
