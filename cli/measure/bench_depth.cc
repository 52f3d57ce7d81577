#include "cli/measure/bench_depth.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <system_error>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/config/command_line.h"
#include "base/exit_code.h"
#include "base/files/files.h"
#include "base/job/layout/chunk_map.h"
#include "base/job/models/model_family.h"
#include "base/job/optimizers.h"
#include "base/memory_account.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "cli/launch/child_process.h"
#include "cli/launch/plan.h"
#include "cli/launch/run_config.h"
#include "cli/launch/serve.h"
#include "cli/launch/siblings.h"
#include "nlohmann/json.hpp"
#include "wire/control_client.h"

namespace eps {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr ConfigCommand kDepth = {
    "eps bench depth",
    "Trains a GPT-2 of each depth for a few steps with servers and a worker on this machine and "
    "compares their memory: the device's must be the same at every depth. Accepts the arguments of "
    "eps train except model.path and worker.count. Exits with 0 if all checks pass, else with 1.",
    /*trains=*/true};

constexpr uint64_t kServerAllowance = uint64_t{64} << 20;
constexpr double kFlat = 1.01;
constexpr int kHeadWidth = 32;
constexpr std::chrono::seconds kStartTimeout{60};
constexpr std::chrono::seconds kStatusTimeout{10};
constexpr std::chrono::minutes kTrainTimeout{10};
constexpr std::chrono::milliseconds kTick{50};
constexpr std::chrono::seconds kStopGrace{5};

struct Options {
  std::vector<int> layers = {8, 16, 32, 64};
  int width = 128;
  bool json = false;
  CommandLine line;
};

absl::Status SetWidth(absl::string_view text, Options* options) {
  if (absl::SimpleAtoi(text, &options->width) && options->width >= kHeadWidth &&
      options->width % kHeadWidth == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--width=", text, ": expected a positive multiple of ", kHeadWidth));
}

absl::Status SetLayers(absl::string_view text, Options* options) {
  options->layers.clear();
  for (absl::string_view item : absl::StrSplit(text, ',')) {
    int layers = 0;
    if (!absl::SimpleAtoi(item, &layers) || layers < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("--layers=", text, ": expected numbers of layers like 8,16,32,64"));
    }
    options->layers.push_back(layers);
  }
  return absl::OkStatus();
}

absl::StatusOr<Options> ParseOptions(const std::vector<std::string>& arguments) {
  Options options;
  std::string width = absl::StrCat(options.width);
  std::string layers = absl::StrJoin(options.layers, ",");
  CLI::App app{kDepth.help, kDepth.name};
  app.add_option("--layers", layers, "depths to compare")->capture_default_str();
  app.add_option("--width", width, "width of the models")->capture_default_str();
  app.add_flag("--json", options.json, "print the result as JSON");
  EPS_ASSIGN_OR_RETURN(options.line, ParseCommandLine(kDepth, &app, arguments));
  EPS_RETURN_IF_ERROR(SetWidth(width, &options));
  EPS_RETURN_IF_ERROR(SetLayers(layers, &options));
  return options;
}

// Returns the configuration of a depth: the quickstart's settings with small steps, overridden by
// the user's settings.
absl::StatusOr<RunConfig> ConfigOf(const Options& options) {
  CommandLine line = options.line;
  // Insert them first, so that the user's settings override them.
  const std::vector<Setting> settings = {
      {"training.steps", "3"},  {"training.seq_len", "128"},        {"worker.device", "cpu"},
      {"worker.stash", "host"}, {"training.micro_batch_size", "4"}, {"training.micro_batches", "2"},
  };
  line.settings.insert(line.settings.begin(), settings.begin(), settings.end());
  EPS_ASSIGN_OR_RETURN(RunConfig run, ResolveConfig(line, ProcessEnvironment()));
  if (!run.config.model.path.empty() || run.config.worker.count != 1) {
    return absl::InvalidArgumentError(
        "eps bench depth makes its own models and measures one worker: model.path and worker.count "
        "cannot be set");
  }
  run.config.checkpoint = CheckpointConfig();
  return run;
}

// A folder that the destructor removes.
class TemporaryFolder {
 public:
  static absl::StatusOr<std::unique_ptr<TemporaryFolder>> Make() {
    EPS_ASSIGN_OR_RETURN(std::string path, MakeTemporaryFolder("depth"));
    return std::make_unique<TemporaryFolder>(std::move(path));
  }
  explicit TemporaryFolder(std::string path) : path_(std::move(path)) {}
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

absl::Status WriteFile(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file) return IoError(absl::StrCat("bench depth: cannot write ", path));
  return absl::OkStatus();
}

// Returns this process's variables without those of the configuration, which the file holds.
std::vector<std::string> ChildEnvironment() {
  std::vector<std::string> variables;
  for (const auto& [name, value] : ProcessEnvironment()) {
    const bool config =
        name == "EPS_SERVERS" || (absl::StartsWith(name, "EPS_") && absl::StrContains(name, "__"));
    if (!config) variables.push_back(absl::StrCat(name, "=", value));
  }
  return variables;
}

// Returns the peak resident bytes of a running process; 0 if the kernel does not report them.
uint64_t PeakRss(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/status"));
  for (std::string line; std::getline(file, line);) {
    unsigned long kib = 0;
    if (std::sscanf(line.c_str(), "VmHWM: %lu", &kib) == 1) return uint64_t{kib} * 1024;
  }
  return 0;
}

// Servers and a worker for one job, and their memory reports.
class DepthCluster {
 public:
  DepthCluster(TrainPlan plan, std::string folder)
      : plan_(std::move(plan)), folder_(std::move(folder)) {}
  ~DepthCluster() {
    for (const auto& server : servers_) server->Signal(15);
    for (const auto& server : servers_) server->Stop(kStopGrace);
  }

