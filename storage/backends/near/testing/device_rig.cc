#include "storage/backends/near/testing/device_rig.h"

#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "storage/backends/near/job_devices.h"
#include "storage/csd/device_core.h"
#include "storage/csd/file_device.h"
#include "storage/csd/kernels/chunk_kernels.h"
#include "storage/csd/opencl/opencl_device.h"
#include "storage/csd/process/device_process.h"
#include "storage/csd/testing/held_stores.h"
#include "storage/disk/disk.h"
#include "storage/disk/state_arena.h"

namespace eps {
namespace {

DeviceRig* last_rig = nullptr;

}  // namespace

LinkBytes BytesOfStep(const RigOptions& options, uint64_t n, uint64_t footer_bytes) {
  const bool encodes = options.encodes_weights && !options.opencl;
  LinkBytes bytes;
  bytes.Add(Link::kHost, Direction::kRead, Purpose::kWeights, encodes ? 2 * n : 4 * n);
  if (options.reads_weights_back) {
    bytes.Add(Link::kMedia, Direction::kRead, Purpose::kWeights, 4 * n);
  }
  bytes.Add(Link::kHost, Direction::kWritten, Purpose::kGradient, 4 * n);
  if (!options.gradients_in_memory) {
    bytes.Add(Link::kMedia, Direction::kWritten, Purpose::kGradient, 4 * n);
  }
  for (const Link link : {Link::kInternal, Link::kMedia}) {
    if (!options.gradients_in_memory) {
      bytes.Add(link, Direction::kRead, Purpose::kGradient, 4 * n);
    }
    for (const Direction direction : {Direction::kRead, Direction::kWritten}) {
      bytes.Add(link, direction, Purpose::kState, 12 * n);
      bytes.Add(link, direction, Purpose::kPadding, footer_bytes);
    }
  }
  return bytes;
}

DeviceRig::DeviceRig(const JobSpec& spec, const RigOptions& options) : options_(options) {
  std::vector<DeviceMount> mounts;
  for (int i = 0; i < options_.devices; ++i) {
    const std::string name = absl::StrCat("csd-", i);
    devices_.push_back(OpenDevice(name, spec));
    mounts.push_back({absl::StrCat("/", name), devices_.back().get()});
  }
  disk_ = *DeviceDisk::Open(&host_, mounts, JobDevices::PurposeOf);
  last_rig = this;
}

std::unique_ptr<Device> DeviceRig::OpenDevice(const std::string& name, const JobSpec& spec) {
  FileDeviceOptions core = {name, "/medium-" + name, options_.media_bytes, options_.dram_bytes};
  if (options_.opencl) {
    return *OpenClDevice::Open(core, devices_.size(), spec, host_.blocking(), &pool_, &account_);
  }
  if (!options_.processes) {
    std::unique_ptr<DeviceCore> device =
        *DeviceCore::Open(core, host_.blocking(), &pool_, &account_);
    device->UseKernels(*csd::ChunkKernels::New(spec, &account_));
    if (options_.holds_stores) return std::make_unique<HeldStores>(std::move(device));
    return device;
  }
  DeviceProcessOptions options;
  options.program = "storage/csd/process/eps-csd";
  options.device = core;
  options.device.path = testing::TempDir() + core.path;
  options.job = spec.ToText();
  options.rates = options_.rates;
  std::remove(options.device.path.c_str());  // of an earlier rig
  return *DeviceProcess::Start(options, &account_);
}

absl::StatusOr<std::unique_ptr<StateBackend>> DeviceRig::NewBackend(
    const JobSpec& spec, const ChunkMap& chunks, std::vector<ChunkId> owned, Executor* executor,
    MemoryAccount* account, BackendDoneFn done) {
  DurableOptions options;
  options.disk = disk_.get();
  options.catalogue = &catalogue_;
  options.folder = "/state";
  for (int i = 0; i < options_.devices; ++i) {
    options.drive_folders.push_back(absl::StrCat("/csd-", i, "/job"));
  }
  options.staging_bytes = uint64_t{4} << 20;
  options.gradients_on_disk = options_.gradients_on_disk;
  if (options_.dram_bytes > 0) options.devices_or_null = disk_;
  options.device_use = {options_.sets, options_.hands_buffers_over, options_.gradients_in_memory,
                        options_.encodes_weights, options_.reads_weights_back};
  return NewNvmeBackend(spec, chunks, std::move(owned), ShardId(0), 1, executor, account, options,
                        std::move(done));
}

absl::StatusOr<std::unique_ptr<StateBackend>> DeviceRig::NewBackendOfLast(
    const JobSpec& spec, const ChunkMap& chunks, std::vector<ChunkId> owned, Executor* executor,
    MemoryAccount* account, BackendDoneFn done) {
  return last_rig->NewBackend(spec, chunks, std::move(owned), executor, account, std::move(done));
}

void DeviceRig::FlipBitsOfFirstChunk() const {
  const std::unique_ptr<StateArena> memory = *StateArena::New(kDiskBlock);
  const absl::Span<uint8_t> block(reinterpret_cast<uint8_t*>(memory->floats()), kDiskBlock);
  for (const char* slot : {"/csd-0/job/slot-0.eps", "/csd-0/job/slot-1.eps"}) {
    const auto file = disk_->Open(slot);
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_TRUE(ReadBlocking(file->get(), kDiskBlock, block).ok());
    block[100] = static_cast<uint8_t>(block[100] ^ 1);
    ASSERT_TRUE(WriteBlocking(file->get(), kDiskBlock, block).ok());
  }
}

LinkBytes DeviceRig::link_bytes() const {
  LinkBytes sum;
  for (const auto& device : devices_) sum.Add(device->link_bytes());
  return sum;
}

}  // namespace eps
