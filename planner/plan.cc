#include "planner/plan.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "base/job/layout/step_memory.h"
#include "base/job/models/model_family.h"
#include "base/machine/machine_limits.h"
#include "base/memory_account.h"
#include "base/status_macros.h"

namespace eps::planner {
namespace {

constexpr Seconds kDay(86400);
constexpr double kMillion = 1e6;
// A width of the optimizer's fields; the master weights stay FP32.
struct MomentWidth {
  const char* name;
  double bytes;  // of one field
  bool built;
};
constexpr double kMasterBytes = 4;
constexpr MomentWidth kMoments[] = {
    {"FP32 moments", 4, true}, {"16-bit moments", 2, false}, {"8-bit moments", 1, false}};

// Returns the bytes of one parameter's state with moments of that width.
double StateBytes(const Workload& work, const MomentWidth& moments) {
  const double fields = (work.state_per_parameter.value() - kMasterBytes) / kMasterBytes;
  return kMasterBytes + fields * moments.bytes;
}

constexpr double kUnbounded = std::numeric_limits<double>::infinity();

// Returns the largest numbers of parameters that the servers' memory and disks hold if the model
// gets deeper. Memory that does not grow with the depth is subtracted first; memory that grows is
// counted per parameter, as in the plan.
std::vector<Capacity> Capacities(const std::vector<TierUse>& tiers, const Workload& work,
                                 const Hardware& hardware) {
  Bytes fixed;
  Bytes growing;  // growing bytes other than the state
  Bytes spilling;
  Bytes spared;
  for (const TierUse& tier : tiers) {
    const bool same_memory = tier.tier == Tier::kWorkerMemory && hardware.one_machine;
    if (tier.tier != Tier::kServerMemory && !same_memory) continue;
    fixed += tier.used() - tier.growing();
    growing += tier.growing();
    spilling += tier.spilling;
    spared += tier.spared;
    for (const MemoryUse& use : tier.uses) {  // bytes that spill are not fixed
      const bool spills = use.kind == MemoryKindName(MemoryKind::kStash);
      if (tier.spilling > Bytes(0) && spills) fixed = fixed - use.bytes;
    }
    for (const MemoryUse& use : tier.uses) {
      if (use.kind == MemoryKindName(MemoryKind::kState)) growing = growing - use.bytes;
    }
  }
  Bytes memory;
  Bytes with_spared;
  Bytes disk;
  for (const ServerKind& server : hardware.servers) {
    memory += server.count * Max(server.memory - fixed, Bytes(0));
    with_spared += server.count * Max(server.memory - fixed + spared, Bytes(0));
    if (server.storage.has_value()) {
      disk += static_cast<double>(server.count) * server.storage->count * server.storage->capacity;
    }
  }
  const double beside = growing.value() / static_cast<double>(work.parameters);
  const double spill = spilling.value() / static_cast<double>(work.parameters);
  // Returns the parameters that memory holds, of `bytes` each.
  const auto in_memory = [&](double bytes) {
    const double alone = bytes > 0 ? memory.value() / bytes : kUnbounded;
    return spill > 0 ? std::min(alone, with_spared.value() / (bytes + spill)) : alone;
  };
  std::vector<Capacity> capacities;
  for (const MomentWidth& moments : kMoments) {
    const double state = StateBytes(work, moments);
    if (!moments.built && state == kMasterBytes) continue;  // an optimizer without moments
    const std::string name = moments.name;
    capacities.push_back(
        {"state in memory, " + name, state, in_memory(state + beside), moments.built});
    if (disk == Bytes(0)) continue;
    const double on_disk = kDiskSlots * state + (work.sealed ? kMasterBytes : 0);
    const double parameters = std::min(disk.value() / on_disk, in_memory(beside));
    capacities.push_back({"state on disks, " + name, state, parameters, moments.built});
  }
  return capacities;
}

// Adds how fast the disks are written, and when the first one reaches its endurance.
void AddWriting(const Hardware& hardware, Plan* plan) {
  Bytes written;  // in a step, at all servers
  const Bytes state = static_cast<double>(plan->work.parameters) * plan->work.state_per_parameter;
  if (plan->shape.state_on_disk) {
    written += state;
    if (plan->work.sealed) {
      written += static_cast<double>(plan->work.parameters) * Bytes(kMasterBytes);
    }
  } else if (plan->estimate.cut_steps > 0) {
    written += state / static_cast<double>(plan->estimate.cut_steps);
  }
  if (plan->shape.log) written += plan->pushed;
  if (!plan->shape.durable) return;
  plan->written_per_day = Bytes(0);
  for (const ServerKind& server : hardware.servers) {
    if (!server.storage.has_value()) continue;
    const double disks = static_cast<double>(hardware.server_count()) * server.storage->count;
    const Bytes a_day = kDay * (written / disks / plan->step());
    plan->written_per_day = Max(*plan->written_per_day, a_day);
    if (server.storage->endurance == Bytes(0) || a_day == Bytes(0)) continue;
    const double lasts = server.storage->endurance / a_day;
    plan->endurance_days = std::min(plan->endurance_days.value_or(lasts), lasts);
  }
}

DollarsPerSecond PriceOf(const Hardware& hardware) {
  DollarsPerSecond price;
  for (const WorkerKind& worker : hardware.workers) price += worker.count * worker.price;
  for (const ServerKind& server : hardware.servers) price += server.count * server.price;
  return price;
}

// Returns the peak of the devices that compute. If only some devices compute, they are taken
// from all kinds in proportion, not from the fastest kind first.
FlopsPerSecond PeakOf(const Hardware& hardware, const RunShape& shape, Precision precision) {
  FlopsPerSecond peak;
  for (const WorkerKind& worker : hardware.workers) {
    peak += worker.count * worker.device.peak(precision);
  }
  const double share = static_cast<double>(shape.workers) / hardware.worker_count();
  return std::min(1.0, share) * peak;
}

// Returns how many storage devices a server has with storage.kind=csd.
size_t DevicesOf(const StorageConfig& storage) {
  return storage.csd.count > 0 ? storage.csd.count : std::max<size_t>(1, storage.drives.size());
}

// Lets the last stages of a device keep what their backward passes would compute again, in the room
// that the stash leaves of `room`. Returns its bytes.
Bytes KeepPasses(const JobSpec& spec, Bytes room, Plan* plan) {
  const Bytes stash = plan->shape.stash_on_device * StashOfWorker(plan->work, plan->shape);
  const uint64_t micro_batches =
      (plan->work.parts + plan->shape.workers - 1) / plan->shape.workers * plan->work.micro_batches;
  Bytes kept;
  const StageId first = FirstKeptStage(spec, micro_batches, (room - Min(room, stash)).value());
  for (uint32_t s = first.value(); s < plan->work.stages.size(); ++s) {
    StageWork& stage = plan->work.stages[s];
    if (!CanKeep(spec, StageId(s))) continue;
    kept += Bytes(KeptBytes(spec, StageId(s), micro_batches));
    stage.backward = stage.backward - stage.forward;
    stage.backward_activations = stage.backward_activations - stage.forward_activations;
  }
  return kept;
}

}  // namespace

RunShape ShapeOf(const Config& config, const Hardware& hardware) {
  RunShape shape;
  shape.workers = config.worker.count > 1 ? static_cast<uint32_t>(config.worker.count)
                                          : hardware.worker_count();
  shape.servers = hardware.server_count();
  uint32_t servers = 0;
  if (absl::SimpleAtoi(config.servers.addresses, &servers)) {
    shape.servers = std::max(1u, servers);
  } else if (!config.servers.addresses.empty()) {
    const std::vector<std::string> addresses = absl::StrSplit(config.servers.addresses, ',');
    shape.servers = static_cast<uint32_t>(addresses.size());
  }
  shape.server_threads = static_cast<uint32_t>(std::max(0, config.servers.threads));
  if (shape.server_threads == 0) {
    const uint32_t machines = std::max(1u, hardware.server_count());
    shape.server_threads = ServerThreads(hardware.servers.front().cores,
                                         hardware.one_machine ? shape.workers / machines : 0,
                                         shape.servers / machines);
  }
  shape.prefetch = config.worker.prefetch;
  shape.jit_depth = config.servers.jit_depth;
  shape.stash_on_device = config.worker.stash == "device" ? 1 : 0;
  shape.weights = config.quantization.weights;
  shape.gradients = config.quantization.gradients;
  shape.update_in_storage = config.storage.kind == "csd" && hardware.has_updating_storage();
  const size_t drives = config.storage.drives.size();
  if (const size_t devices = DevicesOf(config.storage); devices < drives) {
    shape.near_share = static_cast<double>(devices) / static_cast<double>(drives);
  }
  shape.state_on_disk = config.storage.kind == "nvme" || config.storage.kind == "csd";
  shape.durable = config.storage.durable();
  shape.log = config.storage.log == "contributions";
  uint64_t cut_steps = 0;
  if (absl::SimpleAtoi(config.storage.cut_steps, &cut_steps)) shape.cut_steps = cut_steps;
  shape.cut_seconds = Seconds(static_cast<double>(config.storage.cut_seconds));
  return shape;
}

absl::StatusOr<Plan> MakePlan(const Config& config, const JobSpec& spec, const Hardware& hardware) {
  Plan plan;
  plan.model = FamilyOf(spec.model.type).Title(spec.model);
  plan.hardware = hardware.name;
  plan.shape = ShapeOf(config, hardware);
  EPS_ASSIGN_OR_RETURN(plan.work, WorkloadOf(spec));
  const Bytes held = plan.shape.servers * Bytes(static_cast<double>(config.storage.dram));
  const Bytes state = static_cast<double>(plan.work.parameters) * plan.work.state_per_parameter;
  plan.shape.disk_share = 1 - Min(held, state) / state;
  StoragePlan storage;
  EPS_ASSIGN_OR_RETURN(const Bytes room,
                       StashRoomOnDevice(spec, hardware, plan.shape,
                                         Bytes(static_cast<double>(config.worker.device_memory))));
  if (config.worker.stash == "auto") {
    storage.stash_device = room;
    const Bytes stash = StashOfWorker(plan.work, plan.shape);
    if (stash > Bytes(0)) plan.shape.stash_on_device = Min(stash, storage.stash_device) / stash;
  }
  if (config.worker.keep == "auto") storage.kept = KeepPasses(spec, room, &plan);
  storage.stash_file = !config.worker.stash_path.empty();
  storage.stash_host = Bytes(static_cast<double>(config.worker.stash_host));
  storage.durable = config.storage.durable();
  storage.staging = Bytes(static_cast<double>(config.storage.staging));
  storage.state_memory = Bytes(static_cast<double>(config.storage.dram));
  storage.residuals_at_servers =
      storage.durable || spec.codecs.residual_home == ResidualHome::kServer;
  if (config.storage.kind == "csd") {
    storage.device_memory =
        Bytes(static_cast<double>(DevicesOf(config.storage) * config.storage.csd.dram));
  }
  if (config.worker.transport != "grpc" && config.servers.shm_gradients > 0) {
    storage.shared_weights = Bytes(static_cast<double>(config.servers.shm_weights));
    storage.shared_gradients = Bytes(static_cast<double>(config.servers.shm_gradients));
  }
  storage.server_limit = Bytes(static_cast<double>(config.servers.memory_limit));
  EPS_ASSIGN_OR_RETURN(plan.tiers, PlanMemory(spec, plan.work, hardware, plan.shape, storage));
  plan.estimate = EstimateStep(plan.work, hardware, plan.shape);
  if (plan.estimate.times.busiest_of(Resource::kSharedCores) == Seconds(0)) {
    plan.walls = WallsOf(plan.work, plan.estimate);
  }
  plan.capacities = Capacities(plan.tiers, plan.work, hardware);
  plan.fetched = FetchedBytes(plan.work, plan.shape.workers) + ResidualBytes(plan.work);
  plan.pushed = PushedBytes(plan.work) + ResidualBytes(plan.work);
  const Seconds step = plan.step();
  plan.tokens_per_second = static_cast<double>(plan.work.tokens) / step.value();
  plan.mfu = plan.work.model_flops / step / PeakOf(hardware, plan.shape, plan.work.precision);
  AddWriting(hardware, &plan);
  if (hardware.has_updating_storage() && !plan.shape.update_in_storage) {
    RunShape shape = plan.shape;
    shape.state_on_disk = shape.update_in_storage = true;
    plan.step_in_storage = EstimateStep(plan.work, hardware, shape).times.duration;
  }
  const DollarsPerSecond price = PriceOf(hardware);
  if (price > DollarsPerSecond(0)) {
    plan.dollars_per_million_tokens =
        (price * step).value() / static_cast<double>(plan.work.tokens) * kMillion;
  }
  return plan;
}

}  // namespace eps::planner
