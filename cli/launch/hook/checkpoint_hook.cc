#include "cli/launch/hook/checkpoint_hook.h"

#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace eps {
namespace {

constexpr std::chrono::seconds kStopGrace{5};
constexpr char kCheckpoint[] = "EPS_CHECKPOINT=";
constexpr char kStep[] = "EPS_STEP=";

}  // namespace

CheckpointHook::CheckpointHook(std::string command, std::chrono::milliseconds limit,
                               std::string log_path)
    : command_(std::move(command)), limit_(limit), log_path_(std::move(log_path)) {}

absl::Status CheckpointHook::Start(const std::string& checkpoint, uint64_t step) {
  if (command_.empty()) return absl::OkStatus();
  ChildOptions options;
  options.name = "the command after a checkpoint";
  options.argv = {"/bin/sh", "-c", command_};
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (absl::StartsWith(*variable, kCheckpoint) || absl::StartsWith(*variable, kStep)) continue;
    options.environment.emplace_back(*variable);
  }
  options.environment.push_back(absl::StrCat(kCheckpoint, checkpoint));
  options.environment.push_back(absl::StrCat(kStep, step));
  options.log_path = log_path_;
  std::error_code ignored;
  std::filesystem::remove(log_path_, ignored);  // a child appends to it
  started_ = Clock::now();
  EPS_ASSIGN_OR_RETURN(child_, ChildProcess::Start(std::move(options)));
  return absl::OkStatus();
}

bool CheckpointHook::Runs(absl::Status* end) {
  if (child_ == nullptr) return false;
  if (child_->Running()) {
    if (limit_.count() == 0 || Clock::now() - started_ < limit_) return true;
    child_->Stop(kStopGrace);
    *end = absl::DeadlineExceededError(absl::StrCat(
        "the command ran for longer than checkpoint.on_saved_timeout and was stopped; log: ",
        log_path_));
  } else {
    *end = child_->wait_status() == 0 ? absl::OkStatus() : child_->Failure();
  }
  child_.reset();
  return false;
}

double CheckpointHook::seconds() const {
  return std::chrono::duration<double>(Clock::now() - started_).count();
}

}  // namespace eps
