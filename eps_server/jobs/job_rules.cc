#include "eps_server/jobs/job_rules.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/exit_code.h"
#include "base/status_macros.h"
#include "wire/job_terms.h"

namespace eps {
namespace {

constexpr size_t kMaxRequestIdBytes = 64;
constexpr size_t kMaxHostBytes = 255;
constexpr uint32_t kMaxWorkers = 65'536;
constexpr size_t kNonceDigits = 32;
constexpr size_t kMaxShownBytes = 80;  // of a line in an error
constexpr uint32_t kCancelledCode = static_cast<uint32_t>(ExitCode::kCancelled);

// Exit codes of docs/reference/cli.md after which the same job may succeed.
constexpr ExitCode kRetryCodes[] = {ExitCode::kUnavailable, ExitCode::kInternal, ExitCode::kIo,
                                    ExitCode::kFenced, ExitCode::kTerminated};

bool IsPrintable(absl::string_view text) {
  return std::none_of(text.begin(), text.end(),
                      [](unsigned char c) { return c < 0x20 || c == 0x7f; });
}

// Returns the text for an error: short, and without control characters.
std::string Shown(absl::string_view text) {
  std::string shown(text.substr(0, std::min(text.size(), kMaxShownBytes)));
  for (char& c : shown) {
    if (!IsPrintable(absl::string_view(&c, 1))) c = '?';
  }
  return absl::StrCat("\"", shown, text.size() > kMaxShownBytes ? "..." : "", "\"");
}

absl::Status Invalid(absl::string_view field, absl::string_view expected, absl::string_view found) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": expected ", expected, ", found ", found));
}

absl::Status CheckText(absl::string_view field, absl::string_view text, size_t most) {
  if (text.size() > most) {
    return Invalid(field, absl::StrCat("at most ", most, " bytes"),
                   absl::StrCat(text.size(), " bytes"));
  }
  if (!IsPrintable(text)) return Invalid(field, "printable characters", Shown(text));
  return absl::OkStatus();
}

absl::Status CheckRequestId(const std::string& request_id) {
  return CheckText("request_id", request_id, kMaxRequestIdBytes);
}

// `field` is the name of the field.
absl::Status CheckJobName(absl::string_view field, absl::string_view name) {
  return IsJobName(name) ? absl::OkStatus() : Invalid(field, kJobNameRule, Shown(name));
}

absl::Status CheckNonce(absl::string_view field, absl::string_view nonce) {
  bool good = nonce.size() == kNonceDigits;
  for (const char c : nonce) good = good && absl::ascii_isxdigit(c);
  return good ? absl::OkStatus()
              : Invalid(field, absl::StrCat(kNonceDigits, " hexadecimal digits"), Shown(nonce));
}

absl::Status CheckOwner(const std::string& owner) {
  if (owner.empty() || owner == kServiceOwner) return absl::OkStatus();
  return CheckText("owner", owner, kMaxJobNameBytes);
}

absl::Status CheckLabels(const google::protobuf::Map<std::string, std::string>& labels) {
  if (static_cast<int>(labels.size()) > kMaxJobLabels) {
    return Invalid("labels", absl::StrCat("at most ", kMaxJobLabels), absl::StrCat(labels.size()));
  }
  for (const auto& label : labels) {
    const std::string& key = label.first;
    const bool good =
        !key.empty() && key.size() <= kMaxLabelKeyBytes && absl::ascii_isalnum(key.front()) &&
        absl::ascii_isalnum(key.back()) && std::all_of(key.begin(), key.end(), [](unsigned char c) {
          return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '/' || c == '-';
        });
    if (!good) {
      return Invalid("a key of labels",
                     absl::StrCat("1 to ", kMaxLabelKeyBytes,
                                  " letters, digits and \"._/-\", of which the first and the last "
                                  "are a letter or digit"),
                     Shown(key));
    }
    EPS_RETURN_IF_ERROR(CheckText(absl::StrCat("labels.", key), label.second, kMaxLabelValueBytes));
  }
  return absl::OkStatus();
}

