#include "planner/simulator/report.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "planner/step_model.h"

namespace eps::planner::simulator {
namespace {

// One share of the wall time.
struct Share {
  const char* key;
  const char* text;
  Seconds time;
};

// Divides the wall time; the shares sum to 1.
std::array<Share, 5> SharesOf(const SimulationResult& result) {
  return {{{"useful", "steps that count", result.useful},
           {"cuts", "waiting for cuts", result.cuts},
           {"lost", "work that was repeated", result.lost},
           {"down", "dead until restarted", result.down},
           {"unfinished", "a step not finished", result.unfinished}}};
}

// "12.3 ms", "4.56 s", "7.89 min", "1.23 h", "4.56 days".
std::string TimeText(Seconds time) {
  struct Unit {
    double seconds;
    const char* name;
  };
  constexpr Unit kUnits[] = {{86400, "days"}, {3600, "h"}, {60, "min"}, {1, "s"}};
  for (const Unit& unit : kUnits) {
    if (time.value() >= unit.seconds) {
      return absl::StrFormat("%.3g %s", time.value() / unit.seconds, unit.name);
    }
  }
  return absl::StrFormat("%.3g ms", 1000 * time.value());
}

std::string EventText(const Event& event) {
  std::string text = absl::StrFormat("  %12.1f s  step %-8d %s", event.at.value(), event.step,
                                     EventKindName(event.kind));
  if (event.kind == EventKind::kWorkersChanged) absl::StrAppend(&text, " to ", event.workers);
  return text + "\n";
}

}  // namespace

std::string SimulationToText(const Scenario& scenario, const SimulationResult& result) {
  std::string text =
      absl::StrFormat("%d stages of %.4g parameters, %d workers, %d servers, %d parts, %s, %s\n",
                      scenario.work.stages.size(), static_cast<double>(scenario.work.parameters),
                      scenario.shape.workers, scenario.shape.servers, scenario.work.parts,
                      scenario.work.sealed ? "sealed" : "eager", ReplayName(scenario.replay));
  absl::StrAppendFormat(&text, "%d steps in %s, %.4g steps per hour", result.steps,
                        TimeText(result.wall), result.steps_per_hour());
  if (result.tokens_per_second > 0) {
    absl::StrAppendFormat(&text, ", %.4g tokens per second", result.tokens_per_second);
  }
  absl::StrAppendFormat(&text, "\nan undisturbed step takes %s; its bottleneck: %s\n",
                        TimeText(result.step.duration), ResourceName(result.bottleneck()));
  absl::StrAppendFormat(&text, "goodput %.2f %%; where the time went:\n", 100 * result.goodput());
  for (const Share& share : SharesOf(result)) {
    absl::StrAppendFormat(&text, "  %-25s %6.2f %%  %s\n", share.text,
                          100 * (share.time / result.wall), TimeText(share.time));
  }
  absl::StrAppend(&text, "busy:\n");
  for (const Resource resource : result.step.by_use()) {
    absl::StrAppendFormat(&text, "  %-25s %6.2f %%\n", ResourceName(resource),
                          100 * result.utilization[static_cast<size_t>(resource)]);
  }
  absl::StrAppendFormat(
      &text, "%d workers and %d servers failed; %d rollbacks, %d steps repeated\n",
      result.worker_failures, result.server_failures, result.rollbacks, result.lost_steps);
  if (result.recoveries > 0) {
    absl::StrAppendFormat(&text, "%d recoveries: %s in the mean, %s at worst\n", result.recoveries,
                          TimeText(result.mean_recovery), TimeText(result.worst_recovery));
  }
  if (!result.events.empty()) {
    absl::StrAppendFormat(&text, "the first %d of %d events:\n", result.events.size(),
                          result.event_count);
    for (const Event& event : result.events) text += EventText(event);
  }
  return text;
}

std::string SimulationToJson(const Scenario& scenario, const SimulationResult& result) {
  nlohmann::ordered_json json;
  json["stages"] = scenario.work.stages.size();
  json["parameters"] = scenario.work.parameters;
  json["workers"] = scenario.shape.workers;
  json["servers"] = scenario.shape.servers;
  json["parts"] = scenario.work.parts;
  json["mode"] = scenario.work.sealed ? "sealed" : "eager";
  json["replay"] = ReplayName(scenario.replay);
  json["seed"] = scenario.seed;
  json["steps"] = result.steps;
  json["wall"] = result.wall.value();
  json["goodput"] = result.goodput();
  json["steps_per_hour"] = result.steps_per_hour();
  json["tokens_per_second"] = nullptr;
  if (result.tokens_per_second > 0) json["tokens_per_second"] = result.tokens_per_second;
  for (const Share& share : SharesOf(result)) json[share.key] = share.time.value();
  json["lost_steps"] = result.lost_steps;
  json["worker_failures"] = result.worker_failures;
  json["server_failures"] = result.server_failures;
  json["rollbacks"] = result.rollbacks;
  json["recoveries"] = result.recoveries;
  json["mean_recovery"] = result.mean_recovery.value();
  json["worst_recovery"] = result.worst_recovery.value();
  json["bottleneck"] = ResourceName(result.bottleneck());
  json["step"]["duration"] = result.step.duration.value();
  json["step"]["forward"] = result.step.forward.value();
  for (const Resource resource : result.step.by_use()) {
    const char* const name = ResourceName(resource);
    json["step"]["busiest"][name] = result.step.busiest_of(resource).value();
    json["utilization"][name] = result.utilization[static_cast<size_t>(resource)];
  }
  json["event_count"] = result.event_count;
  json["events"] = nlohmann::ordered_json::array();
  for (const Event& event : result.events) {
    nlohmann::ordered_json object;
    object["at"] = event.at.value();
    object["kind"] = EventKindName(event.kind);
    object["step"] = event.step;
    object["workers"] = event.workers;
    json["events"].push_back(std::move(object));
  }
  return json.dump(2) + "\n";
}

}  // namespace eps::planner::simulator
