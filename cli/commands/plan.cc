// `eps plan`: predicts the memory and the speed of a run without starting it.

#include <cstdio>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/config/command_line.h"
#include "base/files/files.h"
#include "base/status_macros.h"
#include "cli/launch/planned_run.h"
#include "cli/measure/calibrate.h"
#include "planner/papers/row.h"
#include "planner/plan.h"
#include "planner/plan_report.h"

namespace eps {
namespace {

constexpr ConfigCommand kPlan = {
    "eps plan",
    "Predicts the memory and the speed of a run on the given machines: bytes by tier, time per "
    "stage, the step and its bottleneck, the largest model, and what to change first. Allocates "
    "nothing, starts nothing and reads no data. Accepts the arguments of eps train. Exits with 71 "
    "if the run does not fit.",
    /*trains=*/true};

struct Arguments {
  bool json = false;
  bool examples = false;
  bool schema = false;
  bool this_machine = false;
  std::string example;
  std::string hardware;
  std::string html;
  std::string reproduce;
  CommandLine line;
};

absl::StatusOr<Arguments> ParseArguments(const std::vector<std::string>& given) {
  Arguments arguments;
  CLI::App app{kPlan.help, kPlan.name};
  app.add_option("--hardware", arguments.hardware,
                 "description of the machines: a file, or the name of an example");
  app.add_flag("--this-machine", arguments.this_machine,
               "measure this machine first, as eps bench calibrate does");
  app.add_flag("--json", arguments.json, "print the plan as JSON");
  app.add_option("--html", arguments.html, "also write the plan as a page");
  app.add_flag("--examples", arguments.examples, "list the examples of machines");
  app.add_option("--example", arguments.example, "print an example");
  app.add_flag("--schema", arguments.schema, "print all fields of a description");
  app.add_option("--reproduce", arguments.reproduce,
                 absl::StrCat("compare the planner with a paper's numbers: ",
                              absl::StrJoin(planner::PaperNames(), ", ")));
  EPS_ASSIGN_OR_RETURN(arguments.line, ParseCommandLine(kPlan, &app, given));
  return arguments;
}

void Print(const std::string& text) { std::fputs(text.c_str(), stdout); }

absl::Status Reproduce(const Arguments& arguments) {
  EPS_ASSIGN_OR_RETURN(const std::vector<planner::Row> rows, planner::RowsOf(arguments.reproduce));
  Print(arguments.json ? planner::RowsToJson(rows)
                       : planner::RowsToText(arguments.reproduce, rows));
  return absl::OkStatus();
}

absl::StatusOr<planner::Hardware> HardwareOf(const Arguments& arguments) {
  if (!arguments.this_machine) return ReadHardware(arguments.hardware);
  if (!arguments.hardware.empty()) {
    return absl::InvalidArgumentError("--hardware and --this-machine exclude each other");
  }
  return Calibrate(CalibrateOptions());
}

absl::Status PlanRun(const Arguments& arguments) {
  EPS_ASSIGN_OR_RETURN(const planner::Hardware hardware, HardwareOf(arguments));
  EPS_ASSIGN_OR_RETURN(const planner::Plan plan, PlanCommandLine(hardware, arguments.line));
  Print(arguments.json ? planner::PlanToJson(plan) : planner::PlanToText(plan));
  if (!arguments.html.empty()) {
    EPS_RETURN_IF_ERROR(ReplaceFile(arguments.html, planner::PlanToPage(plan)));
  }
  return planner::CheckFits(plan.tiers);
}

}  // namespace

absl::Status RunPlan(const std::vector<std::string>& arguments) {
  EPS_ASSIGN_OR_RETURN(const Arguments parsed, ParseArguments(arguments));
  if (!parsed.line.help.empty()) {
    Print(parsed.line.help);
    return absl::OkStatus();
  }
  if (parsed.examples) {
    Print(absl::StrCat(absl::StrJoin(planner::HardwareExamples(), "\n"), "\n"));
    return absl::OkStatus();
  }
  if (parsed.schema) {
    Print(planner::HardwareReference());
    return absl::OkStatus();
  }
  if (!parsed.example.empty()) {
    EPS_ASSIGN_OR_RETURN(const std::string yaml, planner::HardwareExample(parsed.example));
    Print(yaml);
    return absl::OkStatus();
  }
  if (!parsed.reproduce.empty()) return Reproduce(parsed);
  return PlanRun(parsed);
}

}  // namespace eps
