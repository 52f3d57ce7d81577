#include "cli/commands/jobs/board.h"

#include <chrono>
#include <cstdlib>
#include <thread>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/exit_code.h"
#include "base/nearest_name.h"
#include "base/status_macros.h"
#include "cli/launch/plan.h"
#include "cli/launch/security/security_flags.h"
#include "wire/client_calls.h"
#include "wire/job_terms.h"

namespace eps {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kConnectTimeout{5};
constexpr std::chrono::milliseconds kLookPause{200};
constexpr std::chrono::seconds kMostAway{60};  // for a lead that starts again

std::string WantedName(v1::Desired desired) {
  return std::string(absl::StripPrefix(v1::Desired_Name(desired), "DESIRED_"));
}

// Returns "12/30", or "12" as long as nobody knows the number of steps.
std::string StepText(const v1::JobProgress& progress) {
  if (progress.steps() == 0) return absl::StrCat(progress.step());
  return absl::StrCat(progress.step(), "/", progress.steps());
}

std::string TimeText(int64_t milliseconds) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", absl::FromUnixMillis(milliseconds),
                          absl::UTCTimeZone());
}

// Returns what is wanted of the job and is not so yet, or why it is in its phase.
std::string RemarkOf(const v1::Job& job) {
  const v1::JobPhase phase = job.phase();
  if (phase == v1::JOB_PHASE_FAILED) return absl::StrCat("exit code ", job.result().exit_code());
  if (!job.reason().empty()) return job.reason();
  if (HasEnded(phase)) return "";
  if (job.desired() == v1::DESIRED_CANCEL) return "to be cancelled";
  if (job.desired() == v1::DESIRED_PAUSE && phase != v1::JOB_PHASE_PAUSED) return "to be paused";
  if (job.desired() == v1::DESIRED_RUN && job.driver().driver_nonce().empty()) {
    return "waits for a driver";
  }
  return "";
}

