#include "base/config/command_line.h"

#include <algorithm>
#include <map>
#include <memory>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/version.h"
#include "base/config/config.h"

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
    {"--servers", "servers.addresses", "a number starts so many, host:port,... attaches"},
    {"--workers", "worker.count", "workers that eps train starts"},
    {"--listen", "servers.listen", "address of eps serve; port 0 takes a free one"},
};

// "[\"a\", \"b\"]": names may hold commas and spaces.
std::string ListText(const std::vector<std::string>& items) {
  return absl::StrCat("[",
                      absl::StrJoin(items, ", ",
                                    [](std::string* out, const std::string& item) {
                                      out->push_back('"');
                                      for (const char c : item) {
                                        if (c == '"' || c == '\\') out->push_back('\\');
                                        out->push_back(c);
                                      }
                                      out->push_back('"');
                                    }),
                      "]");
}

// The options of one command that takes a configuration.
struct ConfigOptions {
  std::string config_file;
  std::map<std::string, std::string> by_key;
  std::vector<std::string> data;
  bool insecure = false;
  bool json = false;
  std::string import_file;  // of config import-deepspeed
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

// --section.key=value and --section.key value, for whatever CLI11 did not know.
absl::Status TakeOverrides(const std::vector<std::string>& extras, CommandLine* line) {
  for (size_t i = 0; i < extras.size(); ++i) {
    const std::string& extra = extras[i];
    const size_t equals = extra.find('=');
    const std::string name = extra.substr(0, equals);
    if (!absl::StartsWith(name, "--") || name.size() == 2) return UnknownArgument(extra);
    // Without a dot it can only be one of the configuration's aliases.
    if (!absl::StrContains(name, '.') && !Config().Set(name.substr(2), "1").ok()) {
      return UnknownArgument(name);
    }
    if (equals != std::string::npos) {
      line->settings.emplace_back(name.substr(2), extra.substr(equals + 1));
    } else if (i + 1 < extras.size() && !absl::StartsWith(extras[i + 1], "--")) {
      line->settings.emplace_back(name.substr(2), extras[++i]);
    } else {
      return absl::InvalidArgumentError(absl::StrCat(name, ": a value is missing"));
    }
  }
  return absl::OkStatus();
}

// The commands that read their own arguments; worker, generate and verify are other programs.
struct OwnArguments {
  const char* name;
  Command command;
  const char* help;
};
constexpr OwnArguments kOwnArguments[] = {
    {"plan", Command::kPlan, "what a run will take, before it takes it (eps plan --help)"},
    {"simulate", Command::kSimulate, "a run with failures and stragglers (eps simulate --help)"},
    {"worker", Command::kWorker, "run one worker (its own options: eps worker --help)"},
    {"generate", Command::kGenerate, "continue a text (its own options: eps generate --help)"},
    {"verify", Command::kVerify, "compare with a plain training loop (eps verify --help)"},
    {"checkpoint", Command::kCheckpoint,
     "ls, digest, verify, export, save, reshard, rm (eps checkpoint --help)"},
    {"state", Command::kState, "ls, rm: the jobs that servers have kept (eps state --help)"},
    {"backup", Command::kBackup,
     "durable state into a checkpoint, a file or stdout (eps backup --help)"},
    {"restore", Command::kRestore, "durable state out of any of these (eps restore --help)"},
    {"codec", Command::kCodec, "list them, or try one on a file (eps codec --help)"},
};

bool PassOn(const std::vector<std::string>& arguments, CommandLine* line) {
  for (const OwnArguments& own : kOwnArguments) {
    if (arguments.empty() || arguments[0] != own.name) continue;
    line->command = own.command;
    line->passed_on.assign(arguments.begin() + 1, arguments.end());
    return true;
  }
  return false;
}

struct Parser {
  CLI::App app{"EPS trains neural networks that do not fit on the accelerator.", "eps"};
  ConfigOptions options;
  std::vector<std::pair<CLI::App*, Command>> commands;

