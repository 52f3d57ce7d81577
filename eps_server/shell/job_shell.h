#ifndef EPS_SERVER_SHELL_JOB_SHELL_H_
#define EPS_SERVER_SHELL_JOB_SHELL_H_

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "base/executor.h"
#include "base/memory_account.h"
#include "base/mutex.h"
#include "compression/codec_table.h"
#include "eps_server/core/shard_core.h"
#include "storage/backends/durable_storage.h"
#include "eps_server/shell/peer_mailbox.h"
#include "eps_server/shell/stream_sink.h"
#include "eps_server/shell/timer_queue.h"
#include "eps_server/shell/trace_file.h"

namespace eps {

// The protocol of a shard as its shell sees it: ShardCore, or a script in tests.
class Protocol {
 public:
  virtual ~Protocol() = default;
  virtual void Handle(const Event& event, uint64_t now_ms, std::vector<Effect>* out) = 0;
  virtual void FillStatus(uint64_t now_ms, v1::StatusReply* status) const = 0;
  virtual v1::JobState state() const = 0;
};

// What surrounds a job in its process. Everything here outlives the job.
struct ShellEnvironment {
  Executor* pool = nullptr;
  TimerQueue* timers = nullptr;
  MemoryAccount* account = nullptr;
  uint64_t incarnation = 0;
  CoreLimits limits;
  std::string trace;     // folder of TraceFile; empty: nothing is traced
  bool durable = false;  // what new_backend makes is; residuals are held for its cuts
  // Where durable: the job is the one that the server opens when it starts again.
  std::function<absl::Status(JobId, const std::vector<std::string>& servers)> remember;
  // Ends the process after a broken invariant; does not return in a daemon.
  std::function<void(ExitCode, const std::string& why)> abort;
  // Replaced by tests.
  std::function<std::unique_ptr<Protocol>(ShardCore::Options)> new_protocol;
  std::function<absl::StatusOr<std::unique_ptr<StateBackend>>(
      const JobSpec&, const ChunkMap&, std::vector<ChunkId> owned, const ShardPlace&, Executor*,
      MemoryAccount*, BackendDoneFn)>
      new_backend;
  // Held until everything that the job owns is freed.
  std::shared_ptr<const void> lifetime;

  // The daemon's own: abort, ShardCore, DRAM backend.
  static ShellEnvironment Default();
};

// One shard of one job with everything around its core: the state backend, the sequence on which
// the core runs, timers, the RPCs that wait for effects, and the messages to other shards. It
// carries effects out in order and decides nothing. Thread-safe.
//
// Held by shared_ptr; it is destroyed on the timer thread, because its backend waits there for
// operations that run on the pool.
class JobShell : public std::enable_shared_from_this<JobShell> {
 public:
  // Reserves the state and checks that the contributions' budget fits beside it. `spec` is valid.
  // ResourceExhausted with the figures and the key servers.memory_limit. Runs long (pre-faults the
  // state): not for callback threads.
  static absl::StatusOr<std::shared_ptr<JobShell>> Create(JobSpec spec,
                                                          std::vector<std::string> servers,
                                                          ShardId shard, Term term,
                                                          const ShellEnvironment& environment);
  JobShell(const JobShell&) = delete;
  JobShell& operator=(const JobShell&) = delete;

  const JobSpec& spec() const { return spec_; }
  const std::string& spec_text() const { return spec_text_; }
  const ChunkMap& chunks() const { return chunks_; }
  const CodecTable& codecs() const { return *codecs_; }
  const std::vector<std::string>& servers() const { return servers_; }
  JobId id() const { return id_; }
  ShardId shard() const { return shard_; }
  bool is_lead() const { return shard_ == ShardId(0); }
  uint64_t reserved_bytes() const { return reserved_bytes_; }
  Executor* pool() const { return environment_.pool; }
  TimerQueue* timers() const { return environment_.timers; }
  MemoryAccount* account() const { return environment_.account; }
  // Expires when everything that the job owns is freed.
  std::weak_ptr<const void> lifetime() const { return environment_.lifetime; }
  bool Owns(ChunkId chunk) const;
  // Chunks of a stage on this shard.
  uint32_t OwnedOfStage(StageId stage) const;
  // Bytes of a chunk's weights and optimizer state.
  uint64_t StateBytes(ChunkId chunk) const;

