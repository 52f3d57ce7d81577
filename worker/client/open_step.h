#ifndef EPS_WORKER_CLIENT_OPEN_STEP_H_
#define EPS_WORKER_CLIENT_OPEN_STEP_H_

// Keeps the servers' answers about the step that a worker computes: where it is open, and which
// contributions of the worker's parts are counted already.

#include <cstddef>
#include <cstdint>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/ids.h"
#include "eps/v1/data.pb.h"
#include "worker/client/client_core.h"
#include "worker/client/parameter_client.h"

namespace eps {

// For the thread that uses the client. Borrows the job, which outlives it.
class OpenStep {
 public:
  // `parts` are those that the worker hosts.
  OpenStep(const JobView* job, std::vector<PartId> parts) : job_(job), parts_(std::move(parts)) {}

  // Takes the answers of all shards to a probe, in shard order. Returns that of the lowest open
  // step. Aborted if the term moved.
  absl::StatusOr<v1::BeginStepReply> TakeProbes(const std::vector<v1::BeginStepReply>& replies);
  // Returns the shards that had not completed the step when they were probed.
  std::vector<size_t> ShardsToAsk(Step step) const;
  // Takes the answers of the shards `asked` to BeginStep. Aborted if the term moved; Internal if
  // the answers contradict each other or the job spec.
  absl::StatusOr<StepStart> TakeReplies(Step step, const std::vector<size_t>& asked,
                                        const std::vector<v1::BeginStepReply>& replies);

  // The step of the last TakeReplies; 0 before the first.
  Step step() const { return step_; }
  // As StepStart, of that step.
  int loss_scale_log2() const { return loss_scale_log2_; }
  bool IsCounted(StageId use, PartId part, ChunkId chunk) const;

 private:
  // Counts all contributions to shards that had completed the step when they were probed.
  void CountCompleteShards();
  bool AllCounted() const;
  absl::Status CheckTerm(absl::string_view call, size_t shard,
                         const v1::BeginStepReply& reply) const;
  absl::Status CheckCodecs(const v1::BeginStepReply& reply) const;

  const JobView* const job_;
  const std::vector<PartId> parts_;
  std::vector<Step> open_;  // by shard, when it was probed
  Step step_;
  int loss_scale_log2_ = 0;
  std::set<std::tuple<uint32_t, uint32_t, uint32_t>> counted_;  // use, part, chunk
};

}  // namespace eps

#endif  // EPS_WORKER_CLIENT_OPEN_STEP_H_
