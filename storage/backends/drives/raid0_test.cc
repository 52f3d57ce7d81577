// The baseline of Smart-Infinity (sections 3.2 and 7.1): the host updates a state that is striped
// over devices as if they were drives, so that every byte crosses the host link.

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/executor.h"
#include "base/memory_account.h"
#include "base/testing/test_specs.h"
#include "gtest/gtest.h"
#include "storage/backends/dram_backend.h"
#include "storage/backends/durable_backend.h"
#include "storage/csd/device.h"
#include "storage/csd/device_core.h"
#include "storage/csd/device_disk.h"
#include "storage/csd/process/device_process.h"
#include "storage/cuts/catalogue.h"
#include "storage/cuts/extents/extents.h"
#include "storage/disk/disk.h"
#include "storage/testing/catalogue_samples.h"
#include "storage/testing/shard_under_test.h"
#include "storage/testing/simulated_disk.h"

namespace eps {
namespace {

constexpr int kDevices = 2;
constexpr uint64_t kMediaBytes = uint64_t{16} << 20;

// Opens device `i`, which has no memory.
using OpenDevice = std::unique_ptr<Device> (*)(int i, Disk* host, Executor* executor,
                                               MemoryAccount* account);

std::unique_ptr<Device> OpenInProcess(int i, Disk* host, Executor* executor,
                                      MemoryAccount* account) {
  const std::string name = absl::StrCat("csd-", i);
  return *DeviceCore::Open({name, "/medium-" + name, kMediaBytes, 0}, host, executor, account);
}

std::unique_ptr<Device> StartProcess(int i, Disk* /*host*/, Executor* /*executor*/,
                                     MemoryAccount* account) {
  const std::string name = absl::StrCat("csd-", i);
  // Each test starts with new media.
  const std::string path = absl::StrCat(testing::TempDir(), "/medium-", name);
  std::remove(path.c_str());
  DeviceProcessOptions options;
  options.program = "storage/csd/process/eps-csd";
  options.device = {name, path, kMediaBytes, 0};
  return *DeviceProcess::Start(options, account);
}

// The devices, and the disk that makes drives of them.
struct Devices {
  explicit Devices(OpenDevice open) {
    std::vector<DeviceMount> mounts;
    for (int i = 0; i < kDevices; ++i) {
      devices.push_back(open(i, host.blocking(), &pool, &account));
      mounts.push_back({absl::StrCat("/csd-", i), devices.back().get()});
    }
    disk = *DeviceDisk::Open(&host, mounts, [](const std::string& path) {
      return absl::StrContains(path, "gradients") ? Purpose::kGradient : Purpose::kState;
    });
  }
  LinkBytes link_bytes() const {
    LinkBytes sum;
    for (const auto& device : devices) sum.Add(device->link_bytes());
    return sum;
  }

  SimulatedDisk host{SimulatedDisk::Options()};
  ThreadPool pool{1};
  MemoryAccount account;
  std::vector<std::unique_ptr<Device>> devices;
  std::unique_ptr<DeviceDisk> disk;
  MapStore store;
  Catalogue catalogue{&store};
};
Devices* current = nullptr;  // of the test that runs

absl::StatusOr<std::unique_ptr<StateBackend>> NewOnDevices(
    const JobSpec& spec, const ChunkMap& chunks, std::vector<ChunkId> owned, Executor* executor,
    MemoryAccount* account, BackendDoneFn done) {
  DurableOptions options;
  options.disk = current->disk.get();
  options.catalogue = &current->catalogue;
  options.folder = "/state";
  for (int i = 0; i < kDevices; ++i) {
    options.drive_folders.push_back(absl::StrCat("/csd-", i, "/job"));
  }
  options.staging_bytes = uint64_t{4} << 20;
  return NewNvmeBackend(spec, chunks, std::move(owned), ShardId(0), 1, executor, account, options,
                        std::move(done));
}

class Raid0Test : public testing::TestWithParam<OpenDevice> {
 protected:
  Raid0Test() : devices_(GetParam()) { current = &devices_; }
  ~Raid0Test() override { current = nullptr; }

  // Trains two steps of mode sealed, and returns the state.
  std::string Train(ShardUnderTest* shard) {
    shard->InitializeAll();
    std::string state;
    for (uint64_t step = 1; step <= 2; ++step) {
      for (const Chunk& chunk : shard->chunks().chunks()) {
        const Gradients gradients = GradientsOf(chunk, step, 2);
        UpdateRequest request = RequestOf(shard, chunk, gradients, step, Merging::kNone);
        UpdateRequest update = request;
        const BackendDone reduced = shard->Await(ReduceRequest{std::move(request)});
        EXPECT_TRUE(reduced.status.ok()) << reduced.status;
        update.inputs.clear();
        update.reduced = std::get<UpdateResult>(reduced.value).reduced;
        const BackendDone updated = shard->Await(std::move(update));
        EXPECT_TRUE(updated.status.ok()) << updated.status;
      }
    }
    for (const Chunk& chunk : shard->chunks().chunks()) {
      state += *shard->State(chunk.id, Version(2));
    }
    return state;
  }
  static JobSpec Sealed(JobSpec spec) {
    spec.training.mode = Mode::kSealed;
    return spec;
  }
  // Makes the step of one chunk, and compares what the links carried.
  void CheckStep(ShardUnderTest* shard, const ExtentLayout::Area& area);

