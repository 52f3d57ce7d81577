#ifndef EPS_SERVER_SHELL_JOB_SHELL_H_
#define EPS_SERVER_SHELL_JOB_SHELL_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "base/executor.h"
#include "base/memory_account.h"
#include "base/mutex.h"
#include "eps/v1/shard.pb.h"
#include "eps_server/core/shard_core.h"
#include "eps_server/shell/job_part.h"
#include "eps_server/shell/peer_mailbox.h"
#include "eps_server/shell/stream_sink.h"
#include "eps_server/shell/timer_queue.h"
#include "eps_server/shell/trace_desk.h"
#include "eps_server/shell/trace_file.h"
#include "storage/backends/durable_storage.h"

namespace eps {

// The protocol of a shard as its shell sees it: ShardCore, or a script in tests. See ShardCore for
// the contract of each method. Thread-compatible.
class Protocol {
 public:
  virtual ~Protocol() = default;
  virtual void Handle(const Event& event, uint64_t now_ms, std::vector<Effect>* out) = 0;
  virtual void FillStatus(uint64_t now_ms, v1::StatusReply* status) const = 0;
  virtual v1::JobState state() const = 0;
};

// The resources that a process gives to its job. The objects pointed to must outlive the job.
struct ShellEnvironment {
  Executor* pool = nullptr;  // with lanes
  TimerQueue* timers = nullptr;
  MemoryAccount* account = nullptr;
  uint64_t incarnation = 0;
  CoreLimits limits;
  // A stream ends if its client reads nothing for so long while messages wait for it.
  std::chrono::milliseconds unread_timeout{60'000};
  std::string trace;     // folder of TraceFile; empty disables
  bool durable = false;  // new_backend makes durable backends, whose cuts also hold residuals
  // As DurableStorage::gradients_in_memory.
  uint64_t gradients_in_memory = std::numeric_limits<uint64_t>::max();
  // Ends the process after a broken invariant; does not return in a daemon.
  std::function<void(ExitCode, const std::string& why)> abort;
  // Factories; tests replace them.
  std::function<std::unique_ptr<Protocol>(ShardCore::Options)> new_protocol;
  std::function<absl::StatusOr<std::unique_ptr<StateBackend>>(
      const JobSpec&, const ChunkMap&, std::vector<ChunkId> owned, const ShardPlace&, Executor*,
      MemoryAccount*, BackendDoneFn)>
      new_backend;
  // The job holds this until everything that it owns is freed.
  std::shared_ptr<const void> lifetime;

  // Returns an environment whose functions use std::_Exit, ShardCore and the DRAM backend. The
  // caller sets the pointers.
  static ShellEnvironment Default();
};

// Runs the core of one shard of one job. Owns what the core needs: the state backend, the sequence
// on which the core runs, timers, a registry of the RPCs that wait for effects, and mailboxes for
// messages to other shards. Carries effects out in order and decides nothing. Thread-safe.
//
// Held by shared_ptr. Destroyed on the timer thread, because the destructor of the backend waits
// for operations on the pool and must therefore not run there.
class JobShell : public std::enable_shared_from_this<JobShell> {
 public:
  // The most RPCs that a job may have. 1,000 workers have about 4,000.
  static constexpr size_t kMaxStreams = 8192;

  // Reserves memory for the description of the chunks, then for their state, and checks that the
  // budget for contributions fits as well.
  // REQUIRES: `spec` is valid. Returns ResourceExhausted, with the sizes and the key
  // servers.memory_limit, if they do not fit. Takes long, because it pre-faults the state: do not
  // call it on a gRPC callback thread.
  static absl::StatusOr<std::shared_ptr<JobShell>> Create(JobSpec spec,
                                                          std::vector<std::string> servers,
                                                          ShardId shard, Term term,
                                                          const ShellEnvironment& environment);
  ~JobShell();
  JobShell(const JobShell&) = delete;
  JobShell& operator=(const JobShell&) = delete;

  const JobSpec& spec() const { return part_.spec(); }
  const std::string& spec_text() const { return part_.spec_text(); }
  const ChunkMap& chunks() const { return part_.chunks(); }
  const CodecTable& codecs() const { return part_.codecs(); }
  const std::vector<std::string>& servers() const { return part_.servers(); }
  JobId id() const { return part_.id(); }
  ShardId shard() const { return part_.shard(); }
  bool is_lead() const { return shard() == ShardId(0); }
  // The most that the job holds in this process's memory, in bytes.
  struct Needs {
    uint64_t reserved = 0;   // description, state and contributions
    uint64_t gradients = 0;  // ShardCore::GradientBudget
    uint64_t weights = 0;    // ShardCore::FetchBudget
  };
  const Needs& needs() const { return needs_; }
  Executor* pool() const { return environment_.pool; }
  TimerQueue* timers() const { return environment_.timers; }
  MemoryAccount* account() const { return environment_.account; }
  std::chrono::milliseconds unread_timeout() const { return environment_.unread_timeout; }
  // Expires once everything that the job owns is freed.
  std::weak_ptr<const void> lifetime() const { return environment_.lifetime; }
  // As those of JobPart.
  bool Owns(ChunkId chunk) const { return part_.Owns(chunk); }
  bool OwnsSomeOf(StageId stage) const { return part_.OwnsSomeOf(stage); }
  bool HasStage(StageId stage) const { return part_.HasStage(stage); }
  uint64_t StateBytes(ChunkId chunk) const { return part_.StateBytes(chunk); }

