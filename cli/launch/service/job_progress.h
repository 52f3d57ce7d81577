#ifndef EPS_CLI_LAUNCH_SERVICE_JOB_PROGRESS_H_
#define EPS_CLI_LAUNCH_SERVICE_JOB_PROGRESS_H_

#include <cstdint>
#include <string>

#include "eps/v1/scheduler.pb.h"

namespace eps {

// Reads from the files of a run how far it is: from its log, metrics.jsonl and `latest`.
// Thread-compatible.
class JobProgressReader {
 public:
  // `folder` is the output folder of the run, `log` what it prints. Lines that the log has already
  // are those of an earlier process.
  JobProgressReader(std::string folder, std::string log);

  // Reads what is new.
  void Read();

  // The job's id once the run has created or found it on its servers; else 0.
  uint64_t job_id() const { return job_id_; }
  const v1::JobProgress& progress() const { return progress_; }
  // Returns the error that the process printed last; empty if it printed none.
  std::string Error() const;

 private:
  void ReadLog();
  void ReadMetrics();
  void ReadLatest();

  const std::string folder_;
  const std::string log_;
  uint64_t begin_ = 0;  // where the log of this process begins
  uint64_t read_ = 0;   // bytes of the log that are read
  uint64_t job_id_ = 0;
  v1::JobProgress progress_;
};

}  // namespace eps

#endif  // EPS_CLI_LAUNCH_SERVICE_JOB_PROGRESS_H_
