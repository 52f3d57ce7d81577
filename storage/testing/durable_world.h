#ifndef EPS_STORAGE_TESTING_DURABLE_WORLD_H_
#define EPS_STORAGE_TESTING_DURABLE_WORLD_H_

// For tests of durable backends: a simulated disk and processes that start and end on it.
// Everything runs on one thread and repeats exactly.

#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/job/layout/model_layout.h"
#include "base/status_macros.h"
#include "base/testing/manual_executor.h"
#include "base/testing/test_specs.h"
#include "gtest/gtest.h"
#include "storage/backends/durable_backend.h"
#include "storage/backends/near/device_use.h"
#include "storage/csd/device_core.h"
#include "storage/csd/device_disk.h"
#include "storage/csd/kernel_runner.h"
#include "storage/csd/kernels/chunk_kernels.h"
#include "storage/log/log_room.h"
#include "storage/testing/log_store.h"
#include "storage/testing/simulated_disk.h"

namespace eps {

// Layers of 40 x 40 whose chunks take a few blocks each; `name` tells jobs apart.
inline JobSpec SmallSpec(const std::string& name = "small") {
  JobSpec spec = TinySyntheticSpec();
  spec.name = name;
  spec.model.synthetic.n_layer = 3;
  spec.model.synthetic.n_embd = 40;
  spec.tensors.clear();
  spec.groups.clear();
  spec.stages.clear();
  spec.chunk_elements = 32 * 40;
  EPS_CHECK(BuildLayout(/*weight_decay=*/0.02, &spec).ok());
  EPS_CHECK(spec.Validate().ok());
  return spec;
}

// Bytes derived from a seed: finite floats of moderate size.
inline std::string SomeBytes(uint64_t seed, size_t size) {
  std::string bytes(size, '\0');
  for (size_t i = 0; i < size; ++i) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    bytes[i] = static_cast<char>(i % 4 == 3 ? 0x3e : seed >> 56);
  }
  return bytes;
}

// An update by one step, with a gradient derived from a seed.
inline UpdateRequest SomeUpdate(const Chunk& chunk, Version from, uint64_t seed) {
  UpdateRequest request;
  request.chunk = chunk.id;
  request.from = from;
  request.to = from.Next();
  request.step.lr = 1e-3;
  request.step.bias_correction1 = 0.5;
  request.step.bias_correction2 = 0.5;
  request.step.grad_scale = 1;
  request.step.update = from.value() + 1;
  const Codec* const fp32 = *FindCodec("fp32");
  for (uint32_t use = 0; use < chunk.uses.size(); ++use) {
    auto data =
        fp32->Open(chunk, Axis::kRow, Bytes::CopyOf(SomeBytes(seed + use, 4 * chunk.elements)),
                   Content::kGradient);
    EPS_CHECK(data.ok());
    request.inputs.push_back({use, TreeRange{0, 1}, *data});
  }
  return request;
}

// The place of the state between two cuts, and of the slots.
struct DurableKind {
  const char* name;
  bool in_dram;
  decltype(&NewNvmeBackend) make;
  uint32_t drives = 0;   // 0: the slots are in DurableWorld::folder
  uint32_t devices = 0;  // of the drives, which update what lies in them
  DeviceUse use = {};    // of the devices
  uint64_t memory = 0;   // bytes of the state that are in memory
};
inline void PrintTo(const DurableKind& kind, std::ostream* out) { *out << kind.name; }
inline constexpr DurableKind kInDram = {"Dram", true, &NewDurableDramBackend};
inline constexpr DurableKind kOnNvme = {"Nvme", false, &NewNvmeBackend};
inline constexpr DurableKind kInDramWithDrives = {"DramDrives", true, &NewDurableDramBackend, 2};
inline constexpr DurableKind kOnDrives = {"Drives", false, &NewNvmeBackend, 3};
inline constexpr DurableKind kInDevices = {"Devices", false, &NewNvmeBackend, 2, 2};
// The ways of Smart-Infinity: one set of buffers, and weights that come up in FP32 from the medium.
inline constexpr DurableKind kInNaiveDevices = {
    "NaiveDevices", false, &NewNvmeBackend, 2, 2, {1, false, false, false, true}};
inline constexpr DurableKind kInHandoverDevices = {
    "HandoverDevices", false, &NewNvmeBackend, 2, 2, {1, true, false, false, true}};

