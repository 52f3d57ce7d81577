#ifndef EPS_SERVER_CORE_TESTING_CORE_CLUSTER_H_
#define EPS_SERVER_CORE_TESTING_CORE_CLUSTER_H_

// The in-process shell: several shard cores over real DRAM backends in one thread, without sockets.
// Everything that is under way (backend completions, messages between shards) waits in one bag and
// is delivered in an order drawn from a seed, so that a test run repeats exactly. For tests.

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/testing/manual_executor.h"
#include "compression/codec_table.h"
#include "eps_server/core/shard_core.h"

namespace eps {

// A gradient that tells its identity: any mix-up changes the weights.
std::vector<float> TellingGradient(const Chunk& chunk, StageId use, uint32_t part, uint64_t step);

class CoreCluster {
 private:
  std::deque<MemoryAccount> accounts_;  // by shard; before all that is charged to them

 public:
  struct Options {
    uint32_t shards = 1;
    uint64_t seed = 0;  // 0: first in, first out
    CoreLimits limits;
    // Null: state in DRAM. What it gives may be null: the process could not start, and is down.
    std::function<std::unique_ptr<StateBackend>(
        const JobSpec& spec, const ChunkMap& chunks, std::vector<ChunkId> owned, ShardId shard,
        Executor* executor, MemoryAccount* account, BackendDoneFn done)>
        new_backend = nullptr;
    // Called before a shard's process dies: nothing that its backend still does may last.
    std::function<void(ShardId)> on_crash = nullptr;
    // Asked after everything that a process does: true, and it dies.
    std::function<bool(ShardId)> is_dead = nullptr;
    // A core wants its process to end, which it does behind this call. Null: no core may.
    std::function<void(ShardId, const effect::Abort&)> on_abort = nullptr;
    // Sees each effect before it is carried out.
    std::function<void(ShardId, const Effect&)> watch = nullptr;
  };
  CoreCluster(JobSpec spec, Options options);
  ~CoreCluster();

  const JobSpec& spec() const { return spec_; }
  const ChunkMap& chunks() const { return chunks_; }
  ShardId OwnerOf(ChunkId chunk) const { return placement_[chunk.value()]; }

  StreamId NewStream() { return StreamId(next_stream_++); }
  // Hands an event to a shard and carries out its effects; deliveries wait for Run().
  void Send(ShardId shard, const Event& event);
  // Delivers what is under way until nothing is.
  void Run();

  // Delivers at most `deliveries` of what is under way, and tells how many there were.
  size_t RunSome(size_t deliveries);
  // The process of a shard dies: its core, its backend, and what was on its way from or to it.
  void Crash(ShardId shard);
  // A new process in its place.
  void Restart(ShardId shard);

  // Fills every shard with the initial weights and opens the job.
  void InitializeAll();
  // Restores every shard from exported states (by chunk) at a border.
  void ImportAll(const std::map<uint32_t, Bytes>& states, uint64_t step, double lagged_norm);
  // Sends BeginStep to every shard, each on a stream of its own, in shard order. `first_step`: that
  // the worker joined at; 0: it does not say.
  std::vector<StreamId> SendBegin(uint64_t step, const std::vector<uint32_t>& parts, uint64_t nonce,
                                  const std::vector<v1::PartLoss>& losses, uint64_t first_step = 0);
  // BeginStep on every shard; true if all answered (after Run). Replies stand in `begun`.
  bool Begin(uint64_t step, const std::vector<uint32_t>& parts, uint64_t nonce,
             const std::vector<v1::PartLoss>& losses = {});
  // Offers one contribution: `gradient` holds the chunk's elements. Its payload follows a credit
  // by itself. Returns the tag under which the ack will stand in `acks`.
  uint64_t Push(StreamId stream, uint64_t step, StageId use, TreeRange parts, ChunkId chunk,
                const std::vector<float>& gradient, uint64_t tokens, uint64_t nonce,
                const Bytes& residual = Bytes());
  // Fetches one chunk of a stage; the answer stands in `fetched` or `failed_fetches` by tag.
  uint64_t Fetch(StreamId stream, StageId stage, ChunkId chunk, uint64_t version,
                 bool backward = false);
  // Fetches what a part left out; the answer stands in `residuals` or `failed_fetches` by tag.
  uint64_t FetchResidual(StreamId stream, StageId stage, PartId part, ChunkId chunk,
                         uint64_t version);
  // Weights and optimizer state of all chunks, read from the backends, in chunk order. A shard that
  // cannot tell wants its process to end (on_abort).
  std::vector<Bytes> States();
  MemoryAccount& account(ShardId shard) { return accounts_[shard.value()]; }
  uint32_t shards() const { return static_cast<uint32_t>(shards_.size()); }
  bool IsUp(ShardId shard) const { return shards_[shard.value()] != nullptr; }
  ShardCore& core(ShardId shard) { return *shards_[shard.value()]->core; }
  v1::StatusReply Status(ShardId shard);
  void FireTimers();  // every timer that is set

  // What the shards said, by stream or by tag (tags are unique in the cluster).
  std::map<uint64_t, v1::Ack> acks;
  std::map<uint64_t, Bytes> fetched;
  std::map<uint64_t, std::map<uint32_t, Bytes>> residuals;  // by tag and chunk
  std::map<uint64_t, absl::Status> failed_fetches;
  std::map<StreamId, absl::Status> closed;
  std::map<StreamId, std::vector<effect::ReplyMessage>> replies;
  std::map<StreamId, std::vector<std::pair<v1::ExportStateReply, Bytes>>> exported;
  std::vector<v1::BeginStepReply> begun;  // of the last Begin, by shard
  uint64_t credits = 0;
  uint64_t now_ms = 0;
  uint64_t term = 1;           // of what the workers say
  bool hold_payloads = false;  // credited payloads are not sent

 private:
  struct Shard {  // a process
    uint64_t incarnation = 0;
    ManualExecutor executor;
    std::unique_ptr<StateBackend> backend;
    std::unique_ptr<ShardCore> core;
    std::map<uint64_t, uint64_t> timers;
  };
  struct Payload {
    ShardId shard;
    ChunkId chunk;
    const Codec* codec = nullptr;
    Bytes bytes;
    Bytes residual;
  };

  void StartProcess(ShardId shard);
  // Ends what the backend has under way or waiting.
  static void Drain(Shard* shard);
  bool IsDead(ShardId shard) const {
    return options_.is_dead != nullptr && IsUp(shard) && options_.is_dead(shard);
  }
  // Puts a delivery to `shard` into the bag; dropped if one of the processes dies before.
  void Later(ShardId from, ShardId shard, const Event& event);
  // False: the process has to end.
  bool Carry(ShardId shard, Effect effect);
  bool RunOne();
  void SendPayload(StreamId stream, uint64_t tag);

  const Options options_;
  const JobSpec spec_;
  const ChunkMap chunks_;
  const std::vector<ShardId> placement_;
  const CodecTable codecs_;
  uint64_t rng_;
  uint64_t next_stream_ = 1;
  uint64_t next_tag_ = 1;
  uint64_t next_incarnation_ = 100;
  std::vector<std::unique_ptr<Shard>> shards_;
  std::deque<std::function<void()>> bag_;
  std::map<uint64_t, Payload> payloads_;  // by tag
  std::map<uint64_t, Bytes> state_reads_;
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_TESTING_CORE_CLUSTER_H_
