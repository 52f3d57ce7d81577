#include "cli/launch/service/job_lease.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "wire/client_calls.h"

namespace eps {
namespace {

// The board shows progress and passes on what is wanted of a job within this time.
constexpr std::chrono::milliseconds kReportPause{1000};
constexpr std::chrono::milliseconds kRetryPause{200};

// Replaces what is not printable ASCII: messages hold only valid UTF-8, and errors may show any
// file.
std::string Printable(const std::string& text) {
  std::string printable = text;
  for (char& c : printable) {
    if (c != '\n' && !absl::ascii_isprint(static_cast<unsigned char>(c))) c = '?';
  }
  return printable;
}

}  // namespace

JobLease::JobLease(SchedulerClient* client, std::string nonce, const v1::ClaimJobReply& claim,
                   Clock::time_point asked)
    : client_(client),
      nonce_(std::move(nonce)),
      job_(claim.job()),
      id_{claim.board(), claim.job().driver().generation()},
      length_(std::chrono::milliseconds(claim.lease_ms())),
      valid_until_(asked + length_),
      due_(asked) {}

absl::Status JobLease::Send(v1::ReportJobRequest report) {
  const Clock::time_point asked = Clock::now();
  due_ = asked + std::min<Clock::duration>(kReportPause, length_ / 3);
  report.set_name(job_.name());
  report.set_uid(job_.uid());
  report.set_driver_nonce(nonce_);
  report.set_lease_generation(id_.generation);
  EPS_ASSIGN_OR_RETURN(v1::ReportJobReply reply, client_->Report(std::move(report)));
  if (reply.has_job()) job_ = std::move(*reply.mutable_job());
  if (reply.lease_ms() > 0) length_ = std::chrono::milliseconds(reply.lease_ms());
  valid_until_ = asked + length_;
  return absl::OkStatus();
}

absl::Status JobLease::Report(v1::ReportJobRequest report) {
  const absl::Status status = Send(std::move(report));
  if (status.ok()) return status;
  if (!IsAway(status)) return absl::AbortedError(status.message());
  if (Clock::now() < valid_until_) return absl::OkStatus();
  return absl::AbortedError(
      absl::StrCat("the lead has not answered for as long as a lease lasts: ", status.message()));
}

absl::Status JobLease::End(v1::ReportJobRequest report) {
  report.set_ended(true);
  if (report.has_result()) report.mutable_result()->set_text(Printable(report.result().text()));
  for (;;) {
    const absl::Status status = Send(report);
    if (status.ok()) return status;
    if (!IsAway(status) || Clock::now() >= valid_until_) {
      return absl::AbortedError(status.message());
    }
    std::this_thread::sleep_for(kRetryPause);
  }
}

}  // namespace eps