  absl::StatusOr<DepthRun> Run();

 private:
  absl::StatusOr<std::unique_ptr<ChildProcess>> Start(const std::string& name,
                                                      std::vector<std::string> argv,
                                                      bool read_stdout);
  absl::Status StartServers();
  absl::Status Train(DepthRun* run);
  absl::Status ReadAccounts(DepthRun* run);

  const TrainPlan plan_;
  const std::string folder_;
  std::vector<std::unique_ptr<ChildProcess>> servers_;
  std::vector<std::string> addresses_;
  std::unique_ptr<ControlClient> client_;
};

absl::StatusOr<std::unique_ptr<ChildProcess>> DepthCluster::Start(const std::string& name,
                                                                  std::vector<std::string> argv,
                                                                  bool read_stdout) {
  ChildOptions options;
  options.name = name;
  options.argv = std::move(argv);
  options.argv.push_back(absl::StrCat("--config=", folder_, "/config.yaml"));
  options.environment = ChildEnvironment();
  options.log_path = absl::StrCat(folder_, "/", name, ".log");
  options.read_stdout = read_stdout;
  return ChildProcess::Start(std::move(options));
}

absl::Status DepthCluster::StartServers() {
  EPS_ASSIGN_OR_RETURN(const ServerChoice choice, ChooseServers(plan_.config.servers));
  if (choice.spawn == 0) {
    return absl::InvalidArgumentError(
        "eps bench depth reads its servers' memory and starts them itself: servers.addresses "
        "(--servers) must be a number");
  }
  for (uint32_t i = 0; i < choice.spawn; ++i) {
    EPS_ASSIGN_OR_RETURN(
        auto server, Start(absl::StrCat("server-", i), {OwnPath(), "serve", "--listen=127.0.0.1:0"},
                           /*read_stdout=*/true));
    servers_.push_back(std::move(server));
  }
  for (const auto& server : servers_) {
    EPS_ASSIGN_OR_RETURN(const std::string address,
                         server->WaitForLine(kListeningPrefix, Clock::now() + kStartTimeout));
    addresses_.push_back(address);
  }
  EPS_ASSIGN_OR_RETURN(client_, ControlClient::Connect(addresses_, Clock::now() + kStartTimeout));
  EPS_RETURN_IF_ERROR(client_->CreateJob(plan_.spec).status());
  for (uint32_t s = 0; s < addresses_.size(); ++s) {
    EPS_RETURN_IF_ERROR(client_->Initialize(ShardId(s)));
  }
  return absl::OkStatus();
}

absl::Status DepthCluster::Train(DepthRun* run) {
  EPS_ASSIGN_OR_RETURN(const std::string program, FindSibling("eps-worker"));
  const std::string report_path = folder_ + "/report.jsonl";
  EPS_ASSIGN_OR_RETURN(
      const auto worker,
      Start("worker",
            {program, "worker", absl::StrCat("--servers=", absl::StrJoin(addresses_, ",")),
             absl::StrCat("--report=", report_path)},
            /*read_stdout=*/false));
  const auto deadline = Clock::now() + kTrainTimeout;
  while (worker->Running()) {
    run->worker_rss = std::max(run->worker_rss, PeakRss(worker->pid()));
    if (Clock::now() > deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat(run->layers, " layers: not ready after ", kTrainTimeout.count(),
                       " minutes; lower training.steps or --layers"));
    }
    worker->WaitExit(Clock::now() + kTick);
  }
  EPS_RETURN_IF_ERROR(worker->Failure());
  EPS_ASSIGN_OR_RETURN(const std::string lines, ReadTextFile(report_path));
  EPS_ASSIGN_OR_RETURN(run->worker, ParseWorkerReport(lines));
  return absl::OkStatus();
}

