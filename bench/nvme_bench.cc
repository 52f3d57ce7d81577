// Compares state on NVMe with the disk itself. Each round runs, one after the other:
//   raw write    io_uring with O_DIRECT writes as many bytes at queue depth 8, syncs, writes one
//                block and syncs: the minimum for a cut;
//   write        the backend writes the state of all chunks and cuts;
//   raw update   io_uring reads every chunk and writes it elsewhere, 8 at a time, and ends alike;
//   update       the backend updates all chunks from a bf16 gradient and cuts;
//   RocksDB      the same values in RocksDB, durable at the end (every fourth round): in the
//                catalogue's database, one synced batch per chunk; without WAL, leveled; in BlobDB.
//                Compactions that RocksDB defers are not waited for;
//   DRAM         the backend with its state in DRAM updates all chunks, and again right after a cut
//                was requested: the extra time is the delay that a cut can cause in a step.
// The figure is the median of the rounds' ratios.
//
// Usage: nvme_bench [MiB of state] [rounds] [folder]. Exits with 1 if a goal is missed, with 2
// after a disk error or a wrong byte.

#include <fcntl.h>
#include <liburing.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/job/layout/model_layout.h"
#include "base/testing/test_specs.h"
#include "bench/peers/disk_cost.h"
#include "bench/peers/rocksdb_values.h"
#include "bench/peers/timing.h"
#include "storage/backends/durable_backend.h"
#include "storage/cuts/rocksdb_store.h"
#include "storage/testing/backend_harness.h"

namespace eps {
namespace {

constexpr uint32_t kWidth = 1024;  // chunks of 1024 x 1024: 12 MiB with their state
constexpr uint32_t kDepth = 8;
constexpr double kGiga = 1e9;

// Two files as large as the state, accessed by io_uring alone.
class RawDisk {
 public:
  RawDisk(const std::string& folder, uint64_t piece_bytes, uint32_t pieces, bool registered)
      : piece_bytes_(piece_bytes),
        pieces_(pieces),
        registered_(registered),
        memory_(piece_bytes * kDepth) {
    EPS_CHECK(io_uring_queue_init(2 * kDepth, &ring_, 0) == 0);
    std::memset(memory_.data(), 0x3c, memory_.bytes());
    if (registered_) {
      std::vector<iovec> buffers;
      for (uint32_t i = 0; i < kDepth; ++i) buffers.push_back({Buffer(i), piece_bytes_});
      EPS_CHECK(io_uring_register_buffers(&ring_, buffers.data(), kDepth) == 0);
    }
    for (const int i : {0, 1}) {
      const std::string path = absl::StrCat(folder, "/raw-", i);
      EPS_CHECK(disk_->CreateFile(path, piece_bytes * pieces + kDiskBlock).ok());
      files_[i] = open(path.c_str(), O_RDWR | O_DIRECT);
      EPS_CHECK(files_[i] >= 0);
    }
  }
  ~RawDisk() {
    io_uring_queue_exit(&ring_);
    for (const int file : files_) close(file);
  }

  // Writes all pieces, reading each from the other file first if `reads`, and commits.
  void Run(bool reads) {
    const int to = files_[turn_ ^= 1], from = files_[turn_ ^ 1];
    uint32_t next = 0, in_flight = 0;
    struct Slot {
      uint32_t piece;
      bool writing;
    } slots[kDepth];
    const auto start = [&](uint32_t i) {
      slots[i] = {next++, !reads};
      Submit(i, slots[i].writing ? to : from, slots[i].piece, slots[i].writing);
    };
    for (; in_flight < std::min(kDepth, pieces_); ++in_flight) start(in_flight);
    io_uring_submit(&ring_);
    while (in_flight > 0) {
      io_uring_cqe* cqe = nullptr;
      EPS_CHECK(io_uring_wait_cqe(&ring_, &cqe) == 0);
      EPS_CHECK_MSG(cqe->res == static_cast<int>(piece_bytes_), cqe->res);
      const auto i = static_cast<uint32_t>(cqe->user_data);
      io_uring_cqe_seen(&ring_, cqe);
      if (!slots[i].writing) {
        slots[i].writing = true;
        Submit(i, to, slots[i].piece, true);
      } else if (next < pieces_) {
        start(i);
      } else {
        --in_flight;
      }
      io_uring_submit(&ring_);
    }
    EPS_CHECK(fdatasync(to) == 0);
    EPS_CHECK(pwrite(to, Buffer(0), kDiskBlock, static_cast<off_t>(piece_bytes_ * pieces_)) ==
              static_cast<ssize_t>(kDiskBlock));
    EPS_CHECK(fdatasync(to) == 0);
  }

