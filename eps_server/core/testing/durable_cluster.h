#ifndef EPS_SERVER_CORE_TESTING_DURABLE_CLUSTER_H_
#define EPS_SERVER_CORE_TESTING_DURABLE_CLUSTER_H_

// Shards whose state is on simulated disks: the real cores, NVMe backends and catalogues over disks
// whose power can be cut and whose calls can fail. All on one thread, in an order drawn from a
// seed. For tests.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "eps_server/core/testing/core_cluster.h"
#include "eps_server/core/testing/core_training.h"
#include "eps_server/core/testing/trace_monitor.h"
#include "storage/cuts/catalogue.h"
#include "storage/testing/log_store.h"
#include "storage/testing/simulated_disk.h"

namespace eps {

// A job of a few small chunks. `gradients` may be a codec that leaves something out.
JobSpec SmallDurableSpec(Clip clip, Mode mode, const std::string& gradients);

// What a run without servers' disks gives for the job.
CoreTraining::Outcome UndisturbedOutcome(const JobSpec& spec);

// The disks of a cluster, each with one process at a time. Outlives the cluster.
class DurableDisks {
 public:
  // Files by path.
  using Image = std::map<std::string, std::string>;

  struct Options {
    uint32_t shards = 1;
    uint64_t seed = 0;     // of every order; 0: first in, first out
    bool in_dram = false;  // durable DRAM instead of NVMe
    uint64_t cut_steps = 1;
    // Between two cuts, of which a shard logs contributions, by shard; 0, or not there: of none.
    std::vector<uint64_t> log_steps;
    uint64_t log_bytes = uint64_t{16} << 10;  // of the catalogue's log before it grows
    uint64_t staging_bytes = uint64_t{64} << 10;
    uint64_t scrub_bytes_per_second = 0;
    // What is on the disks already, by shard.
    std::vector<Image> images;
    std::function<void(ShardId, const SimulatedDisk::Site&)> watch = nullptr;
    // Called before anything runs, to plan cuts and faults.
    std::function<void(ShardId, SimulatedDisk*)> prepare = nullptr;
  };
  explicit DurableDisks(const Options& options);
  ~DurableDisks();

  // For the cluster that runs on them; borrows them.
  CoreCluster::Options ForCluster();

  SimulatedDisk& disk(ShardId shard) { return *places_[shard.value()]->disk; }
  uint32_t shards() const { return static_cast<uint32_t>(places_.size()); }
  Image Contents(ShardId shard) const;

  // Power cuts that processes died of.
  uint64_t cuts() const { return cuts_; }
  // Processes that ended by themselves (effect::Abort), or could not start, with power on: why.
  const std::vector<std::string>& ends() const { return ends_; }
  // What may never happen: the cluster goes back behind a cut that all shards had said to have, a
  // shard lacks one that it had said to have, or does what a rule of TraceMonitor forbids.
  const absl::Status& violation() const { return violation_; }
  const std::optional<CutId>& acknowledged() const { return acknowledged_; }

 private:
  // Hands tasks of the disk to the process of now.
  class Relay final : public Executor {
   public:
    void Post(std::function<void()> task) override { to->Post(std::move(task)); }
    Executor* to = nullptr;
  };
  struct Place {
    Relay relay;
    std::unique_ptr<SimulatedDisk> disk;
    std::unique_ptr<LogStore> store;
    std::unique_ptr<Catalogue> catalogue;
    std::optional<CutId> said;  // the youngest that it said to have and did not leave since
    std::set<OpId> recovers;    // under way
  };

  absl::StatusOr<std::unique_ptr<StateBackend>> Start(const JobSpec& spec, const ChunkMap& chunks,
                                                      const std::vector<ChunkId>& owned,
                                                      ShardId shard, Executor* executor,
                                                      MemoryAccount* account, BackendDoneFn done);
  void Watch(ShardId shard, const Effect& effect);
  void OnRecovered(ShardId shard, const RecoveredState& state);
  void Violate(ShardId shard, const std::string& what, const CutId& had);

  const Options options_;
  std::vector<std::unique_ptr<Place>> places_;
  uint64_t cuts_ = 0;
  uint64_t draws_ = 0;
  TraceMonitor monitor_;
  std::vector<std::string> ends_;
  absl::Status violation_;
  std::optional<CutId> acknowledged_;
};

// Disks and a job on them.
class DurableTraining : private DurableDisks, public CoreTraining {
 public:
  DurableTraining(const JobSpec& spec, const DurableDisks::Options& options, bool fetches)
      : DurableDisks(options), CoreTraining(spec, ForCluster(), fetches) {}

  DurableDisks& disks() { return *this; }
  // Starts the processes that are down.
  void RestartAll();
  // Brings the job to its end; then nothing may differ from `expected`. Unavailable if a process
  // had to end while its state was read.
  absl::Status CompareWith(const CoreTraining::Outcome& expected);
  // The same with `between` in its way, and again after a last power cut of all shards.
  absl::Status FinishAsIn(const CoreTraining::Outcome& expected,
                          const std::function<void()>& between);
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_TESTING_DURABLE_CLUSTER_H_
