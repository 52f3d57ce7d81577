#include "storage/backends/in_flight.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace eps::durable {

absl::Status Cancelled(absl::string_view what) {
  return absl::CancelledError(
      absl::StrCat(what, " waited for a cut or its slot, and the job was rolled back or ended"));
}

void InFlight::Begin() {
  MutexLock lock(&mu_);
  ++pending_;
}

void InFlight::End() {
  MutexLock lock(&mu_);
  --pending_;
  CompleteQuiesces();
  if (pending_ == 0) idle_.NotifyAll();
}

void InFlight::Report(OpId op, Outcome outcome, double seconds) {
  if (outcome.ok()) {
    done_(BackendDone{op, absl::OkStatus(), std::move(*outcome), seconds});
  } else {
    done_(BackendDone{op, outcome.status(), BackendValue(), seconds});
  }
}

void InFlight::Complete(OpId op, Outcome outcome, double seconds) {
  Report(op, std::move(outcome), seconds);
  End();
}

absl::Status InFlight::failure() {
  MutexLock lock(&mu_);
  return failure_;
}

void InFlight::Fail(const absl::Status& status) {
  absl::Status first;
  {
    MutexLock lock(&mu_);
    if (failure_.ok()) failure_ = status;
    first = failure_;
  }
  on_failure_(first);
}

bool InFlight::quiescing() {
  MutexLock lock(&mu_);
  return quiescing_;
}

void InFlight::Quiesce(OpId op, const std::function<void()>& cancel) {
  {
    MutexLock lock(&mu_);
    ++pending_;
    quiescing_ = true;
  }
  cancel();
  MutexLock lock(&mu_);
  quiesces_.push_back(op);
  CompleteQuiesces();
}

void InFlight::CompleteQuiesces() {
  if (quiesces_.empty() || pending_ > quiesces_.size()) return;
  quiescing_ = false;
  for (const OpId op : std::exchange(quiesces_, {})) {
    executor(Lane::kCore)->Post([this, op] { Complete(op, BackendValue()); });
  }
}

void InFlight::Drain(const std::function<void()>& cancel) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(5);
  {
    MutexLock lock(&mu_);
    quiescing_ = true;
  }
  cancel();
  MutexLock lock(&mu_);
  while (pending_ > 0) {
    const bool in_time = idle_.WaitUntil(&mu_, deadline);
    EPS_CHECK_MSG(in_time || pending_ == 0, pending_ << " operations never ended");
  }
}

}  // namespace eps::durable
