#ifndef EPS_STORAGE_CUTS_ROCKSDB_RECORDS_H_
#define EPS_STORAGE_CUTS_ROCKSDB_RECORDS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace eps {

// DataLoss with the place if a record of a log or a MANIFEST is damaged; `bytes` are all of the
// file. RocksDB takes one that ends behind the end of the file for one whose writer was
// interrupted, and one of a type that logs have which are used again for an old one: it drops it
// and all behind it without an error. Here a record is an interrupted one only if it is not whole
// with one bit of its length changed.
absl::Status CheckRocksDbRecords(const std::string& path, absl::string_view bytes);

}  // namespace eps

#endif  // EPS_STORAGE_CUTS_ROCKSDB_RECORDS_H_
