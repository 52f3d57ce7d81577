#ifndef EPS_STORAGE_CUTS_CATALOGUE_H_
#define EPS_STORAGE_CUTS_CATALOGUE_H_

// The durable records of a shard's jobs: everything but tensor bytes. docs/formats/catalogue.md
// describes the records; storage/cuts/rocksdb_store.h is the database.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/ids.h"
#include "base/job/drivers/driver_lease.h"
#include "base/job/drivers/job_scope.h"
#include "storage/cuts/cut.h"
#include "storage/cuts/drives/drive_placement.h"
#include "storage/records/key_value_store.h"

namespace eps {

// The version of the record of storage.drives, and of those of jobs on them.
inline constexpr uint32_t kDrivesRecordVersion = 2;

// One shard's part of a job.
struct CatalogueJob {
  JobId id;
  std::string spec_text;  // canonical; reading checks its digest
  uint32_t shard = 0;
  uint32_t shards = 0;
  Term promised;  // no earlier term may be served
  // Also stored in the extents, to recognize a copied or foreign folder of extents.
  uint64_t extents_nonce = 0;
  DrivePlacement placement = {};  // of the owned chunks
};

// A cut as this shard holds it.
struct CatalogueCut {
  CutBorder border;
  // The slot, 0 or 1, that holds each owned chunk, in ascending order of chunk ids.
  std::vector<bool> slot;
  uint32_t extents_crc32c = 0;   // CrcOfFooters, in that order
  uint32_t residuals_slot = 0;   // whose area holds the residuals
  uint64_t residuals_bytes = 0;  // 0 if there are none
  uint32_t residuals_crc32c = 0;
  uint64_t records = 0;  // number of step records from the job's beginning to the border
};

// The state of a job's contribution log (storage/log/contribution_log.h).
struct CatalogueLog {
  FoundLog log;
  uint64_t position = 0;  // where the entries after log.base begin
};

// The job that a server opens when it restarts, the job's servers in shard order, the lease of the
// driver that created the job last, and what certificates of the job name.
struct ServedJob {
  JobId id;
  std::vector<std::string> servers;
  DriverLease driver = {};
  JobScope scope = {};
};

// Typed access to a KeyValueStore, without a cache. Thread-compatible; calls block. Every change is
// one synced write. Records carry a format version and a CRC32C. DataLoss names the key of a
// damaged record, FailedPrecondition the key of a record that a later release wrote.
class Catalogue {
 public:
  // `store` must outlive the catalogue.
  explicit Catalogue(KeyValueStore* store) : store_(store) {}

  absl::StatusOr<std::vector<CatalogueJob>> Jobs() const;
  // NotFound if the catalogue lacks the job.
  absl::StatusOr<CatalogueJob> FindJob(JobId job) const;
  // Adds a job. AlreadyExists if it is known; InvalidArgument if its id does not match spec_text.
  absl::Status AddJob(const CatalogueJob& job);
  // Removes the job with its cuts and all its other records.
  absl::Status RemoveJob(JobId job);

  // The folders of storage.drives, in order, for tools that read this folder.
  absl::Status SetDrives(const std::vector<std::string>& drives);
  // Returns an empty list if there are none.
  absl::StatusOr<std::vector<std::string>> Drives() const;

  // NotFound if the catalogue lacks that job.
  absl::Status SetServed(const ServedJob& served);
  // Returns the served job; nullopt if none was set or if it was removed.
  absl::StatusOr<std::optional<ServedJob>> Served() const;

  // Records `term` as the promised term. FailedPrecondition names the promised term if it is later.
  absl::Status Promise(JobId job, Term term);

  // Returns the cuts in ascending order. This and all functions below: NotFound if the catalogue
  // lacks the job.
  absl::StatusOr<std::vector<CatalogueCut>> Cuts(JobId job) const;
  // Adds a cut with the records since the previous one, and counts them (cut.records is ignored).
  // FailedPrecondition unless the cut is younger than all others. The same write sets the log to
  // `log_or_null`, if there is one.
  absl::Status AddCut(JobId job, const CatalogueCut& cut, const std::vector<std::string>& records,
                      const CatalogueLog* log_or_null = nullptr);
  // Returns the first cut.records records, in order. DataLoss if one is missing.
  absl::StatusOr<std::vector<std::string>> Records(JobId job, const CatalogueCut& cut) const;
  // In one write, promises `term` as Promise does and removes all cuts younger than `base`, with
  // the records that only they have. NotFound if `base` is missing.
  absl::Status Restore(JobId job, const CutId& base, Term term);
  // In one write, promises `term` and removes all cuts and records.
  absl::Status Forget(JobId job, Term term);
  // Removes the cuts that are older than `oldest_kept`.
  absl::Status RemoveCutsBelow(JobId job, const CutId& oldest_kept);

  // Returns the current log; nullopt if there is none, or if a later term is promised.
  absl::StatusOr<std::optional<CatalogueLog>> Log(JobId job) const;
  // FailedPrecondition unless the log is of the promised term.
  absl::Status SetLog(JobId job, const CatalogueLog& log);

 private:
  KeyValueStore* const store_;
};

}  // namespace eps

#endif  // EPS_STORAGE_CUTS_CATALOGUE_H_
