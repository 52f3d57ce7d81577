#include "worker/options.h"

#include <fstream>
#include <optional>
#include <sstream>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/config/app_arguments.h"
#include "base/config/command_line.h"
#include "base/status_macros.h"

namespace eps {
namespace {

constexpr ConfigCommand kWorker = {"eps worker", "compute for a job until it is done"};

absl::Status ApplyFile(const std::string& path, Config* config) {
  if (path.empty()) return absl::OkStatus();
  std::ifstream file(path);
  std::ostringstream yaml;
  yaml << file.rdbuf();
  if (!file) return absl::NotFoundError(absl::StrCat("--config: cannot read ", path));
  return config->MergeYaml(yaml.str(), path);
}

// Reads a variable of the launcher; leaves *value empty if it is not set. Returns InvalidArgument
// unless it is a whole number from `least` to `most`.
absl::Status ReadVariable(const std::map<std::string, std::string>& environment, const char* name,
                          int least, int most, std::optional<int>* value) {
  const auto it = environment.find(name);
  if (it == environment.end()) return absl::OkStatus();
  int number = 0;
  if (!absl::SimpleAtoi(it->second, &number) || number < least || number > most) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is \"", it->second, "\", expected a whole number from ", least, " to ",
                     most, "; a launcher such as torchrun sets it, else unset it"));
  }
  *value = number;
  return absl::OkStatus();
}

// Reads a rank and the number of ranks; both must be set, or neither.
absl::Status ReadPlace(const std::map<std::string, std::string>& environment, const char* rank_name,
                       const char* count_name, std::optional<int>* rank,
                       std::optional<int>* count) {
  constexpr int kMost = 1 << 20;
  EPS_RETURN_IF_ERROR(ReadVariable(environment, rank_name, 0, kMost, rank));
  EPS_RETURN_IF_ERROR(ReadVariable(environment, count_name, 1, kMost, count));
  if (rank->has_value() != count->has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(rank->has_value() ? rank_name : count_name, " is set, but ",
                     rank->has_value() ? count_name : rank_name,
                     " is not; a launcher such as torchrun sets both, else unset it"));
  }
  if (rank->has_value() && **rank >= **count) {
    return absl::InvalidArgumentError(absl::StrCat(
        rank_name, " is ", **rank, ", expected less than ", count_name, " = ", **count));
  }
  return absl::OkStatus();
}

absl::Status ApplyLauncher(const std::map<std::string, std::string>& environment,
                           WorkerOptions* options) {
  std::optional<int> rank, count, local_rank, local_count, port;
  EPS_RETURN_IF_ERROR(ReadPlace(environment, "RANK", "WORLD_SIZE", &rank, &count));
  EPS_RETURN_IF_ERROR(
      ReadPlace(environment, "LOCAL_RANK", "LOCAL_WORLD_SIZE", &local_rank, &local_count));
  EPS_RETURN_IF_ERROR(ReadVariable(environment, "MASTER_PORT", 1, 65535, &port));
  if (count.has_value() && local_count.has_value() && *local_count > *count) {
    return absl::InvalidArgumentError(absl::StrCat("LOCAL_WORLD_SIZE is ", *local_count,
                                                   ", expected at most WORLD_SIZE = ", *count));
  }
  options->config.worker.rank = rank.value_or(options->config.worker.rank);
  options->config.worker.count = count.value_or(options->config.worker.count);
  options->local_rank = local_rank.value_or(options->local_rank);
  options->local_count = local_count.value_or(options->local_count);
  return absl::OkStatus();
}

// Uses the lead on the launcher's first host if no setting names the servers.
absl::Status DefaultServers(const std::map<std::string, std::string>& environment, Config* config) {
  const auto it = environment.find("MASTER_ADDR");
  if (!config->servers.addresses.empty() || it == environment.end()) return absl::OkStatus();
  std::string host = it->second;
  if (absl::StrContains(host, ':') && !absl::StartsWith(host, "[")) {
    host = absl::StrCat("[", host, "]");  // IPv6
  }
  config->servers.addresses = absl::StrCat(host, ":", kDefaultServerPort);
  if (host.find_first_of(" \t,/") == std::string::npos && !host.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("MASTER_ADDR is \"", it->second,
                                                 "\", expected the name or address of a host; or "
                                                 "name the servers by --servers=host:port,..."));
}

