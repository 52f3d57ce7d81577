// `eps config {print,reference,import-deepspeed}`: prints, documents and imports configurations.

#include <cstdio>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "base/config/app_arguments.h"
#include "base/config/command_line.h"
#include "base/status_macros.h"
#include "cli/commands/import_deepspeed.h"
#include "cli/launch/run_config.h"

namespace eps {
namespace {

constexpr ConfigCommand kPrint = {"eps config print", "the resolved configuration as YAML",
                                  /*trains=*/true};
constexpr char kReferenceHelp[] = "all keys as a Markdown page";
constexpr char kImportHelp[] =
    "a DeepSpeed configuration as YAML, with a list of keys without an equivalent";

void Print(const std::string& text) { std::fputs(text.c_str(), stdout); }

absl::Status RunPrint(const std::vector<std::string>& arguments) {
  EPS_ASSIGN_OR_RETURN(const CommandLine line, ParseCommandLine(kPrint, arguments));
  if (!line.help.empty()) {
    Print(line.help);
    return absl::OkStatus();
  }
  EPS_ASSIGN_OR_RETURN(const RunConfig run, ResolveConfig(line, ProcessEnvironment()));
  Print(run.config.ToYaml());
  return absl::OkStatus();
}

}  // namespace

absl::Status RunConfigCommand(const std::vector<std::string>& arguments) {
  if (!arguments.empty() && arguments[0] == "print") {
    return RunPrint({arguments.begin() + 1, arguments.end()});
  }
  CLI::App app{"print, document or import a configuration", "eps config"};
  app.require_subcommand(1);
  app.add_subcommand("print", kPrint.help);
  const CLI::App* const reference = app.add_subcommand("reference", kReferenceHelp);
  CLI::App* const import = app.add_subcommand("import-deepspeed", kImportHelp);
  std::string file;
  import->add_option("FILE", file, "the JSON file")->required();
  EPS_ASSIGN_OR_RETURN(const std::string help, ParseAppArguments(&app, arguments));
  if (!help.empty()) {
    Print(help);
    return absl::OkStatus();
  }
  if (!reference->parsed()) return RunImportDeepSpeed(file);
  Print(ConfigReference());
  return absl::OkStatus();
}

}  // namespace eps