  // Hands an event to the core, which handles events in the order of Post on the job's sequence.
  void Post(Event event);
  // Tells the core that the process is asked to end. Calls `drained` once, on the sequence, with
  // the reason why waiting longer would save nothing. Call it once. Do not wait for it without a
  // limit.
  void Drain(std::function<void(const std::string& why)> drained);
  // Runs `fn` on the sequence after everything that was posted before.
  void Run(std::function<void()> fn);
  // Registers an RPC, to which effects can then be addressed. Closes it if CloseStreams was called.
  StreamId AddStream(std::weak_ptr<StreamSink> sink);
  void RemoveStream(StreamId id) { streams_.Remove(id); }
  // Returns whether the job has kMaxStreams RPCs. No new one may then begin.
  bool full() { return streams_.size() >= kMaxStreams; }
  // Closes all RPCs of the job and every RPC that is added later. Called when the job is discarded
  // or the process ends.
  void CloseStreams(const absl::Status& why);
  // Calls `done` on the pool with the core's status and the shell's counters, as they are after all
  // events posted before. Requests that wait at the same time share one answer.
  void GetStatus(std::function<void(v1::StatusReply)> done);

  // Returns the mailbox of messages to another shard. REQUIRES: peer < servers().size().
  PeerMailbox& mailbox(ShardId peer) { return *mailboxes_[peer.value()]; }
  // Returns the state of the job after the last event.
  v1::JobState state() const { return state_.load(std::memory_order_acquire); }
  // Returns whether the job holds no state yet: no operation was started that reads or writes it.
  bool untouched() const { return !touched_.load(std::memory_order_acquire); }

  // The status counters that the transport maintains.
  struct Counters {
    std::atomic<uint64_t> payloads_refused{0};  // by CRC or codec
    std::atomic<uint64_t> streams_refused{0};   // Push streams closed for breaking the protocol
    std::atomic<uint64_t> streams_unread{0};    // ended because their client reads nothing
    std::atomic<uint64_t> fetch_crcs{0};        // CRCs computed over the answers to fetches
  };
  Counters& counters() { return counters_; }
  // The traces of the job that are open.
  TraceDesk& traces() { return traces_.desk; }

 private:
  JobShell(JobSpec spec, std::vector<std::string> servers, ShardId shard,
           uint64_t description_bytes, const ShellEnvironment& environment);
  absl::Status Reserve();
  void StartProtocol(Term term);
  uint64_t NowMs() const;

  // The following run on the sequence.
  void Handle(const Event& event);
  void Execute(const effect::Reply& e);
  void Execute(const effect::Close& e);
  void Execute(const effect::SendChunk& e);
  void Execute(const effect::FailFetch& e);
  void Execute(const effect::Credit& e);
  void Execute(const effect::SendAck& e);
  void Execute(const effect::SendState& e);
  void Execute(effect::Start&& e);
  void Execute(const effect::Recycle& e);
  void Execute(const effect::ToShard& e);
  void Execute(const effect::SetTimer& e);
  void Execute(const effect::ClearTimer& e);
  void Execute(const effect::Trace& e) {
    if (traces_.file_or_null != nullptr) traces_.file_or_null->Write(e.action);
    traces_.desk.OnAction(e.action);
  }
  void Execute(const effect::Drained& e);
  void Execute(const effect::Abort& e);
  // Tells an import stream that the memory of one of its chunks is free again.
  void ImportTaken(StreamId stream);

  // The receivers of the core's actions.
  struct Traces {
    TraceDesk desk;
    std::unique_ptr<TraceFile> file_or_null;  // null without servers.trace
  };
  // The functions that the next status answers.
  struct StatusWaiters {
    Mutex mu;
    std::vector<std::function<void(v1::StatusReply)>> waiting EPS_GUARDED_BY(mu);
  };

  const ShellEnvironment environment_;
  const uint64_t description_bytes_;  // charged by Create, for part_ and the core
  JobPart part_;                      // immutable after Create
  Needs needs_;                       // immutable after Create
  const TimerQueue::Clock::time_point start_ = TimerQueue::Clock::now();

  StreamRegistry streams_;
  std::vector<std::unique_ptr<PeerMailbox>> mailboxes_;
  Counters counters_;
  Traces traces_;
  StatusWaiters status_waiters_;
  std::atomic<v1::JobState> state_{v1::JOB_STATE_IMPORTING};
  std::atomic<bool> touched_{false};

  Sequence sequence_;
  std::unique_ptr<StateBackend> backend_;
  std::unique_ptr<Protocol> protocol_;
  std::vector<Effect> effects_;
  std::unordered_map<TimerId, TimerQueue::Handle> timers_;
  std::function<void(const std::string&)> drained_;  // null before Drain, and once it was called
  std::unordered_map<OpId, StreamId> import_ops_;    // the senders of the chunks that are written
  // While an ImportChunk is handled, and until its WriteStateRequest begins, its sender.
  const StreamId* importing_ = nullptr;
};

}  // namespace eps

#endif  // EPS_SERVER_SHELL_JOB_SHELL_H_