absl::Status DepthCluster::ReadAccounts(DepthRun* run) {
  for (size_t s = 0; s < addresses_.size(); ++s) {
    EPS_ASSIGN_OR_RETURN(const v1::StatusReply status, client_->GetStatus(s, kStatusTimeout));
    AddServerAccounts(status, run);
    run->server_rss += PeakRss(servers_[s]->pid());
  }
  return absl::OkStatus();
}

absl::StatusOr<DepthRun> DepthCluster::Run() {
  if (plan_.spec.training.mode != Mode::kEager) {
    return absl::InvalidArgumentError(
        "eps bench depth can only bound eager jobs; set training.clip to lagged or none");
  }
  DepthRun run;
  run.layers = plan_.spec.model.gpt2.n_layer;
  run.parameters = plan_.spec.total_elements();
  run.bounds = BoundsOf(plan_.spec);
  EPS_RETURN_IF_ERROR(WriteFile(folder_ + "/config.yaml", plan_.config.ToYaml()));
  EPS_RETURN_IF_ERROR(StartServers());
  EPS_RETURN_IF_ERROR(Train(&run));
  EPS_RETURN_IF_ERROR(ReadAccounts(&run));
  return run;
}

absl::StatusOr<DepthRun> RunDepth(RunConfig run, int layers, int width) {
  EPS_ASSIGN_OR_RETURN(const auto folder, TemporaryFolder::Make());
  ModelSpec model;
  model.gpt2.n_layer = layers;
  model.gpt2.n_embd = width;
  model.gpt2.n_head = width / kHeadWidth;
  model.gpt2.n_positions = static_cast<int>(std::max(1u, run.config.training.seq_len));
  EPS_RETURN_IF_ERROR(WriteFile(folder->path() + "/config.json", ModelToJson(model)));
  run.config.model.path = folder->path();
  EPS_ASSIGN_OR_RETURN(TrainPlan plan, MakePlan(run));
  DepthCluster cluster(std::move(plan), folder->path());
  return cluster.Run();
}

std::string Mebi(uint64_t bytes) {
  return absl::StrFormat("%.2f", static_cast<double>(bytes) / (1 << 20));
}

constexpr char kRowFormat[] = "%6s %12s %11s %11s %11s %11s %11s %11s %9s %9s %9s\n";

std::string TableHeader() {
  return absl::StrFormat(kRowFormat, "layers", "parameters", "device MiB", "stash MiB", "predicted",
                         "state MiB", "contrib.", "bound", "worker", "servers", "step s");
}

std::string TableRow(const DepthRun& run) {
  return absl::StrFormat(kRowFormat, absl::StrCat(run.layers), FormatCount(run.parameters),
                         Mebi(run.worker.device_peak), Mebi(run.worker.stash_peak),
                         Mebi(run.bounds.stash), Mebi(run.state_peak), Mebi(run.contribution_peak),
                         Mebi(run.bounds.server), Mebi(run.worker_rss), Mebi(run.server_rss),
                         absl::StrFormat("%.2f", run.worker.seconds));
}

constexpr char kLegend[] =
    "(device: the worker's account of LibTorch's memory and loaded weights, without the stash;\n"
    "state and contrib.: peaks of the servers' accounts; bound: their limit together; worker and\n"
    "servers: peak resident MiB of the whole processes as counted by the kernel)\n";

