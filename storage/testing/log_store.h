#ifndef EPS_STORAGE_TESTING_LOG_STORE_H_
#define EPS_STORAGE_TESTING_LOG_STORE_H_

// A KeyValueStore over Disk for simulations, a deterministic replacement for the catalogue's
// database.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "storage/cuts/catalogue.h"
#include "storage/disk/disk.h"

namespace eps {

// An append-only log of batches in one preallocated file, `folder`/log; the map itself is in
// memory. A batch is framed with its number, length and CRC32C, begins at a block, and is synced
// before it is acknowledged. When the file is full, the map is written as one batch into a new
// file, which is then moved over the old one. A frame at the end of the log that does not fit its
// checksum is an interrupted write and is dropped; one that valid frames follow is DataLoss with
// the offset.
//
// Thread-safe. Calls wait for the disk: over a SimulatedDisk use its blocking() view.
class LogStore final : public KeyValueStore {
 public:
  // `disk` must outlive the store. Creates folder and log if they are missing; a new log has
  // `log_bytes`. FailedPrecondition if another store has the folder open.
  static absl::StatusOr<std::unique_ptr<LogStore>> Open(Disk* disk, const std::string& folder,
                                                        uint64_t log_bytes = uint64_t{1} << 20);

  absl::Status Write(const std::vector<Change>& changes) override EPS_EXCLUDES(mu_);
  absl::StatusOr<std::vector<std::pair<std::string, std::string>>> Scan(
      absl::string_view prefix) const override EPS_EXCLUDES(mu_);

 private:
  LogStore(Disk* disk, std::string folder) : disk_(disk), folder_(std::move(folder)) {}

  absl::Status Prepare(uint64_t log_bytes) EPS_REQUIRES(mu_);
  absl::Status Recover() EPS_REQUIRES(mu_);
  absl::Status Append(AsyncFile* file, uint64_t offset, const std::string& frame) EPS_REQUIRES(mu_);
  // Begins a new file with `records`, at least twice as large as they need.
  absl::Status Compact(const std::map<std::string, std::string>& records, uint64_t log_bytes)
      EPS_REQUIRES(mu_);

  Disk* const disk_;
  const std::string folder_;
  std::unique_ptr<Disk::Lock> lock_;
  mutable Mutex mu_;
  std::unique_ptr<AsyncFile> file_ EPS_GUARDED_BY(mu_);
  std::map<std::string, std::string> records_ EPS_GUARDED_BY(mu_);
  uint64_t batches_ EPS_GUARDED_BY(mu_) = 0;  // number of the last batch
  uint64_t end_ EPS_GUARDED_BY(mu_) = 0;      // where the next frame begins
  absl::Status failed_ EPS_GUARDED_BY(mu_);   // the first write that failed
};

}  // namespace eps

#endif  // EPS_STORAGE_TESTING_LOG_STORE_H_
