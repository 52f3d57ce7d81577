#ifndef EPS_CLI_DRIVER_JOB_START_H_
#define EPS_CLI_DRIVER_JOB_START_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/exit_code.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_residuals.h"
#include "cli/driver/driver_job.h"
#include "eps/v1/control.pb.h"
#include "wire/control_client.h"

namespace eps {

// The state that a job starts from: new weights, a checkpoint, or the state of durable servers.
// Prints which one it uses. Thread-compatible.
class JobStart {
 public:
  // Opens the checkpoint that checkpoint.resume names, if any. `job` must outlive the result.
  // DataLoss with advice if the checkpoint is damaged; InvalidArgument if checkpoint.resume names a
  // folder and nothing is left to train, or, with all differences, if data, model or seed are not
  // those of the checkpoint and job->allow_changes is false; other errors are those of ResumeFolder
  // and CheckpointReader.
  static absl::StatusOr<std::unique_ptr<JobStart>> Open(const DriverJob* job);

  // Returns true if --resume=latest found the job complete, or ended early, so that nothing is left
  // to do.
  bool complete() const { return complete_; }
  // Returns true if the run resumes from a checkpoint.
  bool resumes() const { return checkpoint_ != nullptr; }
  // The border that the run starts from.
  uint64_t step() const { return step_; }
  // Returns true if that border is the one of the servers' durable state.
  bool recovered() const { return recovered_; }

  // Call this before the run starts `servers` durable servers of its own in `state_folder`. With
  // checkpoint.resume=latest, NotFound if steps would be lost: a part of the state is missing, or
  // no server knows the job and metrics.jsonl has steps after the border that the run would start
  // from. Otherwise moves the parts of an incomplete state to lost+found and says so in one line.
  //
  // With checkpoint.resume=latest, and if the folder holds the job that this output folder had
  // before, with other settings and ahead of the checkpoint, writes its state as a checkpoint and
  // resumes from that. Errors are then also those of Open, StateFolder and SaveCheckpoint.
  absl::Status CheckState(const std::string& state_folder, uint32_t servers);
  // Returns the refusal of the job by servers of others, with all differences if they hold a job
  // with other settings. `refused` is the error of CreateJob.
  absl::Status ExplainRefusal(const absl::Status& refused, ControlClient* client) const;
  // Call this once the servers have agreed on `status`. If their durable state contains steps, the
  // run starts from that state instead of the checkpoint. `state_folder` is the folder of servers
  // that belong to this run; empty for servers of others. FailedPrecondition if checkpoint.resume
  // is "none" and the run's own folder holds this job, or, with the code of FailureCodeOf, if the
  // job has failed. NotFound as in CheckState if servers of others do not know the job.
  absl::Status TakeRecovered(const v1::StatusReply& status, const ControlClient& client,
                             const std::string& state_folder);
  // Returns NotFound if the servers wait for a state although the job had one in this run, after
  // which it reached the border `reached`.
  absl::Status CheckNotLost(v1::JobState state, uint64_t reached) const;
  // Imports the state into servers that wait for it; servers that already run the job keep theirs.
  // FailedPrecondition as in TakeRecovered if the job has failed; other errors are those of
  // ControlClient.
  absl::Status Import(v1::JobState state, ControlClient* client) const;

 private:
  explicit JobStart(const DriverJob* job) : job_(job) {}
  absl::Status OpenCheckpoint(const std::string& folder);
  bool HasEndedEarly() const;
  // Resumes from the job with other settings that this run had, whose log ends at step `logged`.
  // Returns false if there is none that is ahead of the checkpoint.
  absl::StatusOr<bool> TakeOtherJob(const std::string& state_folder, uint64_t logged);
  absl::Status DropTaken(const std::string& state_folder) const;
  // Returns whether the run continues wherever the job was, so that it must not lose a step.
  bool takes_latest() const { return job_->config.checkpoint.resume == "latest"; }
  // Returns the last step of metrics.jsonl; 0 without one.
  absl::StatusOr<uint64_t> LoggedStep() const;
  // Returns the refusal of a run whose state is gone. `what` says what is missing.
  absl::Status Lost(const std::string& what, uint64_t logged) const;

  const DriverJob* const job_;
  std::unique_ptr<CheckpointReader> checkpoint_;  // null if the run does not resume from one
  std::unique_ptr<ResidualImport> residuals_;     // the residuals of checkpoint_
  uint64_t step_ = 0;
  bool complete_ = false;
  bool recovered_ = false;
};

}  // namespace eps

#endif  // EPS_CLI_DRIVER_JOB_START_H_
