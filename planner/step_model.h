#ifndef EPS_PLANNER_STEP_MODEL_H_
#define EPS_PLANNER_STEP_MODEL_H_

// The duration of one step: the relay of docs/protocol.md over the resources that it uses, computed
// in O(stages * classes of workers). A plan is a step whose workers are all alike; the simulator
// (planner/simulator) also runs steps in which some workers are slow or have more parts. Pure
// functions.
//
// A worker visits every stage on its way up, the last one once, and every other one again on its
// way down: 2 n - 1 visits (L2L section 3). The weights of a visit, if it needs any, are fetched
// once the visit that is prefetch + 1 earlier has released its weights and the servers have encoded
// them, which they begin jit_depth stages earlier still. The computation of a visit waits for its
// weights, for the previous visit and for memory for a gradient. Gradients are sent after the
// visit. Once the gradients of all parts have arrived they are reduced, and the stage is updated:
// at once (eager), or at the start of the next step in forward order (sealed).
//
// Each class of workers processes its visits in order. Each worker has an equal share of the
// servers' links, even while others leave theirs unused. Each work of the servers' processors takes
// as long as their cores or their memory need for it, whichever is longer; encoding has
// priority over reduction and update; on their disks, reading for it and the log have priority over
// the state, because workers wait for them. The disks stream the state of a stage while its update
// runs. A step is therefore a maximum over paths whose order depends on no duration: a faster part
// never makes a step longer, and no step is shorter than the work of any single resource in it.
//
// A sealed step lasts from decision to decision: it includes the updates of the previous step and
// not its own. An eager step lasts until the first stage, which is updated last, has its new
// version. No other work of a step is in flight at these borders, so one step represents many.

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

// How the run uses the machines; ShapeOf (planner/plan.h) derives it from a configuration.
struct RunShape {
  uint32_t workers = 1;  // worker processes
  uint32_t servers = 1;  // server processes, spread over the server machines
  uint32_t server_threads = 1;
  int prefetch = 1;              // stages that a worker fetches ahead
  int jit_depth = 1;             // stages that servers quantize ahead of their first fetch
  double stash_on_device = 0;    // share of the stash
  std::string weights = "fp32";  // the codecs that encode most bytes
  std::string gradients = "fp32";
  // The state streams through the disks at every update, and weights are read from the disks before
  // they are encoded (storage.kind=nvme or csd).
  bool state_on_disk = false;
  double disk_share = 1;  // of that state; the rest is in memory (storage.dram)
  // The servers write cuts. If the state is in memory, a cut writes all of it during the step that
  // follows the cut.
  bool durable = false;
  // Steps from one cut to the next; 0 sets no interval. If absent, base/job/cut_interval.h derives
  // it from the time that the writing alone takes.
  std::optional<uint64_t> cut_steps;
  Seconds cut_seconds;  // the most time from one cut to the next; 0 sets no limit
  bool log = false;     // contributions are written to disk before they are acknowledged
  // Computational storage updates the state on its own disks (storage.kind=csd).
  bool update_in_storage = false;
  double near_share = 1;  // of the state on disks; the servers update the rest on plain drives
};

// The resources that a step may occupy.
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
  kServerMemory,  // its bandwidth, which encoding, gradients and updates use
  kServerDisks,
  kSharedCores,  // of a machine whose workers and servers compute on the same cores
};
inline constexpr size_t kResourceCount = 13;
const char* ResourceName(Resource resource);  // "worker compute", "worker receive", ...
// Returns what makes the resource less busy, with the configuration key or the hardware field.
const char* ResourceRemedy(Resource resource);
// Returns true if every worker has this resource; false if the servers have it.
bool IsOfWorkers(Resource resource);

// A class of workers that behave alike in a step.
struct WorkerClass {
  uint32_t workers = 0;
  uint32_t parts = 0;   // parts of each worker, above 0
  double slowdown = 1;  // factor by which their passes take longer
};

// Deals parts evenly to `workers` workers. `slow` of them are slower by `slowdown` and are served
// last. The classes with most parts come first; workers without a part are in no class.
std::vector<WorkerClass> DealParts(uint32_t workers, uint32_t parts, uint32_t slow = 0,
                                   double slowdown = 1);

// The time that work on the servers takes of their cores and of their memory, which overlap.
struct ServerTime {
  Seconds cores;
  Seconds memory;

  Seconds alone() const { return Max(cores, memory); }
  ServerTime& operator+=(const ServerTime& other) {
    cores += other.cores;
    memory += other.memory;
    return *this;
  }
  friend ServerTime operator+(ServerTime a, const ServerTime& b) { return a += b; }
  friend ServerTime operator*(double factor, const ServerTime& t) {
    return {factor * t.cores, factor * t.memory};
  }
};

