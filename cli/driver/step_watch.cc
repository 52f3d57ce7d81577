#include "cli/driver/step_watch.h"

#include <utility>

namespace eps {

using Clock = std::chrono::steady_clock;

StepWatch::StepWatch(ControlClient* client, uint64_t after_step, uint64_t until_evaluation)
    : client_(client),
      thread_([this, after_step, until_evaluation] { Run(after_step, until_evaluation); }) {}

StepWatch::~StepWatch() {
  client_->CancelWatch();
  thread_.join();
}

std::optional<v1::StepRecord> StepWatch::Next(std::chrono::milliseconds patience) {
  MutexLock lock(&mu_);
  const auto deadline = Clock::now() + patience;
  while (records_.empty() && !end_.has_value() && Clock::now() < deadline) {
    changed_.WaitUntil(&mu_, deadline);
  }
  if (records_.empty()) return std::nullopt;
  v1::StepRecord record = std::move(records_.front());
  records_.pop_front();
  return record;
}

std::optional<absl::Status> StepWatch::end() {
  MutexLock lock(&mu_);
  return records_.empty() ? end_ : std::nullopt;
}

void StepWatch::Run(uint64_t after_step, uint64_t until_evaluation) {
  const absl::Status status =
      client_->Watch(after_step, until_evaluation, [this](const v1::StepRecord& record) {
        MutexLock lock(&mu_);
        records_.push_back(record);
        changed_.NotifyAll();
      });
  MutexLock lock(&mu_);
  end_ = status;
  changed_.NotifyAll();
}

}  // namespace eps
