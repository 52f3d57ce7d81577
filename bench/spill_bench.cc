// Compares steps of mode sealed whose reduced gradients wait on the disk with steps whose gradients
// wait in memory. Both backends keep their state on the disk, reduce two bf16 parts of every chunk,
// then update every chunk, in alternating rounds. Their states are compared at the end. The figure
// is the median of the rounds' ratios.
//
// Usage: spill_bench [MiB of state] [rounds] [folder]. Exits with 1 if the goal is missed, with 2
// after a disk error or if the states differ.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/check.h"
#include "base/job/layout/model_layout.h"
#include "base/testing/test_specs.h"
#include "bench/peers/disk_cost.h"
#include "bench/peers/timing.h"
#include "storage/backends/durable_backend.h"
#include "storage/cuts/rocksdb_store.h"
#include "storage/testing/backend_harness.h"

namespace eps {
namespace {

constexpr uint32_t kWidth = 1024;  // chunks of 1024 x 1024: 12 MiB with their state
constexpr uint32_t kParts = 2;
constexpr uint64_t kBuffers = 8;

JobSpec SpecOf(uint64_t mib) {
  JobSpec spec = TinySyntheticSpec();
  spec.model.synthetic.n_layer = static_cast<int>(std::max<uint64_t>(mib / 12, 2));
  spec.model.synthetic.n_embd = kWidth;
  spec.training.mode = Mode::kSealed;
  spec.tensors.clear();
  spec.groups.clear();
  spec.stages.clear();
  spec.chunk_elements = uint64_t{kWidth} * kWidth;
  EPS_CHECK(BuildLayout(/*weight_decay=*/0.01, &spec).ok());
  EPS_CHECK(spec.Validate().ok());
  return spec;
}

// A backend as a server runs it, and the contributions of a step, which are those of every step.
class State {
 public:
  State(const std::string& folder, uint64_t mib, bool gradients_on_disk)
      : spec_(SpecOf(mib)),
        chunks_(ChunkMap::Build(spec_)),
        pool_(2),
        store_(*OpenRocksDb(folder + "/catalogue")),
        catalogue_(store_.get()) {
    std::vector<ChunkId> owned;
    for (const Chunk& c : chunks_.chunks()) owned.push_back(c.id);
    DurableOptions options;
    options.disk = disk_.get();
    options.catalogue = &catalogue_;
    options.folder = folder + "/extents";
    options.gradients_on_disk = gradients_on_disk;
    // As many buffers of a chunk with its state, and its gradient if that is on the disk.
    const uint64_t fields = gradients_on_disk ? 16 : 12;
    options.staging_bytes = kBuffers * (fields * kWidth * kWidth + 2 * kDiskBlock);
    auto backend = NewNvmeBackend(spec_, chunks_, owned, ShardId(0), 1, &pool_, &account_, options,
                                  completions_.Sink());
    EPS_CHECK_MSG(backend.ok(), backend.status());
    backend_ = std::move(*backend);
    EPS_CHECK(backend_->caps().stores_gradients == gradients_on_disk);
    const Codec* const bf16 = *FindCodec("bf16");
    for (const Chunk& c : chunks_.chunks()) {
      Submit(InitializeRequest{c.id});
      std::string bytes(2 * c.elements, '\0');
      for (size_t i = 0; i < bytes.size(); ++i) {
        bytes[i] = static_cast<char>(i % 2 == 1 ? 0x3a : (i + c.id.value()) * 2654435761u >> 13);
      }
      auto opened = bf16->Open(c, Axis::kRow, Bytes::CopyOf(bytes), Content::kGradient);
      EPS_CHECK_MSG(opened.ok(), opened.status());
      gradients_.push_back(*opened);
    }
    Take();
  }

  uint64_t bytes() const { return 12 * chunks_.chunks().size() * kWidth * kWidth; }

