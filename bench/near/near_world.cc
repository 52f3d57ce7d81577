#include "bench/near/near_world.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <thread>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/checksum.h"
#include "base/job/layout/model_layout.h"
#include "base/testing/test_specs.h"
#include "storage/backends/dram_backend.h"
#include "storage/backends/durable_backend.h"
#include "storage/backends/near/job_devices.h"
#include "storage/csd/process/device_process.h"
#include "storage/csd/process/host_link.h"
#include "storage/cuts/rocksdb_store.h"
#include "storage/testing/backend_harness.h"

namespace eps {
namespace {

using Clock = std::chrono::steady_clock;

// Chunks of kWidth x kWidth: 81 blocks per array.
constexpr uint32_t kWidth = 288;
constexpr uint64_t kElements = uint64_t{kWidth} * kWidth;
constexpr uint64_t kArrayBytes = kElements * sizeof(float);
constexpr size_t kArrays = 3;
constexpr uint64_t kRoomBytes = uint64_t{1} << 20;  // for headers, footers and tables

JobSpec SpecOf(int chunks, Mode mode) {
  JobSpec spec = TinySyntheticSpec();
  spec.model.synthetic.n_layer = chunks + 1;
  spec.model.synthetic.n_embd = kWidth;
  spec.training.mode = mode;
  spec.training.parts = 1;
  spec.tensors.clear();
  spec.groups.clear();
  spec.stages.clear();
  spec.chunk_elements = kElements;
  EPS_CHECK(BuildLayout(/*weight_decay=*/0.01, &spec).ok());
  EPS_CHECK(spec.Validate().ok());
  return spec;
}

// Those of the matrices; a layer also has a vector.
std::vector<Chunk> ChunksOf(const ChunkMap& map) {
  std::vector<Chunk> chunks;
  for (const Chunk& chunk : map.chunks()) {
    if (chunk.elements == kElements) chunks.push_back(chunk);
  }
  return chunks;
}

std::vector<ChunkId> IdsOf(const std::vector<Chunk>& chunks) {
  std::vector<ChunkId> ids;
  for (const Chunk& chunk : chunks) ids.push_back(chunk.id);
  return ids;
}

template <class T>
T OrExit(absl::StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  std::printf("%s\n", value.status().ToString().c_str());
  std::exit(2);
}

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}
Clock::duration Seconds(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

// A backend, the gradients of a step, which are those of every step, and the operations in flight.
struct NearWorld::State {
  State(int count, Mode mode, const std::string& codec_name)
      : spec(SpecOf(count, mode)), map(ChunkMap::Build(spec)), chunks(ChunksOf(map)) {
    EPS_CHECK(static_cast<int>(chunks.size()) == count);
    for (const Chunk& chunk : chunks) {
      std::vector<float> values(chunk.elements);
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = 1e-3f * static_cast<float>((i * 2654435761u + chunk.id.value()) % 1024) - 0.5f;
      }
      const Codec* const codec = OrExit(FindCodec(codec_name));
      gradients[chunk.id] = OrExit(
          codec->Open(chunk, Axis::kRow, EncodeChunk(*codec, chunk, EncodeOptions(), values.data()),
                      Content::kGradient));
    }
  }

  void Begin(Request request) {
    ops.push_back(completions.Next());
    backend->Submit(ops.back(), std::move(request));
  }
  // Waits for all operations. Returns their values in order.
  std::vector<BackendValue> End() {
    std::vector<BackendValue> values;
    for (const OpId op : std::exchange(ops, {})) {
      BackendDone done = completions.Take(op);
      if (!done.status.ok()) {
        std::printf("%s\n", done.status.ToString().c_str());
        std::exit(2);
      }
      values.push_back(std::move(done.value));
    }
    return values;
  }
  void Initialize() {
    for (const Chunk& chunk : chunks) Begin(InitializeRequest{chunk.id});
    End();
  }

  UpdateRequest RequestOf(const Chunk& chunk) const {
    UpdateRequest request;
    request.chunk = chunk.id;
    request.from = version;
    request.to = version.Next();
    request.parts = 1;
    request.step.lr = 1e-3;
    request.step.bias_correction1 = 0.1;
    request.step.bias_correction2 = 0.1;
    request.step.update = version.value() + 1;
    for (uint32_t use = 0; use < chunk.uses.size(); ++use) {
      request.inputs.push_back({use, TreeRange{0, 1}, gradients.at(chunk.id)});
    }
    return request;
  }
  void BeginUpdate(UpdateRequest request) {
    request.encode = {{*FindCodec("bf16"), Axis::kRow}};
    Begin(std::move(request));
  }
  void BeginUpdateOf(const Chunk& chunk, const BackendValue& reduced) {
    UpdateRequest request = RequestOf(chunk);
    request.inputs.clear();
    request.reduced = std::get<UpdateResult>(reduced).reduced;
    BeginUpdate(std::move(request));
  }

  std::string Digest() {
    Sha256 hash;
    for (const Chunk& chunk : chunks) {
      Begin(ReadStateRequest{chunk.id, version});
      hash.Update(std::get<Bytes>(End().front()).view());
    }
    return ToHex(hash.Finish());
  }

  const JobSpec spec;
  const ChunkMap map;
  const std::vector<Chunk> chunks;  // owned
  std::map<ChunkId, std::shared_ptr<const EncodedChunk>> gradients;
  MemoryAccount account;
  ThreadPool pool{2};
  Completions completions;
  std::vector<OpId> ops;
  Version version;
  std::unique_ptr<StateBackend> backend;
};

NearWorld::NearWorld(const NearVariant& variant, const NearJob& job, int chunks,
                     const std::string& folder, const std::string& program)
    : variant_(variant),
      job_(job),
      seconds_per_second_(job.full_parameters / (static_cast<double>(kElements) * chunks) /
                          job.scale),
      host_(NewRealDisk(DiskOptions())),
      store_(OrExit(OpenRocksDb(folder + "/catalogue"))),
      catalogue_(std::make_unique<Catalogue>(store_.get())),
      state_(std::make_unique<State>(chunks, variant.eager ? Mode::kEager : Mode::kSealed,
                                     variant.gradients)) {
  const auto& machine = job.machine;
  const auto scaled = [&](planner::BytesPerSecond rate) { return rate.value() / job.scale; };
  DeviceProcessOptions options;
  options.program = program;
  options.job = state_->spec.ToText();
  options.rates = {scaled(machine.host_read),        scaled(machine.host_write),
                   scaled(machine.device_read),      scaled(machine.device_write),
                   scaled(machine.internal_link),    scaled(machine.update),
                   scaled(machine.decompress_update)};
  HostRates link = {scaled(machine.host_link), scaled(machine.host_link), 0};
  if (variant.host_is_papers && variant.host_updates) link.both = scaled(machine.base_software);
  if (variant.host_is_papers && !variant.encodes_weights && !variant.host_updates) {
    link.up = std::min(link.up, scaled(machine.take_over));
  }
  options.link_or_null = std::make_shared<csd::HostLink>(link);
  // The largest number of chunks on a device.
  const auto per_device = static_cast<uint64_t>((chunks + job.devices - 1) / job.devices);
  const uint64_t set = (kArrays + 1) * kArrayBytes + kRoomBytes;
  std::vector<DeviceMount> mounts;
  for (int i = 0; i < job.devices; ++i) {
    const std::string name = absl::StrCat("csd-", i);
    const uint64_t waiting = variant.gradients_in_memory ? per_device * kArrayBytes : 0;
    options.device = {name, absl::StrCat(folder, "/", name),
                      per_device * ((2 * kArrays + 1) * kArrayBytes + kRoomBytes / 8) + kRoomBytes,
                      static_cast<uint64_t>(variant.sets) * set + waiting};
    devices_.push_back(OrExit(DeviceProcess::Start(options, &account_)));
    mounts.push_back({absl::StrCat("/", name), devices_.back().get()});
  }
  disk_ = OrExit(DeviceDisk::Open(host_.get(), mounts, JobDevices::PurposeOf));
  DurableOptions durable;
  durable.disk = disk_.get();
  durable.catalogue = catalogue_.get();
  durable.folder = folder + "/state";
  for (int i = 0; i < job.devices; ++i) {
    durable.drive_folders.push_back(absl::StrCat("/csd-", i, "/job"));
  }
  durable.staging_bytes = static_cast<uint64_t>(variant.sets * job.devices + 2) * set;
  if (!variant.host_updates) durable.devices_or_null = disk_;
  durable.device_use.sets = variant.sets;
  durable.device_use.hands_buffers_over = variant.hands_buffers_over;
  durable.device_use.gradients_in_memory = variant.gradients_in_memory;
  durable.device_use.encodes_weights = variant.encodes_weights;
  durable.device_use.reads_weights_back = !variant.encodes_weights;
  state_->backend =
      OrExit(NewNvmeBackend(state_->spec, state_->map, IdsOf(state_->chunks), ShardId(0), 1,
                            &state_->pool, &account_, durable, state_->completions.Sink()));
  state_->Initialize();
}

NearWorld::~NearWorld() {
  state_->backend.reset();
  state_.reset();
}

NearStep NearWorld::Step() {
  const double parameters = static_cast<double>(kElements);
  const std::vector<Chunk>& chunks = state_->chunks;
  NearStep step;
  const Clock::time_point begin = Clock::now();
  std::this_thread::sleep_until(begin + Seconds(parameters * static_cast<double>(chunks.size()) *
                                                job_.gpu.forward.value() * job_.scale));
  step.forward = SecondsSince(begin) * seconds_per_second_;
  // The GPU computes a chunk, then sends its gradient.
  const Clock::duration per_chunk = Seconds(
      parameters * job_.scale *
      (job_.gpu.backward.value() + variant_.gradient_bytes / job_.machine.host_link.value()));
  const Clock::time_point backward = Clock::now();
  Clock::time_point computed = backward;
  for (const Chunk& chunk : chunks) {
    computed += per_chunk;
    std::this_thread::sleep_until(computed);
    if (variant_.eager) {
      state_->BeginUpdate(state_->RequestOf(chunk));
    } else {
      state_->Begin(ReduceRequest{state_->RequestOf(chunk)});
    }
  }
  std::vector<BackendValue> reduced;
  if (!variant_.eager) reduced = state_->End();
  step.backward = SecondsSince(backward) * seconds_per_second_;
  const Clock::time_point update = Clock::now();
  for (size_t i = 0; i < reduced.size(); ++i) {
    state_->BeginUpdateOf(chunks[i], std::exchange(reduced[i], {}));
  }
  state_->End();
  step.update = SecondsSince(update) * seconds_per_second_;
  state_->version = state_->version.Next();
  return step;
}

std::string NearWorld::Digest() { return state_->Digest(); }

std::string NearWorld::DigestOfMemory(const std::string& gradients, int chunks, int steps) {
  State state(chunks, Mode::kEager, gradients);
  state.backend = OrExit(NewDramBackend(state.spec, state.map, IdsOf(state.chunks), &state.pool,
                                        &state.account, state.completions.Sink()));
  state.Initialize();
  for (int i = 0; i < steps; ++i) {
    for (const Chunk& chunk : state.chunks) state.BeginUpdate(state.RequestOf(chunk));
    state.End();
    state.version = state.version.Next();
  }
  const std::string digest = state.Digest();
  state.backend.reset();
  return digest;
}

}  // namespace eps