// The disk, its tasks, and the arguments of every process on it.
struct DurableWorld {
  explicit DurableWorld(const DurableKind& k, uint64_t seed = 0)
      : kind(k),
        spec(SmallSpec()),
        chunks(ChunkMap::Build(spec)),
        disk(OptionsOf(&executor, seed)) {
    for (const Chunk& c : chunks.chunks()) owned.push_back(c.id);
    // All are on one disk: a power cut leaves each file its own writes.
    for (uint32_t drive = 0; drive < kind.drives; ++drive) {
      drive_folders.push_back("/drive-" + std::to_string(drive) + "/job");
    }
  }
  static SimulatedDisk::Options OptionsOf(Executor* executor, uint64_t seed) {
    SimulatedDisk::Options options;
    options.executor = executor;
    options.seed = seed;
    return options;
  }

  DurableKind kind;  // of the next process
  ManualExecutor executor;
  JobSpec spec;
  ChunkMap chunks;
  std::vector<ChunkId> owned;
  SimulatedDisk disk;
  ShardId shard;
  uint32_t shards = 1;
  std::string folder = "/state/extents";
  std::vector<std::string> drive_folders;
  uint64_t staging_bytes = uint64_t{1} << 20;
  uint64_t residual_bytes = 10000;
  LogRoom log;  // none
  std::string other_jobs;
};

// One process: opens catalogue and backend and collects completions. Abandon it after a power cut.
class DurableProcess {
 public:
  explicit DurableProcess(DurableWorld* world) : world_(world) {
    auto store = LogStore::Open(world->disk.blocking(), "/state/catalogue");
    status_ = store.status();
    if (!status_.ok()) return;
    store_ = std::move(*store);
    catalogue_ = std::make_unique<Catalogue>(store_.get());
    DurableOptions options;
    options.disk = &world->disk;
    options.blocking_disk_or_null = world->disk.blocking();
    options.catalogue = catalogue_.get();
    options.folder = world->folder;
    options.drive_folders = world->drive_folders;
    if (world->kind.devices > 0) {
      status_ = OpenDevices(&options);
      if (!status_.ok()) return;
    }
    options.staging_bytes = world->staging_bytes;
    options.memory_bytes = world->kind.memory;
    options.residual_bytes = world->residual_bytes;
    options.log = world->log;
    options.other_jobs = world->other_jobs;
    auto backend = world->kind.make(
        world->spec, world->chunks, world->owned, world->shard, world->shards, &world->executor,
        &account_, options,
        [this](BackendDone done) { EPS_CHECK(done_.emplace(done.op, std::move(done)).second); });
    status_ = backend.status();
    if (backend.ok()) backend_ = std::move(*backend);
  }
  // Leaks a process whose operations never complete, because its destructor would wait for them.
  static void Abandon(std::unique_ptr<DurableProcess> process) {
    static auto* const abandoned = new std::vector<std::unique_ptr<DurableProcess>>();
    process->world_->executor = ManualExecutor();
    process->store_.reset();  // a power cut releases its lock
    abandoned->push_back(std::move(process));
  }

  const absl::Status& status() const { return status_; }
  StateBackend& backend() { return *backend_; }
  Catalogue& catalogue() { return *catalogue_; }
  MemoryAccount& account() { return account_; }
  OpId Next() { return next_ = next_.Next(); }
  // Begins an operation under the next id, and returns the id.
  OpId Submit(Request request) {
    const OpId op = Next();
    backend_->Submit(op, std::move(request));
    return op;
  }
  bool IsDone(OpId op) const { return done_.count(op) > 0; }
  BackendDone Take(OpId op) {
    EPS_CHECK_MSG(IsDone(op), "operation " << op << " has not completed");
    BackendDone done = std::move(done_.at(op));
    done_.erase(op);
    return done;
  }
  // Runs all tasks, then takes the outcome.
  BackendDone Await(OpId op) {
    world_->executor.RunAll();
    return Take(op);
  }

