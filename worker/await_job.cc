#include "worker/await_job.h"

#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/exit_code.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "wire/client_calls.h"
#include "wire/control_client.h"

namespace eps {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kLookTimeout{2};
constexpr std::chrono::milliseconds kPause{200};
constexpr std::chrono::seconds kSilence{10};

absl::StatusOr<v1::StatusReply> Look(const std::string& server) {
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<ControlClient> client,
                       ControlClient::Connect({server}, Clock::now() + kLookTimeout));
  return client->GetStatus(0, kLookTimeout);
}

// Returns what is missing; empty if the worker can join. Other errors than a server that is away
// are left to the Join, which names them.
std::string Missing(const std::string& server, JobId done) {
  const absl::StatusOr<v1::StatusReply> status = Look(server);
  if (IsAway(status.status())) return absl::StrCat("server ", server, " to answer");
  if (!status.ok()) return "";
  if (status->job_id() != 0 && JobId(status->job_id()) == done) {
    return absl::StrCat("the next job: server ", server, " holds the one that is done");
  }
  if (status->job_id() != 0) return "";
  return absl::StrCat("a job: server ", server,
                      " has none yet (eps train --servers=ADDRESSES --workers=0 creates one)");
}

}  // namespace

absl::Status AwaitJob(const std::string& server, JobId done, std::chrono::milliseconds timeout,
                      const std::function<bool()>& interrupted) {
  const auto start = Clock::now();
  auto say = start;
  for (;;) {
    const std::string missing = Missing(server, done);
    if (missing.empty()) return absl::OkStatus();
    if (interrupted())
      return absl::CancelledError(absl::StrCat("interrupted, waiting for ", missing));
    if (timeout.count() > 0 && Clock::now() - start > timeout) {
      return absl::UnavailableError(absl::StrCat("waited ", timeout.count() / 1000, " s for ",
                                                 missing, "; worker.join_timeout sets how long"));
    }
    if (Clock::now() >= say) {
      EPS_LOG_INFO("waiting for " << missing);
      say = Clock::now() + kSilence;
    }
    std::this_thread::sleep_for(kPause);
  }
}

absl::Status WithFailureCode(absl::Status failed, const std::string& server) {
  const absl::StatusOr<v1::StatusReply> job = Look(server);
  const std::optional<ExitCode> code = job.ok() ? FailureCodeOf(*job) : std::nullopt;
  return code.has_value() ? WithExitCode(std::move(failed), *code) : failed;
}

}  // namespace eps
