#ifndef EPS_PLANNER_STEP_MODEL_H_
#define EPS_PLANNER_STEP_MODEL_H_

// How long one step takes: the relay of docs/protocol.md over the resources that it uses, in
// O(stages * classes of workers). A plan is a step whose workers are all alike; the simulator
// (planner/simulator) asks for steps in which some are slow or have more parts. Pure functions.
//
// A worker visits every stage on its way up, the last one once, and every other one on its way
// down: 2 n - 1 visits (L2L section 3). A visit's weights are fetched when the visit before by
// prefetch + 1 has dropped its own, and not before the servers have encoded them, which they begin
// jit_depth stages earlier. What a visit computes waits for its weights, for the visit before and
// for the memory of a gradient. Gradients leave behind the visit; when those of all parts have
// come, they are reduced, and the stage is updated: at once (eager), or at the start of the next
// step in forward order (sealed).
//
// Whatever belongs to one class of workers happens in the order of the visits. Shares: each worker
// has an equal part of the servers' links, also while others leave theirs unused. On the servers'
// processors encoding goes before reduction and update, and on their disks reading for it and the
// log before the state, because somebody waits for them; disks stream the state of a stage while
// its update runs. So a step is a maximum over paths whose order no
// duration changes: nothing that gets faster makes a step longer, and no step is shorter than what
// any single resource has to do in it.
//
// A sealed step lasts from decision to decision: the updates of the step before are in it, its own
// are not. An eager one lasts until the first stage, the last to be updated, is at the new version.
// Nothing else of a step is under way at these borders, so one step says what many would.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/hardware.h"
#include "planner/units.h"
#include "planner/workload.h"

namespace eps::planner {

// How the run uses the machines.
struct RunShape {
  uint32_t workers = 1;  // processes
  uint32_t servers = 1;  // processes, spread over the server machines
  uint32_t server_threads = 1;
  int prefetch = 1;   // stages that a worker fetches ahead
  int jit_depth = 1;  // stages that servers quantize ahead of their first fetch
  bool stash_on_device = false;
  std::string weights = "fp32";  // the codecs of most bytes
  std::string gradients = "fp32";
  // The state streams through the disks at every update, and weights are read from there before
  // they are encoded (storage.kind=nvme).
  bool state_on_disk = false;
  // Cuts are written: of state in memory all of it, beside the step that follows the cut.
  bool durable = false;
  // Steps from one to the next, 0: none; absent: as base/job/cut_interval.h says of what writing alone
  // takes.
  std::optional<uint64_t> cut_steps;
  bool log = false;  // contributions are on disk before they are acknowledged
  // Computational storage updates the state on its disks. No mode of this program.
  bool update_in_storage = false;
};

enum class Resource {
  kWorkerCompute,
  kWorkerReceive,
  kWorkerSend,
  kWorkerDecoding,
  kWorkerEncoding,
  kToDevice,
  kFromDevice,
  kServerSend,
  kServerReceive,
  kServerProcessors,
  kServerDisks,
  kSharedCores,  // of a machine whose workers and servers compute on the same ones
};
inline constexpr size_t kResourceCount = 12;
const char* ResourceName(Resource resource);  // "worker compute", "worker receive", ...
// What makes it less busy, with the key or the description's field.
const char* ResourceRemedy(Resource resource);
// One of each worker; else of the servers.
bool IsOfWorkers(Resource resource);

// Workers that are alike in a step.
struct WorkerClass {
  uint32_t workers = 0;
  uint32_t parts = 0;   // that each hosts, above 0
  double slowdown = 1;  // by which its passes take longer
};

// Deals parts evenly to `workers` workers, `slow` of which are slower by that factor and get theirs
// last. Those with most parts come first; workers without a part are in no class.
std::vector<WorkerClass> DealParts(uint32_t workers, uint32_t parts, uint32_t slow = 0,
                                   double slowdown = 1);

// One stage on one worker, each activity alone and undisturbed.
struct StageTimes {
  Seconds encode;         // all servers together, once for all workers
  Seconds fetch_forward;  // over the network, all workers at once
  Seconds fetch_backward;
  Seconds decode_forward;
  Seconds decode_backward;
  Seconds to_device;  // decoded weights, per fetch
  Seconds forward;    // all parts of the worker
  Seconds backward;
  Seconds stash;        // from the device, or back, all parts of the worker
  Seconds from_device;  // gradients, all parts of the worker
  Seconds encode_push;
  Seconds push;
  Seconds reduce;  // all parts but one, on all servers
  Seconds update;  // with one part, on all servers
  Seconds read;    // of weights, per encoding, from the disks of all servers
  Seconds disk;    // state from and to the disks of all servers, for the update
  Seconds log;     // contributions of all parts, to the disks of all servers
  Seconds cut;     // the same state, where it is in memory, to the disks of all servers
};

struct StepTimes {
  Seconds duration;
  Seconds forward;  // until the last worker has ended its forward pass
  // How long one machine is busy: the mean over all of them, and the busiest one.
  std::array<Seconds, kResourceCount> busy{};
  std::array<Seconds, kResourceCount> busiest{};

