#include "storage/backends/durable_storage.h"

#include <chrono>
#include <filesystem>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "storage/backends/durable_backend.h"
#include "storage/cuts/drives/drive_placement.h"
#include "storage/cuts/rocksdb_store.h"

namespace eps {
namespace {

namespace fs = std::filesystem;

// A process that was just killed may still hold the lock for a moment.
constexpr std::chrono::seconds kLockPatience{10};
constexpr std::chrono::seconds kReaderPatience{2};
constexpr std::chrono::milliseconds kLockPause{100};

// Returns the extension of the error for a full disk; empty if no other job takes space.
std::string OtherJobsText(uint64_t bytes, const std::string& path) {
  if (bytes == 0) return "";
  return absl::StrCat("; other jobs hold ", bytes, " bytes in ", path, ": eps state ls ", path,
                      " lists them, and eps state rm ", path,
                      " JOB frees one, once this server has ended");
}

absl::StatusOr<std::unique_ptr<Disk::Lock>> TakeLock(Disk* disk, const std::string& path,
                                                     std::chrono::seconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  for (;;) {
    absl::StatusOr<std::unique_ptr<Disk::Lock>> lock = disk->TakeLock(path);
    const bool held = absl::IsFailedPrecondition(lock.status());
    if (!held || std::chrono::steady_clock::now() > deadline) return lock;
    std::this_thread::sleep_for(kLockPause);
  }
}

// NotFound, with their names, if the folder holds jobs and its catalogue is gone.
absl::Status CheckCatalogue(Disk* disk, const std::string& path) {
  const std::string catalogue = absl::StrCat(path, "/catalogue");
  const absl::StatusOr<std::vector<std::string>> files = disk->List(catalogue);
  if (!absl::IsNotFound(files.status()) && (!files.ok() || !files->empty())) return files.status();
  EPS_ASSIGN_OR_RETURN(const std::vector<JobFolder> folders, ListJobFolders(disk, path));
  std::vector<std::string> names;
  for (const JobFolder& folder : folders) {
    if (!folder.is_new) names.push_back(folder.path.substr(path.size() + 1));
  }
  if (names.empty()) return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrCat(catalogue, " is missing, and nothing can be read without it from ",
                   absl::StrJoin(names, ", "), " in ", path,
                   ": bring it back, or move these folders elsewhere to start over"));
}

// InvalidArgument if a folder is named twice, or if there are too many.
absl::Status CheckDrives(const StorageOptions& options) {
  if (options.drives.size() > kMaxDrives) {
    return absl::InvalidArgumentError(absl::StrCat("storage.drives: ", options.drives.size(),
                                                   " folders; expected at most ", kMaxDrives));
  }
  std::error_code error;
  std::set<std::string> seen = {fs::weakly_canonical(options.path, error).string()};
  for (const std::string& drive : options.drives) {
    const std::string folder = fs::weakly_canonical(drive, error).string();
    if (drive.empty() || error || !seen.insert(folder).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("storage.drives: \"", drive, "\" ",
                       drive.empty() ? "is no folder" : "is named twice, or is storage.path"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<std::string> DurableStorage::Directories() const {
  std::vector<std::string> directories = {options_.path};
  directories.insert(directories.end(), options_.drives.begin(), options_.drives.end());
  return directories;
}

absl::StatusOr<std::unique_ptr<DurableStorage>> DurableStorage::Open(
    const StorageOptions& options) {
  if (options.kind != kNvme && options.kind != "dram") {
    return absl::InvalidArgumentError(
        absl::StrCat("storage.kind: expected dram or nvme, found \"", options.kind, "\""));
  }
  if (options.path.empty()) {
    return absl::InvalidArgumentError(
        "storage.path is empty: durable state needs a folder for this server alone");
  }
  EPS_RETURN_IF_ERROR(CheckDrives(options));
  std::unique_ptr<DurableStorage> storage(new DurableStorage(options));
  DiskOptions disk;
  disk.fill_meter_or_null = &storage->fill_meter_;
  storage->disk_ = NewRealDisk(disk);
  for (const std::string& directory : storage->Directories()) {
    EPS_RETURN_IF_ERROR(storage->disk_->CreateFolder(directory));
    EPS_ASSIGN_OR_RETURN(
        storage->locks_.emplace_back(),
        TakeLock(storage->disk_.get(), absl::StrCat(directory, "/LOCK"), kLockPatience));
  }
  EPS_RETURN_IF_ERROR(CheckCatalogue(storage->disk_.get(), options.path));
  EPS_ASSIGN_OR_RETURN(storage->store_, OpenRocksDb(absl::StrCat(options.path, "/catalogue")));
  return storage;
}

absl::StatusOr<std::optional<ServedSpec>> DurableStorage::Served() const {
  const Catalogue catalogue(store_.get());
  EPS_ASSIGN_OR_RETURN(const std::optional<ServedJob> served, catalogue.Served());
  if (!served.has_value()) return std::optional<ServedSpec>();
  EPS_ASSIGN_OR_RETURN(const CatalogueJob job, catalogue.FindJob(served->id));
  ServedSpec found;
  EPS_ASSIGN_OR_RETURN(found.spec, JobSpec::Parse(job.spec_text));
  found.servers = served->servers;
  found.shard = ShardId(job.shard);
  found.driver = served->driver;
  found.scope = served->scope;
  if (job.shards != found.servers.size()) {
    return absl::DataLossError(
        absl::StrFormat("%s/catalogue: job %016x is of %d shards, and %d servers are kept for it",
                        options_.path, job.id.value(), job.shards, found.servers.size()));
  }
  return std::optional<ServedSpec>(std::move(found));
}

absl::Status DurableStorage::Remember(const ServedJob& job) {
  return Catalogue(store_.get()).SetServed(job);
}

absl::Status DurableStorage::Discard(JobId job) {
  Catalogue catalogue(store_.get());
  const absl::Status removed = eps::RemoveJob(&catalogue, disk_.get(), Directories(), job);
  return absl::IsNotFound(removed) ? absl::OkStatus() : removed;
}

// A job has no state if another server refused it or if its process died early.
absl::StatusOr<uint64_t> DurableStorage::TidyUp(JobId but) {
  Catalogue catalogue(store_.get());
  std::set<JobId> known;
  EPS_ASSIGN_OR_RETURN(const std::vector<CatalogueJob> jobs, catalogue.Jobs());
  for (const CatalogueJob& job : jobs) {
    EPS_ASSIGN_OR_RETURN(const std::vector<CatalogueCut> cuts, catalogue.Cuts(job.id));
    if (!cuts.empty() || job.id == but) {
      known.insert(job.id);
    } else {
      EPS_RETURN_IF_ERROR(eps::RemoveJob(&catalogue, disk_.get(), Directories(), job.id));
    }
  }
  EPS_ASSIGN_OR_RETURN(const std::vector<JobFolder> folders, JobFolders());
  uint64_t bytes = 0;
  for (const JobFolder& folder : folders) {
    if (folder.is_new) {
      EPS_RETURN_IF_ERROR(RemoveJobFolder(disk_.get(), folder.path));
    } else if (known.count(folder.job) == 0) {
      EPS_RETURN_IF_ERROR(SetAside(disk_.get(), folder.path).status());
    } else if (folder.job != but) {
      bytes += folder.bytes;
    }
  }
  return bytes;
}

absl::StatusOr<std::unique_ptr<DurableStorage>> DurableStorage::OpenForReading(
    const std::string& path) {
  StorageOptions options;
  options.path = path;
  std::unique_ptr<DurableStorage> storage(new DurableStorage(options));
  storage->disk_ = NewRealDisk(DiskOptions());
  const std::string catalogue = absl::StrCat(path, "/catalogue");
  // Check this first: taking the lock creates a missing file.
  EPS_RETURN_IF_ERROR(storage->disk_->List(catalogue).status());
  absl::StatusOr<std::unique_ptr<Disk::Lock>> lock =
      TakeLock(storage->disk_.get(), absl::StrCat(path, "/LOCK"), kReaderPatience);
  if (absl::IsFailedPrecondition(lock.status())) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": a server is using this folder (",
                                                      lock.status().message(),
                                                      "); end its run first"));
  }
  EPS_RETURN_IF_ERROR(lock.status());
  storage->locks_.push_back(*std::move(lock));
  EPS_ASSIGN_OR_RETURN(storage->store_, OpenRocksDbForReading(catalogue));
  storage->catalogue_ = std::make_unique<Catalogue>(storage->store_.get());
  EPS_ASSIGN_OR_RETURN(storage->options_.drives, storage->catalogue_->Drives());
  return storage;
}

absl::StatusOr<std::vector<JobFolder>> DurableStorage::JobFolders() const {
  std::vector<JobFolder> all;
  for (const std::string& directory : Directories()) {
    EPS_ASSIGN_OR_RETURN(std::vector<JobFolder> found, ListJobFolders(disk_.get(), directory));
    all.insert(all.end(), found.begin(), found.end());
  }
  return all;
}

std::vector<std::string> DurableStorage::SlotFolders(JobId job, uint32_t drives) const {
  std::vector<std::string> folders;
  if (drives == 0) folders.push_back(absl::StrCat(options_.path, "/", JobFolderName(job)));
  for (const std::string& drive : options_.drives) {
    if (drives > 0) folders.push_back(absl::StrCat(drive, "/", JobFolderName(job)));
  }
  return folders;
}

absl::Status DurableStorage::RemoveJob(JobId job) {
  if (!may_write_) {
    EPS_ASSIGN_OR_RETURN(auto store, OpenRocksDb(absl::StrCat(options_.path, "/catalogue")));
    catalogue_ = std::make_unique<Catalogue>(store.get());
    store_ = std::move(store);
    may_write_ = true;
  }
  return eps::RemoveJob(catalogue_.get(), disk_.get(), Directories(), job);
}

absl::StatusOr<std::unique_ptr<CutReader>> DurableStorage::OpenCut(
    const JobSpec& spec, const ChunkMap& chunks, std::vector<ChunkId> owned,
    uint64_t residual_bytes, const CatalogueJob& job, const CatalogueCut& cut) const {
  CutPlace place;
  place.disk = disk_.get();
  place.folders = SlotFolders(job.id, job.placement.drives);
  place.spec = &spec;
  place.chunks = &chunks;
  place.owned = std::move(owned);
  place.residual_bytes = residual_bytes;
  return CutReader::Open(place, job, cut);
}

absl::StatusOr<std::unique_ptr<StateBackend>> DurableStorage::NewBackend(
    const JobSpec& spec, const ChunkMap& chunks, std::vector<ChunkId> owned,
    const ShardPlace& place, Executor* executor, MemoryAccount* account, BackendDoneFn done) {
  EPS_ASSIGN_OR_RETURN(const uint64_t other_bytes, TidyUp(spec.id()));
  DurableOptions options;
  options.other_jobs = OtherJobsText(other_bytes, options_.path);
  options.disk = disk_.get();
  {
    MutexLock lock(&mu_);
    catalogues_.push_back(std::make_unique<Catalogue>(store_.get()));
    options.catalogue = catalogues_.back().get();
  }
  options.folder = absl::StrCat(options_.path, "/", JobFolderName(spec.id()));
  const auto drives = static_cast<uint32_t>(options_.drives.size());
  if (drives > 0) options.drive_folders = SlotFolders(spec.id(), drives);
  options.staging_bytes = options_.staging_bytes;
  options.gradients_on_disk = options_.gradients_on_disk;
  options.residual_bytes = place.residual_bytes;
  options.log = place.log;
  options.log.steps = options_.log_steps;
  const auto make = options_.kind == "dram" ? NewDurableDramBackend : NewNvmeBackend;
  EPS_ASSIGN_OR_RETURN(std::unique_ptr<StateBackend> backend,
                       make(spec, chunks, std::move(owned), place.shard, place.shards, executor,
                            account, options, std::move(done)));
  if (drives > 0) EPS_RETURN_IF_ERROR(Catalogue(store_.get()).SetDrives(options_.drives));
  return backend;
}

}  // namespace eps
