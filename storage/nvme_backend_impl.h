#ifndef EPS_STORAGE_NVME_BACKEND_IMPL_H_
#define EPS_STORAGE_NVME_BACKEND_IMPL_H_

// The state of the NVMe backend, shared by its two halves: operations of chunks
// (nvme_backend.cc), and cuts and recovery (nvme_backend_cuts.cc).

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/executor.h"
#include "common/mutex.h"
#include "storage/catalogue.h"
#include "storage/chunk_compute.h"
#include "storage/extents.h"
#include "storage/residual_stream.h"
#include "storage/slot_table.h"
#include "storage/staging_pool.h"
#include "storage/state_backend.h"

namespace eps::nvme {

using Outcome = absl::StatusOr<BackendValue>;

std::string NameOf(const CutId& id);
// Of an operation that waits when the backend is told to be quiet.
absl::Status Cancelled(absl::string_view what);

// A cut on its way: captures its chunks one by one, then its residuals, syncs and is recorded.
struct PendingCut {
  OpId op;
  CutRequest request;
  SlotTable::KeptCut* kept = nullptr;
  uint32_t uncaptured = 0;
  bool running = false;  // all chunks are captured; no longer guarded
  absl::Status status;
  std::vector<uint32_t> footers;  // CRC32C, by chunk
  std::optional<ResidualWriter> residuals;
};

// One operation of one chunk, in the chunk's line. Once begun, it is touched by one task at a time.
struct Operation {
  OpId op;
  uint32_t index = 0;
  PendingCut* capture = nullptr;  // of this cut; nothing else is done
  // Asked before anything is done, with the version that is here.
  std::function<absl::Status(std::optional<Version>)> check;
  std::optional<Extents::Part> reads;
  bool writes = false;
  Version to;  // of what is written
  std::function<Outcome(const ChunkArrays&)> work;

  SlotTable::Content from;  // what is read
  uint32_t target = 0;      // slot of what is written
  Term term;
  uint8_t* buffer = nullptr;
  BackendValue value;
  double seconds = 0;
};

// Reads and checks a part of every chunk of a cut.
struct Scan {
  CatalogueCut cut;
  Extents::Part part = Extents::Part::kFooter;
  std::vector<ExtentFooter> footers;
  std::function<void(const std::vector<ExtentFooter>&, const absl::Status&)> done;
  Mutex mu;
  size_t left EPS_GUARDED_BY(mu) = 0;
  absl::Status status EPS_GUARDED_BY(mu);
};

class NvmeBackend final : public StateBackend {
 public:
  NvmeBackend(ChunkCompute compute, JobId job, const ExtentLayout& layout, Executor* executor,
              MemoryAccount* account, Catalogue* catalogue, BackendDoneFn done);
  ~NvmeBackend() override;

  // To be called once, before any operation.
  absl::Status Reserve(uint64_t staging_bytes);
  absl::Status Adopt(std::unique_ptr<Extents> extents);

  Caps caps() const override { return Caps{1, true}; }
  void Read(OpId op, ChunkId chunk, Version version, const Codec* codec, Axis axis) override;
  void ReadState(OpId op, ChunkId chunk, Version version) override;
  void WriteState(OpId op, ChunkId chunk, Version version, Bytes state) override;
  void Initialize(OpId op, ChunkId chunk) override;
  void Stats(OpId op, UpdateRequest request) override;
  void Update(OpId op, UpdateRequest request) override;
  void Cut(OpId op, CutRequest cut) override EPS_EXCLUDES(mu_);
  void Recycle(CutId oldest_kept) override;
  void Quiesce(OpId op) override EPS_EXCLUDES(mu_);
  void Recover(OpId op) override;
  void Restore(OpId op, CutId base, Term term) override EPS_EXCLUDES(mu_);
  void Promise(OpId op, Term term) override;

 private:
  struct Line {
    std::deque<std::unique_ptr<Operation>> waiting;
    std::unique_ptr<Operation> begun;
  };

  // ---- Operations of one chunk, in the order in which they pass these functions.
  void Submit(OpId op, ChunkId chunk, std::unique_ptr<Operation> operation) EPS_EXCLUDES(mu_);
  void Advance(uint32_t index) EPS_REQUIRES(mu_);
  void Begin(Operation* o) EPS_REQUIRES(mu_);
  void Load(Operation* o, uint8_t* buffer) EPS_EXCLUDES(mu_);
  void Loaded(Operation* o, absl::Status status) EPS_EXCLUDES(mu_);
  void Compute(Operation* o) EPS_EXCLUDES(mu_);
  void Written(Operation* o, const SlotTable::Content& content, absl::Status status)
      EPS_EXCLUDES(mu_);
  void Finish(Operation* o, Outcome outcome) EPS_EXCLUDES(mu_);
  void BeginParked() EPS_REQUIRES(mu_);