 private:
  uint8_t* Buffer(uint32_t i) const {
    return static_cast<uint8_t*>(memory_.data()) + i * piece_bytes_;
  }
  void Submit(uint32_t i, int file, uint32_t piece, bool write) {
    io_uring_sqe* const sqe = io_uring_get_sqe(&ring_);
    const auto size = static_cast<unsigned>(piece_bytes_);
    const uint64_t at = piece * piece_bytes_;
    const auto index = static_cast<int>(i);
    if (registered_ && write) io_uring_prep_write_fixed(sqe, file, Buffer(i), size, at, index);
    if (registered_ && !write) io_uring_prep_read_fixed(sqe, file, Buffer(i), size, at, index);
    if (!registered_ && write) io_uring_prep_write(sqe, file, Buffer(i), size, at);
    if (!registered_ && !write) io_uring_prep_read(sqe, file, Buffer(i), size, at);
    sqe->user_data = i;
  }

  const uint64_t piece_bytes_;
  const uint32_t pieces_;
  const bool registered_;
  PageArray memory_;
  io_uring ring_{};
  const std::unique_ptr<Disk> disk_ = NewRealDisk(DiskOptions());
  int files_[2] = {-1, -1};
  uint32_t turn_ = 0;
};

JobSpec SpecOf(uint64_t mib) {
  JobSpec spec = TinySyntheticSpec();
  spec.model.synthetic.n_layer = static_cast<int>(std::max<uint64_t>(mib / 12, 2));
  spec.model.synthetic.n_embd = kWidth;
  spec.tensors.clear();
  spec.groups.clear();
  spec.stages.clear();
  spec.chunk_elements = uint64_t{kWidth} * kWidth;
  EPS_CHECK(BuildLayout(/*weight_decay=*/0.01, &spec).ok());
  EPS_CHECK(spec.Validate().ok());
  return spec;
}

// The backend as a server runs it, with chunks of 1024 x 1024.
class State {
 public:
  State(const std::string& folder, uint64_t mib, decltype(&NewNvmeBackend) make)
      : spec_(SpecOf(mib)),
        chunks_(ChunkMap::Build(spec_)),
        pool_(2),
        store_(*OpenRocksDb(folder + "/catalogue")),
        catalogue_(store_.get()) {
    for (const Chunk& c : chunks_.chunks()) {
      if (c.elements == uint64_t{kWidth} * kWidth) owned_.push_back(c.id);
    }
    DurableOptions options;
    options.disk = disk_.get();
    options.catalogue = &catalogue_;
    options.folder = folder + "/extents";
    options.staging_bytes = kDepth * PieceBytes();
    auto backend = make(spec_, chunks_, owned_, ShardId(0), 1, &pool_, &account_, options,
                        completions_.Sink());
    EPS_CHECK_MSG(backend.ok(), backend.status());
    backend_ = std::move(*backend);
    for (uint32_t state = 0; state < kDepth; ++state) {
      std::string bytes(12 * uint64_t{kWidth} * kWidth, '\0');
      for (size_t i = 0; i < bytes.size(); ++i) {
        bytes[i] = static_cast<char>(i % 4 == 3 ? 0x3a : (i + state) * 2654435761u >> 13);
      }
      states_.push_back(Bytes::CopyOf(bytes));
    }
    const Codec* const bf16 = *FindCodec("bf16");
    const Bytes gradient = Bytes::CopyOf(std::string(2 * uint64_t{kWidth} * kWidth, '\x3a'));
    for (const ChunkId id : owned_) {
      auto opened = bf16->Open(chunks_.chunk(id), Axis::kRow, gradient, Content::kGradient);
      EPS_CHECK_MSG(opened.ok(), opened.status());
      gradients_.push_back(*opened);
    }
  }