std::string Verdict(const char* what, bool ok, const std::string& found) {
  return absl::StrCat(what, ": ", ok ? "ok" : "MISSED", " (", found, ")");
}

}  // namespace

DepthBounds BoundsOf(const JobSpec& spec) {
  const ChunkMap chunks = ChunkMap::Build(spec);
  const TrainingSpec& t = spec.training;
  std::vector<uint64_t> stages;
  std::vector<int> uses(spec.tensors.size(), 0);
  for (uint32_t s = 0; s < spec.stages.size(); ++s) {
    stages.push_back(chunks.StageElements(StageId(s)));
    for (const TensorUse& use : spec.stages[s].uses) ++uses[use.tensor.value()];
  }
  std::sort(stages.rbegin(), stages.rend());
  stages.resize(std::max<size_t>(stages.size(), 2));
  uint64_t tied = 0;  // waits in the servers until the tensor's other uses have arrived
  for (size_t i = 0; i < uses.size(); ++i) tied += uses[i] > 1 ? spec.tensors[i].elements() : 0;

  DepthBounds bounds;
  const uint64_t input = uint64_t{t.micro_batch_size} * t.seq_len *
                         static_cast<uint64_t>(spec.model.gpt2.n_embd) * sizeof(float);
  // The first stage reads tokens; the others have one input for each micro-batch.
  bounds.stash = (spec.stages.size() - 1) * t.micro_batches * t.parts * input;
  const uint64_t arrays = 1 + StateFields(spec.optimizer).size();  // 3 with AdamW: 12 bytes
  bounds.state = arrays * sizeof(float) * spec.total_elements();
  // Gradients wait at the server, and as many may be on their way in shared memory.
  const uint64_t gradients = t.parts * (stages[0] + stages[1] + tied) * sizeof(float);
  bounds.server = bounds.state + kServerAllowance + 2 * gradients;
  return bounds;
}

absl::StatusOr<WorkerReport> ParseWorkerReport(absl::string_view lines) {
  WorkerReport report;
  std::vector<double> seconds;
  for (absl::string_view line : absl::StrSplit(lines, '\n', absl::SkipEmpty())) {
    const auto json = nlohmann::json::parse(line.begin(), line.end(), nullptr, false);
    const auto number = [&](const char* name) {
      return json.is_object() && json.contains(name) && json[name].is_number();
    };
    if (!number("device_peak_bytes") || !number("stash_peak_bytes") || !number("seconds")) {
      return absl::InvalidArgumentError(
          absl::StrCat("the worker's report, line ", report.steps + 1,
                       ": expected device_peak_bytes, stash_peak_bytes and seconds, found ", line));
    }
    ++report.steps;
    report.device_peak = json["device_peak_bytes"].get<uint64_t>();
    report.stash_peak = json["stash_peak_bytes"].get<uint64_t>();
    seconds.push_back(json["seconds"].get<double>());
  }
  if (seconds.empty()) return absl::InvalidArgumentError("the worker's report is empty");
  std::sort(seconds.begin(), seconds.end());
  report.seconds = seconds[seconds.size() / 2];
  return report;
}

void AddServerAccounts(const v1::StatusReply& status, DepthRun* run) {
  for (const v1::MemoryUse& use : status.memory()) {
    if (use.kind() == MemoryKindName(MemoryKind::kState)) run->state_peak += use.peak_bytes();
    if (use.kind() == MemoryKindName(MemoryKind::kContribution)) {
      run->contribution_peak += use.peak_bytes();
    }
  }
}