absl::Status ParseServers(WorkerOptions* options) {
  const std::string& addresses = options->config.servers.addresses;
  for (absl::string_view address : absl::StrSplit(addresses, ',', absl::SkipWhitespace())) {
    address = absl::StripAsciiWhitespace(address);
    if (!absl::StrContains(address, ':')) {
      return absl::InvalidArgumentError(
          absl::StrCat("servers.addresses: \"", address,
                       "\" is not host:port; a worker only attaches to servers "
                       "that run (eps train starts them)"));
    }
    options->servers.emplace_back(address);
  }
  if (options->servers.empty()) {
    return absl::InvalidArgumentError(
        "a worker needs --servers=host:port,... (or EPS_SERVERS, or a launcher's MASTER_ADDR)");
  }
  return absl::OkStatus();
}

// The functions below return the help to print if the arguments ask for it, else an empty text.
absl::StatusOr<std::string> ParseWorker(const std::vector<std::string>& arguments,
                                        const std::map<std::string, std::string>& environment,
                                        WorkerOptions* options) {
  CLI::App app{kWorker.help, kWorker.name};
  app.add_option("--report", options->report_path, "file for one JSON line per step");
  EPS_ASSIGN_OR_RETURN(const CommandLine line, ParseCommandLine(kWorker, &app, arguments));
  if (!line.help.empty()) return line.help;
  Config& config = options->config;
  EPS_RETURN_IF_ERROR(ApplyFile(line.config_file, &config));
  EPS_RETURN_IF_ERROR(ApplyLauncher(environment, options));
  EPS_RETURN_IF_ERROR(config.MergeEnvironment(environment));
  EPS_RETURN_IF_ERROR(config.MergeFlags(line.settings));
  EPS_RETURN_IF_ERROR(DefaultServers(environment, &config));
  if (config.worker.count < 1 || config.worker.rank < 0 ||
      config.worker.rank >= config.worker.count) {
    return absl::InvalidArgumentError(
        absl::StrCat("worker.rank is ", config.worker.rank,
                     ", expected 0 to worker.count - 1 = ", config.worker.count - 1));
  }
  EPS_RETURN_IF_ERROR(ParseServers(options));
  return std::string();
}