  static uint64_t PieceBytes() { return 12 * uint64_t{kWidth} * kWidth + kDiskBlock; }
  uint32_t pieces() const { return static_cast<uint32_t>(owned_.size()); }
  // Returns the state that Write gives to the i-th chunk: transfers in flight share no memory.
  const Bytes& content(uint32_t i) const { return states_[i % kDepth]; }
  KeyValueStore* store() { return store_.get(); }

  void Write() {
    version_ = version_.Next();
    std::vector<OpId> ops;
    for (uint32_t i = 0; i < pieces(); ++i) {
      ops.push_back(completions_.Next());
      backend_->Submit(ops.back(), WriteStateRequest{owned_[i], version_, content(i)});
    }
    End(ops);
  }

  void Update() {
    const std::vector<OpId> ops = BeginUpdate();
    End(ops);
  }
  void UpdateWithoutCut() { Take(BeginUpdate()); }
  // Returns when the updates are done. Call EndCut for the cut.
  void UpdatePastCut() {
    BeginCut();
    Take(BeginUpdate());
  }
  void EndCut() {
    Take({cut_});
    backend_->Recycle({Step(step_), Term(1)});
  }

  // Exits with 2 unless every chunk holds what Write wrote.
  void Verify() {
    for (uint32_t i = 0; i < pieces(); ++i) {
      const OpId op = completions_.Next();
      backend_->Submit(op, ReadStateRequest{owned_[i], version_});
      const BackendDone done = completions_.Take(op);
      if (done.status.ok() && std::get<Bytes>(done.value).view() == content(i).view()) continue;
      std::printf("chunk %u is not what was written: %s\n", owned_[i].value(),
                  done.status.ToString().c_str());
      std::exit(2);
    }
  }

 private:
  std::vector<OpId> BeginUpdate() {
    std::vector<OpId> ops;
    for (size_t i = 0; i < owned_.size(); ++i) {
      UpdateRequest request;
      request.chunk = owned_[i];
      request.from = version_;
      request.to = version_.Next();
      request.step.lr = 1e-3;
      request.step.bias_correction1 = 0.1;
      request.step.bias_correction2 = 0.1;
      request.step.update = version_.value() + 1;
      const auto uses = static_cast<uint32_t>(chunks_.chunk(owned_[i]).uses.size());
      for (uint32_t use = 0; use < uses; ++use) {
        request.inputs.push_back({use, TreeRange{0, 1}, gradients_[i]});
      }
      ops.push_back(completions_.Next());
      backend_->Submit(ops.back(), std::move(request));
    }
    version_ = version_.Next();
    return ops;
  }

  void Take(const std::vector<OpId>& ops) {
    for (const OpId op : ops) {
      const absl::Status status = completions_.Take(op).status;
      EPS_CHECK_MSG(status.ok(), status);
    }
  }

  void BeginCut() {
    CutRequest cut;
    cut.border.id = {Step(++step_), Term(1)};
    cut.border.version = version_;
    cut_ = completions_.Next();
    backend_->Submit(cut_, cut);
  }

  void End(const std::vector<OpId>& ops) {
    Take(ops);
    BeginCut();
    EndCut();
  }