  // Busiest first, without those that the step does not use.
  std::vector<Resource> by_use() const;
  // That with the busiest machine: no step can be shorter than what this takes.
  Resource bottleneck() const { return by_use().front(); }
  Seconds busiest_of(Resource resource) const { return busiest[static_cast<size_t>(resource)]; }
};

class StepModel {
 public:
  // Borrows `work`, `worker` and `shape`, of which the classes below replace the workers. `worker`
  // is one of hardware.workers. REQUIRES at least one stage and one server, and storage where the
  // state lies on disks.
  StepModel(const Workload& work, const Hardware& hardware, const WorkerKind& worker,
            const RunShape& shape);

  // `members`: the workers over which `busy` is the mean, with those that have no part. Behind a
  // cut no stage is updated that is not written yet.
  StepTimes Run(const std::vector<WorkerClass>& classes, uint32_t members,
                bool behind_cut = false) const;
  // Of all stages on a worker of the first class at full speed.
  std::vector<StageTimes> Stages(const std::vector<WorkerClass>& classes) const {
    return StagesOf(classes.front().parts, CrowdOf(classes));
  }

 private:
  // The servers of a run as one: their rates together, as far as processes make use of them.
  struct ServerRates {
    BytesPerSecond encode;
    BytesPerSecond update;
    BytesPerSecond memory;
    BytesPerSecond send;
    BytesPerSecond receive;
    BytesPerSecond transport;
    PerSecond chunks;
    BytesPerSecond read;
    BytesPerSecond write;
    BytesPerSecond device_update;  // within computational storage, whose disks do not share a link
    BytesPerSecond device_read;
    BytesPerSecond device_write;
    Seconds sync;
  };
  // All workers of a step.
  struct Crowd {
    double workers = 0;
    double parts = 0;
  };
  // A use of a stage in a step; both ways of the last one.
  struct Visit {
    size_t stage = 0;
    bool up = false;
    bool down = false;
  };
  class Relay;
  static ServerRates RatesOf(const Hardware& hardware, const RunShape& shape);
  // Of a core, on a worker; of all cores, on the servers: what sending or taking in takes.
  Seconds OnWorker(Bytes bytes, double chunks) const;
  Seconds OnServers(Bytes bytes, double chunks) const;
  static Crowd CrowdOf(const std::vector<WorkerClass>& classes);
  StageTimes TimesOf(const StageWork& stage, double parts, const Crowd& crowd) const;
  std::vector<StageTimes> StagesOf(uint32_t parts, const Crowd& crowd) const;
  void AddUse(const std::vector<Relay>& relays, uint32_t members, StepTimes* times) const;

  const Workload& work_;
  const WorkerKind& worker_;
  const RunShape& shape_;
  const ServerRates servers_;
  const double shared_cores_;  // of workers and servers, where they compute on the same; else 0
  BytesPerSecond decode_;      // of a worker
  BytesPerSecond encode_;
  std::vector<Visit> visits_;
};

struct StepEstimate {
  StepTimes times;                 // of a step with its share of the cuts
  std::vector<StageTimes> stages;  // of a worker with most parts
  std::string worker;              // its kind: the one that a step waits for
  uint64_t cut_steps = 0;          // from one cut to the next; 0: there are none
  Seconds held;                    // what a cut adds to the step behind it

  Seconds waiting() const {  // of the device, for anything
    return times.duration - times.busiest_of(Resource::kWorkerCompute);
  }
};

// A step of workers that are all of one kind, the slowest. REQUIRES as StepModel.
StepEstimate EstimateStep(const Workload& work, const Hardware& hardware, const RunShape& shape);

}  // namespace eps::planner

#endif  // EPS_PLANNER_STEP_MODEL_H_
