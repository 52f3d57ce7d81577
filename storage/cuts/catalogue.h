#ifndef EPS_STORAGE_CUTS_CATALOGUE_H_
#define EPS_STORAGE_CUTS_CATALOGUE_H_

// What a shard remembers of its jobs apart from tensor bytes, which never come here. The records
// are described in docs/formats/catalogue.md; the database is behind storage/cuts/rocksdb_store.h.

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
#include "storage/cuts/cut.h"

namespace eps {

// An ordered map of byte strings whose writes are atomic and durable: the seam between catalogue
// and database. Thread-safe; calls block. After a failed write every later write fails, too.
class KeyValueStore {
 public:
  struct Change {
    std::string key;
    std::optional<std::string> value;  // nullopt removes the key
  };

  virtual ~KeyValueStore() = default;
  // All of it or nothing, synced when it returns OK. Internal with the folder and the reason.
  virtual absl::Status Write(const std::vector<Change>& changes) = 0;
  // Pairs whose key begins with `prefix`, by key. DataLoss names the file that is damaged.
  virtual absl::StatusOr<std::vector<std::pair<std::string, std::string>>> Scan(
      absl::string_view prefix) const = 0;
};

// One shard's part of a job.
struct CatalogueJob {
  JobId id;
  std::string spec_text;  // canonical; its digest is checked when it is read
  uint32_t shard = 0;
  uint32_t shards = 0;
  Term promised;  // no earlier term may be served
  // Of what lies beside it on the disk: a copied or foreign folder of extents is told by it.
  uint64_t extents_nonce = 0;
};

// A cut as this shard holds it.
struct CatalogueCut {
  CutBorder border;
  // By owned chunk, in ascending order of chunk ids: the slot, 0 or 1, that holds it.
  std::vector<bool> slot;
  uint32_t extents_crc32c = 0;   // over the chunks' footers in that order
  uint32_t residuals_slot = 0;   // of the area of residuals
  uint64_t residuals_bytes = 0;  // 0: none
  uint32_t residuals_crc32c = 0;
  uint64_t records = 0;  // of steps, from the job's beginning up to the border
};

// What a shard's contribution log has of a job (storage/log/contribution_log.h).
struct CatalogueLog {
  FoundLog log;
  uint64_t position = 0;  // from which entries behind log.base can be read
};

// The job that a server is to open again when it is started again, and its servers in shard order.
struct ServedJob {
  JobId id;
  std::vector<std::string> servers;
};

// Typed access to a KeyValueStore; keeps nothing in memory. Thread-compatible. Every change is one
// synced write. Records carry a format version and a CRC32C; DataLoss names the key of one that is
// damaged, FailedPrecondition that of one that a later release wrote.
class Catalogue {
 public:
  // `store` is borrowed.
  explicit Catalogue(KeyValueStore* store) : store_(store) {}

  absl::StatusOr<std::vector<CatalogueJob>> Jobs() const;
  // NotFound.
  absl::StatusOr<CatalogueJob> FindJob(JobId job) const;
  // A new job; AlreadyExists. InvalidArgument if the id is not that of the text.
  absl::Status AddJob(const CatalogueJob& job);
  // The job, its cuts and all else that is known of it.
  absl::Status RemoveJob(JobId job);

  // NotFound if that job is not there.
  absl::Status SetServed(const ServedJob& served);
  // nullopt: none was set, or it was removed.
  absl::StatusOr<std::optional<ServedJob>> Served() const;

  // FailedPrecondition names the promised term if it is later than `term`.
  absl::Status Promise(JobId job, Term term);

  // Ascending; NotFound if the job is not there, as of all that follow.
  absl::StatusOr<std::vector<CatalogueCut>> Cuts(JobId job) const;
  // With the records since the cut before it, whose number it adds up (cut.records is not read).
  // FailedPrecondition unless it is younger than all others. With `log_or_null`, in the same write:
  // from now on the log is this one.
  absl::Status AddCut(JobId job, const CatalogueCut& cut, const std::vector<std::string>& records,
                      const CatalogueLog* log_or_null = nullptr);
  // The first cut.records records, in order. DataLoss if one of them is missing.
  absl::StatusOr<std::vector<std::string>> Records(JobId job, const CatalogueCut& cut) const;
  // In one write: promises `term`, as Promise does, and removes all cuts but `base` and those that
  // are older, with the records that are only of removed ones. NotFound if `base` is not there.
  absl::Status Restore(JobId job, const CutId& base, Term term);
  // In one write: promises `term` and removes all cuts and records.
  absl::Status Forget(JobId job, Term term);
  // Removes the cuts that are older than `oldest_kept`.
  absl::Status RemoveCutsBelow(JobId job, const CutId& oldest_kept);

  // The log that was begun last; nullopt: none, or the promised term is a later one.
  absl::StatusOr<std::optional<CatalogueLog>> Log(JobId job) const;
  // FailedPrecondition unless it is of the promised term.
  absl::Status SetLog(JobId job, const CatalogueLog& log);

 private:
  KeyValueStore* const store_;
};

}  // namespace eps

#endif  // EPS_STORAGE_CUTS_CATALOGUE_H_
