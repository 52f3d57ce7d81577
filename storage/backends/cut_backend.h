#ifndef EPS_STORAGE_BACKENDS_CUT_BACKEND_H_
#define EPS_STORAGE_BACKENDS_CUT_BACKEND_H_

// What the backends of storage/backends/durable_backend.h have in common: cuts, recovery and fail-stop. They
// are the classes derived from this one, which know how chunks are worked on and how a cut gets
// hold of them; one mutex guards both halves.

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
#include "absl/types/span.h"
#include "base/executor.h"
#include "base/mutex.h"
#include "storage/cuts/catalogue.h"
#include "storage/log/contribution_log.h"
#include "storage/backends/durable_backend.h"
#include "storage/cuts/extents.h"
#include "storage/cuts/residual_stream.h"
#include "storage/cuts/slot_table.h"
#include "storage/disk/staging_pool.h"
#include "storage/state_backend.h"

namespace eps::durable {

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

// Reads and checks a part of every chunk of a cut.
struct Scan;

class CutBackend : public StateBackend {
 public:
  // Takes memory for staging and opens or makes the job's files, as NewNvmeBackend says. To be
  // called once, before any operation.
  absl::Status Open(const JobSpec& spec, ShardId shard, uint32_t shards,
                    const DurableOptions& options);

  Caps caps() const override;
  void Cut(OpId op, CutRequest cut) override EPS_EXCLUDES(mu_);
  void Recycle(CutId oldest_kept) override;
  void Quiesce(OpId op) override EPS_EXCLUDES(mu_);
  void Recover(OpId op) override;
  void Restore(OpId op, std::optional<CutId> base, Term term) override EPS_EXCLUDES(mu_);
  void Promise(OpId op, Term term) override;
  void Scrub(OpId op) override EPS_EXCLUDES(mu_);
  void StartLog(OpId op, const FoundLog& log) override EPS_EXCLUDES(mu_);
  void Log(OpId op, LogEntry entry) override EPS_EXCLUDES(mu_);
  void ReadLog(OpId op) override EPS_EXCLUDES(mu_);

 protected:
  CutBackend(const ExtentLayout& layout, Executor* executor, MemoryAccount* account,
             BackendDoneFn done);
  ~CutBackend() override;

  // ---- What a derived class does.
  // Is to call Captured for each chunk, once, when the operations before the cut have been done on
  // it and none of those after it has; never waits for anything but these and for slots.
  virtual void Capture(PendingCut* cut) EPS_REQUIRES(mu_) = 0;
  // What waits may go on: slots were freed, or nothing is worth waiting for any more (failure_,
  // quiescing_, the status of a cut).
  virtual void BeginWaiting() EPS_REQUIRES(mu_) = 0;
  // Whether an operation of a chunk waits or was begun.
  virtual bool HasOperations() const EPS_REQUIRES(mu_) = 0;
  // Of each chunk of a cut that is being restored: its area, checked. On any thread.
  virtual void Restored(uint32_t index, Version version, const uint8_t* area) EPS_EXCLUDES(mu_) = 0;

  // ---- What it does that with. The chunk's content in the table is the cut's, or `status` is why
  // it cannot be, which is the outcome of the cut. The cut may be gone once mu_ is let go of.
  void Captured(PendingCut* cut, uint32_t index, const absl::Status& status) EPS_REQUIRES(mu_);
  // Cancels what waits and awaits the rest; to be called first in its destructor.
  void Drain() EPS_EXCLUDES(mu_);
  // Fail-stop: what was begun ends, nothing else begins.
  void Fail(const absl::Status& status) EPS_EXCLUDES(mu_);
  absl::Status failure() EPS_EXCLUDES(mu_);
  // Completes an operation that was counted in pending_.
  void Complete(OpId op, Outcome outcome, double seconds = 0) EPS_EXCLUDES(mu_);
  // For each ++pending_.
  void Ended() EPS_REQUIRES(mu_);
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

  const ExtentLayout layout_;
  Executor* const executor_;
  MemoryAccount* const account_;
  const BackendDoneFn done_;
  absl::flat_hash_map<uint32_t, uint32_t> index_;  // by chunk id
  std::unique_ptr<StagingPool> staging_;
  std::unique_ptr<Extents> extents_;