  void Step() {
    for (const Chunk& c : chunks_.chunks()) {
      UpdateRequest request = RequestOf(c);
      for (uint32_t use = 0; use < c.uses.size(); ++use) {
        for (uint32_t part = 0; part < kParts; ++part) {
          request.inputs.push_back({use, TreeRange{part, 1}, gradients_[c.id.value()]});
        }
      }
      Submit(ReduceRequest{std::move(request)});
    }
    std::vector<BackendValue> reduced = Take();
    for (const Chunk& c : chunks_.chunks()) {
      UpdateRequest request = RequestOf(c);
      request.reduced = std::move(std::get<UpdateResult>(reduced[c.id.value()]).reduced);
      Submit(std::move(request));
    }
    version_ = version_.Next();
    Take();
  }

  std::string Content(const Chunk& chunk) {
    Submit(ReadStateRequest{chunk.id, version_});
    return std::string(std::get<Bytes>(Take().front()).view());
  }
  absl::Span<const Chunk> chunks() const { return chunks_.chunks(); }

 private:
  UpdateRequest RequestOf(const Chunk& chunk) const {
    UpdateRequest request;
    request.chunk = chunk.id;
    request.from = version_;
    request.to = version_.Next();
    request.parts = kParts;
    request.step.lr = 1e-3;
    request.step.bias_correction1 = 0.1;
    request.step.bias_correction2 = 0.1;
    request.step.update = version_.value() + 1;
    return request;
  }
  void Submit(Request request) {
    ops_.push_back(completions_.Next());
    backend_->Submit(ops_.back(), std::move(request));
  }
  // Waits for all operations. Returns their values in order.
  std::vector<BackendValue> Take() {
    std::vector<BackendValue> values;
    for (const OpId op : ops_) {
      BackendDone done = completions_.Take(op);
      if (!done.status.ok()) {
        std::printf("%s\n", done.status.ToString().c_str());
        std::exit(2);
      }
      values.push_back(std::move(done.value));
    }
    ops_.clear();
    return values;
  }

  const JobSpec spec_;
  const ChunkMap chunks_;
  MemoryAccount account_;
  Completions completions_;
  ThreadPool pool_;
  const std::unique_ptr<Disk> disk_ = NewRealDisk(DiskOptions());
  const std::unique_ptr<KeyValueStore> store_;
  Catalogue catalogue_;
  std::vector<std::shared_ptr<const EncodedChunk>> gradients_;  // by chunk
  std::vector<OpId> ops_;                                       // in flight
  Version version_;
  std::unique_ptr<StateBackend> backend_;
};

bool Run(const std::string& folder, uint64_t mib, int rounds) {
  State on_disk(folder + "/disk", mib, /*gradients_on_disk=*/true);
  State in_memory(folder + "/memory", mib, /*gradients_on_disk=*/false);
  std::printf("%s; %zu chunks, %.0f MB of state, %d rounds\n", MachineName().c_str(),
              on_disk.chunks().size(), static_cast<double>(on_disk.bytes()) / 1e6, rounds);
  std::vector<DiskCost> stored, kept;
  for (int round = -1; round < rounds; ++round) {
    const DiskCost first = CostOf([&] { in_memory.Step(); });
    const DiskCost second = CostOf([&] { on_disk.Step(); });
    if (round < 0) continue;  // the first round warms up
    kept.push_back(first);
    stored.push_back(second);
  }
  for (const Chunk& chunk : on_disk.chunks()) {
    if (on_disk.Content(chunk) == in_memory.Content(chunk)) continue;
    std::printf("the states of chunk %u differ\n", chunk.id.value());
    std::exit(2);
  }
  PrintSpeed("gradients in memory", on_disk.bytes(), kept);
  PrintSpeed("gradients on disk", on_disk.bytes(), stored);
  // At most 1.25 times the time.
  return ReportRatio("step with gradients in memory / on disk", Ratios(kept, stored), 0.80);
}

}  // namespace
}  // namespace eps

int main(int argc, char** argv) {
  const uint64_t mib = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 384;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 9;
  std::string folder = absl::StrCat(argc > 3 ? argv[3] : "/tmp", "/spill_bench-XXXXXX");
  if (mkdtemp(folder.data()) == nullptr) {
    std::perror(folder.c_str());
    return 2;
  }
  const bool reached = eps::Run(folder, mib, rounds);
  std::filesystem::remove_all(folder);
  return reached ? 0 : 1;
}
