#include "storage/backends/near/job_devices.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "storage/csd/device_core.h"
#include "storage/csd/file_table.h"
#include "storage/csd/opencl/opencl_device.h"
#include "storage/csd/process/device_process.h"
#include "storage/csd/process/host_link.h"
#include "storage/cuts/job_folders.h"

namespace eps {
namespace {

constexpr char kSlots[] = "slots";
// The device of a server that was just killed completes its last writes.
constexpr std::chrono::seconds kLockPatience{10};

std::string DeviceName(size_t drive) { return absl::StrCat("csd-", drive); }

absl::StatusOr<FileDeviceOptions> OptionsOf(Disk* host, const std::string& folder, size_t drive) {
  const std::string medium = JobDevices::MediumIn(folder);
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<AsyncFile> file, host->Open(medium));
  return FileDeviceOptions{DeviceName(drive), medium, file->size(), 0};
}

}  // namespace

Purpose JobDevices::PurposeOf(const std::string& path) {
  return absl::StrContains(path, "gradients") ? Purpose::kGradient : Purpose::kState;
}

std::string JobDevices::MediumIn(const std::string& job_folder) { return job_folder + "/medium"; }

std::string JobDevices::SlotFolderIn(const std::string& job_folder) {
  return absl::StrCat(MediumIn(job_folder), "/", kSlots);
}

uint64_t JobDevices::MediumBytes(const ExtentLayout& layout, uint32_t drive, bool gradients) {
  return kFirstAreaOffset + 2 * layout.file_bytes(drive) +
         (gradients ? layout.gradient_file_bytes(drive) : 0);
}

bool JobDevices::HoldSlots(Disk* host, const std::string& job_folder) {
  if (!host->Open(MediumIn(job_folder)).ok()) return false;
  const auto devices = OpenForReading(host, {job_folder});
  if (!devices.ok()) return true;  // it is damaged
  const auto names = (*devices)->disk()->List(MediumIn(job_folder));
  return !names.ok() || std::find(names->begin(), names->end(), kSlots) != names->end();
}

size_t JobDevices::CountMedia(Disk* host, const std::vector<std::string>& job_folders) {
  const auto last =
      std::find_if(job_folders.rbegin(), job_folders.rend(),
                   [&](const std::string& folder) { return host->Open(MediumIn(folder)).ok(); });
  return static_cast<size_t>(job_folders.rend() - last);
}

absl::Status JobDevices::CheckMedia(Disk* host, const std::vector<std::string>& job_folders,
                                    size_t devices) {
  for (size_t drive = 0; drive < job_folders.size(); ++drive) {
    const std::string medium = MediumIn(job_folders[drive]);
    const bool found = host->Open(medium).ok();
    if (found == (drive < devices)) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        medium, found ? " is there" : " is missing", ", and ", devices, " of ", job_folders.size(),
        " drives are devices: set storage.csd.devices and storage.drives as when the job began"));
  }
  return absl::OkStatus();
}

absl::Status JobDevices::CreateMedium(Disk* host, const std::string& job_folder, uint64_t bytes) {
  const std::string fresh = NewFolderOf(job_folder);
  EPS_RETURN_IF_ERROR(host->CreateFolder(fresh));
  EPS_RETURN_IF_ERROR(host->CreateFile(MediumIn(fresh), bytes));
  return host->Rename(fresh, job_folder);
}

absl::StatusOr<std::shared_ptr<JobDevices>> JobDevices::Start(
    Disk* host, const JobSpec& spec, const std::vector<std::string>& folders,
    const DeviceSettings& settings, MemoryAccount* account) {
  std::shared_ptr<JobDevices> devices(new JobDevices(folders));
  const auto start = settings.driver == DeviceDriver::kOpenCl ? &JobDevices::OpenClDevices
                                                              : &JobDevices::StartProcesses;
  EPS_RETURN_IF_ERROR((devices.get()->*start)(host, spec, settings, account));
  EPS_RETURN_IF_ERROR(devices->OpenDisk(host));
  return devices;
}