  absl::Status Write(ChunkId chunk, Version version, const std::string& state) {
    return Await(Submit(WriteStateRequest{chunk, version, Bytes::CopyOf(state)})).status;
  }
  absl::StatusOr<std::string> State(ChunkId chunk, Version version) {
    BackendDone done = Await(Submit(ReadStateRequest{chunk, version}));
    if (!done.status.ok()) return done.status;
    return std::string(std::get<Bytes>(done.value).view());
  }
  absl::Status Cut(const CutRequest& request) { return Await(Submit(request)).status; }
  absl::StatusOr<RecoveredState> Recover() {
    BackendDone done = Await(Submit(RecoverRequest{}));
    if (!done.status.ok()) return done.status;
    return *std::get<std::shared_ptr<const RecoveredState>>(done.value);
  }
  absl::StatusOr<CutContent> Restore(const CutId& base, Term term) {
    BackendDone done = Await(Submit(RestoreRequest{base, term}));
    if (!done.status.ok()) return done.status;
    return *std::get<std::shared_ptr<const CutContent>>(done.value);
  }
  absl::Status Quiesce() { return Await(Submit(QuiesceRequest{})).status; }

  // Writes SomeState of that version to every chunk.
  void WriteAll(Version version) {
    for (const Chunk& c : world_->chunks.chunks()) {
      const absl::Status written = Write(c.id, version, SomeState(c, version));
      EXPECT_TRUE(written.ok()) << written;
    }
  }
  static std::string SomeState(const Chunk& chunk, Version version) {
    return SomeBytes(chunk.id.value() * 1000 + version.value(), 12 * chunk.elements);
  }
  static WriteStateRequest SomeWrite(const Chunk& chunk, Version version) {
    return {chunk.id, version, Bytes::CopyOf(SomeState(chunk, version))};
  }
  void ExpectAll(Version version) {
    for (const Chunk& c : world_->chunks.chunks()) {
      const absl::StatusOr<std::string> state = State(c.id, version);
      ASSERT_TRUE(state.ok()) << state.status();
      EXPECT_TRUE(*state == SomeState(c, version)) << "chunk " << c.id;
    }
  }

 private:
  // Puts devices where the first drives are.
  absl::Status OpenDevices(DurableOptions* options) {
    std::vector<DeviceMount> mounts;
    for (uint32_t i = 0; i < world_->kind.devices; ++i) {
      const std::string name = "csd-" + std::to_string(i);
      EPS_ASSIGN_OR_RETURN(std::unique_ptr<KernelRunner> kernels,
                           csd::ChunkKernels::New(world_->spec, &account_));
      EPS_ASSIGN_OR_RETURN(
          devices_.emplace_back(),
          DeviceCore::Open({name, "/medium-" + name, uint64_t{1} << 20, uint64_t{1} << 18},
                           world_->disk.blocking(), &world_->executor, &account_));
      devices_.back()->UseKernels(std::move(kernels));
      mounts.push_back({"/drive-" + std::to_string(i), devices_.back().get()});
    }
    EPS_ASSIGN_OR_RETURN(device_disk_,
                         DeviceDisk::Open(world_->disk.blocking(), mounts,
                                          [](const std::string&) { return Purpose::kState; }));
    options->disk = device_disk_.get();
    options->blocking_disk_or_null = nullptr;
    options->devices_or_null = device_disk_;
    options->device_use = world_->kind.use;
    return absl::OkStatus();
  }

  DurableWorld* const world_;
  absl::Status status_;
  MemoryAccount account_;
  std::vector<std::unique_ptr<DeviceCore>> devices_;
  std::shared_ptr<DeviceDisk> device_disk_;
  std::map<OpId, BackendDone> done_;
  OpId next_;
  std::unique_ptr<LogStore> store_;
  std::unique_ptr<Catalogue> catalogue_;
  std::unique_ptr<StateBackend> backend_;
};

inline CutRequest CutAt(uint64_t step, uint64_t term, uint64_t version) {
  CutRequest request;
  request.border.id = {Step(step), Term(term)};
  request.border.version = Version(version);
  request.border.update = version;
  request.border.lagged_norm = 0.5;
  return request;
}

// Residuals of several sizes, some empty, derived from a seed.
inline std::vector<CutResidual> SomeResiduals(uint64_t seed) {
  std::vector<CutResidual> residuals;
  for (uint32_t i = 0; i < 3; ++i) {
    residuals.push_back({ChunkId(i), StageId(i + 1), PartId(0),
                         Bytes::CopyOf(SomeBytes(seed + i, (seed + 1000 * i) % 3001))});
  }
  return residuals;
}

}  // namespace eps

#endif  // EPS_STORAGE_TESTING_DURABLE_WORLD_H_
