#include "cli/launch/service/service_driver.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <random>
#include <system_error>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/exit_code.h"
#include "base/machine/host_name.h"
#include "base/status_macros.h"
#include "checkpoint/guard/folder_lock.h"
#include "cli/launch/interrupt.h"
#include "wire/client_calls.h"
#include "wire/job_terms.h"

namespace eps {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kTick{50};
constexpr std::chrono::milliseconds kIdlePause{500};  // between two looks at the board
constexpr std::chrono::seconds kConnectTimeout{2};
constexpr std::chrono::seconds kLookTimeout{10};

void Say(const std::string& text) {
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

std::string ProcessName() { return absl::StrCat(HostName(), ":", getpid()); }

// Sleeps unless this process is interrupted.
void Pause(std::chrono::milliseconds pause) {
  const auto until = Clock::now() + pause;
  while (Clock::now() < until && !Interrupted()) std::this_thread::sleep_for(kTick);
}

std::string EndText(const v1::Job& job, const DrivenJob::Result& result) {
  switch (result.outcome) {
    case DrivenJob::Outcome::kPaused:
      return absl::StrCat("job ", job.name(), ": paused");
    case DrivenJob::Outcome::kStopped:
      return absl::StrCat("job ", job.name(), ": left to the next driver");
    case DrivenJob::Outcome::kNoRoom:
      return absl::StrCat("job ", job.name(),
                          ": queued again, as its servers hold another job that has ",
                          "not ended on the board: ", result.text);
    case DrivenJob::Outcome::kLost:
      return absl::StrCat("job ", job.name(), ": lost the lease, and stopped its run (",
                          static_cast<int>(result.code), "): ", result.text);
    case DrivenJob::Outcome::kEnded:
      break;
  }
  return absl::StrCat("job ", job.name(), ": ended with ", static_cast<int>(result.code),
                      result.text.empty() ? "" : ": ", result.text);
}

}  // namespace

std::string ServiceDriver::NewNonce() {
  std::random_device random;
  std::string nonce;
  for (int i = 0; i < 4; ++i) absl::StrAppend(&nonce, absl::StrFormat("%08x", random()));
  return nonce;
}

absl::StatusOr<std::unique_ptr<ServiceDriver>> ServiceDriver::Open(const DriverOptions& options) {
  EPS_ASSIGN_OR_RETURN(DataRoots roots, DataRoots::Open(options.data_roots));
  EPS_ASSIGN_OR_RETURN(Descriptor lock, LockFolder(options.out));
  std::error_code error;
  DrivePlan plan = {options.servers,     std::filesystem::absolute(options.out, error).string(),
                    std::move(roots),    options.security,
                    options.on_saved,    options.updater_plugin,
                    options.codec_plugin};
  return std::unique_ptr<ServiceDriver>(
      new ServiceDriver(options, std::move(plan), std::move(lock)));
}

absl::Status ServiceDriver::Connect() {
  if (board_ != nullptr) return absl::OkStatus();
  const std::string& lead = options_.servers[0];
  EPS_ASSIGN_OR_RETURN(control_, ControlClient::Connect({lead}, Clock::now() + kConnectTimeout));
  EPS_ASSIGN_OR_RETURN(board_, SchedulerClient::Connect(lead, Clock::now() + kConnectTimeout));
  return absl::OkStatus();
}

absl::StatusOr<std::optional<std::string>> ServiceDriver::NextName() {
  EPS_ASSIGN_OR_RETURN(const v1::StatusReply servers, control_->GetStatus(0, kLookTimeout));
  if (servers.job_id() == 0) return std::string();
  EPS_ASSIGN_OR_RETURN(const v1::ListJobsReply board, board_->List());
  for (const v1::Job& job : board.jobs()) {
    if (job.job_id() != servers.job_id() || HasEnded(job.phase())) continue;
    const bool waits = job.driver().driver_nonce().empty() && job.desired() == v1::DESIRED_RUN;
    return waits ? std::optional<std::string>(job.name()) : std::nullopt;
  }
  if (servers.job_id() == in_the_way_) return std::optional<std::string>();
  return std::string();
}

absl::StatusOr<std::optional<JobLease>> ServiceDriver::Claim() {
  EPS_RETURN_IF_ERROR(Connect());
  EPS_ASSIGN_OR_RETURN(const std::optional<std::string> name, NextName());
  if (!name.has_value()) return std::optional<JobLease>();
  v1::ClaimJobRequest request;
  request.set_driver_nonce(nonce_);
  request.set_host(ProcessName());
  request.set_owner(kServiceOwner);
  request.set_name(*name);
  const Clock::time_point asked = Clock::now();
  const absl::StatusOr<v1::ClaimJobReply> claim = board_->Claim(request);
  if (absl::IsNotFound(claim.status())) return std::optional<JobLease>();
  EPS_RETURN_IF_ERROR(claim.status());
  return std::optional<JobLease>(JobLease(board_.get(), nonce_, *claim, asked));
}

DrivenJob::Result ServiceDriver::Drive(JobLease lease) {
  DrivenJob job(&plan_, std::move(lease));
  Say(absl::StrCat("job ", job.job().name(), ": driving it in ", plan_.out, "/", job.job().name()));
  const DrivenJob::Result result = job.Run();
  Say(EndText(job.job(), result));
  return result;
}

absl::Status ServiceDriver::Run() {
  HandleInterrupts();
  SetGraceful(true);
  Say(absl::StrCat("eps driver: waiting for jobs of ", options_.servers[0], " in ", plan_.out));
  bool away = false;
  while (!Interrupted()) {
    absl::StatusOr<std::optional<JobLease>> claimed = Claim();
    if (!claimed.ok() && !IsAway(claimed.status())) return claimed.status();
    if (!claimed.ok() && !away) Say(absl::StrCat("waiting: ", claimed.status().message()));
    away = !claimed.ok();
    if (away) board_.reset();
    if (away || !claimed->has_value()) {
      Pause(kIdlePause);
      continue;
    }
    const DrivenJob::Result result = Drive(**std::move(claimed));
    if (result.outcome == DrivenJob::Outcome::kNoRoom) {
      const absl::StatusOr<v1::StatusReply> servers = control_->GetStatus(0, kLookTimeout);
      in_the_way_ = servers.ok() ? servers->job_id() : 0;
    }
    const bool another_time = result.outcome == DrivenJob::Outcome::kStopped ||
                              result.outcome == DrivenJob::Outcome::kNoRoom;
    if (options_.once && !another_time) {
      if (result.code == ExitCode::kOk) return absl::OkStatus();
      return WithExitCode(absl::InternalError(result.text), result.code);
    }
    // Whoever has the job, or the servers, now gets ahead.
    if (another_time || result.outcome == DrivenJob::Outcome::kLost) Pause(kIdlePause);
  }
  return WithExitCode(absl::CancelledError("interrupted; another driver goes on with its jobs"),
                      InterruptCode());
}

}  // namespace eps
