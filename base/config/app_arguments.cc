#include "base/config/app_arguments.h"

#include <algorithm>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/nearest_name.h"

namespace eps {
namespace {

std::vector<std::string> SubcommandNames(CLI::App* app) {
  std::vector<std::string> names;
  for (const CLI::App* const subcommand : app->get_subcommands({})) {
    names.push_back(subcommand->get_name());
  }
  return names;
}

absl::Status WithAdvice(const CLI::App& app, const std::string& message) {
  return absl::InvalidArgumentError(absl::StrCat(message, " (", app.get_name(), " --help)"));
}

// The first argument of an app with subcommands names one of them.
absl::Status CheckSubcommand(CLI::App* app, const std::vector<std::string>& arguments) {
  const std::vector<std::string> names = SubcommandNames(app);
  if (names.empty()) return absl::OkStatus();
  if (arguments.empty()) {
    return WithAdvice(*app, absl::StrCat(app->get_name(), " needs ", absl::StrJoin(names, ", ")));
  }
  const std::string& word = arguments[0];
  const bool known = std::find(names.begin(), names.end(), word) != names.end();
  if (known || word == "--help" || word == "-h") return absl::OkStatus();
  return WithAdvice(*app, std::string(UnknownCommand(word, names).message()));
}

absl::Status UnknownArgument(CLI::App* app, const std::string& argument) {
  std::vector<std::string> known = OptionNames(*app);
  for (const CLI::App* const subcommand : app->get_subcommands()) {
    for (std::string& name : OptionNames(*subcommand)) known.push_back(std::move(name));
  }
  const std::string nearest = NearestName(argument.substr(0, argument.find('=')), known);
  return WithAdvice(
      *app, absl::StrCat("unknown argument ", argument,
                         nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?")));
}

}  // namespace

absl::StatusOr<std::string> ParseAppArguments(CLI::App* app,
                                              const std::vector<std::string>& arguments) {
  const absl::Status subcommand = CheckSubcommand(app, arguments);
  if (!subcommand.ok()) return subcommand;
  const bool takes_extras = app->get_allow_extras();
  // CLI11 would name all unknown arguments, but suggest nothing.
  app->allow_extras();
  for (CLI::App* const nested : app->get_subcommands({})) nested->allow_extras();
  std::string problem;
  try {
    // CLI11 expects the arguments in reverse order.
    app->parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    return app->help();
  } catch (const CLI::ParseError& error) {
    problem = error.what();
  }
  const std::vector<std::string> extras = app->remaining(/*recurse=*/true);
  // A misspelled option explains why a required one is missing.
  if (!takes_extras && !extras.empty()) return UnknownArgument(app, extras[0]);
  if (!problem.empty()) return WithAdvice(*app, problem);
  return std::string();
}

std::vector<std::string> OptionNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* const option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back(absl::StrCat("--", name));
  }
  return names;
}

absl::Status UnknownCommand(const std::string& word, const std::vector<std::string>& known) {
  const std::string nearest = NearestName(word, known);
  return absl::InvalidArgumentError(
      absl::StrCat("unknown command or option ", word, ", known are ", absl::StrJoin(known, ", "),
                   nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?")));
}

}  // namespace eps
