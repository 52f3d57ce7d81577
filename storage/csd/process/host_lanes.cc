#include "storage/csd/process/host_lanes.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace eps::csd {
namespace {

// A process whose socket is closed is about to end: the status of its end is worth a short wait.
constexpr std::chrono::milliseconds kGrace{2000};
constexpr std::chrono::milliseconds kIdleWait{60'000};

}  // namespace

HostLanes::HostLanes(std::string name, std::unique_ptr<Child> child,
                     std::chrono::milliseconds command_timeout, Lost lost_or_null)
    : name_(std::move(name)),
      child_(std::move(child)),
      command_timeout_(command_timeout),
      lost_(std::move(lost_or_null)) {
  for (int lane = 0; lane < kLaneCount; ++lane) {
    threads_.emplace_back([this, lane] { RunLane(lane); });
  }
}

HostLanes::~HostLanes() {
  {
    MutexLock lock(&mu_);
    closing_ = true;
  }
  wake_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

void HostLanes::Run(HostJob job) {
  {
    MutexLock lock(&mu_);
    job.command.number = ++last_number_;
    line_.push_back(std::move(job));
  }
  wake_.NotifyOne();
}

void HostLanes::RunLane(int lane) {
  HostJob job;
  while (Take(&job)) {
    absl::Status status = Perform(lane, &job);
    std::exchange(job.done, nullptr)(std::move(status));
  }
}

bool HostLanes::Take(HostJob* job) {
  MutexLock lock(&mu_);
  while (line_.empty()) {
    if (closing_) return false;
    wake_.WaitFor(&mu_, kIdleWait);
  }
  *job = std::move(line_.front());
  line_.pop_front();
  return true;
}

absl::Status HostLanes::Perform(int lane, HostJob* job) {
  {
    MutexLock lock(&mu_);
    if (!end_.empty()) {
      return absl::UnavailableError(
          absl::StrCat("device ", name_, " ", end_, " before ", Describe(job->command)));
    }
  }
  absl::Status answer;
  const absl::Status status =
      Exchange(child_->socket(lane), job->command, job->data,
               std::chrono::steady_clock::now() + command_timeout_, &answer);
  return status.ok() ? answer : End(status, job->command);
}

absl::Status HostLanes::End(const absl::Status& cause, const Command& command) {
  const bool closed = absl::IsUnavailable(cause);
  std::string end = child_->End(closed ? kGrace : std::chrono::milliseconds(0));
  if (absl::IsDeadlineExceeded(cause)) {
    end = absl::StrCat("was killed, because ", Describe(command), " took longer than ",
                       command_timeout_.count(), " ms,");
  } else if (!closed) {
    end = absl::StrCat("was killed, because it answered ", Describe(command), " with garbage (",
                       cause.message(), "),");
  }
  bool first = false;
  absl::Status status;
  {
    MutexLock lock(&mu_);
    first = end_.empty();
    if (first) end_ = std::move(end);
    status = absl::UnavailableError(
        absl::StrCat("device ", name_, " ", end_, " during ", Describe(command)));
  }
  if (first && lost_ != nullptr) lost_(status);
  return status;
}

}  // namespace eps::csd
