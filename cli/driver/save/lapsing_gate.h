#ifndef EPS_CLI_DRIVER_SAVE_LAPSING_GATE_H_
#define EPS_CLI_DRIVER_SAVE_LAPSING_GATE_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "wire/control_client.h"

namespace eps {

// A gate of a holder of its own, which holds the job at a border while this process lives and calls
// the lead, and ends servers.gate_timeout after that. A thread repeats the call. Thread-compatible.
class LapsingGate {
 public:
  // `client` must outlive the gate.
  LapsingGate(ControlClient* client, std::string holder)
      : client_(client), holder_(std::move(holder)) {}
  // Lifts the gate, if it is set; the lead then learns of it from the silence at the latest.
  ~LapsingGate();
  LapsingGate(const LapsingGate&) = delete;
  LapsingGate& operator=(const LapsingGate&) = delete;

  // Sets the gate at the first border from `step` on that no server has passed and at which every
  // server holds its whole state, and returns it. Call it once. A border after `last_step` means
  // that the job is done, which no gate holds. Errors are those of ControlClient::LapsingGate.
  absl::StatusOr<uint64_t> SetFrom(uint64_t step, uint64_t last_step);
  // Lets the job go on. Does nothing if no gate is set. Errors as SetFrom.
  absl::Status Lift();

 private:
  // Repeats the call until Lift, or until the job has passed the border.
  void Keep(uint64_t border, std::chrono::milliseconds pause);
  bool LiftedWithin(std::chrono::milliseconds pause) EPS_EXCLUDES(mu_);

  ControlClient* const client_;
  const std::string holder_;
  Mutex mu_;
  CondVar changed_;
  bool lifted_ EPS_GUARDED_BY(mu_) = false;
  std::thread keeper_;  // joinable while the gate is set
};

}  // namespace eps

#endif  // EPS_CLI_DRIVER_SAVE_LAPSING_GATE_H_
