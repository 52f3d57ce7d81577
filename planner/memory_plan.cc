#include "planner/memory_plan.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "absl/strings/str_cat.h"
#include "base/ids.h"
#include "base/job/layout/chunk_map.h"
#include "base/job/layout/step_memory.h"
#include "base/memory_account.h"
#include "base/status_macros.h"
#include "compression/codec.h"
#include "compression/codec_table.h"
#include "planner/quantity_text.h"

namespace eps::planner {
namespace {

constexpr double kFp32 = 4;             // bytes
constexpr double kBf16 = 2;             // bytes
constexpr double kPage = 4096;          // bytes
constexpr double kHolds = 65536;        // bytes in which a worker notes weights that it has read
constexpr double kUsedOfDevice = 0.9;   // by worker.device_memory=0
constexpr double kStashOfMemory = 0.5;  // by worker.stash_host=0
constexpr double kStagesOnDevice = 2;   // the one being computed, and the next

// Shared memory is given out in whole pages.
double InPages(double bytes) { return std::ceil(bytes / kPage) * kPage; }

double Elements(const Chunk& chunk) { return static_cast<double>(chunk.elements); }

// The memory of the servers of the fullest machine, computed shard by shard. Each method returns
// the most that as many shards as one machine hosts hold together.
class ServerMemory {
 public:
  ServerMemory(const JobSpec& spec, const ChunkMap& chunks, const CodecTable& codecs,
               const RunShape& shape, size_t shards_each)
      : spec_(spec),
        codecs_(codecs),
        shards_(shape.servers),
        shards_each_(shards_each),
        jit_depth_(shape.jit_depth) {
    const std::vector<ShardId> placement = chunks.Place(shape.servers);
    for (Shard& shard : shards_) {
      shard.gradients.assign(spec.stages.size(), 0);
      shard.weights.assign(spec.stages.size(), 0);
    }
    for (const Chunk& chunk : chunks.chunks()) {
      Add(chunk, &shards_[placement[chunk.id.value()].value()]);
    }
  }

  double LeastElements() const {
    return std::min_element(shards_.begin(), shards_.end(),
                            [](const Shard& a, const Shard& b) { return a.elements < b.elements; })
        ->elements;
  }
  double MostState() const {
    return Most([](const Shard& shard) { return shard.state; });
  }
  // Gradients of every part for the two largest stages, gradients of shared tensors, and, if they
  // are in memory, the sums.
  double Contributions(bool sums_in_memory) const {
    return Most([=](const Shard& shard) {
      return spec_.training.parts * Held(shard) + (sums_in_memory ? Sums(shard) : 0);
    });
  }
  // The segments in which `workers` of this machine hand over gradients, of `most` bytes each at
  // most.
  double SharedGradients(double workers, double most) const {
    return Most([=](const Shard& shard) {
      return workers * std::min(most, InPages(spec_.training.parts * Held(shard)));
    });
  }
  // Reduced gradients, which mode sealed keeps until the decision.
  double Sums() const {
    return Most([this](const Shard& shard) { return Sums(shard); });
  }
  // Residuals of sparse gradients, for every part and use.
  double Residuals() const {
    return Most([](const Shard& shard) { return shard.residuals; });
  }
  // Encoded weights of the stage being fetched, of the stages prepared ahead and of the stage
  // before, and those of a dropped stage that a stream is still sending.
  double Fetched() const {
    return Most([this](const Shard& shard) {
      return LargestSum(shard.weights, static_cast<size_t>(jit_depth_) + 3);
    });
  }

 private:
  struct Shard {
    double elements = 0;
    double trained = 0;             // elements that are not frozen
    double state = 0;               // bytes
    std::vector<double> gradients;  // encoded, by the stage that holds them
    std::vector<double> weights;
    double tied = 0;  // encoded gradients of chunks that several stages use
    double residuals = 0;
  };

  static double Held(const Shard& shard) { return LargestSum(shard.gradients, 2) + shard.tied; }
  double Sums(const Shard& shard) const {
    return spec_.training.mode == Mode::kSealed ? kFp32 * shard.trained : 0;
  }