std::vector<DepthVerdict> JudgeDepth(const std::vector<DepthRun>& runs) {
  const auto device_less = [](const DepthRun& a, const DepthRun& b) {
    return a.worker.device_peak < b.worker.device_peak;
  };
  const auto [low, high] = std::minmax_element(runs.begin(), runs.end(), device_less);
  const double least = static_cast<double>(low->worker.device_peak);
  const double most = static_cast<double>(high->worker.device_peak);
  const bool flat = least > 0 && most <= kFlat * least;
  bool stash = true;
  bool state = true;
  bool server = true;
  double tightest = 0;
  for (const DepthRun& run : runs) {
    stash = stash && run.worker.stash_peak == run.bounds.stash;
    state = state && run.state_peak == run.bounds.state;
    const uint64_t used = run.state_peak + run.contribution_peak;
    server = server && used <= run.bounds.server;
    tightest =
        std::max(tightest, static_cast<double>(used) / static_cast<double>(run.bounds.server));
  }
  const std::string depths = absl::StrJoin(
      runs, ", ", [](std::string* out, const DepthRun& run) { absl::StrAppend(out, run.layers); });
  return {
      {"device_flat", flat,
       Verdict("device flat within 1 %", flat,
               absl::StrFormat("%s MiB at %d layers to %s MiB at %d, ratio %.4f",
                               Mebi(low->worker.device_peak), low->layers,
                               Mebi(high->worker.device_peak), high->layers,
                               least > 0 ? most / least : 0.0))},
      {"stash_as_predicted", stash,
       Verdict("stash as predicted", stash, absl::StrCat("to the byte, layers ", depths))},
      {"state_exact", state,
       Verdict("servers keep weights and optimizer state (12 bytes per parameter with AdamW)",
               state, absl::StrCat("to the byte, layers ", depths))},
      {"servers_bounded", server,
       Verdict("servers within state + 64 MiB + parts x (two largest stages + tied)", server,
               absl::StrFormat("at most %.1f %% of the bound", 100 * tightest))},
  };
}

std::string DepthTable(const std::vector<DepthRun>& runs) {
  std::string table = TableHeader();
  for (const DepthRun& run : runs) table += TableRow(run);
  return table;
}

std::string DepthJson(const std::vector<DepthRun>& runs) {
  nlohmann::ordered_json json;
  json["depths"] = nlohmann::ordered_json::array();
  for (const DepthRun& run : runs) {
    nlohmann::ordered_json depth;
    depth["layers"] = run.layers;
    depth["parameters"] = run.parameters;
    depth["steps"] = run.worker.steps;
    depth["step_seconds"] = run.worker.seconds;
    depth["device_peak_bytes"] = run.worker.device_peak;
    depth["stash_peak_bytes"] = run.worker.stash_peak;
    depth["stash_predicted_bytes"] = run.bounds.stash;
    depth["state_peak_bytes"] = run.state_peak;
    depth["state_predicted_bytes"] = run.bounds.state;
    depth["contribution_peak_bytes"] = run.contribution_peak;
    depth["server_bound_bytes"] = run.bounds.server;
    depth["worker_rss_bytes"] = run.worker_rss;
    depth["server_rss_bytes"] = run.server_rss;
    json["depths"].push_back(std::move(depth));
  }
  bool ok = true;
  for (const DepthVerdict& verdict : JudgeDepth(runs)) {
    json["verdicts"][verdict.name] = verdict.ok;
    ok = ok && verdict.ok;
  }
  json["ok"] = ok;
  return json.dump(2) + "\n";
}

absl::Status RunBenchDepth(const std::vector<std::string>& arguments) {
  EPS_ASSIGN_OR_RETURN(const Options options, ParseOptions(arguments));
  if (!options.line.help.empty()) {
    std::fputs(options.line.help.c_str(), stdout);
    return absl::OkStatus();
  }
  EPS_ASSIGN_OR_RETURN(const RunConfig run, ConfigOf(options));
  std::vector<DepthRun> runs;
  if (!options.json) std::fputs(TableHeader().c_str(), stdout);
  for (const int layers : options.layers) {
    EPS_ASSIGN_OR_RETURN(DepthRun depth, RunDepth(run, layers, options.width));
    runs.push_back(std::move(depth));
    if (!options.json) std::fputs(TableRow(runs.back()).c_str(), stdout);
    std::fflush(stdout);
  }
  bool ok = true;
  std::string text;
  for (const DepthVerdict& verdict : JudgeDepth(runs)) {
    ok = ok && verdict.ok;
    absl::StrAppend(&text, verdict.text, "\n");
  }
  std::fputs((options.json ? DepthJson(runs) : kLegend + text).c_str(), stdout);
  if (ok) return absl::OkStatus();
  return WithExitCode(absl::UnknownError(""), ExitCode::kDifferent);
}

}  // namespace eps