// The times of one stage on one worker, each activity alone and undisturbed.
struct StageTimes {
  ServerTime encode;      // all servers together, once for all workers
  Seconds fetch_forward;  // over the network, to all workers at once
  Seconds fetch_backward;
  Seconds decode_forward;
  Seconds decode_backward;
  Seconds to_device_forward;  // fetched weights: encoded ones if the device decodes them
  Seconds to_device_backward;
  Seconds forward;  // all parts of the worker
  Seconds backward;
  Seconds stash;        // to or from the host, all parts of the worker
  Seconds from_device;  // gradients, all parts of the worker
  Seconds encode_push;
  Seconds push;
  // On all servers. Mode sealed reduces all parts, and updates with their sum; otherwise the update
  // also takes in the first part, and the reduction the others.
  ServerTime reduce;
  ServerTime update;
  Seconds read;   // weights, once per encoding, from the disks of all servers
  Seconds disk;   // state from and to the disks of all servers, per update
  Seconds spill;  // reduced gradient to the disks of all servers, in mode sealed
  Seconds log;    // contributions of all parts, to the disks of all servers
  Seconds cut;    // state in memory, to the disks of all servers
};

// The result of one step.
struct StepTimes {
  Seconds duration;
  Seconds forward;  // until the last worker has finished its forward pass
  Seconds serving;  // of the servers' processors, with the time in which they wait for memory
  // The busy time per machine: the mean over all machines, and that of the busiest one.
  std::array<Seconds, kResourceCount> busy{};
  std::array<Seconds, kResourceCount> busiest{};

  // Returns the resources that the step uses, busiest first.
  std::vector<Resource> by_use() const;
  // Returns the resource with the busiest machine. No step can be shorter than its busy time.
  // REQUIRES a step that takes time.
  Resource bottleneck() const { return by_use().front(); }
  Seconds busiest_of(Resource resource) const { return busiest[static_cast<size_t>(resource)]; }
};

// Computes steps of one workload on given hardware. Immutable after construction.
class StepModel {
 public:
  // Borrows `work`, `worker` and `shape`, which must outlive the model; the classes given to Run
  // replace the worker count of `shape`. `worker` is one of hardware.workers. REQUIRES at least one
  // stage and one server, and storage if the state is on disks.
  StepModel(const Workload& work, const Hardware& hardware, const WorkerKind& worker,
            const RunShape& shape);

  // Computes one step. `members` is the number of workers over which `busy` is averaged, including
  // workers without a part. With `behind_cut`, the step follows a cut, and no stage is updated
  // before the cut has written it.
  StepTimes Run(const std::vector<WorkerClass>& classes, uint32_t members,
                bool behind_cut = false) const;
  // Returns the times of all stages on a worker of the first class at full speed.
  std::vector<StageTimes> Stages(const std::vector<WorkerClass>& classes) const {
    return StagesOf(classes.front().parts, CrowdOf(classes));
  }

 private:
  // The rates of all servers of a run together, as far as the server processes can use them.
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
  // The totals over all workers of a step.
  struct Crowd {
    double workers = 0;
    double parts = 0;
  };
  // One visit of a stage in a step. The visit of the last stage goes both up and down.
  struct Visit {
    size_t stage = 0;
    bool up = false;
    bool down = false;
    double fetches = 0;  // of weights: 0 or 1
  };
  class Relay;
  static ServerRates RatesOf(const Hardware& hardware, const RunShape& shape);
  // The time that sending or receiving takes: of one core on a worker, of all cores on the servers.
  Seconds OnWorker(Bytes bytes, double chunks) const;
  Seconds OnServers(Bytes bytes, double chunks) const;
  static Crowd CrowdOf(const std::vector<WorkerClass>& classes);
  StageTimes TimesOf(const StageWork& stage, double parts, const Crowd& crowd) const;
  void AddUpdate(const StageWork& stage, double parts, StageTimes* t) const;
  void AddStorage(Bytes state, Bytes fp32, ServerTime pass, StageTimes* t) const;
  std::vector<StageTimes> StagesOf(uint32_t parts, const Crowd& crowd) const;
  void AddServing(const std::vector<StageTimes>& servers, StepTimes* times) const;
  void AddUse(const std::vector<Relay>& relays, uint32_t members, StepTimes* times) const;

  const Workload& work_;
  const WorkerKind& worker_;
  const RunShape& shape_;
  const ServerRates servers_;
  const double shared_cores_;  // cores that workers and servers share; 0 if they do not
  BytesPerSecond decode_;      // rates of a worker
  BytesPerSecond encode_;
  std::vector<Visit> visits_;
};

// The step that a plan reports.
struct StepEstimate {
  StepTimes times;                 // a step with its share of the cuts
  std::vector<StageTimes> stages;  // of a worker with the most parts
  std::string worker;              // the kind of worker that the step waits for
  uint64_t cut_steps = 0;          // from one cut to the next; 0 if there are none
  Seconds held;                    // what a cut adds to the step that follows it

  Seconds waiting() const {  // time in which the device does not compute
    return times.duration - times.busiest_of(Resource::kWorkerCompute);
  }
};

// Estimates a step for each kind of worker as if all were of that kind, and returns the slowest.
// REQUIRES as for StepModel.
StepEstimate EstimateStep(const Workload& work, const Hardware& hardware, const RunShape& shape);

}  // namespace eps::planner

#endif  // EPS_PLANNER_STEP_MODEL_H_
