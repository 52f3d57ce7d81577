#ifndef EPS_STORAGE_CUTS_ROCKSDB_STORE_H_
#define EPS_STORAGE_CUTS_ROCKSDB_STORE_H_

// The catalogue's database. No other target sees RocksDB, and no header of ours includes its.

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "storage/cuts/catalogue.h"

namespace rocksdb {
class Env;
}  // namespace rocksdb

namespace eps {

// RocksDB in the folder, which is created durably if it is missing. One process at a time:
// FailedPrecondition if another one has it open. DataLoss if a file is damaged or missing: a log of
// which the last record is cut short is not, because an interrupted write leaves one.
absl::StatusOr<std::unique_ptr<KeyValueStore>> OpenRocksDb(const std::string& folder);

// What is there, of which nothing is changed, not even a log of its own: every Write fails.
// NotFound if there is no database. It takes no lock: the caller sees to it that nobody writes.
absl::StatusOr<std::unique_ptr<KeyValueStore>> OpenRocksDbForReading(const std::string& folder);

// The same over another environment than the default one; borrowed. For tests.
absl::StatusOr<std::unique_ptr<KeyValueStore>> OpenRocksDbIn(rocksdb::Env* env,
                                                             const std::string& folder);

}  // namespace eps

#endif  // EPS_STORAGE_CUTS_ROCKSDB_STORE_H_
