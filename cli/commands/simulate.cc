#include "cli/commands/simulate.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <type_traits>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/config/command_line.h"
#include "base/status_macros.h"
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

constexpr ConfigCommand kSimulate = {
    "eps simulate",
    "Simulates a run on the given machines, event by event, with failures, stragglers, cuts, and "
    "workers that join and leave. Reports the share of the time that trains, the duration of "
    "recoveries, and the load of each resource. Deterministic for a given --seed. Times are like "
    "90s, 30ms. Accepts the arguments of eps train.",
    /*trains=*/true};

struct Arguments {
  bool json = false;
  std::string hardware;
  std::map<std::string, std::string> options;  // scenario options, by name
  CommandLine line;
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
  const char* help;
  std::function<absl::Status(absl::string_view, Scenario*)> set;
};

Option MachinesOption(const char* name, const char* help, void (Scenario::*set)(uint32_t)) {
  return {name, help, [set](absl::string_view text, Scenario* scenario) {
            return SetMachines(text, set, scenario);
          }};
}
template <class Number>
Option NumberOption(const char* name, const char* help, Number Scenario::*field) {
  return {name, help, [field](absl::string_view text, Scenario* scenario) {
            return SetNumber(text, &(scenario->*field));
          }};
}
Option TimeOption(const char* name, const char* help, Seconds Scenario::*field) {
  return {name, help, [field](absl::string_view text, Scenario* scenario) {
            return SetTime(text, &(scenario->*field));
          }};
}
Option MeanTimeOption(const char* name, const char* help, planner::PerSecond Scenario::*field) {
  return {name, help, [field](absl::string_view text, Scenario* scenario) {
            return SetMeanTime(text, &(scenario->*field));
          }};
}

const std::vector<Option>& Options() {
  static const auto* const options = new std::vector<Option>{
      MachinesOption("workers", "workers, instead of the description's number",
                     &Scenario::SetWorkers),
      MachinesOption("servers", "servers, instead of the description's number",
                     &Scenario::SetServers),
      NumberOption("steps", "when to stop; 10,000 without --duration", &Scenario::steps),
      TimeOption("duration", "simulated time after which to stop", &Scenario::duration),
      {"replay", "what a server's death makes the job repeat: rollback, frontier or log",
       &SetReplay},
      NumberOption("cut-steps", "steps between cuts (default: as in the plan)",
                   &Scenario::cut_steps),
      TimeOption("cut-time", "how long a cut delays training (default: as in the plan)",
                 &Scenario::cut),
      {"failures", "failure rates of a published run", &SetFailures},
      MeanTimeOption("worker-mtbf", "mean time between failures of a worker",
                     &Scenario::worker_failures),
      MeanTimeOption("server-mtbf", "mean time between failures of a server",
                     &Scenario::server_failures),
      TimeOption("worker-restart", "time from the death of a worker to its restart",
                 &Scenario::worker_restart),
      TimeOption("server-restart", "time from the death of a server to its restart",
                 &Scenario::server_restart),
      NumberOption("slow-fraction", "share of slow workers", &Scenario::slow_fraction),
      NumberOption("slow-factor", "how much slower they are", &Scenario::slow_factor),
      NumberOption("jitter", "spread of the time of a pass", &Scenario::jitter),
      {"deaths", "deaths at given times: TIME:worker,TIME:server", &SetDeaths},
      {"membership", "workers that join and leave: TIME:+N,TIME:-N", &SetMembership},
      NumberOption("seed", "seed of the failures", &Scenario::seed),
      NumberOption("events", "number of events after which to stop", &Scenario::max_events),
  };
  return *options;
}

absl::StatusOr<Arguments> ParseArguments(const std::vector<std::string>& given) {
  Arguments arguments;
  CLI::App app{kSimulate.help, kSimulate.name};
  app.add_option("--hardware", arguments.hardware,
                 "description of the machines: a file, or the name of an example");
  app.add_flag("--json", arguments.json, "print the result as JSON");
  for (const Option& option : Options()) {
    app.add_option(absl::StrCat("--", option.name), arguments.options[option.name], option.help)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }
  EPS_ASSIGN_OR_RETURN(arguments.line, ParseCommandLine(kSimulate, &app, given));
  for (const Option& option : Options()) {
    if (app.count(absl::StrCat("--", option.name)) == 0) arguments.options.erase(option.name);
  }
  return arguments;
}

absl::Status Apply(const Arguments& arguments, Scenario* scenario) {
  for (const Option& option : Options()) {
    const auto value = arguments.options.find(option.name);
    if (value == arguments.options.end()) continue;
    const absl::Status status = option.set(value->second, scenario);
    if (!status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--", option.name, ": ", status.message()));
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
  if (!parsed.line.help.empty()) {
    std::string text = absl::StrCat(parsed.line.help, "Published runs of --failures:");
    for (const FailureLog& log : kFailureLogs) {
      absl::StrAppend(&text, "\n  ", log.name, ": ", log.source);
    }
    std::fputs((text + "\n").c_str(), stdout);
    return absl::OkStatus();
  }
  EPS_ASSIGN_OR_RETURN(const planner::Hardware hardware, ReadHardware(parsed.hardware));
  EPS_ASSIGN_OR_RETURN(const planner::Plan plan, PlanCommandLine(hardware, parsed.line));
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