  void Add(const Chunk& chunk, Shard* shard) const {
    shard->elements += Elements(chunk);
    shard->trained += chunk.frozen ? 0 : Elements(chunk);
    shard->state += static_cast<double>(StateBytes(spec_, chunk));
    const double gradient = chunk.frozen ? 0 : GradientBytes(chunk);
    const Codec* const residual =
        codecs_.residual_or_null(chunk.id, Step(spec_.codecs.warmup_steps + 1));
    if (residual != nullptr) {
      shard->residuals += static_cast<double>(residual->MaxEncodedSize(chunk, Axis::kRow)) *
                          static_cast<double>(chunk.uses.size()) * spec_.training.parts;
    }
    if (chunk.uses.size() > 1) {
      shard->tied += gradient * static_cast<double>(chunk.uses.size());
    } else {
      shard->gradients[chunk.uses.front().value()] += gradient;
    }
    for (const StageId stage : chunk.uses) {
      const bool second = codecs_.axes(stage, chunk.id, /*backward=*/true).has_second;
      const double bits = codecs_.weights(chunk.id).traits().bits_per_element;
      shard->weights[stage.value()] += (second ? 2 : 1) * InPages(Elements(chunk) * bits / 8);
    }
  }
  double GradientBytes(const Chunk& chunk) const {
    const auto most = [&](const Codec& codec) {
      return static_cast<double>(codec.MaxEncodedSize(chunk, Axis::kRow) + codec.IndexSize(chunk));
    };
    const Step after(spec_.codecs.warmup_steps + 1);
    const Codec* residual = codecs_.residual_or_null(chunk.id, after);
    return std::max(
        most(codecs_.gradient(chunk.id, Step(1))),
        most(codecs_.gradient(chunk.id, after)) + (residual == nullptr ? 0 : most(*residual)));
  }
  double Most(const std::function<double(const Shard&)>& of) const {
    std::vector<double> each;
    for (const Shard& shard : shards_) each.push_back(of(shard));
    return LargestSum(std::move(each), shards_each_);
  }
  static double LargestSum(std::vector<double> values, size_t count) {
    std::sort(values.rbegin(), values.rend());
    double sum = 0;
    for (size_t i = 0; i < std::min(count, values.size()); ++i) sum += values[i];
    return sum;
  }