absl::Status JobDevices::StartProcesses(Disk* host, const JobSpec& spec,
                                        const DeviceSettings& settings, MemoryAccount* account) {
  DeviceProcessOptions options;
  options.program = settings.program;
  options.job = spec.ToText();
  options.updater_plugin = settings.updater_plugin;
  options.codec_plugin = settings.codec_plugin;
  options.command_timeout = settings.command_timeout;
  options.lost = settings.lost;
  options.rates = settings.rates;
  options.link_or_null = std::make_shared<csd::HostLink>(settings.host_rates);
  for (size_t drive = 0; drive < folders_.size(); ++drive) {
    EPS_ASSIGN_OR_RETURN(options.device, OptionsOf(host, folders_[drive], drive));
    options.device.dram_bytes = settings.dram_bytes;
    EPS_ASSIGN_OR_RETURN(devices_.emplace_back(), DeviceProcess::Start(options, account));
  }
  return absl::OkStatus();
}

absl::Status JobDevices::OpenClDevices(Disk* host, const JobSpec& spec,
                                       const DeviceSettings& settings, MemoryAccount* account) {
  // A kernel may wait for others of its device, and transfers for none.
  pool_ = std::make_unique<ThreadPool>((settings.use.sets + 1) * folders_.size());
  for (size_t drive = 0; drive < folders_.size(); ++drive) {
    EPS_ASSIGN_OR_RETURN(FileDeviceOptions options, LockMedium(host, drive));
    options.dram_bytes = settings.dram_bytes;
    EPS_ASSIGN_OR_RETURN(devices_.emplace_back(),
                         OpenClDevice::Open(options, drive, spec, host, pool_.get(), account));
  }
  return absl::OkStatus();
}

absl::StatusOr<FileDeviceOptions> JobDevices::LockMedium(Disk* host, size_t drive) {
  EPS_ASSIGN_OR_RETURN(FileDeviceOptions options, OptionsOf(host, folders_[drive], drive));
  EPS_ASSIGN_OR_RETURN(locks_.emplace_back(),
                       TakeLockWithin(host, options.path + ".lock", kLockPatience));
  return options;
}

absl::StatusOr<std::shared_ptr<JobDevices>> JobDevices::OpenForReading(
    Disk* host, const std::vector<std::string>& folders) {
  std::shared_ptr<JobDevices> devices(new JobDevices(folders));
  devices->pool_ = std::make_unique<ThreadPool>(1);
  for (size_t drive = 0; drive < folders.size(); ++drive) {
    EPS_ASSIGN_OR_RETURN(const FileDeviceOptions options, devices->LockMedium(host, drive));
    EPS_ASSIGN_OR_RETURN(
        devices->devices_.emplace_back(),
        DeviceCore::Open(options, host, devices->pool_.get(), &devices->no_account_));
  }
  EPS_RETURN_IF_ERROR(devices->OpenDisk(host));
  return devices;
}

absl::Status JobDevices::OpenDisk(Disk* host) {
  std::vector<DeviceMount> mounts;
  for (size_t drive = 0; drive < folders_.size(); ++drive) {
    mounts.push_back({MediumIn(folders_[drive]), devices_[drive].get()});
  }
  EPS_ASSIGN_OR_RETURN(disk_, DeviceDisk::Open(host, mounts, PurposeOf));
  return absl::OkStatus();
}

Extents::Folders JobDevices::SlotFoldersAmong(const std::vector<std::string>& job_folders) const {
  Extents::Folders folders = job_folders;
  std::transform(folders_.begin(), folders_.end(), folders.begin(), SlotFolderIn);
  return folders;
}

std::vector<DeviceLinks> JobDevices::link_bytes() const {
  std::vector<DeviceLinks> links;
  for (const auto& device : devices_) {
    links.push_back({device->info().name, device->link_bytes()});
  }
  return links;
}

}  // namespace eps
