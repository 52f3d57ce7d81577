// `eps trace`: some steps of a running job as a file for ui.perfetto.dev and chrome://tracing.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "base/config/app_arguments.h"
#include "base/exit_code.h"
#include "base/files/files.h"
#include "base/status_macros.h"
#include "cli/commands/jobs/board.h"
#include "cli/commands/trace/chrome_trace.h"
#include "cli/commands/trace/job_trace.h"
#include "cli/launch/interrupt.h"
#include "cli/launch/security/security_flags.h"
#include "wire/control_client.h"

namespace eps {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kMostSteps = 1000;
constexpr std::chrono::seconds kStatusTimeout{5};

struct TraceArguments {
  BoardOptions board;
  uint32_t steps = 3;
  std::string out;
  uint32_t timeout_seconds = 600;
};

// Asks all servers for their status: names the stages in `trace`, and checks that these are the
// servers of one job that trains.
absl::Status LookAtJob(const std::vector<std::string>& servers, ChromeTrace* trace) {
  EPS_ASSIGN_OR_RETURN(const auto client,
                       ControlClient::Connect(servers, Clock::now() + kStatusTimeout));
  uint64_t job = 0;
  for (size_t i = 0; i < servers.size(); ++i) {
    EPS_ASSIGN_OR_RETURN(const v1::StatusReply status, client->GetStatus(i, kStatusTimeout));
    if (status.job_id() == 0) {
      return absl::NotFoundError(
          absl::StrCat("server ", servers[i], " runs no job; eps train and eps submit begin one"));
    }
    if (status.shard() != i || status.shards() != servers.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--servers: server ", servers[i], " is shard ", status.shard(), " of ",
                       status.shards(), " of its job, but number ", i, " of the ", servers.size(),
                       " that are named; name all servers of the job, the lead first"));
    }
    if (i > 0 && status.job_id() != job) {
      return absl::InvalidArgumentError(
          absl::StrCat("--servers: ", servers[i], " runs another job than ", servers[0]));
    }
    job = status.job_id();
    for (const v1::StageProgress& stage : status.stage_progress()) {
      trace->NameStage(stage.stage(), stage.name());
    }
  }
  return absl::OkStatus();
}

// Returns the error of a trace as its user sees it.
absl::Status Explain(const absl::Status& status, const TraceArguments& given, uint32_t ended) {
  const std::string so_far = absl::StrCat(ended, " of ", given.steps, " steps have ended");
  if (absl::IsCancelled(status)) {
    return WithExitCode(absl::CancelledError(absl::StrCat("interrupted; ", so_far)),
                        InterruptCode());
  }
  if (!absl::IsDeadlineExceeded(status)) return status;
  return absl::DeadlineExceededError(
      absl::StrCat(so_far, " within ", given.timeout_seconds,
                   " s (--timeout); eps status shows what the job waits for"));
}

absl::Status TraceJob(const TraceArguments& given) {
  EPS_ASSIGN_OR_RETURN(std::vector<std::string> servers, ServersOfBoard(given.board.servers));
  EPS_RETURN_IF_ERROR(UseSecurity(given.board.security));
  ChromeTrace trace;
  EPS_RETURN_IF_ERROR(LookAtJob(servers, &trace));
  HandleInterrupts();
  SetGraceful(true);
  JobTrace::Options options;
  options.servers = std::move(servers);
  options.steps = given.steps;
  options.deadline = Clock::now() + std::chrono::seconds(given.timeout_seconds);
  options.interrupted = [] { return Interrupted(); };
  options.on_step_ended = [&given](uint32_t ended) {
    if (ended <= given.steps) std::fprintf(stderr, "step %u of %u\n", ended, given.steps);
  };
  JobTrace job(std::move(options));
  const absl::Status status = job.Run(&trace);
  // A job that stands still, or a server that went away, is worth a look.
  const bool shows = absl::IsDeadlineExceeded(status) || absl::IsUnavailable(status);
  if (!status.ok() && (!shows || trace.spans() == 0)) {
    return Explain(status, given, job.steps_ended());
  }
  EPS_RETURN_IF_ERROR(ReplaceFile(given.out, trace.Json()));
  const std::string dropped =
      trace.dropped() == 0 ? "" : absl::StrCat(" (", trace.dropped(), " more found no room)");
  const std::string line = absl::StrCat(given.out, ": ", trace.spans(), " spans", dropped, " of ",
                                        trace.processes(), " processes, ", job.steps_ended(),
                                        " steps; open it in ui.perfetto.dev or chrome://tracing\n");
  std::fputs(line.c_str(), stdout);
  if (!status.ok()) return Explain(status, given, job.steps_ended());
  if (job.steps_ended() < given.steps) {
    std::fprintf(stderr, "the job ended before %u steps\n", given.steps);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunTrace(const std::vector<std::string>& arguments) {
  CLI::App app{"Writes what all servers and workers of a running job do in some steps to a file.",
               "eps trace"};
  TraceArguments given;
  AddBoardOptions(&app, &given.board);
  app.add_option("--steps", given.steps, "how many whole steps")
      ->capture_default_str()
      ->check(CLI::Range(uint32_t{1}, kMostSteps));
  app.add_option("--out", given.out, "the file to write, for ui.perfetto.dev or chrome://tracing")
      ->required();
  app.add_option("--timeout", given.timeout_seconds, "most seconds to wait for the steps")
      ->capture_default_str()
      ->check(CLI::Range(uint32_t{1}, uint32_t{86400}));
  EPS_ASSIGN_OR_RETURN(const std::string help, ParseAppArguments(&app, arguments));
  if (!help.empty()) {
    std::fputs(help.c_str(), stdout);
    return absl::OkStatus();
  }
  return TraceJob(given);
}

}  // namespace eps
