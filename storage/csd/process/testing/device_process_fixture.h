#ifndef EPS_STORAGE_CSD_PROCESS_TESTING_DEVICE_PROCESS_FIXTURE_H_
#define EPS_STORAGE_CSD_PROCESS_TESTING_DEVICE_PROCESS_FIXTURE_H_

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/memory_account.h"
#include "gtest/gtest.h"
#include "storage/csd/device.h"
#include "storage/csd/process/device_process.h"
#include "storage/csd/process/frames.h"
#include "storage/disk/disk.h"
#include "storage/disk/state_arena.h"

namespace eps {

inline constexpr char kProgram[] = "storage/csd/process/eps-csd";
inline constexpr uint64_t kMiB = uint64_t{1} << 20;
inline constexpr uint64_t kMediaBytes = 8 * kMiB;
inline constexpr uint64_t kDramBytes = 4 * kMiB;
// More than two slices, and no multiple of one.
inline constexpr uint64_t kManySlices = 2 * csd::kSliceBytes + 3 * kDiskBlock;
inline constexpr Place kMedia = {Place::Where::kMedia, 0};

// Host memory for direct I/O.
class HostMemory {
 public:
  explicit HostMemory(uint64_t bytes) : arena_(*StateArena::New(bytes)), bytes_(bytes) {}
  absl::Span<uint8_t> span() {
    return absl::MakeSpan(reinterpret_cast<uint8_t*>(arena_->floats()), bytes_);
  }
  // Fills it with bytes that differ from block to block.
  void Fill(uint64_t seed) {
    for (uint64_t i = 0; i < bytes_; ++i) {
      span()[i] = static_cast<uint8_t>((i * 2654435761u + seed + i / kDiskBlock) >> 5);
    }
  }

 private:
  std::unique_ptr<StateArena> arena_;
  uint64_t bytes_;
};

// A device in a process, with a new medium. The test's BUILD target has eps-csd as data.
class DeviceProcessTest : public testing::Test {
 protected:
  DeviceProcessTest() {
    options_.program = kProgram;
    options_.device = {"csd-0", absl::StrCat(folder_, "/medium"), kMediaBytes, kDramBytes};
    std::filesystem::create_directories(folder_);
  }
  ~DeviceProcessTest() override {
    device_.reset();
    std::filesystem::remove_all(folder_);
  }

  absl::Status TryStart() {
    auto started = DeviceProcess::Start(options_, &account_);
    if (started.ok()) device_ = *std::move(started);
    return started.status();
  }
  void Start() {
    const absl::Status status = TryStart();
    ASSERT_TRUE(status.ok()) << status;
  }
  static absl::Status Wait(const std::function<void(Device::Done)>& start) {
    std::promise<absl::Status> status;
    start([&](absl::Status s) { status.set_value(std::move(s)); });
    return status.get_future().get();
  }
  absl::Status Write(HostMemory* from, Place to, Purpose purpose = Purpose::kState) {
    return Wait([&](Device::Done done) { device_->HostWrite(from->span(), to, purpose, done); });
  }
  absl::Status Read(Place from, HostMemory* into, Purpose purpose = Purpose::kState) {
    return Wait([&](Device::Done done) { device_->HostRead(from, into->span(), purpose, done); });
  }
  absl::Status Copy(Place from, Place to, uint64_t bytes) {
    return Wait(
        [&](Device::Done done) { device_->Copy(from, to, bytes, Purpose::kGradient, done); });
  }
  absl::Status Sync() {
    return Wait([&](Device::Done done) { device_->Sync(std::move(done)); });
  }

  const std::string folder_ = absl::StrCat(testing::TempDir(), "/csd-", getpid());
  MemoryAccount account_;
  DeviceProcessOptions options_;
  std::unique_ptr<DeviceProcess> device_;
};

}  // namespace eps

#endif  // EPS_STORAGE_CSD_PROCESS_TESTING_DEVICE_PROCESS_FIXTURE_H_
