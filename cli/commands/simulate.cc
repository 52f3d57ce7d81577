#include "cli/commands/simulate.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <type_traits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "cli/launch/arguments.h"
#include "cli/launch/planned_run.h"
#include "planner/hardware.h"
#include "planner/plan.h"
#include "planner/quantity_text.h"
#include "planner/simulator/report.h"
#include "planner/simulator/simulator.h"
#include "planner/units.h"

namespace eps {
namespace {

using planner::Seconds;
using planner::simulator::FailureLog;
using planner::simulator::kFailureLogs;
using planner::simulator::Scenario;

constexpr char kUsage[] =
    "usage: eps simulate --hardware=FILE|EXAMPLE [--config=FILE] [--model=PATH] [--json]\n"
    "                    [OPTIONS] [--section.key=value ...]\n"
    "\n"
    "Simulates a run on the given machines, event by event, with failures, stragglers, cuts, and\n"
    "workers that join and leave. Reports the share of the time that trains, the duration of\n"
    "recoveries, and the load of each resource. Deterministic for a given --seed. Options:\n"
    "\n"
    "  --workers=N --servers=N      machines, instead of the description's numbers\n"
    "  --steps=N --duration=TIME    when to stop (default: after 10,000 steps)\n"
    "  --replay=rollback|frontier|log   what a server's death makes the job repeat\n"
    "  --cut-steps=N --cut-time=TIME    steps between cuts, and how long each delays training\n"
    "                               (default: those of the plan)\n"
    "  --failures=LOG               failure rates of a published run (below)\n"
    "  --worker-mtbf=TIME --server-mtbf=TIME    mean time between failures of one machine\n"
    "  --worker-restart=TIME --server-restart=TIME    time from a death to the restart\n"
    "  --deaths=TIME:worker,TIME:server    deaths at the given times\n"
    "  --slow-fraction=X --slow-factor=X --jitter=X    stragglers\n"
    "  --membership=TIME:+N,TIME:-N    workers that join and leave\n"
    "  --seed=N --events=N\n"
    "\n"
    "Times are like 90s, 30ms. Published runs: ";

struct Arguments {
  bool help = false;
  bool json = false;
  std::string hardware;
  std::vector<std::pair<std::string, std::string>> options;  // scenario options, by name
  std::vector<std::string> train;
};

absl::Status SetTime(absl::string_view text, Seconds* value) {
  EPS_ASSIGN_OR_RETURN(*value, planner::ParseSeconds(text));
  return absl::OkStatus();
}

template <class Number>
absl::Status SetNumber(absl::string_view text, Number* value) {
  bool ok = false;
  if constexpr (std::is_same_v<Number, double>) {
    ok = absl::SimpleAtod(text, value);
  } else {
    ok = absl::SimpleAtoi(text, value);
  }
  if (ok) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("found \"", text, "\", expected a number"));
}

absl::Status SetMachines(absl::string_view text, void (Scenario::*set)(uint32_t),
                         Scenario* scenario) {
  uint32_t machines = 0;
  EPS_RETURN_IF_ERROR(SetNumber(text, &machines));
  (scenario->*set)(machines);
  return absl::OkStatus();
}

absl::Status SetReplay(absl::string_view text, Scenario* scenario) {
  using planner::simulator::Replay;
  for (const Replay replay : {Replay::kRollback, Replay::kFrontier, Replay::kLog}) {
    if (text != planner::simulator::ReplayName(replay)) continue;
    scenario->replay = replay;
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("found \"", text, "\", expected rollback, frontier or log"));
}

absl::Status SetFailures(absl::string_view text, Scenario* scenario) {
  std::vector<std::string> names;
  for (const FailureLog& log : kFailureLogs) {
    if (text == log.name) {
      scenario->worker_failures = log.per_worker();
      return absl::OkStatus();
    }
    names.emplace_back(log.name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("found \"", text, "\", expected ", absl::StrJoin(names, ", ")));
}

// Sets the rate of an exponential distribution with this mean.
absl::Status SetMeanTime(absl::string_view text, planner::PerSecond* rate) {
  Seconds mean;
  EPS_RETURN_IF_ERROR(SetTime(text, &mean));
  if (mean == Seconds(0)) return absl::InvalidArgumentError("expected a time above 0");
  *rate = planner::PerSecond(1 / mean.value());
  return absl::OkStatus();
}

absl::Status SetMembership(absl::string_view text, Scenario* scenario) {
  for (const absl::string_view change : absl::StrSplit(text, ',')) {
    const std::vector<std::string> parts = absl::StrSplit(change, ':');
    planner::simulator::MembershipChange entry;
    if (parts.size() != 2) {
      return absl::InvalidArgumentError(
          absl::StrCat("found \"", change, "\", expected TIME:+N or TIME:-N"));
    }
    EPS_RETURN_IF_ERROR(SetTime(parts[0], &entry.at));
    EPS_RETURN_IF_ERROR(SetNumber(parts[1], &entry.workers));
    scenario->membership.push_back(entry);
  }
  return absl::OkStatus();
}

absl::Status SetDeaths(absl::string_view text, Scenario* scenario) {
  for (const absl::string_view entry : absl::StrSplit(text, ',')) {
    const std::vector<std::string> parts = absl::StrSplit(entry, ':');
    if (parts.size() != 2 || (parts[1] != "worker" && parts[1] != "server")) {
      return absl::InvalidArgumentError(
          absl::StrCat("found \"", entry, "\", expected TIME:worker or TIME:server"));
    }
    planner::simulator::Death death;
    EPS_RETURN_IF_ERROR(SetTime(parts[0], &death.at));
    death.of_worker = parts[1] == "worker";
    scenario->deaths.push_back(death);
  }
  return absl::OkStatus();
}

struct Option {
  const char* name;
  std::function<absl::Status(absl::string_view, Scenario*)> set;
};

Option MachinesOption(const char* name, void (Scenario::*set)(uint32_t)) {
  return {name, [set](absl::string_view text, Scenario* scenario) {
            return SetMachines(text, set, scenario);
          }};
}
template <class Number>
Option NumberOption(const char* name, Number Scenario::*field) {
  return {name, [field](absl::string_view text, Scenario* scenario) {
            return SetNumber(text, &(scenario->*field));
          }};
}
Option TimeOption(const char* name, Seconds Scenario::*field) {
  return {name, [field](absl::string_view text, Scenario* scenario) {
            return SetTime(text, &(scenario->*field));
          }};
}
Option MeanTimeOption(const char* name, planner::PerSecond Scenario::*field) {
  return {name, [field](absl::string_view text, Scenario* scenario) {
            return SetMeanTime(text, &(scenario->*field));
          }};
}

const std::vector<Option>& Options() {
  static const auto* const options = new std::vector<Option>{
      MachinesOption("workers", &Scenario::SetWorkers),
      MachinesOption("servers", &Scenario::SetServers),
      NumberOption("steps", &Scenario::steps),
      TimeOption("duration", &Scenario::duration),
      {"replay", &SetReplay},
      NumberOption("cut-steps", &Scenario::cut_steps),
      TimeOption("cut-time", &Scenario::cut),
      {"failures", &SetFailures},
      MeanTimeOption("worker-mtbf", &Scenario::worker_failures),
      MeanTimeOption("server-mtbf", &Scenario::server_failures),
      TimeOption("worker-restart", &Scenario::worker_restart),
      TimeOption("server-restart", &Scenario::server_restart),
      NumberOption("slow-fraction", &Scenario::slow_fraction),
      NumberOption("slow-factor", &Scenario::slow_factor),
      NumberOption("jitter", &Scenario::jitter),
      {"deaths", &SetDeaths},
      {"membership", &SetMembership},
      NumberOption("seed", &Scenario::seed),
      NumberOption("events", &Scenario::max_events),
  };
  return *options;
}

absl::StatusOr<Arguments> ParseArguments(const std::vector<std::string>& given) {
  Arguments arguments;
  OptionReader reader;
  reader.Flag("--help", &arguments.help)
      .Flag("-h", &arguments.help)
      .Flag("--json", &arguments.json)
      .Text("--hardware", &arguments.hardware);
  for (const Option& option : Options()) {
    reader.Value(absl::StrCat("--", option.name), [&](absl::string_view value) {
      arguments.options.emplace_back(option.name, value);
      return absl::OkStatus();
    });
  }
  EPS_ASSIGN_OR_RETURN(arguments.train, reader.Read(given));
  return arguments;
}

absl::Status Apply(const Arguments& arguments, Scenario* scenario) {
  for (const auto& [name, value] : arguments.options) {
    for (const Option& option : Options()) {
      if (name != option.name) continue;
      const absl::Status status = option.set(value, scenario);
      if (!status.ok()) {
        return absl::InvalidArgumentError(absl::StrCat("--", name, ": ", status.message()));
      }
    }
  }
  constexpr uint64_t kDefaultSteps = 10000;
  if (scenario->steps == 0 && scenario->duration == Seconds(0)) scenario->steps = kDefaultSteps;
  return absl::OkStatus();
}

}  // namespace

Scenario ScenarioOf(const planner::Plan& plan, const planner::Hardware& hardware) {
  Scenario scenario;
  scenario.work = plan.work;
  scenario.shape = plan.shape;
  scenario.hardware = hardware;
  scenario.cut_steps = plan.estimate.cut_steps;
  scenario.cut = plan.estimate.held;
  if (plan.shape.log) scenario.replay = planner::simulator::Replay::kLog;
  std::vector<planner::WorkerKind>& kinds = scenario.hardware.workers;
  kinds.erase(std::remove_if(kinds.begin(), kinds.end(),
                             [&](const planner::WorkerKind& kind) {
                               return kind.name != plan.estimate.worker;
                             }),
              kinds.end());
  return scenario;
}

absl::Status RunSimulate(const std::vector<std::string>& arguments) {
  EPS_ASSIGN_OR_RETURN(const Arguments parsed, ParseArguments(arguments));
  if (parsed.help) {
    std::string text = kUsage;
    for (const FailureLog& log : kFailureLogs) {
      absl::StrAppend(&text, "\n  ", log.name, ": ", log.source);
    }
    std::fputs((text + "\n").c_str(), stdout);
    return absl::OkStatus();
  }
  EPS_ASSIGN_OR_RETURN(const planner::Hardware hardware, ReadHardware(parsed.hardware));
  EPS_ASSIGN_OR_RETURN(const planner::Plan plan, PlanTrainArguments(hardware, parsed.train));
  Scenario scenario = ScenarioOf(plan, hardware);
  EPS_RETURN_IF_ERROR(Apply(parsed, &scenario));
  EPS_ASSIGN_OR_RETURN(const planner::simulator::SimulationResult result,
                       planner::simulator::Simulate(scenario));
  std::fputs((parsed.json ? planner::simulator::SimulationToJson(scenario, result)
                          : planner::simulator::SimulationToText(scenario, result))
                 .c_str(),
             stdout);
  return absl::OkStatus();
}

}  // namespace eps
