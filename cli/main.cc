// `eps`: the command line. Does not link LibTorch: commands that compute are other programs, which
// it executes in its place (worker, generate, verify) or starts (train).

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/config/app_arguments.h"
#include "base/exit_code.h"
#include "base/version.h"
#include "cli/commands/table.h"

namespace eps {
namespace {

std::string Help() {
  CLI::App app{"EPS trains neural networks that do not fit on the accelerator.", "eps"};
  app.require_subcommand(1);
  app.set_version_flag("--version", absl::StrCat("eps ", kVersion));
  for (const Command& command : Commands()) app.add_subcommand(command.name, command.help);
  return app.help();
}

absl::Status Run(const std::vector<std::string>& arguments) {
  std::vector<std::string> names;
  for (const Command& command : Commands()) names.push_back(command.name);
  if (arguments.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a command is missing: ", absl::StrJoin(names, ", ")));
  }
  const std::string& word = arguments[0];
  for (const Command& command : Commands()) {
    if (command.name == word) return command.run({arguments.begin() + 1, arguments.end()});
  }
  if (word == "--help" || word == "-h") {
    std::fputs(Help().c_str(), stdout);
    return absl::OkStatus();
  }
  if (word == "--version") {
    std::printf("eps %s\n", kVersion);
    return absl::OkStatus();
  }
  return UnknownCommand(word, names);
}

}  // namespace
}  // namespace eps

int main(int argc, char** argv) {
  // eps-worker starts again without it (worker/main.cc), and loading LibTorch takes half a second.
  setenv("OMP_WAIT_POLICY", "passive", /*overwrite=*/0);
  const absl::Status status = eps::Run(std::vector<std::string>(argv + 1, argv + argc));
  if (status.ok()) return 0;
  std::fflush(stdout);
  // A command that has already printed its error returns no text.
  if (!status.message().empty()) {
    std::fprintf(stderr, "eps: %s\n", std::string(status.message()).c_str());
  }
  return static_cast<int>(eps::ExitCodeOf(status));
}
