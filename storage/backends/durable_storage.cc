#include "storage/backends/durable_storage.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "optimizer/chunk_compute.h"
#include "storage/backends/drives/job_placement.h"
#include "storage/cuts/drives/drive_placement.h"
#include "storage/cuts/rocksdb_store.h"

namespace eps {
namespace {

namespace fs = std::filesystem;

// A process that was just killed may still hold the lock for a moment.
constexpr std::chrono::seconds kLockPatience{10};
constexpr std::chrono::seconds kReaderPatience{2};

// Returns the extension of the error for a full disk; empty if no other job takes space.
std::string OtherJobsText(uint64_t bytes, const std::string& path) {
  if (bytes == 0) return "";
  return absl::StrCat("; other jobs hold ", bytes, " bytes in ", path, ": eps state ls ", path,
                      " lists them, and eps state rm ", path,
                      " JOB frees one, once this server has ended");
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

// InvalidArgument unless the devices have all that they need.
absl::Status CheckDevices(const StorageOptions& options) {
  const DeviceSettings& devices = options.devices;
  if (devices.count > kMaxDrives) {
    return absl::InvalidArgumentError(
        absl::StrCat("storage.csd.devices: ", devices.count, "; expected at most ", kMaxDrives));
  }
  if (!options.drives.empty() && devices.count > options.drives.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "storage.csd.devices: ", devices.count, " devices, and ", options.drives.size(),
        " folders in storage.drives; expected a folder for each"));
  }
  if (devices.dram_bytes == 0 || devices.dram_bytes % kDiskBlock != 0) {
    return absl::InvalidArgumentError(absl::StrCat("storage.csd.dram: ", devices.dram_bytes,
                                                   " bytes; expected a multiple of ", kDiskBlock));
  }
  if (devices.use.sets >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("storage.csd.sets: ", devices.use.sets, "; expected at least 1"));
}

// Returns whether the folder holds a medium without slots, which an interrupted creation left.
bool IsUnusedMedium(Disk* disk, const std::string& folder) {
  return disk->Open(JobDevices::MediumIn(folder)).ok() && !JobDevices::HoldSlots(disk, folder);
}

std::vector<std::string> FirstOf(std::vector<std::string> folders, size_t count) {
  folders.resize(std::min(folders.size(), count));
  return folders;
}

// Returns the folder of a device in storage.path.
std::string DeviceFolder(const std::string& path, size_t device) {
  return absl::StrCat(path, "/csd-", device);
}

}  // namespace

std::vector<std::string> DurableStorage::Directories() const {
  std::vector<std::string> directories = {options_.path};
  for (const auto* const more : {&options_.drives, &device_folders_}) {
    directories.insert(directories.end(), more->begin(), more->end());
  }
  return directories;
}

