#include "storage/csd/device_core.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace eps {

absl::StatusOr<std::unique_ptr<DeviceCore>> DeviceCore::Open(const FileDeviceOptions& options,
                                                             Disk* disk, Executor* executor,
                                                             MemoryAccount* account) {
  EPS_ASSIGN_OR_RETURN(std::unique_ptr<AsyncFile> medium, OpenMedium(options, disk));
  std::unique_ptr<StateArena> dram;
  if (options.dram_bytes > 0) {
    EPS_RETURN_IF_ERROR(account->TryCharge(MemoryKind::kState, options.dram_bytes));
    absl::StatusOr<std::unique_ptr<StateArena>> arena = StateArena::New(options.dram_bytes);
    if (!arena.ok()) {
      account->Release(MemoryKind::kState, options.dram_bytes);
      return arena.status();
    }
    dram = *std::move(arena);
  }
  return std::unique_ptr<DeviceCore>(
      new DeviceCore(options, std::move(medium), std::move(dram), executor, account));
}

DeviceCore::DeviceCore(const FileDeviceOptions& options, std::unique_ptr<AsyncFile> medium,
                       std::unique_ptr<StateArena> dram, Executor* executor, MemoryAccount* account)
    : FileDevice({options.name, options.media_bytes, options.dram_bytes}, std::move(medium),
                 executor),
      dram_(std::move(dram)),
      account_(account) {}

DeviceCore::~DeviceCore() { account_->Release(MemoryKind::kState, info().dram_bytes); }

absl::Span<uint8_t> DeviceCore::Memory(uint64_t at, uint64_t bytes) const {
  return absl::MakeSpan(reinterpret_cast<uint8_t*>(dram_->floats()) + at, bytes);
}

absl::Status DeviceCore::WriteMemory(absl::Span<const uint8_t> from, uint64_t at) {
  std::memcpy(Memory(at, from.size()).data(), from.data(), from.size());
  return absl::OkStatus();
}

absl::Status DeviceCore::ReadMemory(uint64_t at, absl::Span<uint8_t> into) {
  std::memcpy(into.data(), Memory(at, into.size()).data(), into.size());
  return absl::OkStatus();
}

void DeviceCore::Load(uint64_t from, uint64_t at, uint64_t bytes, Done done) {
  medium()->Read(from, Memory(at, bytes), std::move(done));
}

void DeviceCore::Store(uint64_t at, uint64_t to, uint64_t bytes, Done done) {
  medium()->Write(to, Memory(at, bytes), std::move(done));
}

absl::StatusOr<std::string> DeviceCore::RunKernel(const std::string& kernel, uint64_t at,
                                                  uint64_t bytes) {
  if (kernels_ == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("device ", info().name, " has no kernels of a job"));
  }
  return kernels_->Run(kernel, Memory(at, bytes));
}

}  // namespace eps
