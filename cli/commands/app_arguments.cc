#include "cli/commands/app_arguments.h"

#include <cstdio>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"

namespace eps {

absl::StatusOr<bool> ParseApp(CLI::App* app, const std::string& command,
                              const std::vector<std::string>& arguments) {
  try {
    // CLI11 expects the arguments in reverse order.
    app->parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    std::fputs(app->help().c_str(), stdout);
    return false;
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(command, ": ", error.what(), " (eps ", command, " --help)"));
  }
  return true;
}

}  // namespace eps
