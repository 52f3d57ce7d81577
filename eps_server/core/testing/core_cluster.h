#ifndef EPS_SERVER_CORE_TESTING_CORE_CLUSTER_H_
#define EPS_SERVER_CORE_TESTING_CORE_CLUSTER_H_

// The in-process shell: several shard cores over real DRAM backends in one thread, without sockets.
// Everything in flight (backend completions, messages between shards) waits in one bag and is
// delivered in an order drawn from a seed, so that a test run repeats exactly. For tests.

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/testing/manual_executor.h"
#include "compression/codec_table.h"
#include "eps_server/core/shard_core.h"
#include "eps_server/core/testing/shard_answers.h"

namespace eps {

// Returns a gradient that identifies its arguments, so that any mix-up changes the weights.
std::vector<float> TellingGradient(const Chunk& chunk, StageId use, uint32_t part, uint64_t step);

// The processes of all shards of one job, and a client of theirs. For one thread. Owns the cores
// and their backends. A core that aborts fails an EPS_CHECK unless `on_abort` is set.
class CoreCluster {
 private:
  std::deque<MemoryAccount> accounts_;  // by shard; destroyed after everything charged to them

 public:
  // The size of a cluster, and hooks for tests; a hook may be null.
  struct Options {
    uint32_t shards = 1;
    uint64_t seed = 0;  // of the order of deliveries; 0 is first in, first out
    CoreLimits limits;
    // Makes the backend of a new process; null means state in DRAM. If it returns null, the process
    // could not start and stays down.
    std::function<std::unique_ptr<StateBackend>(
        const JobSpec& spec, const ChunkMap& chunks, std::vector<ChunkId> owned, ShardId shard,
        Executor* executor, MemoryAccount* account, BackendDoneFn done)>
        new_backend = nullptr;
    // Called before a shard's process dies. Later operations of its backend must have no lasting
    // effect.
    std::function<void(ShardId)> on_crash = nullptr;
    // Called after every action of a process; the process dies if it returns true.
    std::function<bool(ShardId)> is_dead = nullptr;
    // Called when a core ends its process, which dies after this call. Null forbids that.
    std::function<void(ShardId, const effect::Abort&)> on_abort = nullptr;
    // Called with each event before a core handles it.
    std::function<void(ShardId, const Event&)> hear = nullptr;
    // Called with each effect before it is carried out.
    std::function<void(ShardId, const Effect&)> watch = nullptr;
  };
  CoreCluster(JobSpec spec, Options options);
  ~CoreCluster();

  const JobSpec& spec() const { return spec_; }
  const ChunkMap& chunks() const { return chunks_; }
  ShardId OwnerOf(ChunkId chunk) const { return placement_[chunk.value()]; }

  StreamId NewStream() { return StreamId(next_.stream++); }
  // Hands an event to a shard and carries out its effects; deliveries wait for Run().
  void Send(ShardId shard, const Event& event);
  // Delivers until nothing is in flight.
  void Run();

  // Makes at most `deliveries` deliveries and returns how many it made.
  size_t RunSome(size_t deliveries);
  // Kills the process of a shard: its core, its backend, and every message from it or to it that is
  // in flight.
  void Crash(ShardId shard);
  // Starts a new process for a shard that is down.
  void Restart(ShardId shard);

