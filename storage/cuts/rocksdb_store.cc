#include "storage/cuts/rocksdb_store.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/folder.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "rocksdb/cache.h"
#include "rocksdb/db.h"
#include "rocksdb/env.h"
#include "rocksdb/options.h"
#include "rocksdb/sst_file_reader.h"
#include "rocksdb/table.h"
#include "rocksdb/write_batch.h"
#include "storage/cuts/rocksdb_records.h"

namespace eps {
namespace {

rocksdb::Slice ToSlice(absl::string_view text) { return rocksdb::Slice(text.data(), text.size()); }

absl::Status ToStatus(const std::string& folder, absl::string_view doing,
                      const rocksdb::Status& status) {
  if (status.ok()) return absl::OkStatus();
  std::string text =
      absl::StrCat("the catalogue in ", folder, ": ", doing, ": ", status.ToString());
  if (status.IsPathNotFound() && absl::StrContains(text, "/MANIFEST-")) {
    absl::StrAppend(&text, ", which ", folder, "/CURRENT names");
  }
  if (status.IsCorruption() || status.IsPathNotFound() || status.IsNotFound()) {
    return absl::DataLossError(text);
  }
  // RocksDB has no status code for this case; rocksdb_store_test depends on both texts.
  if (absl::StrContains(text, "While lock file") ||
      absl::StrContains(text, "lock hold by current process")) {
    return absl::FailedPreconditionError(
        absl::StrCat("the catalogue in ", folder, " is already open: ", status.ToString()));
  }
  return absl::InternalError(text);
}

// Looks for damage that RocksDB does not see. RocksDB takes a folder without the file CURRENT for a
// new one and would create an empty database. CURRENT is created before tables and logs, so if they
// exist without it, it was lost.
absl::Status CheckFiles(rocksdb::Env* env, const std::string& folder) {
  std::vector<std::string> names;
  EPS_RETURN_IF_ERROR(ToStatus(folder, "listing the folder", env->GetChildren(folder, &names)));
  bool current = false;
  std::string orphan;
  for (const std::string& name : names) {
    if (name == "CURRENT") current = true;
    const bool is_log = absl::EndsWith(name, ".log");
    if (is_log || absl::EndsWith(name, ".sst")) orphan = name;
    if (!is_log && !absl::StartsWith(name, "MANIFEST-")) continue;
    const std::string path = absl::StrCat(folder, "/", name);
    std::string bytes;
    const rocksdb::Status read = rocksdb::ReadFileToString(env, path, &bytes);
    // Another process may have the database open and may have deleted this file.
    if (read.IsNotFound() || read.IsPathNotFound()) continue;
    EPS_RETURN_IF_ERROR(ToStatus(folder, absl::StrCat("reading ", name), read));
    const absl::Status whole = CheckRocksDbRecords(path, bytes);
    if (!whole.ok()) {
      return absl::DataLossError(absl::StrCat("the catalogue in ", folder, ": ", whole.message()));
    }
  }
  if (current || orphan.empty()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("the catalogue in ", folder, ": ", folder,
                                          "/CURRENT is missing, but ", orphan, " is there"));
}

rocksdb::Options OptionsIn(rocksdb::Env* env) {
  constexpr size_t kMegabyte = size_t{1} << 20;
  rocksdb::Options options;
  options.env = env;
  options.create_if_missing = true;
  options.paranoid_checks = true;
  // A record with a bad checksum in the middle of a log is an error, not the log's end: the records
  // after it were acknowledged.
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kTolerateCorruptedTailRecords;
  options.compression = rocksdb::kNoCompression;
  options.write_buffer_size = kMegabyte;
  options.max_write_buffer_number = 2;
  options.max_open_files = 64;
  options.max_background_jobs = 2;
  options.keep_log_file_num = 2;
  options.max_log_file_size = kMegabyte;
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = rocksdb::NewLRUCache(kMegabyte);
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

// For some damage in a table RocksDB names only the MANIFEST. Returns the status with the table.
absl::Status NameTheTable(rocksdb::Env* env, const std::string& folder,
                          const absl::Status& status) {
  std::vector<std::string> names;
  if (!absl::IsDataLoss(status) || absl::StrContains(status.message(), ".sst") ||
      !env->GetChildren(folder, &names).ok()) {
    return status;
  }
  for (const std::string& name : names) {
    if (!absl::EndsWith(name, ".sst")) continue;
    const std::string path = absl::StrCat(folder, "/", name);
    const rocksdb::Status opened = rocksdb::SstFileReader(OptionsIn(env)).Open(path);
    if (opened.ok()) continue;
    return absl::DataLossError(
        absl::StrCat(status.message(), " (", path, ": ", opened.ToString(), ")"));
  }
  return status;
}

class RocksDbStore final : public KeyValueStore {
 public:
  RocksDbStore(std::string folder, rocksdb::DB* db) : folder_(std::move(folder)), db_(db) {}

  absl::Status Write(const std::vector<Change>& changes) override EPS_EXCLUDES(mu_) {
    rocksdb::WriteBatch batch;
    for (const Change& change : changes) {
      const rocksdb::Status status =
          change.value ? batch.Put(change.key, *change.value) : batch.Delete(change.key);
      EPS_RETURN_IF_ERROR(ToStatus(folder_, "gathering changes", status));
    }
    rocksdb::WriteOptions options;
    options.sync = true;
    MutexLock lock(&mu_);
    if (!failed_.ok()) return failed_;
    const rocksdb::Status status = db_->Write(options, &batch);
    if (!status.ok()) {
      failed_ = absl::InternalError(
          absl::StrCat("the catalogue in ", folder_, ": writing: ", status.ToString()));
    }
    return failed_;
  }

  absl::StatusOr<std::vector<std::pair<std::string, std::string>>> Scan(
      absl::string_view prefix) const override {
    rocksdb::ReadOptions options;
    options.verify_checksums = true;
    const std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(options));
    std::vector<std::pair<std::string, std::string>> found;
    for (it->Seek(ToSlice(prefix)); it->Valid() && it->key().starts_with(ToSlice(prefix));
         it->Next()) {
      found.emplace_back(it->key().ToString(), it->value().ToString());
    }
    EPS_RETURN_IF_ERROR(ToStatus(folder_, absl::StrCat("reading ", prefix), it->status()));
    return found;
  }

 private:
  const std::string folder_;
  const std::unique_ptr<rocksdb::DB> db_;
  Mutex mu_;
  absl::Status failed_ EPS_GUARDED_BY(mu_);  // the first write that failed
};

}  // namespace

absl::StatusOr<std::unique_ptr<KeyValueStore>> OpenRocksDb(const std::string& folder) {
  // RocksDB syncs the contents of its folder, but not the folder's own entry in its parent.
  EPS_RETURN_IF_ERROR(CreateFolder(folder));
  return OpenRocksDbIn(rocksdb::Env::Default(), folder);
}

absl::StatusOr<std::unique_ptr<KeyValueStore>> OpenRocksDbForReading(const std::string& folder) {
  rocksdb::Env* const env = rocksdb::Env::Default();
  if (!env->FileExists(folder).ok()) {
    return absl::NotFoundError(absl::StrCat("there is no catalogue in ", folder));
  }
  EPS_RETURN_IF_ERROR(CheckFiles(env, folder));
  if (!env->FileExists(absl::StrCat(folder, "/CURRENT")).ok()) {
    return absl::NotFoundError(absl::StrCat("the catalogue in ", folder, " is empty"));
  }
  rocksdb::DB* db = nullptr;
  EPS_RETURN_IF_ERROR(NameTheTable(
      env, folder,
      ToStatus(folder, "opening", rocksdb::DB::OpenForReadOnly(OptionsIn(env), folder, &db))));
  return std::unique_ptr<KeyValueStore>(std::make_unique<RocksDbStore>(folder, db));
}

absl::StatusOr<std::unique_ptr<KeyValueStore>> OpenRocksDbIn(rocksdb::Env* env,
                                                             const std::string& folder) {
  EPS_RETURN_IF_ERROR(ToStatus(folder, "creating the folder", env->CreateDirIfMissing(folder)));
  EPS_RETURN_IF_ERROR(CheckFiles(env, folder));
  rocksdb::DB* db = nullptr;
  EPS_RETURN_IF_ERROR(NameTheTable(
      env, folder, ToStatus(folder, "opening", rocksdb::DB::Open(OptionsIn(env), folder, &db))));
  return std::unique_ptr<KeyValueStore>(std::make_unique<RocksDbStore>(folder, db));
}

}  // namespace eps