// Checks that the result of an end fits its phase.
absl::Status CheckEnd(const v1::ReportJobRequest& request) {
  if (!HasEnded(request.phase())) {
    return request.has_result()
               ? Invalid("result", "none before the end",
                         absl::StrCat("one with phase ", PhaseName(request.phase())))
               : absl::OkStatus();
  }
  const uint32_t code = request.result().exit_code();
  if (request.phase() == v1::JOB_PHASE_SUCCEEDED && code != 0) {
    return Invalid("result.exit_code", "0 of a job that succeeded", absl::StrCat(code));
  }
  if (request.phase() == v1::JOB_PHASE_FAILED && (code == 0 || code > 255)) {
    return Invalid("result.exit_code", "1 to 255 of a job that failed", absl::StrCat(code));
  }
  if (request.phase() == v1::JOB_PHASE_CANCELLED && request.has_result() &&
      code != kCancelledCode) {
    return Invalid("result.exit_code", absl::StrCat(kCancelledCode, " of a cancelled job"),
                   absl::StrCat(code));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckSubmission(const v1::SubmitJobRequest& request) {
  EPS_RETURN_IF_ERROR(CheckRequestId(request.request_id()));
  EPS_RETURN_IF_ERROR(CheckJobName("name", request.name()));
  EPS_RETURN_IF_ERROR(CheckOwner(request.owner()));
  const std::string& config = request.config();
  if (config.empty() || config.size() > kMaxJobConfigBytes) {
    return Invalid("config", absl::StrCat("1 to ", kMaxJobConfigBytes, " bytes"),
                   absl::StrCat(config.size(), " bytes"));
  }
  if (absl::StrContains(config, '\0')) return Invalid("config", "text", "a zero byte");
  EPS_RETURN_IF_ERROR(CheckLabels(request.labels()));
  if (request.desired() == v1::DESIRED_UNSPECIFIED || request.desired() == v1::DESIRED_RUN ||
      request.desired() == v1::DESIRED_PAUSE) {
    return absl::OkStatus();
  }
  return Invalid("desired", "RUN or PAUSE of a new job", absl::StrCat(request.desired()));
}

absl::Status CheckUpdate(const v1::UpdateJobRequest& request) {
  EPS_RETURN_IF_ERROR(CheckRequestId(request.request_id()));
  EPS_RETURN_IF_ERROR(CheckJobName("name", request.name()));
  if (request.workers() > kMaxWorkers) {
    return Invalid("workers", absl::StrCat("at most ", kMaxWorkers),
                   absl::StrCat(request.workers()));
  }
  const bool scales = request.has_workers() && request.desired() == v1::DESIRED_UNSPECIFIED;
  if (scales || request.desired() == v1::DESIRED_RUN || request.desired() == v1::DESIRED_PAUSE ||
      request.desired() == v1::DESIRED_CANCEL) {
    return absl::OkStatus();
  }
  return Invalid("desired", "RUN, PAUSE or CANCEL", absl::StrCat(request.desired()));
}

absl::Status NoSuchJob(const std::string& name) {
  return absl::NotFoundError(
      absl::StrCat("no job ", name, " is on the board; `eps job ls` lists them"));
}

absl::Status CheckRemoval(const v1::RemoveJobRequest& request) {
  EPS_RETURN_IF_ERROR(CheckRequestId(request.request_id()));
  return CheckJobName("name", request.name());
}

absl::Status CheckCheckpoint(const v1::CheckpointJobRequest& request) {
  EPS_RETURN_IF_ERROR(CheckRequestId(request.request_id()));
  return CheckJobName("name", request.name());
}

absl::Status CheckClaim(const v1::ClaimJobRequest& request) {
  EPS_RETURN_IF_ERROR(CheckRequestId(request.request_id()));
  EPS_RETURN_IF_ERROR(CheckNonce("driver_nonce", request.driver_nonce()));
  EPS_RETURN_IF_ERROR(CheckText("host", request.host(), kMaxHostBytes));
  EPS_RETURN_IF_ERROR(CheckOwner(request.owner()));
  return request.name().empty() ? absl::OkStatus() : CheckJobName("name", request.name());
}

absl::Status CheckReport(const v1::ReportJobRequest& request) {
  EPS_RETURN_IF_ERROR(CheckRequestId(request.request_id()));
  EPS_RETURN_IF_ERROR(CheckJobName("name", request.name()));
  EPS_RETURN_IF_ERROR(CheckNonce("driver_nonce", request.driver_nonce()));
  EPS_RETURN_IF_ERROR(
      CheckText("progress.checkpoint", request.progress().checkpoint(), kMaxCheckpointBytes));
  if (!v1::JobPhase_IsValid(request.phase())) {
    return Invalid("phase", "a phase of JobPhase", absl::StrCat(request.phase()));
  }
  if (request.phase() == v1::JOB_PHASE_QUEUED && !request.ended()) {
    return Invalid("phase", "QUEUED only with `ended`", "QUEUED of a driver that goes on");
  }
  return CheckEnd(request);
}

absl::Status CheckListing(const v1::ListJobsRequest& request) {
  EPS_RETURN_IF_ERROR(CheckRequestId(request.request_id()));
  return request.name().empty() ? absl::OkStatus() : CheckJobName("name", request.name());
}

absl::Status CheckWatch(const v1::WatchJobsRequest& request) {
  EPS_RETURN_IF_ERROR(CheckRequestId(request.request_id()));
  return request.name().empty() ? absl::OkStatus() : CheckJobName("name", request.name());
}

bool MayRunAgain(const v1::Job& job) {
  return job.phase() == v1::JOB_PHASE_FAILED && job.desired() != v1::DESIRED_CANCEL &&
         std::find(std::begin(kRetryCodes), std::end(kRetryCodes),
                   static_cast<ExitCode>(job.result().exit_code())) != std::end(kRetryCodes);
}

bool WaitsForDriver(const v1::Job& job) {
  return !HasEnded(job.phase()) && job.desired() == v1::DESIRED_RUN &&
         job.driver().driver_nonce().empty();
}

std::string JobOwnerOf(const std::string& owner) { return owner.empty() ? kServiceOwner : owner; }

std::string FirstDifference(const v1::Job& job, const v1::SubmitJobRequest& request) {
  if (job.config() != request.config()) {
    const std::vector<absl::string_view> ours = absl::StrSplit(job.config(), '\n');
    const std::vector<absl::string_view> theirs = absl::StrSplit(request.config(), '\n');
    size_t line = 0;
    while (line < ours.size() && line < theirs.size() && ours[line] == theirs[line]) ++line;
    const auto text = [line](const std::vector<absl::string_view>& lines) {
      return line < lines.size() ? Shown(lines[line]) : std::string("no such line");
    };
    return absl::StrCat("line ", line + 1, " of its configuration is ", text(ours), ", and ",
                        text(theirs), " in this request");
  }
  if (job.owner() != JobOwnerOf(request.owner())) {
    return absl::StrCat("its owner is ", Shown(job.owner()), ", and ",
                        Shown(JobOwnerOf(request.owner())), " in this request");
  }
  const auto differs = [](const auto& some, const auto& others) {
    std::vector<std::string> keys;
    for (const auto& label : some) {
      const auto other = others.find(label.first);
      if (other == others.end() || other->second != label.second) keys.push_back(label.first);
    }
    return keys;
  };
  std::vector<std::string> keys = differs(job.labels(), request.labels());
  for (std::string& key : differs(request.labels(), job.labels())) keys.push_back(std::move(key));
  if (keys.empty()) return "";
  return absl::StrCat("its label ", *std::min_element(keys.begin(), keys.end()),
                      " is another one in this request");
}

void SettleWithoutDriver(v1::Job* job) {
  if (HasEnded(job->phase())) return;
  if (job->desired() == v1::DESIRED_CANCEL) {
    job->set_phase(v1::JOB_PHASE_CANCELLED);
    job->clear_reason();
    job->mutable_result()->set_exit_code(kCancelledCode);
  } else if (job->desired() == v1::DESIRED_PAUSE) {
    job->set_phase(v1::JOB_PHASE_PAUSED);
  } else if (job->phase() == v1::JOB_PHASE_PAUSED) {
    job->set_phase(v1::JOB_PHASE_QUEUED);
  }
}

}  // namespace eps
