#ifndef EPS_BENCH_PEERS_ROCKSDB_VALUES_H_
#define EPS_BENCH_PEERS_ROCKSDB_VALUES_H_

// The rejected alternative: state as values in RocksDB, configured as its users do for large
// values.

#include <memory>
#include <string>

#include "absl/strings/string_view.h"

namespace rocksdb {
class DB;
}

namespace eps {

// A database of values. Thread-compatible. Exits if a call fails.
class RocksDbValues {
 public:
  enum class Layout {
    kLeveled,  // values in the tree, which compaction rewrites
    kBlobs,    // BlobDB: values in separate files
  };
  // Opens a database without WAL and compression, with direct I/O for flushes and compactions.
  RocksDbValues(const std::string& folder, Layout layout);
  ~RocksDbValues();

  void Put(const std::string& key, absl::string_view value);
  // Returns once everything that was put is durable. Compactions may continue afterwards.
  void Flush();
  std::string Get(const std::string& key) const;

 private:
  std::unique_ptr<rocksdb::DB> db_;
};

}  // namespace eps

#endif  // EPS_BENCH_PEERS_ROCKSDB_VALUES_H_
