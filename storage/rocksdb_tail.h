#ifndef EPS_STORAGE_ROCKSDB_TAIL_H_
#define EPS_STORAGE_ROCKSDB_TAIL_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace eps {

// RocksDB takes a record of a log or a MANIFEST that ends behind the end of the file for one whose
// writer was interrupted, and drops it and all behind it without an error. DataLoss with the place
// if it was whole, and one bit of its length is another one. `bytes` are all of the file.
absl::Status CheckRocksDbTail(const std::string& path, absl::string_view bytes);

}  // namespace eps

#endif  // EPS_STORAGE_ROCKSDB_TAIL_H_
