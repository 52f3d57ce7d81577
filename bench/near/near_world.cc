#include "bench/near/near_world.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <map>
#include <thread>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/checksum.h"
#include "base/job/layout/model_layout.h"
#include "base/job/optimizers.h"
#include "base/testing/test_specs.h"
#include "storage/backends/dram_backend.h"
#include "storage/backends/durable_backend.h"
#include "storage/backends/near/job_devices.h"
#include "storage/csd/process/device_process.h"
#include "storage/csd/rates/paced_link.h"
#include "storage/cuts/rocksdb_store.h"
#include "storage/testing/backend_harness.h"

namespace eps {
namespace {

using Clock = std::chrono::steady_clock;

// Chunks of kWidth x kWidth: 81 blocks per array.
constexpr uint32_t kWidth = 288;
constexpr uint64_t kElements = uint64_t{kWidth} * kWidth;
constexpr uint64_t kArrayBytes = kElements * sizeof(float);
constexpr uint64_t kRoomBytes = uint64_t{1} << 20;  // for headers, footers and tables

JobSpec SpecOf(int chunks, Mode mode, const NearRule& rule) {
  JobSpec spec = TinySyntheticSpec();
  static_cast<OptimizerSettings&>(spec.optimizer) = DefaultsOf(rule.name);
  spec.optimizer.momentum = rule.momentum;
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
  State(int count, Mode mode, const NearRule& rule, const std::string& codec_name)
      : spec(SpecOf(count, mode, rule)), map(ChunkMap::Build(spec)), chunks(ChunksOf(map)) {
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
      link_(std::make_shared<csd::HostLink>(LinkRates())),
      host_(NewRealDisk(DiskOptions())),
      store_(OrExit(OpenRocksDb(folder + "/catalogue"))),
      catalogue_(std::make_unique<Catalogue>(store_.get())),
      state_(std::make_unique<State>(chunks, variant.eager ? Mode::kEager : Mode::kSealed,
                                     variant.rule, variant.gradients)) {
  DurableOptions durable;
  durable.disk = host_.get();
  durable.catalogue = catalogue_.get();
  durable.folder = folder + "/state";
  durable.staging_bytes = static_cast<uint64_t>(variant.sets * job.devices + 2) * SetBytes();
  if (variant.has_devices) {
    StartDevices(chunks, folder, program);
    durable.disk = disk_.get();
    for (int i = 0; i < job.devices; ++i) {
      durable.drive_folders.push_back(absl::StrCat("/csd-", i, "/job"));
    }
    if (!variant.host_updates) durable.devices_or_null = disk_;
    durable.device_use.sets = variant.sets;
    durable.device_use.hands_buffers_over = variant.hands_buffers_over;
    durable.device_use.gradients_in_memory = variant.gradients_in_memory;
    durable.device_use.encodes_weights = variant.encodes_weights;
    durable.device_use.reads_weights_back = !variant.encodes_weights;
  }
  state_->backend =
      OrExit(NewNvmeBackend(state_->spec, state_->map, IdsOf(state_->chunks), ShardId(0), 1,
                            &state_->pool, &account_, durable, state_->completions.Sink()));
  state_->Initialize();
}

HostRates NearWorld::LinkRates() const {
  const auto& machine = job_.machine;
  HostRates link = {Scaled(machine.host_link), Scaled(machine.host_link), 0};
  if (!variant_.host_is_papers) return link;
  if (variant_.host_updates) {
    link.both = Scaled(machine.base_software);
  } else {
    link.up = std::min(link.up, Scaled(machine.take_over));
  }
  return link;
}

uint64_t NearWorld::SetBytes() const {
  return static_cast<uint64_t>(variant_.arrays() + 1) * kArrayBytes + kRoomBytes;
}

void NearWorld::StartDevices(int chunks, const std::string& folder, const std::string& program) {
  const auto& machine = job_.machine;
  DeviceProcessOptions options;
  options.program = program;
  options.job = state_->spec.ToText();
  options.rates = {Scaled(machine.host_read),        Scaled(machine.host_write),
                   Scaled(machine.device_read),      Scaled(machine.device_write),
                   Scaled(machine.internal_link),    Scaled(machine.update),
                   Scaled(machine.decompress_update)};
  options.link_or_null = link_;
  // The largest number of chunks on a device.
  const auto per_device = static_cast<uint64_t>((chunks + job_.devices - 1) / job_.devices);
  const uint64_t waiting = variant_.gradients_in_memory ? per_device * kArrayBytes : 0;
  // Two slots, and gradients that wait on the medium.
  const auto on_medium = static_cast<uint64_t>(2 * variant_.arrays() + 1) * kArrayBytes;
  // Sets of the backend, and as many for MoveStates.
  const uint64_t sets = 2 * static_cast<uint64_t>(variant_.sets) * SetBytes();
  std::vector<DeviceMount> mounts;
  for (int i = 0; i < job_.devices; ++i) {
    const std::string name = absl::StrCat("csd-", i);
    options.device = {name, absl::StrCat(folder, "/", name),
                      per_device * (on_medium + kRoomBytes / 8) + kRoomBytes, sets + waiting};
    devices_.push_back(OrExit(DeviceProcess::Start(options, &account_)));
    mounts.push_back({absl::StrCat("/", name), devices_.back().get()});
  }
  disk_ = OrExit(DeviceDisk::Open(host_.get(), mounts, JobDevices::PurposeOf));
}

NearWorld::~NearWorld() {
  state_->backend.reset();
  state_.reset();
}

// A GPU that sleeps while it would compute.
class NearWorld::Gpu {
 public:
  Gpu(const NearVariant& variant, const NearJob& job, csd::HostLink* link, size_t chunks)
      : job_(job),
        link_(*link),
        gradient_bytes_(static_cast<double>(kElements) * variant.gradient_bytes),
        chunks_(chunks) {
    if (job.paced && job.gpus_share_link) FetchWeights();
  }

  // Waits until the gradient of the next chunk has left the GPU.
  void Next() {
    if (!job_.paced) return;
    const double computing =
        static_cast<double>(kElements) * job_.gpu.backward.value() * job_.scale;
    if (!job_.gpus_share_link) {
      at_ += Seconds(computing + gradient_bytes_ / Rate());
      std::this_thread::sleep_until(at_);
      return;
    }
    weights_.get();
    if (--chunks_ > 0) FetchWeights();
    std::this_thread::sleep_until(Clock::now() + Seconds(computing));
    PacedTransfer(link_.OthersUp(Rate())).Await(static_cast<uint64_t>(gradient_bytes_));
  }

 private:
  double Rate() const { return job_.machine.host_link.value() / job_.scale; }
  // The next chunk's weights come while this one is computed.
  void FetchWeights() {
    weights_ = std::async(std::launch::async, [this] {
      PacedTransfer(link_.OthersDown(Rate())).Await(kElements * sizeof(uint16_t));
    });
  }

  const NearJob& job_;
  csd::HostLink& link_;
  const double gradient_bytes_;
  size_t chunks_;  // still to compute
  Clock::time_point at_ = Clock::now();
  std::future<void> weights_;
};

NearStep NearWorld::Step() {
  const std::vector<Chunk>& chunks = state_->chunks;
  const std::vector<LinkBytes> before = Ledgers();
  NearStep step;
  const Clock::time_point begin = Clock::now();
  if (job_.paced) {
    const double parameters = static_cast<double>(kElements * chunks.size());
    std::this_thread::sleep_until(begin +
                                  Seconds(parameters * job_.gpu.forward.value() * job_.scale));
  }
  step.forward = SecondsSince(begin) * seconds_per_second_;
  const Clock::time_point backward = Clock::now();
  Gpu gpu(variant_, job_, link_.get(), chunks.size());
  for (const Chunk& chunk : chunks) {
    gpu.Next();
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
  step.busiest = BusiestSince(before) * seconds_per_second_;
  return step;
}

std::vector<LinkBytes> NearWorld::Ledgers() const {
  std::vector<LinkBytes> ledgers;
  for (const auto& device : devices_) ledgers.push_back(device->link_bytes());
  return ledgers;
}

double NearWorld::BusiestSince(const std::vector<LinkBytes>& earlier) const {
  // The host does not touch the media of these variants.
  if (!job_.paced || !variant_.encodes_weights) return 0;
  const std::vector<LinkBytes> now = Ledgers();
  const auto& machine = job_.machine;
  double busiest = 0;
  double up = 0;
  for (size_t i = 0; i < now.size(); ++i) {
    const LinkBytes step = now[i].Since(earlier[i]);
    const auto bytes = [&](Link link, Direction direction) {
      return static_cast<double>(step.of(link, direction));
    };
    busiest = std::max(busiest,
                       bytes(Link::kMedia, Direction::kRead) / Scaled(machine.device_read) +
                           bytes(Link::kMedia, Direction::kWritten) / Scaled(machine.device_write));
    up += bytes(Link::kHost, Direction::kRead) / Scaled(machine.host_link);
  }
  return std::max(busiest, up);
}

double NearWorld::MoveStates() {
  EPS_CHECK(devices_.size() == 1);
  Device* const device = devices_.front().get();
  const uint64_t bytes = static_cast<uint64_t>(variant_.arrays()) * kArrayBytes;
  if (buffers_.empty()) {
    for (int i = 0; i < variant_.sets; ++i) buffers_.push_back(OrExit(device->Allocate(bytes)));
  }
  const Clock::time_point begin = Clock::now();
  std::atomic<uint64_t> next{0};
  std::vector<std::thread> threads;
  for (const Place buffer : buffers_) {
    threads.emplace_back([&, buffer] {
      const auto copy = [&](Place from, Place to) {
        std::promise<absl::Status> done;
        device->Copy(from, to, bytes, Purpose::kMove,
                     [&done](absl::Status status) { done.set_value(std::move(status)); });
        const absl::Status status = done.get_future().get();
        EPS_CHECK_MSG(status.ok(), status.ToString());
      };
      for (uint64_t chunk; (chunk = next.fetch_add(1)) < state_->chunks.size();) {
        const Place media{Place::Where::kMedia, chunk * bytes};
        copy(media, buffer);
        copy(buffer, media);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return SecondsSince(begin) * seconds_per_second_;
}

std::string NearWorld::Digest() { return state_->Digest(); }

std::string NearWorld::DigestOfMemory(const NearVariant& variant, int chunks, int steps) {
  State state(chunks, Mode::kEager, variant.rule, variant.gradients);
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
