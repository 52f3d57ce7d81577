#ifndef EPS_CLI_DRIVER_JOB_DRIVER_H_
#define EPS_CLI_DRIVER_JOB_DRIVER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/driver/driver_job.h"
#include "cli/driver/job_output.h"
#include "cli/driver/job_start.h"
#include "cli/driver/progress.h"
#include "cli/driver/save/save_gate.h"
#include "cli/driver/step_watch.h"
#include "eps/v1/types.pb.h"
#include "wire/control_client.h"

namespace eps {

// The driver's interface to the owner of the run's processes. Called on the driver's thread.
class DriverHost {
 public:
  virtual ~DriverHost() = default;
  // Returns OK while every process of this run works, possibly after a restart; else the failure of
  // one of them.
  virtual absl::Status CheckProcesses() = 0;
  // Restarts the finished workers of this run. Called after the job was rolled back to a cut.
  virtual absl::Status RestartFinishedWorkers() = 0;
  // Returns whether every worker of this run has ended. Called only if worker.count is not 0.
  virtual bool WorkersEnded() = 0;
  // Returns the folder of the processes' logs, for error messages.
  virtual const std::string& log_folder() const = 0;
  // Returns whether the run should stop after the current step.
  virtual bool Interrupted() const = 0;
  // Returns true once after somebody asked for a checkpoint at the next border.
  virtual bool TakeSaveRequest() = 0;
  // Called before a checkpoint is written and former ones are removed, which may be in use: waits
  // for that.
  virtual absl::Status BeforeCheckpoint() = 0;
  // A checkpoint was written, and the job trains on unless it has ended. Does not block.
  virtual void OnCheckpoint(const std::string& folder, uint64_t step) = 0;
  // Receives every record of a step or of an evaluation.
  virtual void OnRecord(const v1::StepRecord& record) = 0;
};

// Drives one job on running servers: creates the job, imports its state, follows its steps, prints
// a progress line and writes a metrics line for each, writes checkpoints at gated borders, and
// resumes the job when durable servers return. It knows servers only by their addresses and starts
// no process. Call Open, Start, Follow and Finish in this order. Thread-compatible.
class JobDriver {
 public:
  // The figures of a run, for its summary.
  struct Result {
    uint64_t step = 0;         // the last completed step
    uint64_t first_step = 0;   // the border that the run started from
    uint64_t tokens = 0;       // tokens that this run trained on
    double seconds = 0;        // duration of training
    bool interrupted = false;  // whether the run was stopped, possibly before the last step
    std::string early_stop;    // why the run ended before its last step; empty if it did not
    std::string last_checkpoint;
    BestCheckpoint best;
  };

  // Opens the checkpoint to resume from, if any. `host` must outlive the driver. Errors as in
  // JobStart::Open.
  static absl::StatusOr<std::unique_ptr<JobDriver>> Open(DriverJob job, DriverHost* host);
  JobDriver(const JobDriver&) = delete;
  JobDriver& operator=(const JobDriver&) = delete;

  // The state that the job starts from. If start().complete(), call nothing else.
  const JobStart& start() const { return *start_; }
  // As JobStart::CheckState.
  absl::Status CheckState(const std::string& state_folder, uint32_t servers) {
    return start_->CheckState(state_folder, servers);
  }
  // Creates the job on the servers at `addresses`, waits until they agree on what is durable,
  // imports the state and sets the first gate. `state_folder` is the folder of durable servers that
  // belong to this run, where the job's configuration is kept; empty for servers of others.
  absl::Status Start(const std::vector<std::string>& addresses, const std::string& state_folder);
  // Follows the job to its last step, to the border at which training.early_stop_patience ends it
  // or, after Interrupted(), to the border where it stops. While a
  // checkpoint does not fit on its disk, waits at the border and says what is missing. Returns
  // an error if the job cannot continue; if the servers gave it up, FailedPrecondition with their
  // reason and the exit code that they give.
  absl::Status Follow();
  // Writes trainer_state.json, and waits for room on its disk as Follow does for checkpoints.
  // REQUIRES that Follow returned OK.
  absl::Status Finish();

  Result result() const;
  // The records of this run. REQUIRES that Start returned OK.
  const MetricsLog& metrics() const { return output_.metrics(); }
  // The connection to the servers. REQUIRES that Start returned OK.
  ControlClient* client() const { return client_.get(); }

 private:
  using Clock = std::chrono::steady_clock;

  JobDriver(DriverJob job, DriverHost* host);
  absl::StatusOr<v1::StatusReply> Connect(const std::vector<std::string>& addresses,
                                          std::chrono::milliseconds timeout);
  absl::Status FollowToEnd();
  std::string Outcome(const absl::Status& status) const;
  absl::Status FollowSteps();
  absl::Status CauseOf(const absl::Status& status);
  absl::Status OnRecord(const v1::StepRecord& record);
  absl::Status OnEvaluation(const v1::StepRecord& record);
  absl::Status OnBorder();
  absl::Status SetGate(uint64_t border);
  // Returns whether a checkpoint that is complete may get its name.
  absl::Status ConfirmSave();
  // Returns whether an evaluation ends the run at the last completed step.
  bool EndsEarly() const;
  // Repeats `write` while the disk of the output folder is full.
  absl::Status AwaitRoom(const std::function<absl::Status()>& write);
  absl::Status OnQuiet(StepWatch* watch);
  absl::Status AwaitEvaluation(StepWatch* watch);
  absl::Status StopAtNextBorder();
  absl::Status SaveAtNextBorder();
  void ExtendPatience();
  bool Evaluating() const;
  // Returns whether another program holds the job before the border of this run's gate, to save it.
  bool HeldForASave();
  bool GoesOnFromACut(const absl::Status& status) const;
  absl::Status Rejoin(const absl::Status& why);
  absl::Status TryRejoin(std::chrono::milliseconds timeout);

  const DriverJob job_;
  DriverHost* const host_;
  std::unique_ptr<JobStart> start_;
  JobOutput output_;
  SaveGate gate_;
  std::unique_ptr<ControlClient> client_;
  EtaEstimator eta_;
  uint64_t step_ = 0;              // the last completed step
  uint64_t tokens_ = 0;            // tokens that this run trained on
  double longest_step_ = 0;        // seconds
  bool stopping_ = false;          // stop at the gate
  bool ended_early_ = false;       // the last checkpoint is written
  bool went_back_ = false;         // the job was rolled back to a cut during this run
  Clock::time_point stop_by_;      // the deadline of a run that is stopping
  Clock::time_point started_;      // when Follow was called
  Clock::time_point last_record_;  // when a record last arrived, or the waits were last shown
};

}  // namespace eps

#endif  // EPS_CLI_DRIVER_JOB_DRIVER_H_
