#ifndef EPS_WORKER_CLIENT_PARAMETER_CLIENT_H_
#define EPS_WORKER_CLIENT_PARAMETER_CLIENT_H_

// A worker's side of the wire: one job over all its shards. Without LibTorch.
//
// Retries by identity: a broken connection is opened again (back-off with jitter) and everything
// that was not answered is sent again with the same identity and nonce, until the server has been
// away for `rpc_timeout`; the error then names the server and what was waited for.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/ids.h"
#include "base/memory_account.h"
#include "base/job/chunk_map.h"
#include "base/job/job_spec.h"

namespace eps {

struct ClientOptions {
  std::vector<std::string> servers;  // in shard order, or any one of them first for Join
  std::string client_name = "eps-worker";
  std::chrono::milliseconds rpc_timeout{60'000};
  uint64_t push_window_bytes = uint64_t{64} << 20;  // encoded gradients not yet acknowledged
  MemoryAccount* account = nullptr;                 // may be null; outlives the client
};

struct JoinOptions {
  uint32_t rank = 0;
  uint32_t count = 0;  // workers; 0: unknown, the lead assigns
  std::string compute_profile;
};

struct JoinedJob {
  JobSpec spec;
  std::vector<PartId> parts;  // hosted by this worker, ascending
  Term term;
  Step next_step;
  bool done = false;  // nothing left to train
};

// Where a stage's tensors lie in host memory: one pointer per TensorUse, in the spec's order.
using TensorPointers = std::vector<float*>;

struct StepStart {
  bool done = false;
  Step step;
  Version version;
  int loss_scale_log2 = 0;
};

struct PartLossSum {
  PartId part;
  double loss_sum = 0;
  uint64_t tokens = 0;
};

// Figures since the start, for the progress line and `eps bench`.
struct ClientStats {
  uint64_t fetched_bytes = 0;
  uint64_t pushed_bytes = 0;
  uint64_t reconnects = 0;
  uint64_t duplicates = 0;
  double fetch_wait_seconds = 0;  // the caller stood in PendingFetch::Wait
  double push_wait_seconds = 0;   // the caller stood in Push or Flush
};

// A stage on its way. Dropping it abandons the fetch: the destination is not written afterwards.
class PendingFetch {
 public:
  virtual ~PendingFetch() = default;
  // Waits until all tensors are decoded in place, or the deadline of the client.
  virtual absl::Status Wait() = 0;
};

// Thread-compatible: one thread calls; the client has threads of its own.
class ParameterClient {
 public:
  // Says Hello to the first server. InvalidArgument for a bad address; Unavailable names it.
  static absl::StatusOr<std::unique_ptr<ParameterClient>> Connect(ClientOptions options);
  virtual ~ParameterClient() = default;

  // Joins the job that the servers run: learns spec, parts and the list of servers.
  virtual absl::StatusOr<JoinedJob> Join(const JoinOptions& options) = 0;

  // REQUIRES Join. Opens `step` on every shard; `losses` are those of the step before, one per
  // hosted part (empty for the first). The caller keeps `parts` the same for the whole run.
  virtual absl::StatusOr<StepStart> BeginStep(Step step, absl::Span<const PartLossSum> losses) = 0;

  // Tells the lead what the hosted parts found on held-out data with the weights of `version` of
  // the last BeginStep. To be called before anything is pushed in its step; also after a BeginStep
  // that was answered with done. Waits until the lead has it.
  virtual absl::Status ReportEvaluation(absl::Span<const PartLossSum> losses) = 0;

  // Starts fetching a stage into `out`, which must stay valid until the fetch is dropped: one
  // pointer per TensorUse, and in a backward pass with quantization.backward_weights=both_axes as
  // many again for the copy along the other axis. Tensors that have no second copy
  // (CodecTable::axes) leave those as they are.
  virtual std::unique_ptr<PendingFetch> FetchStage(StageId stage, Version version, bool backward,
                                                   TensorPointers out) = 0;

  // Pushes the gradient of one stage for one part; `keep_alive` is dropped when `gradient` is read
  // no longer. Returns when the push window admits it; encodes and sends in the background.
  // Errors of earlier pushes come back here or in Flush.
  virtual absl::Status Push(StageId use, PartId part, uint64_t tokens, TensorPointers gradient,
                            std::shared_ptr<void> keep_alive) = 0;
  // Waits until everything pushed is counted.
  virtual absl::Status Flush() = 0;

  virtual ClientStats stats() const = 0;
};

}  // namespace eps

#endif  // EPS_WORKER_CLIENT_PARAMETER_CLIENT_H_
