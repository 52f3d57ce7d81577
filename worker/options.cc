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
#include "base/config/overrides.h"
#include "base/status_macros.h"

namespace eps {
namespace {

// The values that CLI11 parses.
struct Raw {
  std::string config_file;
  std::string servers;
  std::vector<std::string> data;
  std::string report;
  std::string prompt_ids;
  bool has_prompt = false;
};

// Applies arguments of the form --section.key=value or --section.key value.
absl::Status ApplyOverrides(const std::vector<std::string>& extras, Config* config) {
  const auto check = [](const std::string& name) {
    if (absl::StartsWith(name, "--")) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("unknown argument ", name, "; eps-worker worker --help lists the options"));
  };
  EPS_ASSIGN_OR_RETURN(const std::vector<Setting> settings, ReadOverrides(extras, check));
  for (const auto& [key, value] : settings) {
    const absl::Status status = config->Set(key, value);
    if (!status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--", key, ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

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

absl::Status FinishWorker(const Raw& raw, const std::vector<std::string>& extras,
                          const std::map<std::string, std::string>& environment,
                          WorkerOptions* options) {
  Config& config = options->config;
  EPS_RETURN_IF_ERROR(ApplyFile(raw.config_file, &config));
  EPS_RETURN_IF_ERROR(ApplyLauncher(environment, options));
  EPS_RETURN_IF_ERROR(config.MergeEnvironment(environment));
  if (!raw.servers.empty()) EPS_RETURN_IF_ERROR(config.Set("servers.addresses", raw.servers));
  if (!raw.data.empty()) EPS_RETURN_IF_ERROR(config.Set("data.path", ListText(raw.data)));
  EPS_RETURN_IF_ERROR(ApplyOverrides(extras, &config));
  EPS_RETURN_IF_ERROR(DefaultServers(environment, &config));
  options->report_path = raw.report;
  if (config.worker.count < 1 || config.worker.rank < 0 ||
      config.worker.rank >= config.worker.count) {
    return absl::InvalidArgumentError(
        absl::StrCat("worker.rank is ", config.worker.rank,
                     ", expected 0 to worker.count - 1 = ", config.worker.count - 1));
  }
  return ParseServers(options);
}

absl::Status FinishGenerate(const Raw& raw, GenerateOptions* options) {
  if (!raw.prompt_ids.empty() && raw.has_prompt) {
    return absl::InvalidArgumentError("--prompt and --prompt-ids exclude each other");
  }
  if (!raw.prompt_ids.empty()) {
    for (const absl::string_view text : absl::StrSplit(raw.prompt_ids, ',')) {
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

// The command line as CLI11 parses it.
struct Parser {
  explicit Parser(ProgramOptions* options) {
    app.require_subcommand(1);
    version = app.add_flag("--version", "print the properties that the bits of a result depend on");
    worker = app.add_subcommand("worker", "compute for a job until it is done");
    worker->allow_extras();
    worker->add_option("--config", raw.config_file, "YAML file");
    worker->add_option("--servers", raw.servers, "host:port,... in shard order");
    worker->add_option("--data", raw.data, "text files, or one .bin of uint16 (repeatable)");
    worker->add_option("--report", raw.report, "file for one JSON line per step");
    worker->footer("Any configuration key: --section.key=value (eps config reference lists them).");

    generate = app.add_subcommand("generate", "continue a prompt with a GPT-2 model");
    GenerateOptions& g = options->generate;
    generate->add_option("--model", g.model_dir, "folder with config.json and model.safetensors")
        ->required();
    prompt = generate->add_option("--prompt", g.prompt, "text (models with a byte vocabulary)");
    generate->add_option("--prompt-ids", raw.prompt_ids, "token ids: 1,2,3");
    generate->add_option("--tokens", g.tokens, "number of tokens to generate")
        ->capture_default_str();
    generate->add_option("--seed", g.sampling.seed, "equal seeds give equal text")
        ->capture_default_str();
    generate->add_option("--temperature", g.sampling.temperature, "0 chooses the likeliest token")
        ->capture_default_str();
    generate->add_option("--top-k", g.sampling.top_k, "draw from the k likeliest; 0 draws from all")
        ->capture_default_str();
    generate->add_option("--device", g.runtime.device, "auto, cpu, cuda or cuda:N")
        ->capture_default_str();
    generate->add_option("--threads", g.runtime.threads, "0 uses all cores")->capture_default_str();

    calibrate =
        app.add_subcommand("calibrate", "measure how fast this device computes a block of GPT-2");
    CalibrateOptions& c = options->calibrate;
    calibrate->add_option("--width", c.width)->capture_default_str();
    calibrate->add_option("--heads", c.heads)->capture_default_str();
    calibrate->add_option("--seq-len", c.seq_len)->capture_default_str();
    calibrate->add_option("--samples", c.samples, "samples in a micro-batch")
        ->capture_default_str();
    calibrate->add_option("--device", c.runtime.device, "auto, cpu, cuda or cuda:N")
        ->capture_default_str();
    calibrate->add_option("--threads", c.runtime.threads, "0 uses all cores")
        ->capture_default_str();
  }

  CLI::App app{"The part of EPS that computes.", "eps-worker"};
  Raw raw;
  CLI::Option* version = nullptr;
  CLI::Option* prompt = nullptr;
  CLI::App* worker = nullptr;
  CLI::App* generate = nullptr;
  CLI::App* calibrate = nullptr;
};

}  // namespace

absl::StatusOr<ProgramOptions> ParseProgramOptions(
    const std::vector<std::string>& arguments,
    const std::map<std::string, std::string>& environment) {
  ProgramOptions options;
  if (arguments == std::vector<std::string>{"--version"}) {
    options.command = ProgramOptions::Command::kVersion;
    return options;
  }
  if (!arguments.empty() && !absl::StartsWith(arguments[0], "-") && arguments[0] != "worker" &&
      arguments[0] != "generate" && arguments[0] != "calibrate") {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown command ", arguments[0], "; known are worker, generate, calibrate"));
  }
  Parser parser(&options);
  try {
    parser.app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    options.help = parser.app.help();
    return options;
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(error.what());
  }
  if (parser.worker->parsed()) {
    options.command = ProgramOptions::Command::kWorker;
    EPS_RETURN_IF_ERROR(
        FinishWorker(parser.raw, parser.worker->remaining(), environment, &options.worker));
  } else if (parser.calibrate->parsed()) {
    options.command = ProgramOptions::Command::kCalibrate;
  } else {
    options.command = ProgramOptions::Command::kGenerate;
    parser.raw.has_prompt = parser.prompt->count() > 0;
    EPS_RETURN_IF_ERROR(FinishGenerate(parser.raw, &options.generate));
  }
  return options;
}

}  // namespace eps