  const JobSpec& spec_;
  const CodecTable& codecs_;
  std::vector<Shard> shards_;
  const size_t shards_each_;
  const int jit_depth_;
};

const ServerKind& SmallestServer(const Hardware& hardware) {
  return *std::min_element(
      hardware.servers.begin(), hardware.servers.end(),
      [](const ServerKind& a, const ServerKind& b) { return a.memory < b.memory; });
}
const WorkerKind& SmallestWorker(const Hardware& hardware) {
  return *std::min_element(
      hardware.workers.begin(), hardware.workers.end(),
      [](const WorkerKind& a, const WorkerKind& b) { return a.memory < b.memory; });
}
const Device& SmallestDevice(const Hardware& hardware) {
  return std::min_element(hardware.workers.begin(), hardware.workers.end(),
                          [](const WorkerKind& a, const WorkerKind& b) {
                            return a.device.memory < b.device.memory;
                          })
      ->device;
}

// Returns the number of processes on the machine that has most of them.
double ProcessesEach(uint32_t processes, uint32_t machines) {
  return std::ceil(static_cast<double>(processes) / machines);
}
double ServersEach(const Hardware& hardware, const RunShape& shape) {
  return ProcessesEach(shape.servers, hardware.server_count());
}
// Returns the workers on one host: all of them if there is only one machine.
double WorkersEach(const Hardware& hardware, const RunShape& shape) {
  return ProcessesEach(shape.workers, hardware.one_machine ? 1 : hardware.worker_count());
}

MemoryUse Use(MemoryKind kind, Bytes bytes, bool exact, Bytes growing) {
  return MemoryUse{MemoryKindName(kind), bytes, exact, growing};
}

TierUse ServerTier(const ServerMemory& memory, Bytes state, const Hardware& hardware,
                   const RunShape& shape, const StoragePlan& storage) {
  const ServerKind& server = SmallestServer(hardware);
  const double each = ServersEach(hardware, shape);
  TierUse tier;
  tier.tier = Tier::kServerMemory;
  tier.machine = server.name;
  tier.available = server.memory;
  if (storage.server_limit > Bytes(0)) {
    tier.available = Min(server.memory, each * storage.server_limit);
  }
  const bool all_in_memory = !shape.state_on_disk;
  const Bytes held = all_in_memory ? state : Min(state, each * storage.state_memory);
  if (held > Bytes(0)) {
    tier.uses.push_back(
        Use(MemoryKind::kState, held, all_in_memory, all_in_memory ? state : Bytes(0)));
  }
  if (storage.device_memory > Bytes(0)) {
    tier.uses.push_back(
        Use(MemoryKind::kState, each * storage.device_memory, /*exact=*/true, Bytes(0)));
  }
  if (storage.durable) {
    tier.uses.push_back(
        Use(MemoryKind::kScratch, each * storage.staging, /*exact=*/false, Bytes(0)));
  }
  // The sums are where their chunks are.
  Bytes contributions(memory.Contributions(/*sums_in_memory=*/false));
  if (held > Bytes(0)) contributions += held / state * Bytes(memory.Sums());
  Bytes fetched(memory.Fetched());
  if (hardware.one_machine && storage.shared_weights > Bytes(0)) {
    contributions += Bytes(memory.SharedGradients(shape.workers, storage.shared_gradients.value()));
    fetched += Bytes(each * shape.workers * kHolds);
  }
  tier.uses.push_back(Use(MemoryKind::kContribution, contributions, /*exact=*/false,
                          Bytes(all_in_memory ? memory.Sums() : 0)));
  tier.uses.push_back(Use(MemoryKind::kFetch, fetched, /*exact=*/false, Bytes(0)));
  if (storage.residuals_at_servers && memory.Residuals() > 0) {
    const Bytes residuals(memory.Residuals());
    tier.uses.push_back(Use(MemoryKind::kResidual, residuals, /*exact=*/false, residuals));
  }
  tier.remedy =
      "more servers (servers.addresses), more of the machine's memory (servers.memory_limit), or "
      "state on disks (storage.kind=nvme)";
  return tier;
}

TierUse DiskTier(Bytes state, Bytes sums, const Hardware& hardware) {
  const ServerKind& server = SmallestServer(hardware);
  const Bytes slots = kDiskSlots * state;
  TierUse tier;
  tier.tier = Tier::kServerDisk;
  tier.machine = server.name;
  tier.available = server.storage->count * server.storage->capacity;
  tier.uses.push_back(Use(MemoryKind::kState, slots, /*exact=*/false, slots));
  if (sums > Bytes(0)) {
    tier.uses.push_back(Use(MemoryKind::kContribution, sums, /*exact=*/false, sums));
  }
  tier.remedy = "more servers (servers.addresses), or larger disks (storage.path)";
  return tier;
}

TierUse WorkerTier(const LargestStage& largest, Bytes stash, const Hardware& hardware,
                   const RunShape& shape, const StoragePlan& storage) {
  const WorkerKind& worker = SmallestWorker(hardware);
  const double each = WorkersEach(hardware, shape);
  TierUse tier;
  tier.tier = Tier::kWorkerMemory;
  tier.machine = worker.name;
  tier.available = worker.memory;
  // One gradient is encoded while the next is copied there, unless the host computes it there.
  const double gradients = worker.device.host ? 1 : 2;
  const Bytes stages(kFp32 *
                     ((1 + shape.prefetch) * largest.weights + gradients * largest.gradient));
  tier.uses.push_back(Use(MemoryKind::kStage, each * stages, /*exact=*/false, Bytes(0)));
  Bytes on_host = (1 - shape.stash_on_device) * stash;
  const Bytes room =
      storage.stash_host > Bytes(0) ? storage.stash_host : kStashOfMemory * worker.memory / each;
  const bool in_file = storage.stash_file && room < on_host;
  if (in_file) on_host = room;
  const bool shares = storage.stash_device > Bytes(0);
  if (on_host > Bytes(0)) {
    tier.uses.push_back(Use(MemoryKind::kStash, each * on_host, /*exact=*/!in_file,
                            in_file || shares ? Bytes(0) : each * on_host));
  }
  if (shares && !in_file) {
    tier.spilling = each * stash;
    tier.spared = each * storage.stash_device;
  }
  tier.remedy =
      "fewer micro-batches (training.micro_batches), a smaller stash (worker.stash_codec), a stash "
      "on disk (worker.stash_path, worker.stash_host), or more workers (worker.count)";
  return tier;
}

TierUse DeviceTier(const LargestStage& largest, Bytes stash, const JobSpec& spec,
                   const Hardware& hardware, const RunShape& shape, const StoragePlan& storage) {
  const Device& smallest = SmallestDevice(hardware);
  TierUse tier;
  tier.tier = Tier::kDevice;
  tier.machine = smallest.name;
  tier.available = smallest.memory;
  // A device receives weights in the type in which it computes; FP16 is a copy.
  const Precision precision = spec.training.precision;
  double each = smallest.host || precision == Precision::kBf16 ? 0 : kFp32;  // bytes
  if (precision != Precision::kFp32) each += kBf16;
  if (each > 0) {
    tier.uses.push_back(
        {"weights", Bytes(each * kStagesOnDevice * largest.weights), /*exact=*/false, Bytes(0)});
  }
  // A device holds one more while it is copied to the host.
  const double gradients = SummedGradients(spec.training) + (smallest.host ? 0 : 1);
  tier.uses.push_back(
      {"gradients", Bytes(gradients * kFp32 * largest.gradient), /*exact=*/false, Bytes(0)});
  tier.uses.push_back({"activations", Bytes(ActivationBytes(spec)), /*exact=*/false, Bytes(0)});
  if (storage.kept > Bytes(0)) {
    tier.uses.push_back({"kept", storage.kept, /*exact=*/false, Bytes(0)});
  }
  const Bytes on_device = shape.stash_on_device * stash;
  if (on_device > Bytes(0)) {
    tier.uses.push_back(Use(MemoryKind::kStash, on_device, /*exact=*/true,
                            storage.stash_device > Bytes(0) ? Bytes(0) : on_device));
  }
  tier.remedy =
      "smaller micro-batches (training.micro_batch_size), shorter sequences (training.seq_len), or "
      "worker.stash=host";
  return tier;
}

}  // namespace

const char* TierName(Tier tier) {
  switch (tier) {
    case Tier::kServerMemory:
      return "server memory";
    case Tier::kServerDisk:
      return "server disk";
    case Tier::kWorkerMemory:
      return "worker memory";
    case Tier::kDevice:
      return "device memory";
  }
  return "unknown";
}

LargestStage FindLargestStage(const JobSpec& spec, const ChunkMap& chunks,
                              const CodecTable& codecs) {
  LargestStage largest;
  for (uint32_t s = 0; s < spec.stages.size(); ++s) {
    const StageId stage(s);
    double weights = static_cast<double>(chunks.StageElements(stage));
    largest.gradient = std::max(largest.gradient, weights);
    for (const ChunkId id : chunks.ChunksOfStage(stage)) {
      if (codecs.axes(stage, id, /*backward=*/true).has_second) {
        weights += Elements(chunks.chunk(id));
      }
    }
    largest.weights = std::max(largest.weights, weights);
  }
  return largest;
}

Bytes TierUse::used() const {
  Bytes sum;
  for (const MemoryUse& use : uses) sum += use.bytes;
  return sum;
}

Bytes TierUse::growing() const {
  Bytes sum;
  for (const MemoryUse& use : uses) sum += use.growing;
  return sum;
}

absl::StatusOr<std::vector<TierUse>> PlanMemory(const JobSpec& spec, const Workload& work,
                                                const Hardware& hardware, const RunShape& shape,
                                                const StoragePlan& storage) {
  const ChunkMap chunks = ChunkMap::Build(spec);
  EPS_ASSIGN_OR_RETURN(const CodecTable codecs, CodecTable::Build(spec, chunks));
  const ServerMemory memory(spec, chunks, codecs, shape,
                            static_cast<size_t>(ServersEach(hardware, shape)));
  if (memory.LeastElements() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("servers.addresses (--servers): ", shape.servers, " servers are too many for ",
                     chunks.chunks().size(),
                     " chunks, so some would hold nothing; use fewer servers, or smaller chunks "
                     "(training.chunk_elements)"));
  }
  if (storage.durable && !hardware.has_storage()) {
    return absl::InvalidArgumentError(
        absl::StrCat("storage.kind and storage.path ask for state on disks, but a server of \"",
                     hardware.name, "\" has no storage; describe it, or set storage.kind=dram"));
  }
  const Bytes state(memory.MostState());
  std::vector<TierUse> tiers = {ServerTier(memory, state, hardware, shape, storage)};
  if (storage.durable) {
    tiers.push_back(DiskTier(state, Bytes(shape.state_on_disk ? memory.Sums() : 0), hardware));
  }
  const Bytes stash = StashOfWorker(work, shape);
  const LargestStage largest = FindLargestStage(spec, chunks, codecs);
  TierUse host = WorkerTier(largest, stash, hardware, shape, storage);
  TierUse device = DeviceTier(largest, stash, spec, hardware, shape, storage);
  const bool host_computes = SmallestDevice(hardware).host;
  if (host_computes) {  // the host memory also holds what the device would
    for (MemoryUse& use : device.uses) {
      use.bytes = WorkersEach(hardware, shape) * use.bytes;
      use.growing = WorkersEach(hardware, shape) * use.growing;
      host.uses.push_back(std::move(use));
    }
  }
  if (hardware.one_machine) {
    host.beside = tiers[0].used();
    tiers[0].beside = host.used();
  }
  tiers.push_back(std::move(host));
  if (!host_computes) tiers.push_back(std::move(device));
  return tiers;
}

