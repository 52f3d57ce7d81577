#ifndef EPS_WORKER_CLIENT_PARAMETER_CLIENT_H_
#define EPS_WORKER_CLIENT_PARAMETER_CLIENT_H_

// A worker's side of the wire protocol: one job over all its shards. Free of LibTorch.
//
// From Join on, a session with the lead keeps the leases of this worker's parts (docs/protocol.md,
// "Leases"). It fails the client with Aborted if a lease or the term is over: join again, with a
// new client.
//
// Retries by identity: reopens a broken connection (back-off with jitter) and repeats every
// unanswered request with the same identity and nonce, until the server has been away for
// `rpc_timeout`; the error then names the server and the unanswered request.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/ids.h"
#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"
#include "base/memory_account.h"
#include "base/numerics/held_out_counts.h"
#include "worker/client/stages/gradient_source.h"
#include "worker/client/stages/stage_sink.h"

namespace eps {

// How payloads travel: in memory that is shared with servers of the same machine and user, or in
// messages. kAuto shares memory where that works; payloads that find no room there travel in
// messages.
enum class Transport { kAuto, kGrpc, kShm };

// How a client connects and how much it may buffer.
struct ClientOptions {
  std::vector<std::string> servers;  // in shard order; for Join, the first may be any of them
  std::string client_name = "eps-worker";
  std::chrono::milliseconds rpc_timeout{60'000};
  // With kShm the client fails with FailedPrecondition if a server shares no memory with it.
  Transport transport = Transport::kAuto;
  uint64_t push_window_bytes = uint64_t{64} << 20;  // limit of unacknowledged encoded gradients
  uint64_t frozen_cache_bytes = 0;   // of encoded frozen weights to keep; 0 fetches them every time
  MemoryAccount* account = nullptr;  // may be null; must outlive the client
  // If set, Connect, Join and BeginStep ask it every 100 ms, on their thread, and return Cancelled
  // once it is true; it must stay true. Shards may have begun the step that is cut off.
  std::function<bool()> interrupted;
  // If set, whether a step waits until a driver has spoken (BeginStepRequest.awaits_driver).
  std::function<bool(Step)> awaits_driver = nullptr;
};

// The properties of a worker that it sends when it joins.
struct JoinOptions {
  uint32_t rank = 0;
  uint32_t count = 0;  // number of workers; 0 if unknown, and the lead then assigns parts
  std::string host;    // for people
  std::string compute_profile;
  std::string codec_plugin;  // the file of a plug-in codec, for a job that has one
};

// A wish of the lead: at its next border, or while it waits for a step, the worker gives back its
// leases, and then joins again or ends.
enum class WorkerWish { kNone, kRejoin, kEnd };

// The result of Join: the job, this worker's parts and the next step.
struct JoinedJob {
  JobSpec spec;
  std::vector<PartId> parts;  // hosted by this worker, ascending; none if the job is done
  Term term;
  Step next_step;     // the lowest step that a shard has open
  bool done = false;  // nothing is left to train
};

// The servers' answer to BeginStep.
struct StepStart {
  bool done = false;
  // Whether the servers have all contributions and losses of the hosted parts to this step, from
  // another process: there is nothing to compute.
  bool counted = false;
  Step step;
  Version version;
  int loss_scale_log2 = 0;
};

// The loss of one part: the sum over its tokens, and their number.
struct PartLossSum {
  PartId part;
  double loss_sum = 0;
  uint64_t tokens = 0;
  std::optional<HeldOutCounts> counts = {};  // of an evaluation, if predictions are counted
};

// Figures since the client's start, for the progress line and `eps bench`.
struct ClientStats {
  uint64_t fetched_bytes = 0;
  uint64_t pushed_bytes = 0;
  uint64_t reconnects = 0;
  uint64_t duplicates = 0;
  double fetch_wait_seconds = 0;  // time that the caller waited in PendingFetch::Wait
  double push_wait_seconds = 0;   // time that the caller waited in Push or Flush
};

// A fetch in progress. Destroying it abandons the fetch: the sink receives nothing afterwards.
class PendingFetch {
 public:
  virtual ~PendingFetch() = default;
  // Waits until the sink has taken all copies, or the client fails.
  virtual absl::Status Wait() = 0;
};

// Trains one job. Thread-compatible: use it from one thread; it has threads of its own. Its rooms
// lie in the memory that the server of a chunk shares.
class ParameterClient : public GradientRooms {
 public:
  // Says Hello to the first server. Returns InvalidArgument for a bad address, Unavailable with the
  // server's name if it does not answer.
  static absl::StatusOr<std::unique_ptr<ParameterClient>> Connect(ClientOptions options);

