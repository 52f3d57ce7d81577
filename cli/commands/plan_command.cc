#include "cli/commands/plan_command.h"

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "cli/measure/calibrate.h"
#include "base/files/files.h"
#include "cli/launch/planned_run.h"
#include "base/status_macros.h"
#include "planner/papers/row.h"
#include "planner/plan.h"
#include "planner/plan_report.h"

namespace eps {
namespace {

constexpr char kUsage[] =
    "usage: eps plan --hardware=FILE|EXAMPLE [--config=FILE] [--model=PATH] [--json] "
    "[--html=FILE]\n"
    "                [--section.key=value ...]\n"
    "       eps plan --this-machine ...   (measured first, as by eps bench calibrate)\n"
    "       eps plan --reproduce=PAPER [--json]\n"
    "       eps plan --examples | --example=NAME | --schema\n"
    "\n"
    "Says what a run of that configuration takes on those machines and how fast it is, before\n"
    "anything is allocated: bytes by tier, time per stage, the step and its bottleneck, the\n"
    "largest model, and what to change first. Nothing is started and no data is read; keys are\n"
    "those of eps train. Exit code 71 if it does not fit.\n"
    "\n"
    "--examples and --example show descriptions of machines, --schema all that one may say.\n"
    "--reproduce compares the planner with a paper's numbers: ";

struct Arguments {
  bool help = false;
  bool json = false;
  bool examples = false;
  bool schema = false;
  bool this_machine = false;
  std::string example;
  std::string hardware;
  std::string html;
  std::string reproduce;
  std::vector<std::string> train;  // for the configuration
};

Arguments ParseArguments(const std::vector<std::string>& given) {
  Arguments arguments;
  for (const std::string& argument : given) {
    absl::string_view value = argument;
    if (argument == "--help" || argument == "-h") {
      arguments.help = true;
    } else if (argument == "--json") {
      arguments.json = true;
    } else if (argument == "--examples") {
      arguments.examples = true;
    } else if (argument == "--this-machine") {
      arguments.this_machine = true;
    } else if (argument == "--schema") {
      arguments.schema = true;
    } else if (absl::ConsumePrefix(&value, "--example=")) {
      arguments.example = std::string(value);
    } else if (absl::ConsumePrefix(&value, "--hardware=")) {
      arguments.hardware = std::string(value);
    } else if (absl::ConsumePrefix(&value, "--html=")) {
      arguments.html = std::string(value);
    } else if (absl::ConsumePrefix(&value, "--reproduce=")) {
      arguments.reproduce = std::string(value);
    } else {
      arguments.train.push_back(argument);
    }
  }
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
  EPS_ASSIGN_OR_RETURN(const planner::Plan plan, PlanTrainArguments(hardware, arguments.train));
  Print(arguments.json ? planner::PlanToJson(plan) : planner::PlanToText(plan));
  if (!arguments.html.empty()) {
    EPS_RETURN_IF_ERROR(ReplaceFile(arguments.html, planner::PlanToPage(plan)));
  }
  return planner::CheckFits(plan.tiers);
}

}  // namespace

absl::Status RunPlanCommand(const std::vector<std::string>& arguments) {
  const Arguments parsed = ParseArguments(arguments);
  if (parsed.help) {
    Print(absl::StrCat(kUsage, absl::StrJoin(planner::PaperNames(), ", "), ".\n"));
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