  Devices devices_;
};

TEST_P(Raid0Test, StateIsThatOfMemory) {
  ShardUnderTest memory({"Dram", &NewDramBackend}, Sealed(RaggedSpec()), 1);
  ShardUnderTest striped({"Devices", &NewOnDevices}, Sealed(RaggedSpec()), 1);
  ASSERT_TRUE(striped.status().ok()) << striped.status();
  EXPECT_TRUE(Train(&striped) == Train(&memory));
}

void Raid0Test::CheckStep(ShardUnderTest* shard, const ExtentLayout::Area& area) {
  const Chunk& chunk = *area.chunk;
  const LinkBytes before = devices_.link_bytes();
  UpdateRequest request = RequestOf(shard, chunk, GradientsOf(chunk, 1, 2), 1, Merging::kNone);
  UpdateRequest update = request;
  const BackendDone reduced = shard->Await(ReduceRequest{std::move(request)});
  ASSERT_TRUE(reduced.status.ok()) << reduced.status;
  update.inputs.clear();
  update.reduced = std::get<UpdateResult>(reduced.value).reduced;
  ASSERT_TRUE(shard->Await(std::move(update)).status.ok());
  const LinkBytes moved = devices_.link_bytes().Since(before);
  LinkBytes expected;
  for (const Link link : {Link::kHost, Link::kMedia}) {
    for (const Direction direction : {Direction::kRead, Direction::kWritten}) {
      expected.Add(link, direction, Purpose::kGradient, area.gradient_bytes);
      expected.Add(link, direction, Purpose::kState, area.bytes());
    }
  }
  for (const Link link : {Link::kHost, Link::kInternal, Link::kMedia}) {
    for (const Direction direction : {Direction::kRead, Direction::kWritten}) {
      for (const Purpose purpose : {Purpose::kState, Purpose::kGradient, Purpose::kControl}) {
        EXPECT_EQ(moved.of(link, direction, purpose), expected.of(link, direction, purpose))
            << NameOf(link) << " " << NameOf(direction) << " " << NameOf(purpose) << ", chunk "
            << chunk.id.value() << " of " << chunk.elements;
      }
    }
  }
  EXPECT_TRUE(moved == expected);
}

// The gradient is written and read, weights and moments are read and written; the devices move
// nothing on their own.
TEST_P(Raid0Test, EachByteCrossesTheHostLinkTwice) {
  ShardUnderTest shard({"Devices", &NewOnDevices}, Sealed(RaggedSpec()), 1);
  ASSERT_TRUE(shard.status().ok()) << shard.status();
  shard.InitializeAll();
  std::vector<ChunkId> owned;
  for (const Chunk& chunk : shard.chunks().chunks()) owned.push_back(chunk.id);
  const ExtentLayout layout(shard.chunks(), owned, /*arrays=*/3, 0, shard.spec().training.parts);
  for (const ExtentLayout::Area& area : layout.areas()) CheckStep(&shard, area);
}

// Where a chunk is whole blocks, that is 16 bytes per parameter, and a footer.
TEST_P(Raid0Test, AStepMovesSixteenBytesPerParameter) {
  ShardUnderTest shard({"Devices", &NewOnDevices}, Sealed(TinySyntheticSpec()), 1);
  ASSERT_TRUE(shard.status().ok()) << shard.status();
  shard.InitializeAll();
  std::vector<ChunkId> owned;
  for (const Chunk& chunk : shard.chunks().chunks()) owned.push_back(chunk.id);
  const ExtentLayout layout(shard.chunks(), owned, /*arrays=*/3, 0, shard.spec().training.parts);
  int compared = 0;
  for (const ExtentLayout::Area& area : layout.areas()) {
    const uint64_t bytes = area.chunk->elements * sizeof(float);
    if (bytes % kDiskBlock != 0) continue;
    ++compared;
    EXPECT_EQ(area.gradient_bytes + area.data_bytes, 16 * area.chunk->elements);
    CheckStep(&shard, area);
  }
  EXPECT_GT(compared, 0);
}

INSTANTIATE_TEST_SUITE_P(Devices, Raid0Test, testing::Values(&OpenInProcess, &StartProcess),
                         [](const auto& info) { return info.index == 0 ? "Here" : "Processes"; });

}  // namespace
}  // namespace eps
