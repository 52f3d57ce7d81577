#ifndef EPS_STORAGE_CUTS_ROCKSDB_RECORDS_H_
#define EPS_STORAGE_CUTS_ROCKSDB_RECORDS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace eps {

// Returns DataLoss with the offset if a record of a log or a MANIFEST is damaged; `bytes` is the
// whole file. RocksDB itself silently drops a record and everything after it in two cases: if the
// record extends past the end of the file (it assumes an interrupted write), and if its type is one
// of recycled logs (it assumes an old record). This check accepts a record as an interrupted write
// only if no change of one bit of its length would make it complete.
absl::Status CheckRocksDbRecords(const std::string& path, absl::string_view bytes);

}  // namespace eps

#endif  // EPS_STORAGE_CUTS_ROCKSDB_RECORDS_H_