  Parser() {
    app.require_subcommand(1);
    app.set_version_flag("--version", absl::StrCat("eps ", kVersion));
    Add(&app, Command::kTrain, "train", "train a model; starts what it needs on this machine");
    Add(&app, Command::kServe, "serve", "run one parameter server");
    for (const OwnArguments& own : kOwnArguments) app.add_subcommand(own.name, own.help);
    CLI::App* const status =
        Add(&app, Command::kStatus, "status", "what the servers of --servers hold and wait for");
    status->add_flag("--json", options.json, "one JSON object per server");
    Add(&app, Command::kDoctor, "doctor", "check that this machine can run EPS");
    CLI::App* const config = app.add_subcommand("config", "look at the configuration");
    config->require_subcommand(1);
    Add(config, Command::kConfigPrint, "print", "the resolved configuration as YAML");
    CLI::App* const reference = config->add_subcommand("reference", "all keys as a Markdown page");
    commands.emplace_back(reference, Command::kConfigReference);
    CLI::App* const import = config->add_subcommand(
        "import-deepspeed", "a DeepSpeed configuration as YAML, and what of it has no equivalent");
    import->add_option("FILE", options.import_file, "the JSON file")->required();
    commands.emplace_back(import, Command::kConfigImportDeepSpeed);
  }

  CLI::App* Add(CLI::App* parent, Command command, const char* name, const char* help) {
    CLI::App* const sub = parent->add_subcommand(name, help);
    AddConfigOptions(sub, &options);
    commands.emplace_back(sub, command);
    return sub;
  }
};

absl::Status UnknownCommand(const std::string& word, const std::vector<std::string>& known) {
  const std::string nearest = NearestName(word, known);
  return absl::InvalidArgumentError(
      absl::StrCat("unknown command or option ", word, ", known are ", absl::StrJoin(known, ", "),
                   nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?")));
}

// What CLI11 missed or did not know at the top, in words.
absl::Status WrongCommand(const std::vector<std::string>& arguments) {
  std::vector<std::string> commands = {"train", "serve", "status", "doctor", "config"};
  for (const OwnArguments& own : kOwnArguments) commands.emplace_back(own.name);
  const std::vector<std::string> of_config = {"print", "reference", "import-deepspeed"};
  if (arguments.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a command is missing: ", absl::StrJoin(commands, ", ")));
  }
  if (arguments[0] != "config") return UnknownCommand(arguments[0], commands);
  if (arguments.size() > 1 && arguments[1] == of_config[2]) {
    return absl::InvalidArgumentError(
        "eps config import-deepspeed needs one argument: the JSON file of DeepSpeed");
  }
  if (arguments.size() > 1) return UnknownCommand(arguments[1], of_config);
  return absl::InvalidArgumentError("eps config needs print, reference or import-deepspeed");
}

}  // namespace

absl::StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& arguments) {
  CommandLine line;
  if (PassOn(arguments, &line)) return line;
  const auto parser = std::make_unique<Parser>();
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // as CLI11 wants it
    parser->app.parse(std::move(reversed));
  } catch (const CLI::CallForHelp&) {
    line.text = parser->app.help();
    return line;
  } catch (const CLI::CallForVersion&) {
    line.text = absl::StrCat("eps ", kVersion, "\n");
    return line;
  } catch (const CLI::ExtrasError&) {
    return WrongCommand(arguments);
  } catch (const CLI::RequiredError&) {
    return WrongCommand(arguments);
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(error.what());
  }
  for (const auto& [app, command] : parser->commands) {
    if (!app->parsed()) continue;
    const ConfigOptions& options = parser->options;
    line.command = command;
    line.config_file = options.config_file;
    line.json = options.json;
    if (command == Command::kConfigImportDeepSpeed) line.passed_on = {options.import_file};
    // These take no configuration.
    if (command == Command::kConfigReference || command == Command::kConfigImportDeepSpeed) {
      continue;
    }
    for (const ShortForm& form : kShortForms) {
      if (app->count(form.option) == 0) continue;
      line.settings.emplace_back(form.key, options.by_key.at(form.key));
    }
    if (!options.data.empty()) line.settings.emplace_back("data.path", ListText(options.data));
    if (options.insecure) line.settings.emplace_back("servers.insecure", "true");
    const absl::Status overrides = TakeOverrides(app->remaining(), &line);
    if (!overrides.ok()) return overrides;
  }
  return line;
}

}  // namespace eps