  Mutex mu_;
  SlotTable table_ EPS_GUARDED_BY(mu_);
  std::array<bool, 2> dirty_ EPS_GUARDED_BY(mu_){};  // slot files with unsynced writes
  Term term_ EPS_GUARDED_BY(mu_);
  absl::Status failure_ EPS_GUARDED_BY(mu_);  // the first; nothing begins after it
  bool quiescing_ EPS_GUARDED_BY(mu_) = false;
  uint64_t pending_ EPS_GUARDED_BY(mu_) = 0;

 private:
  // ---- Opening.
  absl::Status Reserve(uint64_t staging_bytes);
  absl::Status Adopt(std::unique_ptr<Extents> extents);
  absl::Status OpenLog(Disk* blocking_disk, const DurableOptions& options,
                       const ExtentIdentity& identity);

  // ---- Cuts, in the order in which they pass these functions.
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
  absl::Status CheckScanned(Scan* scan, uint32_t index, const uint8_t* buffer);
  void EndScanned(Scan* scan, const absl::Status& status) EPS_EXCLUDES(mu_);
  absl::Status Forget(Term term) EPS_EXCLUDES(mu_);
  absl::Status BeginRestore(const CutId& base, Term term, CatalogueCut* record) EPS_EXCLUDES(mu_);
  void CompleteRestore(OpId op, const CatalogueCut& record, std::vector<CutResidual> residuals);
  void ReadResiduals(OpId op, const CatalogueCut& record, std::shared_ptr<ResidualReader> reader,
                     uint8_t* buffer, uint64_t at) EPS_EXCLUDES(mu_);

  // ---- Scrub: what is next, and where it lies: a chunk, or behind the last one the next piece of
  // the cut's residuals.
  struct ScrubPlace {
    CutId cut;
    Version version;
    uint32_t slot = 0;
    uint32_t index = 0;
    uint64_t residuals_bytes = 0;  // of this piece; 0: a chunk
    uint64_t residuals_at = 0;
    uint32_t residuals_crc32c = 0;  // of the pieces before
    bool ends_pass = false;
  };
  std::optional<ScrubPlace> NextToScrub() EPS_EXCLUDES(mu_);
  // The next cut is next. True: it was the last one.
  bool EndScrubOf(const CutId& cut) EPS_REQUIRES(mu_);
  void Scrubbed(OpId op, const ScrubPlace& place, uint8_t* buffer, absl::Status status)
      EPS_EXCLUDES(mu_);
  absl::Status CheckScrubbedChunk(const ScrubPlace& place, const uint8_t* buffer) const;
  absl::Status CheckScrubbedResiduals(const ScrubPlace& place, const uint8_t* buffer,
                                      bool* ends_pass) EPS_EXCLUDES(mu_);
  // The error with the place of a slot's residuals.
  absl::Status OfResiduals(uint32_t slot, const absl::Status& status) const;

  // ---- The log; on the journal.
  absl::Status FindLog(const std::vector<CatalogueCut>& cuts, std::optional<FoundLog>* found);
  absl::Status AddCut(const CatalogueCut& cut, const std::vector<std::string>& records);

  // Runs `task`, which ends with Complete, where the catalogue is used, unless something failed.
  void OnJournal(OpId op, std::function<void()> task) EPS_EXCLUDES(mu_);
  // Completes with an error, which is fatal if it is not a refusal.
  void Refuse(OpId op, const absl::Status& status) EPS_EXCLUDES(mu_);
  void CompleteQuiesces() EPS_REQUIRES(mu_);

  JobId job_;
  Catalogue* catalogue_ = nullptr;  // used on journal_ only
  uint64_t charged_bytes_ = 0;
  std::unique_ptr<ContributionLog> log_;  // null: none is kept
  std::optional<CatalogueLog> logged_;    // as it was recorded last; used on journal_ only
  Sequence journal_;
  CondVar idle_;
  std::deque<std::unique_ptr<PendingCut>> cuts_ EPS_GUARDED_BY(mu_);
  std::vector<OpId> quiesces_ EPS_GUARDED_BY(mu_);
  CutId scrub_cut_ EPS_GUARDED_BY(mu_);           // the oldest that is not scrubbed in this pass
  uint32_t scrub_index_ EPS_GUARDED_BY(mu_) = 0;  // the number of chunks: residuals
  uint64_t scrub_residuals_at_ EPS_GUARDED_BY(mu_) = 0;
  uint32_t scrub_residuals_crc32c_ EPS_GUARDED_BY(mu_) = 0;
};

}  // namespace eps::durable

#endif  // EPS_STORAGE_BACKENDS_CUT_BACKEND_H_
