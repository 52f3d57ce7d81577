#ifndef EPS_STORAGE_BACKENDS_CUT_ENGINE_H_
#define EPS_STORAGE_BACKENDS_CUT_ENGINE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/executor.h"
#include "base/memory_account.h"
#include "base/mutex.h"
#include "storage/backends/cut_log.h"
#include "storage/backends/durable_backend.h"
#include "storage/backends/in_flight.h"
#include "storage/backends/slot_files.h"
#include "storage/cuts/catalogue.h"
#include "storage/cuts/extents/residual_stream.h"
#include "storage/cuts/scrub_cursor.h"
#include "storage/cuts/slot_table.h"
#include "storage/requests.h"
#include "storage/tier.h"

namespace eps::durable {

// A cut in progress. The engine captures its chunks, writes its residuals, syncs the slots, and
// then records it. The engine owns it; `op` and `request` do not change.
struct PendingCut {
  OpId op;
  CutRequest request;
  SlotTable::KeptCut* kept = nullptr;
  uint32_t uncaptured = 0;        // chunks
  bool running = false;           // all chunks are captured, and one task at a time does the rest
  absl::Status status;            // the first error
  std::vector<uint32_t> footers;  // CRC32C, by chunk
  std::optional<ResidualWriter> residuals;
};

// The engine's interface to the owner of a shard's chunks. The engine calls it on any thread and
// without its own lock.
class CutChunks {
 public:
  virtual ~CutChunks() = default;
  // Call CutEngine::Captured exactly once per chunk, after the chunk's operations that precede this
  // call and before any later one. Wait only for those operations and for free slots. The cut may
  // be destroyed during the last Captured.
  virtual void Capture(PendingCut* cut) = 0;
  // Retry waiting operations and captures: slots were freed, or the cut no longer wants its chunks
  // (see Wants).
  virtual void Retry() = 0;
  // Returns true if no operation and no capture waits or runs.
  virtual bool IsIdle() = 0;
  // Make the next cut write the chunk, although its slot has its content: the slot is damaged.
  virtual void Rewrite(uint32_t index) = 0;
  // Records that every chunk is at `version` with the content of the table's slots or, with
  // nullopt, that no chunk has content.
  virtual void SetAll(std::optional<Version> version) = 0;
};

// Makes, restores and scrubs the cuts of one shard, and runs its log. Owns the catalogue record,
// terms, slots and cuts; the tensor bytes belong to a tier. Thread-safe. Holds no lock during
// callbacks, so callers may hold a lock that CutChunks takes.
class CutEngine {
 public:
  // All pointers must outlive the engine. Drain `in_flight` before you destroy the engine.
  CutEngine(SlotFiles* files, Tier* tier, CutChunks* chunks, InFlight* in_flight,
            MemoryAccount* account);

  // Opens or creates the job's files, as described at NewNvmeBackend. REQUIRES files->Reserve. Call
  // once, before any operation. Blocks.
  absl::Status Open(const JobSpec& spec, ShardId shard, uint32_t shards,
                    const DurableOptions& options);

  uint64_t log_steps() const { return log_.steps(); }

  // Begins an operation, which completes through InFlight.
  void Submit(OpId op, DurableRequest request);
  void Recycle(CutId oldest_kept);
  // Cancels waiting cuts. Call when quiescing or draining begins.
  void CancelCuts() EPS_EXCLUDES(mu_);

  // ---- For CutChunks.

  // Adds the chunk's content, as the slot table records it, to the cut. If `status` is an error,
  // the chunk cannot be captured and the cut fails with that error.
  void Captured(PendingCut* cut, uint32_t index, const absl::Status& status) EPS_EXCLUDES(mu_);
  // Returns false if the cut will fail anyway. REQUIRES that a chunk of the cut is not captured.
  bool Wants(const PendingCut& cut) EPS_EXCLUDES(mu_);
  // Returns the slot for the chunk's next write; nullopt if kept cuts need both slots.
  std::optional<uint32_t> Target(uint32_t index) EPS_EXCLUDES(mu_);
  std::optional<SlotTable::Content> content(uint32_t index) EPS_EXCLUDES(mu_);
  void SetContent(uint32_t index, const SlotTable::Content& content) EPS_EXCLUDES(mu_);
  Term term() EPS_EXCLUDES(mu_);

