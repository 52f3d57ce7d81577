#ifndef EPS_CLI_LAUNCH_SERVICE_SERVICE_DRIVER_H_
#define EPS_CLI_LAUNCH_SERVICE_SERVICE_DRIVER_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/config/config.h"
#include "base/descriptor.h"
#include "cli/launch/service/driven_job.h"
#include "wire/control_client.h"
#include "wire/scheduler_client.h"

namespace eps {

// The settings of `eps driver`.
struct DriverOptions {
  std::vector<std::string> servers;     // in shard order; the first leads
  std::string out;                      // the folder of all jobs
  std::vector<std::string> data_roots;  // as for DataRoots::Open
  bool once = false;                    // end with the first job
  std::string on_saved;                 // checkpoint.on_saved of all jobs
  std::string updater_plugin;           // optimizer.plugin of the jobs that use one
  std::string codec_plugin;             // quantization.plugin of the jobs that use one
  SecurityConfig security;              // of the runs; this process has its certificate already
};

// Drives the jobs of the board that have no owner of their own, one after the other. Call it on the
// thread that lives as long as the process, and once a process.
class ServiceDriver {
 public:
  // Locks the output folder: one driver at a time works there. Errors are those of LockFolder and
  // DataRoots::Open.
  static absl::StatusOr<std::unique_ptr<ServiceDriver>> Open(const DriverOptions& options);

  // Waits for jobs and drives them until Interrupted(): then Cancelled, with the code of the
  // signal. A lead that is away is waited for. With `once`, ends after one job, with its exit code.
  // FailedPrecondition if the first server is not the lead.
  absl::Status Run();

 private:
  ServiceDriver(DriverOptions options, DrivePlan plan, Descriptor lock)
      : options_(std::move(options)), plan_(std::move(plan)), lock_(std::move(lock)) {}

  // Connects to the lead if there is no connection.
  absl::Status Connect();
  // Returns a job of which this driver has the lease; nullopt if none waits.
  absl::StatusOr<std::optional<JobLease>> Claim();
  // Returns whose turn it is: a name, or an empty text for the oldest job. nullopt: no job can run,
  // because the servers hold an unfinished one that somebody drives or paused, or one that left no
  // room for the last job.
  absl::StatusOr<std::optional<std::string>> NextName();
  DrivenJob::Result Drive(JobLease lease);

  const DriverOptions options_;
  const DrivePlan plan_;
  const Descriptor lock_;
  const std::string nonce_ = NewNonce();
  std::unique_ptr<SchedulerClient> board_;
  std::unique_ptr<ControlClient> control_;
  uint64_t in_the_way_ = 0;  // the job that the servers held when there was no room for another

  static std::string NewNonce();
};

}  // namespace eps

#endif  // EPS_CLI_LAUNCH_SERVICE_SERVICE_DRIVER_H_
