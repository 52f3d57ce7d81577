#ifndef EPS_SERVER_CORE_TESTING_DURABLE_CLUSTER_H_
#define EPS_SERVER_CORE_TESTING_DURABLE_CLUSTER_H_

// Shards whose state is on simulated disks: the real cores, durable backends and catalogues over
// disks whose power can be cut and whose calls can fail. Everything runs on one thread, in an order
// drawn from a seed. For tests.

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

// Returns a job of a few small chunks. `gradients` names their codec; it may be one that keeps
// residuals.
JobSpec SmallDurableSpec(Clip clip, Mode mode, const std::string& gradients);

// Returns the results of the job in a run whose servers have no disks.
CoreTraining::Outcome UndisturbedOutcome(const JobSpec& spec);

// The disks of a cluster, each used by one process at a time. For one thread. Must outlive the
// cluster.
class DurableDisks {
 public:
  // The contents of files, by path.
  using Image = std::map<std::string, std::string>;

  // The disks, their faults, and the limits of the servers.
  struct Options {
    uint32_t shards = 1;
    uint64_t seed = 0;     // of every order; 0 is first in, first out
    bool in_dram = false;  // durable DRAM instead of NVMe
    uint32_t drives = 0;   // of each shard's slots, all on its one disk; 0: beside the log
    uint64_t cut_steps = 1;
    uint64_t cut_ms = 0;
    // By shard: the most steps between two cuts whose contributions its log can hold. A shard
    // without an element, or with 0, has no log.
    std::vector<uint64_t> log_steps;
    uint64_t log_bytes = uint64_t{16} << 10;  // initial size of the catalogue's log
    uint64_t staging_bytes = uint64_t{64} << 10;
    uint64_t scrub_bytes_per_second = 0;
    // The initial contents of the disks, by shard; may be empty.
    std::vector<Image> images;
    // Called for each call on a disk. May be null.
    std::function<void(ShardId, const SimulatedDisk::Site&)> watch = nullptr;
    // Called once per disk before anything runs, to plan cuts and faults. May be null.
    std::function<void(ShardId, SimulatedDisk*)> prepare = nullptr;
  };
  explicit DurableDisks(const Options& options);
  ~DurableDisks();

  // Returns options for the one cluster that runs on these disks; they borrow this object.
  CoreCluster::Options ForCluster();

  SimulatedDisk& disk(ShardId shard) { return *places_[shard.value()]->disk; }
  uint32_t shards() const { return static_cast<uint32_t>(places_.size()); }
  // Returns the files of a shard's disk that are not empty.
  Image Contents(ShardId shard) const;

  // The number of power cuts that ended a process.
  uint64_t cuts() const { return cuts_; }
  // The reasons of processes that ended by themselves (effect::Abort), or could not start, while
  // power was on.
  const std::vector<std::string>& ends() const { return ends_; }
  // The first violation of a rule: a shard restores an older cut than one acknowledged by all
  // shards, lacks a cut that it reported as durable, or breaks a rule of TraceMonitor. OK if there
  // is none.
  const absl::Status& violation() const { return violation_; }
  // The youngest cut that all shards reported as durable.
  const std::optional<CutId>& acknowledged() const { return acknowledged_; }

 private:
  // Posts the tasks of a disk to the executor of the current process.
  class Relay final : public Executor {
   public:
    void Post(std::function<void()> task) override { to->Post(std::move(task)); }
    Executor* to = nullptr;
  };
  // One disk, and the storage that the current process has open on it.
  struct Place {
    Relay relay;
    std::unique_ptr<SimulatedDisk> disk;
    std::unique_ptr<LogStore> store;
    std::unique_ptr<Catalogue> catalogue;
    std::optional<CutId> said;  // the youngest that it reported, or the one restored since
    std::set<OpId> recovers;    // in flight
  };

  absl::StatusOr<std::unique_ptr<StateBackend>> Start(const JobSpec& spec, const ChunkMap& chunks,
                                                      const std::vector<ChunkId>& owned,
                                                      ShardId shard, Executor* executor,
                                                      MemoryAccount* account, BackendDoneFn done);
  // Checks the effects of a shard.
  void Watch(ShardId shard, const Effect& effect);
  void OnRecovered(ShardId shard, const RecoveredState& state);
  // Records the first violation.
  void Violate(ShardId shard, const std::string& what, const CutId& had);

  const Options options_;
  std::vector<std::unique_ptr<Place>> places_;
  uint64_t cuts_ = 0;
  uint64_t draws_ = 0;  // the seed of the last power cut
  TraceMonitor monitor_;
  std::vector<std::string> ends_;
  absl::Status violation_;
  std::optional<CutId> acknowledged_;
};

// A job on durable disks. Owns disks, cluster and worker.
class DurableTraining : private DurableDisks, public CoreTraining {
 public:
  DurableTraining(const JobSpec& spec, const DurableDisks::Options& options, bool fetches)
      : DurableDisks(options), CoreTraining(spec, ForCluster(), fetches) {}

  DurableDisks& disks() { return *this; }
  // Restarts the processes that are down.
  void RestartAll();
  // Brings the job to its end without further faults and compares it with `expected`. DataLoss if
  // they differ; Unavailable if a process ended while its state was read.
  absl::Status CompareWith(const CoreTraining::Outcome& expected);
  // Brings the job to its end with `between` (CoreTraining::Finish), compares it, cuts the power of
  // all shards, and compares it again.
  absl::Status FinishAsIn(const CoreTraining::Outcome& expected,
                          const std::function<void()>& between);
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_TESTING_DURABLE_CLUSTER_H_