 private:
  // ---- Opening.
  absl::Status FindOrCreate(const JobSpec& spec, Disk* disk, const DurableOptions& options,
                            ExtentIdentity* identity);
  absl::Status LoadCuts() EPS_EXCLUDES(mu_);

  // ---- Operations, by request.
  void Do(OpId op, CutRequest request) EPS_EXCLUDES(mu_);
  void Do(OpId op, const QuiesceRequest&);
  void Do(OpId op, const RecoverRequest&);
  void Do(OpId op, const RestoreRequest& request);
  void Do(OpId op, const PromiseRequest& request);
  void Do(OpId op, const ScrubRequest&);
  void Do(OpId op, const StartLogRequest& request);
  void Do(OpId op, LogRequest request);
  void Do(OpId op, const ReadLogRequest&);

  // ---- Cuts. The functions are in call order.
  void AdvanceCuts() EPS_REQUIRES(mu_);
  absl::Status PlaceResiduals(PendingCut* cut, bool* placed) EPS_REQUIRES(mu_);
  void RunCut(PendingCut* cut);
  void WriteResiduals(PendingCut* cut, uint8_t* buffer, uint64_t at);
  void SyncSlots(PendingCut* cut, uint32_t slot);
  void RecordCut(PendingCut* cut);
  void EndCut(const absl::Status& status) EPS_EXCLUDES(mu_);

  // ---- Recovery.
  struct CutChecks;
  void CheckCuts(OpId op, const std::shared_ptr<CutChecks>& checks);
  void EndCheck(CutChecks* checks, const CatalogueCut& cut, const absl::Status& status)
      EPS_EXCLUDES(mu_);
  void RefuseRestore(OpId op, const CutId& base, const absl::Status& status) EPS_EXCLUDES(mu_);
  absl::Status Forget(Term term) EPS_EXCLUDES(mu_);
  absl::Status BeginRestore(const CutId& base, Term term, CatalogueCut* record) EPS_EXCLUDES(mu_);
  void EndChunks(OpId op, const CatalogueCut& record, const std::vector<ExtentFooter>& footers)
      EPS_EXCLUDES(mu_);
  void ReadResiduals(OpId op, const CatalogueCut& record,
                     const std::shared_ptr<ResidualReader>& reader, uint8_t* buffer, uint64_t at);
  void CompleteRestore(OpId op, const CatalogueCut& record, std::vector<CutResidual> residuals);

  // ---- Scrub.
  void ScrubChunk(OpId op, const ScrubCursor::Place& place);
  void ScrubResiduals(OpId op, const ScrubCursor::Place& place) EPS_EXCLUDES(mu_);
  void EndScrub(OpId op, const ScrubCursor::Place& place, ScrubResult result, absl::Status status)
      EPS_EXCLUDES(mu_);
  // Returns `damage` if the damaged bytes are the only copy of the state. Otherwise prepares the
  // next cut to heal them, and sets result->damage unless the cut is no longer kept.
  absl::Status Contain(const ScrubCursor::Place& place, const absl::Status& damage,
                       ScrubResult* result) EPS_EXCLUDES(mu_);
  // Returns `status` with the file and offset of the slot's residuals.
  absl::Status OfResiduals(uint32_t slot, const absl::Status& status) const;

  // Runs `task` on journal_; `task` ends with Complete or Refuse. If the backend has failed,
  // completes `op` with the failure instead.
  void OnJournal(OpId op, std::function<void()> task);
  // Completes `op` with an error. Fails the whole backend unless the error is a refusal.
  void Refuse(OpId op, const absl::Status& status);
  // Handles InFlight::Fail.
  void OnFailure(const absl::Status& failure) EPS_EXCLUDES(mu_);

  SlotFiles* const files_;
  Tier* const tier_;
  CutChunks* const chunks_;
  InFlight* const in_flight_;
  MemoryAccount* const account_;
  JobId job_;
  Catalogue* catalogue_ = nullptr;  // use on journal_ only
  CutLog log_;
  Sequence journal_;

  Mutex mu_;
  SlotTable table_ EPS_GUARDED_BY(mu_);
  Term term_ EPS_GUARDED_BY(mu_);
  // In order. A null entry marks a cut whose outcome is being reported.
  std::deque<std::unique_ptr<PendingCut>> cuts_ EPS_GUARDED_BY(mu_);
  ScrubCursor scrub_ EPS_GUARDED_BY(mu_);
};

}  // namespace eps::durable

#endif  // EPS_STORAGE_BACKENDS_CUT_ENGINE_H_