absl::Status CheckGenerate(const std::string& prompt_ids, bool has_prompt,
                           GenerateOptions* options) {
  if (!prompt_ids.empty() && (has_prompt || options->chat)) {
    return absl::InvalidArgumentError(
        absl::StrCat(has_prompt ? "--prompt" : "--chat", " and --prompt-ids exclude each other"));
  }
  if (!prompt_ids.empty()) {
    for (const absl::string_view text : absl::StrSplit(prompt_ids, ',')) {
      int32_t id = 0;
      if (!absl::SimpleAtoi(text, &id) || id < 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("--prompt-ids: \"", text, "\" is not a token id; expected 1,2,3"));
      }
      options->prompt_ids.push_back(id);
    }
  }
  if (options->sampling.temperature < 0 || options->sampling.temperature > 1e6) {
    return absl::InvalidArgumentError(absl::StrCat("--temperature is ",
                                                   options->sampling.temperature,
                                                   ", expected 0 (likeliest token) or more"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ParseGenerate(const std::vector<std::string>& arguments,
                                          GenerateOptions* g) {
  CLI::App app{"continue a prompt with a GPT-2 model", "eps generate"};
  std::string prompt_ids;
  app.add_option("--model", g->model_dir,
                 "folder of a model or run, or ORG/NAME in the hub's cache")
      ->required();
  const CLI::Option* const prompt =
      app.add_option("--prompt", g->prompt, "text; the model's own tokenizer reads it");
  app.add_flag("--chat", g->chat, "the prompt is a message, which the model answers");
  app.add_option("--prompt-ids", prompt_ids, "token ids: 1,2,3");
  app.add_option("--tokens", g->tokens, "number of tokens to generate")->capture_default_str();
  app.add_option("--seed", g->sampling.seed, "equal seeds give equal text")->capture_default_str();
  app.add_option("--temperature", g->sampling.temperature, "0 chooses the likeliest token")
      ->capture_default_str();
  app.add_option("--top-k", g->sampling.top_k, "draw from the k likeliest; 0 draws from all")
      ->capture_default_str();
  app.add_option("--device", g->runtime.device, "auto, cpu, cuda or cuda:N")->capture_default_str();
  app.add_option("--threads", g->runtime.threads, "0 uses all cores")->capture_default_str();
  EPS_ASSIGN_OR_RETURN(std::string help, ParseAppArguments(&app, arguments));
  if (help.empty()) EPS_RETURN_IF_ERROR(CheckGenerate(prompt_ids, prompt->count() > 0, g));
  return help;
}

absl::StatusOr<std::string> ParseCalibrate(const std::vector<std::string>& arguments,
                                           CalibrateOptions* c) {
  CLI::App app{"measure how fast this device computes a block of GPT-2", "eps-worker calibrate"};
  app.add_option("--width", c->width)->capture_default_str();
  app.add_option("--heads", c->heads)->capture_default_str();
  app.add_option("--seq-len", c->seq_len)->capture_default_str();
  app.add_option("--samples", c->samples, "samples in a micro-batch")->capture_default_str();
  app.add_option("--device", c->runtime.device, "auto, cpu, cuda or cuda:N")->capture_default_str();
  app.add_option("--threads", c->runtime.threads, "0 uses all cores")->capture_default_str();
  return ParseAppArguments(&app, arguments);
}

absl::StatusOr<std::string> ParseStep(const std::vector<std::string>& arguments, StepOptions* s) {
  CLI::App app{"measure a training step of a GPT-2 against servers that answer at once",
               "eps-worker step"};
  for (const auto& [name, value] : {std::pair("--layers", &s->layers),
                                    {"--width", &s->width},
                                    {"--heads", &s->heads},
                                    {"--vocab", &s->vocab},
                                    {"--seq-len", &s->seq_len},
                                    {"--samples", &s->samples},
                                    {"--micro-batches", &s->micro_batches},
                                    {"--steps", &s->steps}}) {
    app.add_option(name, *value)->check(CLI::PositiveNumber)->capture_default_str();
  }
  app.add_option("--precision", s->precision, "fp32, bf16 or cmp")->capture_default_str();
  app.add_option("--gradient-sum", s->gradient_sum, "tree or fused")->capture_default_str();
  app.add_option("--trace", s->trace, "a file for a Chrome trace of one more step");
  app.add_option("--device", s->runtime.device, "auto, cpu, cuda or cuda:N")->capture_default_str();
  app.add_option("--stash", s->runtime.stash, "auto, host or device")->capture_default_str();
  app.add_option("--keep", s->runtime.keep, "none or auto")->capture_default_str();
  app.add_option("--threads", s->runtime.threads, "0 uses all cores")->capture_default_str();
  return ParseAppArguments(&app, arguments);
}

// Returns the help of the program itself.
absl::StatusOr<std::string> ParseProgram(const std::vector<std::string>& arguments) {
  CLI::App app{"The part of EPS that computes.", "eps-worker"};
  app.add_flag("--version", "print the properties that the bits of a result depend on");
  app.add_subcommand("worker", kWorker.help);
  app.add_subcommand("generate", "continue a prompt with a GPT-2 model");
  app.add_subcommand("calibrate", "measure how fast this device computes a block of GPT-2");
  app.add_subcommand("step", "measure a training step against servers that answer at once");
  return ParseAppArguments(&app, arguments);
}

}  // namespace

absl::StatusOr<ProgramOptions> ParseProgramOptions(
    const std::vector<std::string>& arguments,
    const std::map<std::string, std::string>& environment) {
  using Command = ProgramOptions::Command;
  ProgramOptions options;
  const std::string word = arguments.empty() ? "" : arguments[0];
  if (word == "--version") {
    options.command = Command::kVersion;
    return options;
  }
  std::vector<std::string> rest = arguments;
  if (!rest.empty()) rest.erase(rest.begin());
  if (word == "worker") {
    options.command = Command::kWorker;
    EPS_ASSIGN_OR_RETURN(options.help, ParseWorker(rest, environment, &options.worker));
  } else if (word == "generate") {
    options.command = Command::kGenerate;
    EPS_ASSIGN_OR_RETURN(options.help, ParseGenerate(rest, &options.generate));
  } else if (word == "calibrate") {
    options.command = Command::kCalibrate;
    EPS_ASSIGN_OR_RETURN(options.help, ParseCalibrate(rest, &options.calibrate));
  } else if (word == "step") {
    options.command = Command::kStep;
    EPS_ASSIGN_OR_RETURN(options.help, ParseStep(rest, &options.step));
  } else {
    EPS_ASSIGN_OR_RETURN(options.help, ParseProgram(arguments));
  }
  if (!options.help.empty()) options.command = Command::kHelp;
  return options;
}

}  // namespace eps
