#include "base/config/command_line.h"

#include <map>
#include <set>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/config/app_arguments.h"
#include "base/config/config.h"
#include "base/config/key_advice.h"
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
    {"--model", "model.path", "folder of a model, config.json, or ORG/NAME in the hub's cache"},
    {"--out", "checkpoint.dir", "output folder: checkpoints, metrics.jsonl, logs"},
    {"--resume", "checkpoint.resume", "none, latest or a checkpoint folder"},
    {"--servers", "servers.addresses", "a number starts that many, host:port,... attaches"},
    {"--workers", "worker.count", "workers that eps train starts"},
    {"--device", "worker.device", "auto, cpu, cuda or cuda:N"},
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
    if (app->get_option_no_throw(form.option) != nullptr) continue;
    app->add_option(form.option, options->by_key[form.key], form.help)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }
  app->add_flag("--insecure", options->insecure, "allow a listen address that is not loopback");
  app->footer("Any configuration key: --section.key=value (eps config reference lists them).");
}

absl::Status UnknownArgument(const CLI::App& app, const std::string& argument) {
  const auto error = [&](const std::string& advice) {
    return absl::InvalidArgumentError(absl::StrCat("unknown argument ", argument, "; ", advice,
                                                   " (", app.get_name(), " --help)"));
  };
  if (!absl::StartsWith(argument, "--")) {
    return error("eps --help lists commands, eps config reference keys");
  }
  std::vector<std::string> keys;
  for (const ConfigKey& key : ConfigKeys()) keys.push_back(key.name);
  const std::string key = absl::StrReplaceAll(argument.substr(2), {{"-", "_"}});
  const std::string advice = KeyAdvice(key, keys);
  if (!advice.empty()) return error(advice);
  std::vector<std::string> known = OptionNames(app);
  for (const std::string& name : keys) known.push_back(absl::StrCat("--", name));
  const std::string nearest = NearestName(argument, known);
  return error(nearest.empty() ? "eps config reference lists all keys"
                               : absl::StrCat("did you mean ", nearest, "?"));
}

// Refuses a name that is neither a dotted key nor one of the configuration's aliases.
absl::Status CheckKey(const CLI::App& app, const std::string& name) {
  const bool named = absl::StartsWith(name, "--") && name.size() > 2;
  if (named && (absl::StrContains(name, '.') || Config().Set(name.substr(2), "1").ok())) {
    return absl::OkStatus();
  }
  return UnknownArgument(app, name);
}

// Reads the arguments that CLI11 does not know, in order: --key=value, --key value, --boolean.
absl::StatusOr<std::vector<Setting>> ReadSettings(const CLI::App& app) {
  std::set<std::string> booleans;
  for (const ConfigKey& key : ConfigKeys()) {
    if (key.type == "flag") booleans.insert(key.name);
  }
  const std::vector<std::string> arguments = app.remaining();
  std::vector<Setting> settings;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const size_t equals = arguments[i].find('=');
    const std::string name = arguments[i].substr(0, equals);
    EPS_RETURN_IF_ERROR(CheckKey(app, name));
    const std::string key = name.substr(2);
    if (equals != std::string::npos) {
      settings.emplace_back(key, arguments[i].substr(equals + 1));
    } else if (i + 1 < arguments.size() && !absl::StartsWith(arguments[i + 1], "--")) {
      settings.emplace_back(key, arguments[++i]);
    } else if (booleans.count(absl::StrReplaceAll(key, {{"-", "_"}})) != 0) {
      settings.emplace_back(key, "true");
    } else {
      return absl::InvalidArgumentError(absl::StrCat(name, ": a value is missing"));
    }
  }
  return settings;
}

}  // namespace

absl::StatusOr<CommandLine> ParseCommandLine(const ConfigCommand& command,
                                             const std::vector<std::string>& arguments) {
  CLI::App app{command.help, command.name};
  return ParseCommandLine(command, &app, arguments);
}

absl::StatusOr<CommandLine> ParseCommandLine(const ConfigCommand& command, CLI::App* app,
                                             const std::vector<std::string>& arguments) {
  ConfigOptions options;
  CommandLine line;
  std::string driver_lease;
  line.trains = command.trains;
  AddConfigOptions(app, &options);
  if (command.trains) {
    app->add_flag("--overwrite", line.overwrite, "replace the run in the output folder");
    app->add_flag("--allow-changes", line.allow_changes,
                  "resume with other data, another model or seed");
    // Not for people, so no help shows it.
    app->add_option("--driver-lease", driver_lease)->group("");
  }
  if (command.has_json) app->add_flag("--json", line.json, "one JSON object per server");
  EPS_ASSIGN_OR_RETURN(line.help, ParseAppArguments(app, arguments));
  if (!line.help.empty()) return line;
  if (!driver_lease.empty()) {
    EPS_ASSIGN_OR_RETURN(line.driver_lease, ParseDriverLease(driver_lease));
  }
  line.config_file = options.config_file;
  for (const ShortForm& form : kShortForms) {
    const auto value = options.by_key.find(form.key);
    if (value == options.by_key.end() || app->count(form.option) == 0) continue;
    line.settings.emplace_back(form.key, value->second);
  }
  if (!options.data.empty()) line.settings.emplace_back("data.path", ListText(options.data));
  if (options.insecure) line.settings.emplace_back("servers.insecure", "true");
  EPS_ASSIGN_OR_RETURN(const std::vector<Setting> settings, ReadSettings(*app));
  line.settings.insert(line.settings.end(), settings.begin(), settings.end());
  return line;
}

std::string ListText(const std::vector<std::string>& items) {
  const auto quote = [](std::string* out, const std::string& item) {
    out->push_back('"');
    for (const char c : item) {
      if (c == '"' || c == '\\') out->push_back('\\');
      out->push_back(c);
    }
    out->push_back('"');
  };
  return absl::StrCat("[", absl::StrJoin(items, ", ", quote), "]");
}

}  // namespace eps