absl::Status DurableStorage::FindDeviceFolders() {
  EPS_ASSIGN_OR_RETURN(const std::vector<std::string> names, disk_->List(options_.path));
  const std::set<std::string> found(names.begin(), names.end());
  for (size_t i = 0; found.count(absl::StrCat("csd-", i)) > 0; ++i) {
    const std::string folder = DeviceFolder(options_.path, i);
    const auto named = std::find(options_.drives.begin(), options_.drives.end(), folder);
    if (named == options_.drives.end()) device_folders_.push_back(folder);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<DurableStorage>> DurableStorage::Open(
    const StorageOptions& options) {
  if (options.kind != kNvme && options.kind != kDram && options.kind != kCsd) {
    return absl::InvalidArgumentError(
        absl::StrCat("storage.kind: expected dram, nvme or csd, found \"", options.kind, "\""));
  }
  if (options.path.empty()) {
    return absl::InvalidArgumentError(
        "storage.path is empty: durable state needs a folder for this server alone");
  }
  EPS_RETURN_IF_ERROR(CheckDrives(options));
  if (options.kind == kCsd) EPS_RETURN_IF_ERROR(CheckDevices(options));
  std::unique_ptr<DurableStorage> storage(new DurableStorage(options));
  DiskOptions disk;
  disk.fill_meter_or_null = &storage->fill_meter_;
  storage->disk_ = NewRealDisk(disk);
  EPS_RETURN_IF_ERROR(storage->disk_->CreateFolder(options.path));
  if (options.kind == kCsd && options.drives.empty()) {
    for (uint32_t i = 0; i < storage->DrivesOfJobs(); ++i) {
      EPS_RETURN_IF_ERROR(storage->disk_->CreateFolder(DeviceFolder(options.path, i)));
    }
  }
  EPS_RETURN_IF_ERROR(storage->FindDeviceFolders());
  for (const std::string& directory : storage->Directories()) {
    EPS_RETURN_IF_ERROR(storage->disk_->CreateFolder(directory));
    EPS_ASSIGN_OR_RETURN(
        storage->locks_.emplace_back(),
        TakeLockWithin(storage->disk_.get(), absl::StrCat(directory, "/LOCK"), kLockPatience));
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
    const bool unused = known.count(folder.job) == 0 && IsUnusedMedium(disk_.get(), folder.path);
    if (folder.is_new || unused) {
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
      TakeLockWithin(storage->disk_.get(), absl::StrCat(path, "/LOCK"), kReaderPatience);
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
  EPS_RETURN_IF_ERROR(storage->FindDeviceFolders());
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

uint32_t DurableStorage::DrivesOfJobs() const {
  if (options_.kind == kCsd && options_.drives.empty()) return DevicesOfJobs();
  return static_cast<uint32_t>(options_.drives.size());
}

uint32_t DurableStorage::DevicesOfJobs() const {
  if (options_.devices.count > 0) return options_.devices.count;
  return std::max(1u, static_cast<uint32_t>(options_.drives.size()));
}

std::vector<std::string> DurableStorage::SlotFolders(JobId job, uint32_t drives) const {
  std::vector<std::string> folders = {options_.path};
  if (drives > 0) folders = options_.drives;
  if (folders.empty()) {
    folders = FirstOf(device_folders_, drives);
  }
  for (std::string& folder : folders) folder = absl::StrCat(folder, "/", JobFolderName(job));
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
  if (const size_t count = JobDevices::CountMedia(disk_.get(), place.folders); count > 0) {
    EPS_ASSIGN_OR_RETURN(const auto devices,
                         JobDevices::OpenForReading(disk_.get(), FirstOf(place.folders, count)));
    place.disk = devices->disk();
    place.folders = devices->SlotFoldersAmong(place.folders);
    MutexLock lock(&mu_);
    read_devices_.push_back(devices);
  }
  place.spec = &spec;
  place.chunks = &chunks;
  place.owned = std::move(owned);
  place.residual_bytes = residual_bytes;
  return CutReader::Open(place, job, cut);
}

absl::Status DurableStorage::CheckHome(JobId job) const {
  EPS_ASSIGN_OR_RETURN(const std::vector<JobFolder> folders, JobFolders());
  for (const JobFolder& folder : folders) {
    const std::string medium = JobDevices::MediumIn(folder.path);
    if (folder.job != job || !disk_->Open(medium).ok()) continue;
    if (options_.kind == kCsd) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(
        medium, ": the state of this job lies in storage devices: set storage.kind=csd, and not ",
        options_.kind));
  }
  if (options_.kind != kCsd) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(options_.path,
                   ": the state of this job lies in no storage device: set storage.kind as "
                   "before, or resume from a checkpoint with another storage.path"));
}

absl::Status DurableStorage::StartDevices(const JobSpec& spec, const ChunkMap& chunks,
                                          std::vector<ChunkId> owned, MemoryAccount* account,
                                          DurableOptions* options) {
  const std::vector<std::string> folders = FirstOf(options->drive_folders, DevicesOfJobs());
  std::sort(owned.begin(), owned.end());
  EPS_ASSIGN_OR_RETURN(const ChunkCompute compute,
                       ChunkCompute::New(spec, /*account=*/nullptr, Updates::kElsewhere));
  EPS_ASSIGN_OR_RETURN(const DrivePlacement placement,
                       PlacementOf(spec, chunks, owned, compute.arrays(), *options->catalogue,
                                   static_cast<uint32_t>(options->drive_folders.size())));
  if (options->catalogue->FindJob(spec.id()).ok()) {
    EPS_RETURN_IF_ERROR(
        JobDevices::CheckMedia(disk_.get(), options->drive_folders, folders.size()));
  } else {
    const ExtentLayout layout(chunks, owned, compute.arrays(), options->residual_bytes,
                              spec.training.parts, placement);
    for (uint32_t drive = 0; drive < folders.size(); ++drive) {
      EPS_RETURN_IF_ERROR(options->NameOtherJobs(JobDevices::CreateMedium(
          disk_.get(), folders[drive],
          JobDevices::MediumBytes(layout, drive, spec.training.mode == Mode::kSealed))));
    }
  }
  EPS_ASSIGN_OR_RETURN(const std::shared_ptr<JobDevices> devices,
                       JobDevices::Start(disk_.get(), spec, folders, options_.devices, account));
  options->devices_or_null = std::shared_ptr<DeviceDisk>(devices, devices->disk());
  options->disk = devices->disk();
  options->drive_folders = devices->SlotFoldersAmong(options->drive_folders);
  options->device_use = options_.devices.use;
  if (spec.training.mode != Mode::kSealed || !options->gradients_on_disk) {
    options->device_use.gradients_in_memory = false;  // none wait there
  }
  MutexLock lock(&mu_);
  const auto ended = [](const std::weak_ptr<JobDevices>& old) { return old.expired(); };
  devices_.erase(std::remove_if(devices_.begin(), devices_.end(), ended), devices_.end());
  devices_.push_back(devices);
  return absl::OkStatus();
}

std::vector<DeviceLinks> DurableStorage::link_bytes() const {
  std::vector<std::shared_ptr<JobDevices>> alive;
  {
    MutexLock lock(&mu_);
    for (const auto& devices : devices_) alive.push_back(devices.lock());
  }
  std::vector<DeviceLinks> all;
  for (const auto& devices : alive) {
    if (devices == nullptr) continue;
    for (DeviceLinks& links : devices->link_bytes()) all.push_back(std::move(links));
  }
  return all;
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
  const uint32_t drives = DrivesOfJobs();
  if (drives > 0) options.drive_folders = SlotFolders(spec.id(), drives);
  options.staging_bytes = options_.staging_bytes;
  options.gradients_on_disk = options_.gradients_on_disk;
  options.memory_bytes = options_.memory_bytes;
  options.residual_bytes = place.residual_bytes;
  options.log = place.log;
  options.log.steps = options_.log_steps;
  if (options.catalogue->FindJob(spec.id()).ok()) EPS_RETURN_IF_ERROR(CheckHome(spec.id()));
  if (options_.kind == kCsd) {
    EPS_RETURN_IF_ERROR(StartDevices(spec, chunks, owned, account, &options));
  }
  const auto make = options_.kind == kDram ? NewDurableDramBackend : NewNvmeBackend;
  EPS_ASSIGN_OR_RETURN(std::unique_ptr<StateBackend> backend,
                       make(spec, chunks, std::move(owned), place.shard, place.shards, executor,
                            account, options, std::move(done)));
  if (drives > 0) EPS_RETURN_IF_ERROR(Catalogue(store_.get()).SetDrives(options_.drives));
  return backend;
}

}  // namespace eps