  // ---- Cuts, likewise.
  void Capture(PendingCut* cut, uint32_t index) EPS_REQUIRES(mu_);
  void AdvanceCuts() EPS_REQUIRES(mu_);
  absl::Status PlaceResiduals(PendingCut* cut, bool* placed) EPS_REQUIRES(mu_);
  void RunCut(PendingCut* cut) EPS_EXCLUDES(mu_);
  void WriteResiduals(PendingCut* cut, uint8_t* buffer, uint64_t at) EPS_EXCLUDES(mu_);
  void SyncSlots(PendingCut* cut, uint32_t slot) EPS_EXCLUDES(mu_);
  void RecordCut(PendingCut* cut) EPS_EXCLUDES(mu_);
  void EndCut(absl::Status status) EPS_EXCLUDES(mu_);
  void CancelCuts() EPS_REQUIRES(mu_);

  // ---- Recovery.
  void CheckCuts(OpId op, std::shared_ptr<RecoveredState> state, std::vector<CatalogueCut> left);
  void StartScan(const std::shared_ptr<Scan>& scan) EPS_EXCLUDES(mu_);
  absl::Status CheckScanned(Scan* scan, uint32_t index, const uint8_t* buffer) const;
  void EndScanned(Scan* scan, const absl::Status& status) EPS_EXCLUDES(mu_);
  absl::Status BeginRestore(const CutId& base, Term term, CatalogueCut* record) EPS_EXCLUDES(mu_);
  void CompleteRestore(OpId op, const CatalogueCut& record, std::vector<CutResidual> residuals);
  void ReadResiduals(OpId op, const CatalogueCut& record, std::shared_ptr<ResidualReader> reader,
                     uint8_t* buffer, uint64_t at) EPS_EXCLUDES(mu_);

  // ---- What all of them use.
  // Fail-stop: what was begun ends, nothing else begins.
  void Fail(const absl::Status& status) EPS_EXCLUDES(mu_);
  absl::Status failure() EPS_EXCLUDES(mu_);
  // Runs `task`, which ends with Complete, where the catalogue is used, unless something failed.
  void OnJournal(OpId op, std::function<void()> task) EPS_EXCLUDES(mu_);
  void Complete(OpId op, Outcome outcome, double seconds = 0) EPS_EXCLUDES(mu_);
  // Completes with an error, which is fatal if it is not a refusal.
  void Refuse(OpId op, const absl::Status& status) EPS_EXCLUDES(mu_);
  void Ended() EPS_REQUIRES(mu_);
  void CompleteQuiesces() EPS_REQUIRES(mu_);
  // A completion for the disk, whose rest runs on the executor. It is pending until the disk's
  // thread has let go of the executor, which may end with the backend.
  template <class Then>
  AsyncFile::Done Posted(Then then) EPS_EXCLUDES(mu_) {
    {
      MutexLock lock(&mu_);
      ++pending_;
    }
    return [this, then](absl::Status status) {
      executor_->Post([then, status = std::move(status)] { then(status); });
      MutexLock lock(&mu_);
      Ended();
    };
  }
  const Chunk& chunk(uint32_t index) const { return *layout_.area(index).chunk; }
  ChunkArrays Arrays(const Operation& o) const;

  const ChunkCompute compute_;
  const JobId job_;
  const ExtentLayout layout_;
  Executor* const executor_;
  MemoryAccount* const account_;
  Catalogue* const catalogue_;  // used on journal_ only
  const BackendDoneFn done_;
  absl::flat_hash_map<uint32_t, uint32_t> index_;  // by chunk id

  uint64_t charged_bytes_ = 0;
  std::unique_ptr<StagingPool> staging_;
  std::unique_ptr<Extents> extents_;
  Sequence journal_;

  Mutex mu_;
  CondVar idle_;
  SlotTable table_ EPS_GUARDED_BY(mu_);
  std::vector<Line> lines_ EPS_GUARDED_BY(mu_);         // by index
  std::vector<Operation*> parked_ EPS_GUARDED_BY(mu_);  // begun, but both slots are needed
  std::deque<std::unique_ptr<PendingCut>> cuts_ EPS_GUARDED_BY(mu_);
  std::array<bool, 2> dirty_ EPS_GUARDED_BY(mu_){};  // slot files with unsynced writes
  Term term_ EPS_GUARDED_BY(mu_);
  absl::Status failure_ EPS_GUARDED_BY(mu_);  // the first; nothing begins after it
  bool quiescing_ EPS_GUARDED_BY(mu_) = false;
  std::vector<OpId> quiesces_ EPS_GUARDED_BY(mu_);
  uint64_t pending_ EPS_GUARDED_BY(mu_) = 0;
};

}  // namespace eps::nvme

#endif  // EPS_STORAGE_NVME_BACKEND_IMPL_H_
