#ifndef EPS_WIRE_CONTROL_CLIENT_H_
#define EPS_WIRE_CONTROL_CLIENT_H_

// The supervisor's side of the Control service: one job on all of its servers.

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
#include "base/exit_code.h"
#include "base/ids.h"
#include "base/job/drivers/driver_lease.h"
#include "base/job/job_spec.h"
#include "base/mutex.h"
#include "base/numerics/loss_scale.h"
#include "eps/v1/control.grpc.pb.h"

namespace eps {

// A border of the job, to which every chunk's state belongs.
struct Border {
  uint64_t step = 0;
  uint64_t version = 0;
  uint64_t update = 0;
  uint64_t term = 0;
  double lagged_norm = 0;
  std::optional<LossScale> loss_scale = {};  // of the next step, with training.precision: cmp
};

// The state of one chunk: FP32 weights, then the fields of the job's optimizer (AdamW: exp_avg,
// exp_avg_sq), each in element order.
using ChunkState = std::string;

// Names a residual: what one part left out of its gradients of a chunk in one stage's use of it
// (error feedback of sparse codecs). It is encoded in the job's quantization.residual; no bytes
// mean that nothing was left out.
struct ResidualPlace {
  ChunkId chunk;
  StageId use;
  PartId part;
};

// Begins the names of holders that save a job; their gates lapse.
inline constexpr char kSaveHolder[] = "save/";

// Calls the Control service. Every call has a deadline, and every error names the server.
// Thread-safe.
class ControlClient {
 public:
  // Says Hello to every server and retries until `deadline`. Returns Unavailable with the first
  // server that does not answer.
  static absl::StatusOr<std::unique_ptr<ControlClient>> Connect(
      std::vector<std::string> servers, std::chrono::steady_clock::time_point deadline);

  const std::vector<std::string>& servers() const { return servers_; }
  // The job of the last CreateJob.
  JobId job() const EPS_EXCLUDES(mu_);

  // Sets the lease of the driver that this client works for: CreateJob, Initialize, Import and Gate
  // name it, and return Aborted when a driver with a later lease has created the job. Call it
  // before CreateJob.
  void SetDriverLease(const DriverLease& lease) EPS_EXCLUDES(mu_);

  // How long CreateJob waits for servers that make no progress.
  struct CreatePatience {
    std::chrono::milliseconds pause{5000};  // between two looks at the servers
    int idle_looks = 360;                   // without progress, until it gives up
  };
  // Creates the job on servers()[0], or finds it there; all later calls refer to this job. Logs how
  // far the servers are with filling their slots. DeadlineExceeded if they make no progress.
  // `config` is the run's configuration, for tools (GetJob); one of more than 256 KiB is not sent.
  absl::StatusOr<v1::CreateJobReply> CreateJob(const JobSpec& spec, const std::string& config,
                                               const CreatePatience& patience);
  absl::StatusOr<v1::CreateJobReply> CreateJob(const JobSpec& spec,
                                               const std::string& config = "") {
    return CreateJob(spec, config, CreatePatience());
  }
  // All later calls refer to this job, of which the client knows no more. For those who watch.
  void FollowJob(JobId job) EPS_EXCLUDES(mu_);
  // Asks servers()[0] which job it runs; all later calls refer to that job. NotFound if it runs
  // none.
  absl::StatusOr<v1::GetJobReply> FindJob();

  // Sets every chunk of a server to the spec's initial values, at the border before training. The
  // job opens once all servers have their state.
  absl::Status Initialize(ShardId shard);
  // What a shard receives at `border`: the state of all of its chunks, and some residuals. Import
  // calls the functions one at a time, in order.
  struct ImportSource {
    Border border;
    std::vector<ChunkId> chunks;
    std::function<absl::StatusOr<ChunkState>(ChunkId)> read;
    std::vector<ResidualPlace> residuals;
    std::function<absl::StatusOr<std::string>(const ResidualPlace&)> read_residual;
  };
  absl::Status Import(ShardId shard, const ImportSource& source);

  // Sets the gate of the holder "driver" on all servers, or lifts it: with nullopt they withhold no
  // step for this holder. Returns the first border at which all of them can be exported; if it is
  // at most `step`, all of them will stop at that one. A driver's gate ends with its lease unless
  // it `outlives_driver`. Aborted if the lease is over; Unavailable if the lead, or a server that
  // it asks, does not answer within a minute.
  absl::StatusOr<uint64_t> Gate(std::optional<uint64_t> step, bool outlives_driver = false);
  // As Gate, for another holder, whose gate lapses: repeat the call more often than every
  // GateReply::timeout_ms.
  absl::StatusOr<v1::GateReply> LapsingGate(const std::string& holder,
                                            std::optional<uint64_t> step);

  // Reads the state of all chunks of a server at the border after `step`, and the residuals of
  // their sparse gradients. Calls `write` for one whole chunk at a time and `write_residual` for
  // each residual after its chunk; both receive only data whose CRC is correct.
  absl::Status Export(
      ShardId shard, uint64_t step, std::chrono::seconds timeout,
      const std::function<absl::Status(ChunkId, const Border&, const ChunkState&)>& write,
      const std::function<absl::Status(const ResidualPlace&, const std::string&)>& write_residual);

  // Calls `on_record` for every completed step after `after_step` and for every evaluation of a
  // step that is not before it, until the job ends (OK), the server fails, or CancelWatch is called
  // (Cancelled). If `until_evaluation` is not 0, watching a finished job continues until that
  // step's evaluation. Blocks as long as the job lives, so call it on a thread of its own. The
  // stream is reopened from time to time, so that no wait is unbounded, and when `on_record` was so
  // slow that the server ended it.
  absl::Status Watch(uint64_t after_step, uint64_t until_evaluation,
                     const std::function<void(const v1::StepRecord&)>& on_record) EPS_EXCLUDES(mu_);
  // Ends the running Watch and all later ones.
  void CancelWatch() EPS_EXCLUDES(mu_);

  absl::StatusOr<v1::StatusReply> GetStatus(size_t server, std::chrono::milliseconds timeout);

 private:
  ControlClient(std::vector<std::string> servers,
                const std::vector<std::shared_ptr<grpc::Channel>>& channels);
  DriverLease driver() const EPS_EXCLUDES(mu_);
  std::string Where(absl::string_view call, size_t server) const;
  absl::StatusOr<v1::GateReply> SendGate(v1::GateRequest request);
  // Returns the bytes of slots that all servers have filled, and sets how many they want to fill.
  uint64_t FilledBytes(uint64_t* wanted_bytes);

  const std::vector<std::string> servers_;
  std::vector<std::unique_ptr<v1::Control::Stub>> stubs_;

  mutable Mutex mu_;
  JobId job_ EPS_GUARDED_BY(mu_);
  uint64_t gate_number_ EPS_GUARDED_BY(mu_) = 0;  // of the last request to Gate
  DriverLease driver_ EPS_GUARDED_BY(mu_);
  grpc::ClientContext* watch_or_null_ EPS_GUARDED_BY(mu_) = nullptr;
  bool watch_cancelled_ EPS_GUARDED_BY(mu_) = false;
};

// Returns the exit code for programs that end with this failed job; nullopt if the job has not
// failed, or its servers give no code.
std::optional<ExitCode> FailureCodeOf(const v1::StatusReply& job);

}  // namespace eps

#endif  // EPS_WIRE_CONTROL_CLIENT_H_
