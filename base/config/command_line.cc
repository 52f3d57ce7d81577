#include "base/config/command_line.h"

#include <map>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/config/config.h"
#include "base/nearest_name.h"
#include "base/status_macros.h"

namespace eps {
namespace {

struct ShortForm {
  const char* option;
  const char* key;
  const char* help;
};
constexpr ShortForm kShortForms[] = {
    {"--model", "model.path", "folder with config.json, or a config.json"},
    {"--out", "checkpoint.dir", "output folder: checkpoints, metrics.jsonl, logs"},
    {"--resume", "checkpoint.resume", "none, latest or a checkpoint folder"},
    {"--servers", "servers.addresses", "a number starts that many, host:port,... attaches"},
    {"--workers", "worker.count", "workers that eps train starts"},
    {"--listen", "servers.listen", "address of eps serve; port 0 chooses a free one"},
};

// The options of one command that takes a configuration.
struct ConfigOptions {
  std::string config_file;
  std::map<std::string, std::string> by_key;
  std::vector<std::string> data;
  bool insecure = false;
};

void AddConfigOptions(CLI::App* app, ConfigOptions* options) {
  app->allow_extras();
  app->add_option("--config", options->config_file, "YAML file");
  app->add_option("--data", options->data, "text files, or one .bin of uint16 (repeatable)");
  for (const ShortForm& form : kShortForms) {
    app->add_option(form.option, options->by_key[form.key], form.help)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }
  app->add_flag("--insecure", options->insecure, "allow a listen address that is not loopback");
  app->footer("Any configuration key: --section.key=value (eps config reference lists them).");
}

absl::Status UnknownArgument(const std::string& argument) {
  std::vector<std::string> known = {"--config", "--data", "--insecure", "--help"};
  for (const ShortForm& form : kShortForms) known.push_back(form.option);
  for (const ConfigKey& key : ConfigKeys()) known.push_back(absl::StrCat("--", key.name));
  const std::string nearest = NearestName(argument, known);
  return absl::InvalidArgumentError(
      absl::StrCat("unknown argument ", argument,
                   nearest.empty() ? "; eps --help lists commands, eps config reference keys"
                                   : absl::StrCat("; did you mean ", nearest, "?")));
}

// Refuses a name that is neither a dotted key nor one of the configuration's aliases.
absl::Status CheckOverride(const std::string& name) {
  if (!absl::StartsWith(name, "--") || name.size() == 2) return UnknownArgument(name);
  if (absl::StrContains(name, '.') || Config().Set(name.substr(2), "1").ok()) {
    return absl::OkStatus();
  }
  return UnknownArgument(name);
}

}  // namespace

absl::StatusOr<CommandLine> ParseCommandLine(const ConfigCommand& command,
                                             const std::vector<std::string>& arguments) {
  CLI::App app{command.help, command.name};
  ConfigOptions options;
  CommandLine line;
  line.trains = command.trains;
  AddConfigOptions(&app, &options);
  if (command.has_json) app.add_flag("--json", line.json, "one JSON object per server");
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    line.help = app.help();
    return line;
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(error.what());
  }
  line.config_file = options.config_file;
  for (const ShortForm& form : kShortForms) {
    if (app.count(form.option) == 0) continue;
    line.settings.emplace_back(form.key, options.by_key.at(form.key));
  }
  if (!options.data.empty()) line.settings.emplace_back("data.path", ListText(options.data));
  if (options.insecure) line.settings.emplace_back("servers.insecure", "true");
  EPS_ASSIGN_OR_RETURN(const std::vector<Setting> overrides,
                       ReadOverrides(app.remaining(), CheckOverride));
  line.settings.insert(line.settings.end(), overrides.begin(), overrides.end());
  return line;
}

}  // namespace eps
