#include "cli/launch/cluster.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/check.h"
#include "base/config/command_line.h"
#include "base/files/files.h"
#include "base/machine/machine_limits.h"
#include "base/status_macros.h"
#include "cli/launch/run_config.h"
#include "cli/launch/security/security_flags.h"
#include "cli/launch/serve.h"
#include "cli/launch/siblings.h"

namespace eps {
namespace {

constexpr std::chrono::seconds kStartTimeout{60};

}  // namespace

absl::StatusOr<std::string> StorageFolder(const Config& config) {
  if (!config.storage.path.empty()) return config.storage.path;
  if (!config.checkpoint.dir.empty()) return config.checkpoint.dir + "/state";
  return absl::InvalidArgumentError(
      absl::StrCat("storage.kind=", config.storage.kind,
                   " needs a folder: set storage.path, or checkpoint.dir (--out)"));
}

Cluster::Cluster(const Config& config, std::string log_folder, Survives survives)
    : config_(config),
      log_folder_(std::move(log_folder)),
      config_path_(log_folder_ + "/config.yaml"),
      environment_(EnvironmentWithoutConfig()),
      rules_(survives, config.storage.max_restarts) {}

void Cluster::UseAuthority(const LocalAuthority& authority) {
  server_security_ = SecurityArguments(authority.Of(v1::ROLE_SERVER));
  worker_security_ = SecurityArguments(authority.Of(v1::ROLE_DRIVER));
}

absl::Status Cluster::WriteConfig() {
  if (config_written_) return absl::OkStatus();
  config_written_ = true;
  return ReplaceFile(config_path_, config_.ToYaml());
}

ChildOptions Cluster::OptionsOf(const Child& child) const {
  ChildOptions options;
  options.name = child.name;
  options.argv = child.argv;
  options.argv.push_back(absl::StrCat("--config=", config_path_));
  options.environment = environment_;
  options.environment.insert(options.environment.end(), child.variables.begin(),
                             child.variables.end());
  options.log_path =
      absl::StrCat(log_folder_, "/", absl::StrReplaceAll(child.name, {{" ", "-"}}), ".log");
  return options;
}

absl::Status Cluster::Start(Child* child, bool read_stdout) {
  EPS_RETURN_IF_ERROR(WriteConfig());
  ChildOptions options = OptionsOf(*child);
  options.read_stdout = read_stdout;
  // Rename the log of the previous run, so that each log covers a single run.
  std::error_code none_yet;
  std::filesystem::rename(options.log_path, options.log_path + ".old", none_yet);
  EPS_ASSIGN_OR_RETURN(child->process, ChildProcess::Start(std::move(options)));
  return absl::OkStatus();
}

absl::Status Cluster::StartServers(uint32_t count) {
  std::vector<std::string> argv = {OwnPath(), "serve"};
  argv.insert(argv.end(), server_security_.begin(), server_security_.end());
  // These servers and workers share one machine.
  if (config_.servers.memory_limit == 0) {
    EPS_ASSIGN_OR_RETURN(const uint64_t available, AvailableMemory());
    argv.push_back(absl::StrCat("--servers.memory_limit=", available / count));
  }
  if (config_.servers.threads == 0) {
    const uint32_t workers = static_cast<uint32_t>(std::max(0, config_.worker.count));
    argv.push_back(
        absl::StrCat("--servers.threads=", ServerThreads(UsableProcessors(), workers, count)));
  }
  for (uint32_t i = 0; i < count; ++i) {
    Child server{absl::StrCat("server ", i), argv, /*variables=*/{}, nullptr};
    if (config_.storage.durable()) {
      EPS_ASSIGN_OR_RETURN(const std::string folder, StorageFolder(config_));
      const std::string own = absl::StrCat("/server-", i);
      server.argv.push_back(absl::StrCat("--storage.path=", folder, own));
      if (!config_.storage.drives.empty()) {
        std::vector<std::string> drives = config_.storage.drives;
        for (std::string& drive : drives) drive += own;
        server.argv.push_back(absl::StrCat("--storage.drives=", ListText(drives)));
      }
    }
    EPS_ASSIGN_OR_RETURN(ReservedPort port, ReservedPort::Take());
    server.argv.push_back(absl::StrCat("--listen=", port.address()));
    addresses_.push_back(port.address());
    ports_.push_back(std::move(port));
    // Do not reopen a job that this folder served at another address: this run creates its job.
    server.argv.push_back("--storage.reopen=false");
    EPS_RETURN_IF_ERROR(Start(&server, /*read_stdout=*/true));
    server.argv.pop_back();
    servers_.push_back(std::move(server));
  }
  const auto deadline = std::chrono::steady_clock::now() + kStartTimeout;
  for (Child& server : servers_) {
    EPS_RETURN_IF_ERROR(server.process->WaitForLine(kListeningPrefix, deadline).status());
  }
  return absl::OkStatus();
}

absl::Status Cluster::StartWorkers(uint32_t count) {
  EPS_CHECK(!addresses_.empty());
  if (count == 0) return absl::OkStatus();
  EPS_ASSIGN_OR_RETURN(const std::string program, FindSibling("eps-worker"));
  for (uint32_t i = 0; i < count; ++i) {
    Child worker{absl::StrCat("worker ", i),
                 {program, "worker", absl::StrCat("--servers=", absl::StrJoin(addresses_, ",")),
                  absl::StrCat("--worker.rank=", i), absl::StrCat("--worker.count=", count)},
                 {absl::StrCat("LOCAL_RANK=", i), absl::StrCat("LOCAL_WORLD_SIZE=", count)},
                 nullptr};
    worker.argv.insert(worker.argv.end(), worker_security_.begin(), worker_security_.end());
    EPS_RETURN_IF_ERROR(Start(&worker, /*read_stdout=*/false));
    workers_.push_back(std::move(worker));
  }
  return absl::OkStatus();
}

absl::Status Cluster::StartAgain(Child* child, RestartRules::Action action,
                                 const absl::Status& failure) {
  if (action == RestartRules::Action::kNone) return absl::OkStatus();
  if (action == RestartRules::Action::kReplace) {
    std::printf("note: %s was stopped; starting a replacement\n", child->name.c_str());
  } else {
    std::printf("note: restarting %s (restart %d of at most %d): %s\n", child->name.c_str(),
                static_cast<int>(rules_.restarts()), static_cast<int>(config_.storage.max_restarts),
                std::string(failure.message().substr(0, failure.message().find('\n'))).c_str());
  }
  std::fflush(stdout);
  EPS_ASSIGN_OR_RETURN(child->process, ChildProcess::Start(OptionsOf(*child)));
  return absl::OkStatus();
}

absl::Status Cluster::RestartFinishedWorkers() {
  for (Child& worker : workers_) {
    if (worker.process->Running() || !worker.process->Failure().ok()) continue;
    EPS_RETURN_IF_ERROR(StartAgain(
        &worker, rules_.Count(),
        absl::UnavailableError("it had finished before the job was rolled back to a cut")));
  }
  return absl::OkStatus();
}

absl::Status Cluster::Mend() {
  for (Child& server : servers_) {
    if (server.process->Running()) continue;
    EPS_RETURN_IF_ERROR(StartAgain(&server, rules_.OnServerEnd(server.process->wait_status()),
                                   server.process->Failure()));
  }
  for (size_t rank = 0; rank < workers_.size(); ++rank) {
    ChildProcess* const process = workers_[rank].process.get();
    if (process->Running()) continue;
    const RestartRules::Action action = rules_.OnWorkerEnd(rank, process->wait_status());
    const absl::Status failure = process->Failure();
    if (action == RestartRules::Action::kNone && WasStopped(process->wait_status())) {
      return absl::UnavailableError(
          absl::StrCat(failure.message(), "\nit was stopped again before a step was complete, and ",
                       "storage.max_restarts is ", config_.storage.max_restarts));
    }
    EPS_RETURN_IF_ERROR(StartAgain(&workers_[rank], action, failure));
  }
  return FirstFailure(/*of_workers_too=*/true);
}

absl::Status Cluster::Check() {
  SeeEnds();
  return FirstFailure(/*of_workers_too=*/true);
}

absl::Status Cluster::CheckLost() {
  SeeEnds();
  return FirstFailure(/*of_workers_too=*/false);
}

void Cluster::SeeEnds() {
  for (const auto* children : {&servers_, &workers_}) {
    for (const Child& child : *children) child.process->Running();
  }
}

absl::Status Cluster::FirstFailure(bool of_workers_too) const {
  for (const Child& server : servers_) {
    if (!server.process->ended()) continue;
    const absl::Status failure = server.process->Failure();
    // It was stopped, not this run.
    if (WasStopped(server.process->wait_status())) return absl::UnavailableError(failure.message());
    if (!failure.ok()) return failure;
    return absl::UnavailableError(absl::StrCat(server.name, " ended before the job did"));
  }
  absl::Status first;
  for (const Child& worker : workers_) {
    if (!worker.process->ended() || WasStopped(worker.process->wait_status())) continue;
    const absl::Status failure = worker.process->Failure();
    if (WasKilled(worker.process->wait_status())) return failure;
    if (of_workers_too && first.ok()) first = failure;
  }
  return first;
}

bool Cluster::ServersStopped() {
  return std::any_of(servers_.begin(), servers_.end(), [](const Child& server) {
    return !server.process->Running() && WasStopped(server.process->wait_status());
  });
}

bool Cluster::WorkersEnded() {
  bool ended = true;
  for (const Child& worker : workers_) ended = !worker.process->Running() && ended;
  return ended;
}

void Cluster::Stop(std::chrono::milliseconds grace) {
  for (auto* children : {&workers_, &servers_}) {
    for (const Child& child : *children) {
      child.process->Signal(children == &servers_ ? SIGINT : SIGTERM);
    }
    const auto deadline = std::chrono::steady_clock::now() + grace;
    for (const Child& child : *children) {
      if (!child.process->WaitExit(deadline)) child.process->Stop(std::chrono::milliseconds(0));
    }
  }
}

}  // namespace eps
