#include "cli/driver/room_wait.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "cli/driver/job_driver.h"
#include "cli/driver/progress.h"

namespace eps {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kTick{100};
constexpr std::chrono::seconds kFirstPause{1};  // doubles with each attempt
constexpr std::chrono::seconds kLastPause{10};
constexpr std::chrono::seconds kSilence{30};

}  // namespace

absl::Status RetryWithoutRoom(const std::function<absl::Status()>& write, const std::string& hint,
                              DriverHost* host) {
  auto say = Clock::now();
  bool waited = false;
  for (auto pause = kFirstPause;; pause = std::min(2 * pause, kLastPause)) {
    const absl::Status status = write();
    if (!absl::IsResourceExhausted(status)) {
      if (status.ok() && waited) Print("note: there is room again\n");
      return status;
    }
    if (host->Interrupted()) {
      return absl::CancelledError(absl::StrCat("interrupted ", hint, ": ", status.message()));
    }
    if (Clock::now() >= say) {
      Print(absl::StrCat("waiting ", hint, ": ", status.message(), "\n"));
      say = Clock::now() + kSilence;
    }
    waited = true;
    const auto next = Clock::now() + pause;
    while (Clock::now() < next && !host->Interrupted()) {
      EPS_RETURN_IF_ERROR(host->CheckProcesses());
      std::this_thread::sleep_for(kTick);
    }
  }
}

}  // namespace eps