std::string Columns(const std::string& name, const std::string& phase, const std::string& step,
                    const std::string& loss, const std::string& remark) {
  std::string line = absl::StrFormat("%-24s %-9s %12s %10s  %s", name, phase, step, loss, remark);
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ServersOfBoard(const std::string& servers) {
  ServersConfig config;
  config.addresses = servers;
  const char* const variable = std::getenv("EPS_SERVERS");
  if (servers.empty() && variable != nullptr) config.addresses = variable;
  EPS_ASSIGN_OR_RETURN(ServerChoice choice, ChooseServers(config));
  if (!choice.attach.empty()) return std::move(choice.attach);
  return absl::InvalidArgumentError(
      absl::StrCat("--servers: expected the addresses of running servers, the lead first "
                   "(--servers=host:port,host:port or EPS_SERVERS), found \"",
                   config.addresses, "\""));
}

void AddBoardOptions(CLI::App* app, BoardOptions* options) {
  app->add_option("--servers", options->servers, "addresses of the servers, the lead first");
  AddSecurityFlags(app, &options->security);
}

absl::StatusOr<std::unique_ptr<SchedulerClient>> ConnectToBoard(const BoardOptions& options) {
  EPS_ASSIGN_OR_RETURN(const std::vector<std::string> addresses, ServersOfBoard(options.servers));
  EPS_RETURN_IF_ERROR(UseSecurity(options.security));
  return SchedulerClient::Connect(addresses[0], Clock::now() + kConnectTimeout);
}

absl::StatusOr<v1::Job> FindOnBoard(SchedulerClient* board, const std::string& name) {
  absl::StatusOr<v1::Job> job = board->Get(name);
  if (!absl::IsNotFound(job.status())) return job;
  EPS_ASSIGN_OR_RETURN(const v1::ListJobsReply all, board->List());
  std::vector<std::string> names;
  for (const v1::Job& other : all.jobs()) names.push_back(other.name());
  const std::string nearest = NearestName(name, names);
  return absl::NotFoundError(absl::StrCat(
      job.status().message(),
      nearest.empty() ? "; eps job ls lists all" : absl::StrCat("; did you mean ", nearest, "?")));
}

nlohmann::ordered_json BoardJobJson(const v1::Job& job) {
  nlohmann::ordered_json json;
  json["name"] = job.name();
  json["uid"] = absl::StrFormat("%016x", job.uid());
  json["phase"] = PhaseName(job.phase());
  json["desired"] = WantedName(job.desired());
  json["reason"] = job.reason();
  json["step"] = job.progress().step();
  json["steps"] = job.progress().steps();
  json["loss"] = job.progress().loss();
  json["checkpoint"] = job.progress().checkpoint();
  json["checkpoint_step"] = job.progress().checkpoint_step();
  json["checkpoint_wanted"] = job.checkpoint_wanted();
  json["workers_wanted"] = job.workers_wanted();
  const bool ended = HasEnded(job.phase());
  json["exit_code"] = ended ? nlohmann::ordered_json(job.result().exit_code()) : nullptr;
  json["error"] = job.result().text();
  json["driver"] = job.driver().driver_nonce().empty() ? "" : job.driver().host();
  json["lease_generation"] = job.driver().generation();
  json["job"] = absl::StrFormat("%016x", job.job_id());
  json["owner"] = job.owner();
  json["labels"] = nlohmann::ordered_json::object();
  for (const auto& [key, value] : job.labels()) json["labels"][key] = value;
  json["generation"] = job.generation();
  json["revision"] = job.revision();
  json["created"] = TimeText(job.created_ms());
  return json;
}

std::string BoardJobText(const v1::Job& job) {
  std::string text;
  const auto add = [&text](const char* name, const std::string& value) {
    if (!value.empty()) absl::StrAppend(&text, absl::StrFormat("%-12s %s\n", name, value));
  };
  add("job:", absl::StrFormat("%s (uid %016x)", job.name(), job.uid()));
  add("phase:", PhaseName(job.phase()));
  add("wanted:", HasEnded(job.phase()) ? "" : WantedName(job.desired()));
  add("reason:", job.reason());
  add("step:", StepText(job.progress()));
  if (job.progress().step() > 0) add("loss:", absl::StrFormat("%.4f", job.progress().loss()));
  add("checkpoint:", job.progress().checkpoint());
  if (job.workers_wanted() > 0) add("workers:", absl::StrCat("at most ", job.workers_wanted()));
  if (HasEnded(job.phase())) add("exit code:", absl::StrCat(job.result().exit_code()));
  add("error:", job.result().text());
  const bool driven = !job.driver().driver_nonce().empty();
  add("driver:", driven ? absl::StrCat(job.driver().host(), ", lease ", job.driver().generation())
                 : HasEnded(job.phase()) ? ""
                                         : "none");
  if (job.job_id() != 0) add("servers:", absl::StrFormat("job %016x", job.job_id()));
  for (const auto& [key, value] : job.labels()) add("label:", absl::StrCat(key, "=", value));
  add("submitted:", TimeText(job.created_ms()));
  return text;
}

std::string BoardJobLine(const v1::Job& job) {
  const v1::JobProgress& progress = job.progress();
  return Columns(job.name(), PhaseName(job.phase()), StepText(progress),
                 progress.step() > 0 ? absl::StrFormat("%.4f", progress.loss()) : "-",
                 RemarkOf(job));
}

std::string BoardJobTable(const v1::ListJobsReply& board) {
  if (board.jobs().empty()) return "no jobs (eps submit -f FILE adds one)\n";
  std::string text = Columns("name", "phase", "step", "loss", "remark") + "\n";
  for (const v1::Job& job : board.jobs()) absl::StrAppend(&text, BoardJobLine(job), "\n");
  return text;
}

absl::Status EndOfBoardJob(const v1::Job& job) {
  if (!HasEnded(job.phase()) || job.phase() == v1::JOB_PHASE_SUCCEEDED) return absl::OkStatus();
  const std::string text =
      absl::StrCat("job ", job.name(), ": ", PhaseName(job.phase()),
                   job.result().text().empty() ? "" : ": ", job.result().text());
  const uint32_t code = job.result().exit_code();
  if (job.phase() == v1::JOB_PHASE_CANCELLED || code == 0 || code > 255) {
    return WithExitCode(absl::InternalError(text), job.phase() == v1::JOB_PHASE_CANCELLED
                                                       ? ExitCode::kCancelled
                                                       : ExitCode::kInternal);
  }
  return WithExitCode(absl::InternalError(text), static_cast<ExitCode>(code));
}

absl::StatusOr<v1::Job> AwaitBoardJob(SchedulerClient* board, const v1::Job& job,
                                      uint64_t timeout_seconds,
                                      const std::function<bool(const v1::Job&)>& reached) {
  const auto start = Clock::now();
  auto heard = start;
  for (;;) {
    absl::StatusOr<v1::Job> now = board->Get(job.name());
    if (!now.ok() && (!IsAway(now.status()) || Clock::now() - heard > kMostAway)) return now;
    if (now.ok()) {
      heard = Clock::now();
      if (now->uid() != job.uid()) {
        return absl::NotFoundError(
            absl::StrCat("job ", job.name(), " was removed, and another one has its name"));
      }
      if (reached(*now)) return now;
    }
    if (timeout_seconds > 0 && Clock::now() - start > std::chrono::seconds(timeout_seconds)) {
      return absl::DeadlineExceededError(
          absl::StrCat("job ", job.name(), " is ",
                       now.ok() ? PhaseName(now->phase()) : "not known, as the lead is away",
                       " after ", timeout_seconds, " s (--timeout)"));
    }
    std::this_thread::sleep_for(kLookPause);
  }
}

}  // namespace eps
