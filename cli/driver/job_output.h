#ifndef EPS_CLI_DRIVER_JOB_OUTPUT_H_
#define EPS_CLI_DRIVER_JOB_OUTPUT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "checkpoint/trainer_state.h"
#include "cli/driver/best_evaluation.h"
#include "cli/driver/driver_job.h"
#include "cli/driver/metrics_log.h"
#include "cli/driver/report/tensorboard.h"
#include "eps/v1/control.pb.h"
#include "eps/v1/types.pb.h"
#include "wire/control_client.h"

namespace eps {

// The files of a job's output folder: metrics.jsonl, TensorBoard events, checkpoints with
// `latest` and `best`, and trainer_state.json. Without an output folder it keeps the history in
// memory and writes nothing. Thread-compatible.
class JobOutput {
 public:
  // `job` must outlive this object.
  explicit JobOutput(const DriverJob* job) : job_(job) {}

  // Returns what the job's configuration says of evaluations.
  static EvaluationRules RulesOf(const DriverJob& job);

  // Opens the logs with the records up to `border`, from which the job continues. Call it before
  // the functions below, and again whenever the job continues from another border. Errors as in
  // MetricsLog::Open and TensorBoardLog::Open.
  absl::Status Open(uint64_t border);
  // Adds a record to the logs. A failure of the TensorBoard log ends that log, not the run.
  absl::Status Add(const v1::StepRecord& record);
  // Exports the servers' state at the border of `step` into a checkpoint and removes checkpoints
  // beyond checkpoint.save_total_limit. Calls `confirm` before the checkpoint gets its name; an
  // error leaves none. REQUIRES that the servers wait at that border. If the disk is full,
  // ResourceExhausted: nothing is lost, and the call may be repeated.
  absl::Status WriteCheckpoint(uint64_t step, ControlClient* client,
                               std::function<absl::Status()> confirm);
  // Writes trainer_state.json, as Trainer.save_state does. It includes the evaluation after the
  // last step, which the last checkpoint cannot contain.
  absl::Status WriteTrainerState(uint64_t step) const;

  // Writes report.html from metrics.jsonl, with the latest status that each server gives. `outcome`
  // says how far the run is, or what ended it. A failure is printed and ends nothing.
  void WriteReport(const std::string& outcome, ControlClient* client);

  const MetricsLog& metrics() const { return *metrics_; }
  // The folder of the last checkpoint that this run wrote; empty if there is none.
  const std::string& last_checkpoint() const { return last_checkpoint_; }
  // The checkpoint that `best` names; without a folder if there is none.
  const BestCheckpoint& best() const { return best_; }

 private:
  std::string TrainerState(uint64_t step) const;
  bool SavesBest() const;
  // Makes `best` name the best checkpoint up to the border of `step`, unless checkpoint.save_best
  // is false. A failure is printed and ends nothing.
  void UpdateBest(uint64_t step);

  const DriverJob* const job_;
  std::unique_ptr<MetricsLog> metrics_;
  std::unique_ptr<TensorBoardLog> tensorboard_;  // null if disabled or failed
  std::string last_checkpoint_;
  BestCheckpoint best_;
  std::vector<v1::StatusReply> servers_;  // the latest known status of each
};

}  // namespace eps

#endif  // EPS_CLI_DRIVER_JOB_OUTPUT_H_