absl::StatusOr<Bytes> StashRoomOnDevice(const JobSpec& spec, const Hardware& hardware,
                                        const RunShape& shape, Bytes device_memory) {
  const Device& smallest = SmallestDevice(hardware);
  if (smallest.host) return Bytes(0);
  const ChunkMap chunks = ChunkMap::Build(spec);
  EPS_ASSIGN_OR_RETURN(const CodecTable codecs, CodecTable::Build(spec, chunks));
  RunShape without = shape;
  without.stash_on_device = 0;
  const Bytes used =
      DeviceTier(FindLargestStage(spec, chunks, codecs), Bytes(0), spec, hardware, without, {})
          .used();
  const Bytes all = device_memory > Bytes(0) ? Min(device_memory, smallest.memory)
                                             : kUsedOfDevice * smallest.memory;
  return all - Min(all, used);
}

Bytes StashOfWorker(const Workload& work, const RunShape& shape) {
  Bytes stash;
  for (const StageWork& stage : work.stages) {
    stash += std::ceil(static_cast<double>(work.parts) / shape.workers) * stage.stash;
  }
  return stash;
}

absl::Status CheckFits(const std::vector<TierUse>& tiers) {
  std::string text;
  for (const TierUse& tier : tiers) {
    if (tier.fits()) continue;
    absl::StrAppend(&text, text.empty() ? "" : "\n", TierName(tier.tier), " of ", tier.machine,
                    ": ", ShortText(tier.used()), " are needed",
                    tier.beside > Bytes(0)
                        ? absl::StrCat(" beside ", ShortText(tier.beside), " of other processes")
                        : "",
                    ", ", ShortText(tier.available), " are there (",
                    ShortText(tier.used() + tier.beside - tier.available), " are missing):");
    for (const MemoryUse& use : tier.uses) {
      absl::StrAppend(&text, " ", use.kind, " ", ShortText(use.bytes), ",");
    }
    text.back() = ';';
    absl::StrAppend(&text, " change: ", tier.remedy);
  }
  return text.empty() ? absl::OkStatus() : absl::ResourceExhaustedError(text);
}

}  // namespace eps::planner
