// `eps plan`: predicts the memory and the speed of a run without starting it.

#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/files/files.h"
#include "base/status_macros.h"
#include "cli/launch/arguments.h"
#include "cli/launch/planned_run.h"
#include "cli/measure/calibrate.h"
#include "planner/papers/row.h"
#include "planner/plan.h"
#include "planner/plan_report.h"

namespace eps {
namespace {

constexpr char kUsage[] =
    "usage: eps plan --hardware=FILE|EXAMPLE [--config=FILE] [--model=PATH] [--json] "
    "[--html=FILE]\n"
    "                [--section.key=value ...]\n"
    "       eps plan --this-machine ...   (measures it first, as eps bench calibrate does)\n"
    "       eps plan --reproduce=PAPER [--json]\n"
    "       eps plan --examples | --example=NAME | --schema\n"
    "\n"
    "Predicts the memory and the speed of a run on the given machines: bytes by tier, time per\n"
    "stage, the step and its bottleneck, the largest model, and what to change first. Allocates\n"
    "nothing, starts nothing and reads no data. Accepts the keys of eps train. Exits with 71 if\n"
    "the run does not fit.\n"
    "\n"
    "--examples and --example show descriptions of machines, --schema all their fields.\n"
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
  std::vector<std::string> train;  // arguments of `eps train`
};

absl::StatusOr<Arguments> ParseArguments(const std::vector<std::string>& given) {
  Arguments arguments;
  OptionReader reader;
  reader.Flag("--help", &arguments.help)
      .Flag("-h", &arguments.help)
      .Flag("--json", &arguments.json)
      .Flag("--examples", &arguments.examples)
      .Flag("--this-machine", &arguments.this_machine)
      .Flag("--schema", &arguments.schema)
      .Text("--example", &arguments.example)
      .Text("--hardware", &arguments.hardware)
      .Text("--html", &arguments.html)
      .Text("--reproduce", &arguments.reproduce);
  EPS_ASSIGN_OR_RETURN(arguments.train, reader.Read(given));
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

absl::Status RunPlan(const std::vector<std::string>& arguments) {
  EPS_ASSIGN_OR_RETURN(const Arguments parsed, ParseArguments(arguments));
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