  const JobSpec spec_;
  const ChunkMap chunks_;
  std::vector<ChunkId> owned_;
  MemoryAccount account_;
  Completions completions_;
  ThreadPool pool_;
  const std::unique_ptr<Disk> disk_ = NewRealDisk(DiskOptions());
  const std::unique_ptr<KeyValueStore> store_;
  Catalogue catalogue_;
  std::vector<Bytes> states_;  // kDepth
  std::vector<std::shared_ptr<const EncodedChunk>> gradients_;
  Version version_;
  uint64_t step_ = 0;
  OpId cut_;  // of the latest cut
  std::unique_ptr<StateBackend> backend_;
};

void WriteToRocksDb(State* state) {
  for (uint32_t i = 0; i < state->pieces(); ++i) {
    const absl::Status status =
        state->store()->Write({{absl::StrCat("bench/", i), std::string(state->content(i).view())}});
    EPS_CHECK_MSG(status.ok(), status);
  }
}

void WriteToRocksDb(const State& state, RocksDbValues* values) {
  for (uint32_t i = 0; i < state.pieces(); ++i) {
    values->Put(absl::StrCat("bench/", i), state.content(i).view());
  }
  values->Flush();
}

bool Run(const std::string& folder, uint64_t mib, int rounds) {
  State state(folder, mib, NewNvmeBackend);
  State dram(folder + "/dram", mib, NewDurableDramBackend);
  dram.Write();
  RawDisk raw(folder, State::PieceBytes(), state.pieces(), /*registered=*/false);
  RawDisk fixed(folder + "/extents", State::PieceBytes(), state.pieces(), /*registered=*/true);
  const uint64_t bytes = State::PieceBytes() * state.pieces();
  std::printf("%s; %u chunks, %.0f MB of state, queue depth %u\n", MachineName().c_str(),
              state.pieces(), static_cast<double>(bytes) / 1e6, kDepth);
  RocksDbValues leveled(folder + "/leveled", RocksDbValues::Layout::kLeveled);
  RocksDbValues blobs(folder + "/blobs", RocksDbValues::Layout::kBlobs);
  std::vector<DiskCost> raw_write, fixed_write, write, raw_update, update, database, in_levels,
      in_blobs, beside, alone, past;
  for (int round = -1; round < rounds; ++round) {
    const auto add = [round](std::vector<DiskCost>* costs, const DiskCost& cost) {
      if (round >= 0) costs->push_back(cost);  // the first round warms up
    };
    add(&raw_write, CostOf([&] { raw.Run(/*reads=*/false); }));
    add(&write, CostOf([&] { state.Write(); }));
    if (round < 0) state.Verify();
    add(&fixed_write, CostOf([&] { fixed.Run(/*reads=*/false); }));
    add(&raw_update, CostOf([&] { raw.Run(/*reads=*/true); }));
    add(&update, CostOf([&] { state.Update(); }));
    add(&alone, CostOf([&] { dram.UpdateWithoutCut(); }));
    add(&past, CostOf([&] { dram.UpdatePastCut(); }));
    dram.EndCut();
    if (round % 4 != 0) continue;
    add(&database, CostOf([&] { WriteToRocksDb(&state); }));
    add(&in_levels, CostOf([&] { WriteToRocksDb(state, &leveled); }));
    add(&in_blobs, CostOf([&] { WriteToRocksDb(state, &blobs); }));
    add(&beside, write.back());
  }
  PrintSpeed("raw write", bytes, raw_write);
  PrintSpeed("raw, fixed buffers", bytes, fixed_write);
  PrintSpeed("write", bytes, write);
  PrintSpeed("raw read and write", 2 * bytes, raw_update);
  PrintSpeed("update", 2 * bytes, update);
  const std::string last = absl::StrCat("bench/", state.pieces() - 1);
  for (const RocksDbValues* values : {&leveled, &blobs}) {
    EPS_CHECK_MSG(values->Get(last) == state.content(state.pieces() - 1).view(),
                  "RocksDB holds other bytes");
  }
  PrintSpeed("RocksDB", bytes, database);
  PrintSpeed("RocksDB, no WAL", bytes, in_levels);
  PrintSpeed("BlobDB, no WAL", bytes, in_blobs);
  PrintSpeed("DRAM: update", bytes, alone);
  PrintSpeed("DRAM: past a cut", bytes, past);
  std::vector<double> cpu;
  for (const DiskCost& cost : write)
    cpu.push_back(0.20 * static_cast<double>(bytes) / kGiga / cost.cpu_seconds);
  bool reached = ReportRatio("write / raw write", Ratios(raw_write, write), 0.95);
  reached &= ReportRatio("update / raw read and write", Ratios(raw_update, update), 0.90);
  ReportRatio("write / RocksDB", Ratios(database, beside), 5.0);
  reached &= ReportRatio("write / RocksDB, no WAL", Ratios(in_levels, beside), 5.0);
  reached &= ReportRatio("write / BlobDB, no WAL", Ratios(in_blobs, beside), 4.0);
  reached &= ReportRatio("0.20 processor s/GB / those of write", cpu, 1.0);
  return reached;
}

}  // namespace
}  // namespace eps

int main(int argc, char** argv) {
  const uint64_t mib = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 384;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 9;
  std::string folder = absl::StrCat(argc > 3 ? argv[3] : "/tmp", "/nvme_bench-XXXXXX");
  if (mkdtemp(folder.data()) == nullptr) {
    std::perror(folder.c_str());
    return 2;
  }
  const bool reached = eps::Run(folder, mib, rounds);
  std::filesystem::remove_all(folder);
  return reached ? 0 : 1;
}