  // Joins the job that the servers run; learns its spec, parts and servers. While other workers
  // hold the parts, it waits as a standby, and says so in the log. Call it once.
  virtual absl::StatusOr<JoinedJob> Join(const JoinOptions& options) = 0;

  // Opens `step` on every shard that has not completed it. REQUIRES Join and, after the first step,
  // Flush: shards free what a step reads when all parts have begun the next one. An interrupt does
  // not cut off the step after the last one, which only waits until the last one is complete.
  virtual absl::StatusOr<StepStart> BeginStep(Step step) = 0;

  // Reports losses of hosted parts in the open step to the lead, and waits until it has them. Call
  // it before the first Push of stage 0 for these parts: a complete step then has all its losses,
  // even if this process ends.
  virtual absl::Status ReportLosses(absl::Span<const PartLossSum> losses) = 0;

  // Reports to the lead the hosted parts' losses on held-out data, and what they counted of their
  // predictions, with the weights of the version that the last BeginStep returned. Call it before
  // pushing anything in that step; it is also allowed after a BeginStep that returned done. Waits
  // until the lead has acknowledged it.
  virtual absl::Status ReportEvaluation(absl::Span<const PartLossSum> losses) = 0;

  // Starts to fetch a stage into `sink`. In a backward pass, chunks with two axes
  // (CodecTable::axes) arrive in two copies.
  virtual std::unique_ptr<PendingFetch> FetchStage(StageId stage, Version version, bool backward,
                                                   std::shared_ptr<StageSink> sink) = 0;

  // Starts to fetch what Push will need for the stage in the open step beside the gradients: the
  // residuals that the servers keep. FetchStage for a backward pass does so, too. Does nothing if
  // `version` is not the one that the open step reads. Optional: Push does it at the latest.
  virtual void PreparePush(StageId /*stage*/, Version /*version*/) {}

  // Pushes the gradient of one stage for one part, and drops it once it is no longer read. Returns
  // when the push window admits the gradient, and encodes and sends it in the background. Returns
  // errors of earlier pushes, as Flush does.
  virtual absl::Status Push(StageId use, PartId part, uint64_t tokens,
                            std::shared_ptr<const GradientSource> gradient) = 0;
  // Waits until the servers have counted everything that was pushed.
  virtual absl::Status Flush() = 0;

  // Call it before Leave, after Flush. Returns whether this process alone has residuals of its
  // parts (quantization.residual_home=worker), which would be lost with it. Then its contributions
  // to the next step bring them to the servers: complete that step, and call it again. An interrupt
  // does not cut off the BeginStep of that step before it has waited for rpc_timeout.
  virtual bool HandOver() = 0;
  // Flushes, gives back the leases of all parts, and waits until the lead has taken them; then the
  // client sends nothing more, and every other call fails. Unavailable, with the name of the lead,
  // if that takes longer than rpc_timeout: the leases then end without this worker.
  virtual absl::Status Leave() = 0;

  // Returns the lead's wish. With one, BeginStep returns Cancelled, as after an interrupt.
  virtual WorkerWish wish() const { return WorkerWish::kNone; }

  virtual ClientStats stats() const = 0;
};

}  // namespace eps

#endif  // EPS_WORKER_CLIENT_PARAMETER_CLIENT_H_
