#ifndef EPS_WORKER_EXEC_TESTING_QUEUED_RUNTIME_H_
#define EPS_WORKER_EXEC_TESTING_QUEUED_RUNTIME_H_

// A runtime over the queues of a test, with the copies and slots of a real device. Its model is
// cheap, and each of its results depends on every weight, input and gradient.

#include <memory>
#include <string>
#include <vector>

#include "base/job/job_spec.h"
#include "worker/exec/queues/device_arrivals.h"
#include "worker/exec/queues/device_copies.h"
#include "worker/exec/queues/device_departures.h"
#include "worker/exec/queues/job_chunks.h"
#include "worker/exec/testing/test_queues.h"
#include "worker/relay/stage_program.h"

namespace eps {

// The properties that tests vary.
struct QueuedOptions {
  bool codecs_on_host = false;       // weights arrive decoded, and gradients leave so
  double operations_per_weight = 1;  // of a forward pass; a backward pass has three times as many
};

// Thread-compatible; weights may arrive on any thread.
class QueuedRuntime final : public StageRuntime {
 public:
  // `spec` must outlive the runtime.
  QueuedRuntime(const JobSpec& spec, std::unique_ptr<TestQueues> queues,
                const QueuedOptions& options);

  StageProgram& program(StageId stage) override;
  void AllowLateLosses() override {}
  absl::StatusOr<std::unique_ptr<HostStage>> NewHostStage(StageId stage) override;
  absl::StatusOr<std::unique_ptr<HostStage>> NewBackwardStage(StageId stage) override;
  absl::StatusOr<std::unique_ptr<ArrivingWeights>> NewArrival(StageId stage,
                                                              bool backward) override;
  std::shared_ptr<const StageWeights> Load(StageId stage, std::shared_ptr<HostStage> host) override;
  std::shared_ptr<const StageWeights> WithoutValues(StageId stage) override;
  StageGradientPtr Add(StageGradientPtr left, StageGradientPtr right) override;
  absl::Status ToHost(StageId stage, const StageGradient& gradient, HostStage* out) override;
  absl::StatusOr<std::unique_ptr<PendingCopy>> StartToHost(StageId stage,
                                                           const StageGradient& gradient,
                                                           HostStage* out) override;
  absl::StatusOr<std::unique_ptr<LeavingGradient>> StartEncoding(StageId stage, Step step,
                                                                 const StageGradient& gradient,
                                                                 GradientRooms* rooms) override;
  absl::StatusOr<ActivationPtr> Stash(ActivationPtr activation) override;
  absl::StatusOr<ActivationPtr> Unstash(ActivationPtr stashed) override;
  DeviceMemory device_memory() const override { return {}; }
  std::string compute_profile() const override { return "queued"; }

 private:
  class Program;
  class Arrival;

  const JobSpec& spec_;
  const QueuedOptions options_;
  TestQueues* const queues_;  // of copies_
  const std::unique_ptr<JobChunks> chunks_;
  const std::unique_ptr<DeviceArrivals> arrivals_;
  DeviceCopies copies_;
  DeviceDepartures departures_;
  std::vector<std::unique_ptr<StageProgram>> programs_;
};

}  // namespace eps

#endif  // EPS_WORKER_EXEC_TESTING_QUEUED_RUNTIME_H_