  // Lets a worker process join, which gets all parts that are free. Its session stays closed.
  void Join(uint64_t nonce);
  // Fills every shard with the initial weights and opens the job.
  void InitializeAll();
  // Restores every shard from exported states (by chunk) at a border.
  void ImportAll(const std::map<uint32_t, Bytes>& states, uint64_t step, double lagged_norm);
  // Sends BeginStep to every shard, each on its own stream, in shard order.
  std::vector<StreamId> SendBegin(uint64_t step, const std::vector<uint32_t>& parts, uint64_t nonce,
                                  const std::vector<v1::PartLoss>& losses);
  // Sends BeginStep to every shard and calls Run. Returns whether all answered; their replies are
  // then in `begun`.
  bool Begin(uint64_t step, const std::vector<uint32_t>& parts, uint64_t nonce,
             const std::vector<v1::PartLoss>& losses = {});
  // Offers one contribution; `gradient` holds the chunk's elements. Sends the payload once there is
  // credit. Returns the tag under which `answers.acks` will hold the ack.
  uint64_t Push(StreamId stream, uint64_t step, StageId use, TreeRange parts, ChunkId chunk,
                const std::vector<float>& gradient, uint64_t tokens, uint64_t nonce,
                const Bytes& residual = Bytes());
  // Fetches one chunk of a stage. Returns a tag, under which `answers` will hold the answer.
  uint64_t Fetch(StreamId stream, StageId stage, ChunkId chunk, uint64_t version,
                 bool backward = false);
  // Fetches what a part left out. Returns a tag, under which `answers` will hold the answer.
  uint64_t FetchResidual(StreamId stream, StageId stage, PartId part, ChunkId chunk,
                         uint64_t version);
  // Returns weights and optimizer state of all chunks, read from the backends, in chunk order. All
  // shards must be up. A failed read is reported through on_abort.
  std::vector<Bytes> States();
  MemoryAccount& account(ShardId shard) { return accounts_[shard.value()]; }
  uint32_t shards() const { return static_cast<uint32_t>(shards_.size()); }
  bool IsUp(ShardId shard) const { return shards_[shard.value()] != nullptr; }
  ShardCore& core(ShardId shard) { return *shards_[shard.value()]->core; }
  v1::StatusReply Status(ShardId shard);
  // Expires every timer that is set to expire within `within_ms`, and advances the time to the last
  // of them.
  void FireTimers(uint64_t within_ms = std::numeric_limits<uint64_t>::max());
  // Lets time pass, and expires the timers that are due, in their order.
  void Advance(uint64_t ms);

  ShardAnswers answers;
  std::vector<v1::BeginStepReply> begun;  // by shard: the replies to the last Begin
  uint64_t now_ms = 0;
  uint64_t term = 1;  // the term of the workers' requests
  // The generations of the leases, by part, with which Push and Fetch (of part 0) are sent.
  std::map<uint32_t, uint64_t> generations;
  bool hold_payloads = false;  // credited payloads are not sent
  bool leaving = false;        // the worker leaves after the step that it begins

 private:
  // The process of a shard.
  struct Shard {
    uint64_t incarnation = 0;
    ManualExecutor executor;
    std::unique_ptr<StateBackend> backend;
    std::unique_ptr<ShardCore> core;
    std::map<uint64_t, uint64_t> timers;  // expiry in milliseconds, by id
  };
  // The next number of each kind.
  struct NextIds {
    uint64_t stream = 1;
    uint64_t tag = 1;
    uint64_t incarnation = 100;
  };
  // The payload of a contribution that waits for credit.
  struct Payload {
    ShardId shard;
    ChunkId chunk;
    const Codec* codec = nullptr;
    Bytes bytes;
    Bytes residual;
  };

  void StartProcess(ShardId shard);
  // Completes or cancels every operation of the backend.
  static void Drain(Shard* shard);
  bool IsDead(ShardId shard) const {
    return options_.is_dead != nullptr && IsUp(shard) && options_.is_dead(shard);
  }
  // Puts a delivery to `shard` into the bag. It is dropped if one of the two processes dies first.
  void Later(ShardId from, ShardId shard, const Event& event);
  // Carries out an effect. Returns false if the process must end.
  bool Carry(ShardId shard, Effect effect);
  // Makes one delivery; returns false if nothing is in flight.
  bool RunOne();
  void SendPayload(StreamId stream, uint64_t tag);

  const Options options_;
  const JobSpec spec_;
  const ChunkMap chunks_;
  const std::vector<ShardId> placement_;
  const CodecTable codecs_;
  uint64_t rng_;  // state of the generator; 0 delivers first in, first out
  NextIds next_;
  std::vector<std::unique_ptr<Shard>> shards_;
  std::deque<std::function<void()>> bag_;  // deliveries in flight, oldest first
  std::map<uint64_t, Payload> payloads_;   // by tag
  std::map<uint64_t, Bytes> state_reads_;  // by op
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_TESTING_CORE_CLUSTER_H_
