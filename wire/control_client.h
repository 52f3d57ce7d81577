#ifndef EPS_WIRE_CONTROL_CLIENT_H_
#define EPS_WIRE_CONTROL_CLIENT_H_

// The supervisor's side of the Control service: one job over all its servers.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/ids.h"
#include "base/mutex.h"
#include "eps/v1/control.grpc.pb.h"
#include "base/job/job_spec.h"

namespace eps {

// A border of the job: what every chunk's state belongs to.
struct Border {
  uint64_t step = 0;
  uint64_t version = 0;
  uint64_t update = 0;
  uint64_t term = 0;
  double lagged_norm = 0;
};

// The state of one chunk: FP32 weights, then the fields of the job's optimizer (AdamW: exp_avg,
// exp_avg_sq), each in element order.
using ChunkState = std::string;

// What one part left out of its gradients of a chunk by one stage's use of it (error feedback of
// sparse codecs): encoded in the job's quantization.residual; no bytes: nothing.
struct ResidualPlace {
  ChunkId chunk;
  StageId use;
  PartId part;
};

// Every call has a deadline and every error names the server. Thread-safe.
class ControlClient {
 public:
  // Says Hello to every server, again and again until `deadline`. Unavailable names the first that
  // does not answer.
  static absl::StatusOr<std::unique_ptr<ControlClient>> Connect(
      std::vector<std::string> servers, std::chrono::steady_clock::time_point deadline);

  const std::vector<std::string>& servers() const { return servers_; }
  JobId job() const { return job_; }

  // Creates the job on servers()[0], or finds it there; later calls are about this job.
  absl::StatusOr<v1::CreateJobReply> CreateJob(const JobSpec& spec);

  // Sets every chunk of a server to the spec's initial values, at the border before training. When
  // all servers have their state, the job is open.
  absl::Status Initialize(ShardId shard);
  // What a shard gets at `border`: the state of all of its chunks, and residuals of some places in
  // them. The functions are asked for one at a time, in order.
  struct ImportSource {
    Border border;
    std::vector<ChunkId> chunks;
    std::function<absl::StatusOr<ChunkState>(ChunkId)> read;
    std::vector<ResidualPlace> residuals;
    std::function<absl::StatusOr<std::string>(const ResidualPlace&)> read_residual;
  };
  absl::Status Import(ShardId shard, const ImportSource& source);

  // Withholds steps after `step` on every server (0: lifts the gate). Returns the first border at
  // which all of them can be exported: if it is at most `step`, all of them will stand at that one.
  absl::StatusOr<uint64_t> Gate(uint64_t step);

  // Reads the state of all chunks of a server at the border after `step`, and what sparse gradients
  // left out of them. `write` gets one whole chunk at a time, `write_residual` one residual behind
  // its chunk; their CRCs were checked.
  absl::Status Export(
      ShardId shard, uint64_t step, std::chrono::seconds timeout,
      const std::function<absl::Status(ChunkId, const Border&, const ChunkState&)>& write,
      const std::function<absl::Status(const ResidualPlace&, const std::string&)>& write_residual);

  // Calls `on_record` for every completed step after `after_step`, and every evaluation behind one
  // not before it, until the job ends (OK), the server fails, or CancelWatch (Cancelled). If
  // `until_evaluation` is not 0, a finished job goes on until the evaluation behind that step.
  // Blocks as long as the job lives, so it wants a thread of its own; the stream is opened anew
  // from time to time, so that no wait is without an end.
  absl::Status Watch(uint64_t after_step, uint64_t until_evaluation,
                     const std::function<void(const v1::StepRecord&)>& on_record) EPS_EXCLUDES(mu_);
  // Ends the Watch that runs and all later ones.
  void CancelWatch() EPS_EXCLUDES(mu_);

  absl::StatusOr<v1::StatusReply> GetStatus(size_t server, std::chrono::milliseconds timeout);

 private:
  explicit ControlClient(std::vector<std::string> servers);
  std::string Where(absl::string_view call, size_t server) const;

  const std::vector<std::string> servers_;
  std::vector<std::unique_ptr<v1::Control::Stub>> stubs_;
  JobId job_;

  Mutex mu_;
  grpc::ClientContext* watch_or_null_ EPS_GUARDED_BY(mu_) = nullptr;
  bool watch_cancelled_ EPS_GUARDED_BY(mu_) = false;
};

}  // namespace eps

#endif  // EPS_WIRE_CONTROL_CLIENT_H_