  // The core handles the event, in order of Post, on the job's sequence.
  void Post(Event event);
  // Runs `fn` on the sequence after everything that was posted before.
  void Run(std::function<void()> fn);
  // Makes an RPC known; it is closed at once if the job's streams were. Thread-safe.
  StreamId AddStream(std::weak_ptr<StreamSink> sink);
  void RemoveStream(StreamId id) { streams_.Remove(id); }
  // Closes all RPCs of the job, now and from now on: it is given up, or the process ends.
  void CloseStreams(const absl::Status& why);
  // Calls `done` on the sequence with what the core says about the job.
  void GetStatus(std::function<void(v1::StatusReply)> done);

  // Messages to another shard. REQUIRES peer < servers().size().
  PeerMailbox& mailbox(ShardId peer) { return *mailboxes_[peer.value()]; }
  // As of the last event. Thread-safe.
  v1::JobState state() const { return state_.load(std::memory_order_acquire); }
  // Whether the backend was never asked to read or write state: the job holds none yet.
  bool untouched() const { return !touched_.load(std::memory_order_acquire); }

  // Transport's part of the status counters.
  struct Counters {
    std::atomic<uint64_t> payloads_refused{0};  // by CRC or codec
    std::atomic<uint64_t> streams_refused{0};   // closed because the peer broke the protocol
  };
  Counters& counters() { return counters_; }

 private:
  JobShell(JobSpec spec, std::vector<std::string> servers, ShardId shard,
           const ShellEnvironment& environment);
  absl::Status Reserve();
  void StartProtocol(Term term);
  uint64_t NowMs() const;

  // The rest runs on the sequence.
  void Handle(const Event& event);
  void Execute(const effect::Reply& e);
  void Execute(const effect::Close& e);
  void Execute(const effect::SendChunk& e);
  void Execute(const effect::FailFetch& e);
  void Execute(const effect::Credit& e);
  void Execute(const effect::SendAck& e);
  void Execute(const effect::SendState& e);
  void Execute(const effect::Start& e);
  void Execute(const effect::ToShard& e);
  void Execute(const effect::SetTimer& e);
  void Execute(const effect::ClearTimer& e);
  void Execute(const effect::Trace& e) {
    if (trace_ != nullptr) trace_->Write(e.action);
  }
  void Execute(const effect::Abort& e);
  void ImportTaken(StreamId stream);

  const ShellEnvironment environment_;
  const JobSpec spec_;
  const std::string spec_text_;
  const ChunkMap chunks_;
  std::optional<CodecTable> codecs_;  // set by Create
  const std::vector<std::string> servers_;
  const ShardId shard_;
  const JobId id_;
  const std::vector<ShardId> placement_;
  const std::vector<ChunkId> owned_;
  uint64_t state_fields_ = 0;
  uint64_t reserved_bytes_ = 0;
  const TimerQueue::Clock::time_point start_ = TimerQueue::Clock::now();

  StreamRegistry streams_;
  std::vector<std::unique_ptr<PeerMailbox>> mailboxes_;
  Counters counters_;
  std::atomic<v1::JobState> state_{v1::JOB_STATE_IMPORTING};
  std::atomic<bool> touched_{false};
  Mutex closed_mu_;
  absl::Status closed_ EPS_GUARDED_BY(closed_mu_);  // not OK once CloseStreams was called

  Sequence sequence_;
  std::unique_ptr<TraceFile> trace_;  // null: nothing is traced
  std::unique_ptr<StateBackend> backend_;
  std::unique_ptr<Protocol> protocol_;
  std::vector<Effect> effects_;
  std::unordered_map<TimerId, TimerQueue::Handle> timers_;
  std::unordered_map<OpId, StreamId> import_ops_;  // WriteState in flight: who sent the chunk
  const StreamId* importing_ = nullptr;            // set while an ImportChunk is handled
};

}  // namespace eps

#endif  // EPS_SERVER_SHELL_JOB_SHELL_H_
