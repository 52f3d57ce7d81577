#include "bench/peers/rocksdb_values.h"

#include <cstdint>

#include "base/check.h"
#include "rocksdb/db.h"
#include "rocksdb/options.h"

namespace eps {
namespace {

void Check(const rocksdb::Status& status) { EPS_CHECK_MSG(status.ok(), status.ToString()); }

rocksdb::Slice SliceOf(absl::string_view bytes) { return {bytes.data(), bytes.size()}; }

}  // namespace

RocksDbValues::RocksDbValues(const std::string& folder, Layout layout) {
  rocksdb::Options options;
  options.create_if_missing = true;
  options.compression = rocksdb::kNoCompression;
  options.write_buffer_size = uint64_t{64} << 20;
  options.max_background_jobs = 2;
  options.use_direct_io_for_flush_and_compaction = true;
  if (layout == Layout::kBlobs) {
    options.enable_blob_files = true;
    options.min_blob_size = 4096;
    options.enable_blob_garbage_collection = true;
  }
  rocksdb::DB* db = nullptr;
  Check(rocksdb::DB::Open(options, folder, &db));
  db_.reset(db);
}

RocksDbValues::~RocksDbValues() = default;

void RocksDbValues::Put(const std::string& key, absl::string_view value) {
  rocksdb::WriteOptions options;
  options.disableWAL = true;
  Check(db_->Put(options, key, SliceOf(value)));
}

void RocksDbValues::Flush() { Check(db_->Flush(rocksdb::FlushOptions())); }

std::string RocksDbValues::Get(const std::string& key) const {
  std::string value;
  Check(db_->Get(rocksdb::ReadOptions(), key, &value));
  return value;
}

}  // namespace eps
