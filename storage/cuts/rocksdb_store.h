#ifndef EPS_STORAGE_CUTS_ROCKSDB_STORE_H_
#define EPS_STORAGE_CUTS_ROCKSDB_STORE_H_

// The catalogue's database. Only this target depends on RocksDB, and no EPS header includes one of
// RocksDB's.

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "storage/cuts/catalogue.h"

namespace rocksdb {
class Env;
}  // namespace rocksdb

namespace eps {

// Opens RocksDB in the folder, which it creates durably if it is missing. FailedPrecondition if
// another process has it open. DataLoss if a file is damaged or missing. A log whose last record is
// incomplete is not damaged: an interrupted write leaves it so.
absl::StatusOr<std::unique_ptr<KeyValueStore>> OpenRocksDb(const std::string& folder);

// Opens an existing database and changes nothing in its folder, not even a log: every Write fails.
// NotFound if there is no database. Takes no lock: exclude writers yourself.
absl::StatusOr<std::unique_ptr<KeyValueStore>> OpenRocksDbForReading(const std::string& folder);

// Opens RocksDB in another environment, which must outlive the store. For tests.
absl::StatusOr<std::unique_ptr<KeyValueStore>> OpenRocksDbIn(rocksdb::Env* env,
                                                             const std::string& folder);

}  // namespace eps

#endif  // EPS_STORAGE_CUTS_ROCKSDB_STORE_H_
