// A device in a process that is as slow as its rates.

#include <chrono>
#include <memory>
#include <thread>

#include "gtest/gtest.h"
#include "storage/csd/device.h"
#include "storage/csd/process/device_process.h"
#include "storage/csd/process/host_link.h"
#include "storage/csd/process/testing/device_process_fixture.h"
#include "storage/csd/rates/device_rates.h"

namespace eps {
namespace {

constexpr double kBytes = static_cast<double>(kManySlices);
// The last slice of a transfer may end so much earlier.
constexpr double kPrecision = 1e-3;

// Each rate makes exactly its operations take their time. No test asks for an upper bound but that
// of another rate, which is ten times as high.
class PacedProcessTest : public DeviceProcessTest {
 protected:
  // The seconds of each operation.
  struct Times {
    double write_media, write_dram, read_media, read_dram, load, store;
  };

  Times Measure() {
    Start();
    const Place dram = *device_->Allocate(kManySlices);
    HostMemory bytes(kManySlices);
    bytes.Fill(1);
    Times times;
    times.write_media = Seconds([&] { return Write(&bytes, kMedia); });
    times.write_dram = Seconds([&] { return Write(&bytes, dram); });
    times.read_media = Seconds([&] { return Read(kMedia, &bytes); });
    times.read_dram = Seconds([&] { return Read(dram, &bytes); });
    times.load = Seconds([&] { return Copy(kMedia, dram, kManySlices); });
    times.store = Seconds([&] { return Copy(dram, kMedia, kManySlices); });
    return times;
  }

  template <class Operation>
  static double Seconds(const Operation& operation) {
    const auto begin = std::chrono::steady_clock::now();
    const absl::Status status = operation();
    EXPECT_TRUE(status.ok()) << status;
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() +
           kPrecision;
  }
};

TEST_F(PacedProcessTest, MediumReadsAndWritesAtItsRates) {
  options_.rates.host_write = kBytes / 0.10;
  options_.rates.host_read = kBytes / 0.20;
  options_.rates.device_read = kBytes / 0.30;
  options_.rates.device_write = kBytes / 0.40;
  const Times times = Measure();
  EXPECT_GE(times.write_media, 0.10);
  EXPECT_GE(times.read_media, 0.20);
  EXPECT_GE(times.load, 0.30);
  EXPECT_GE(times.store, 0.40);
}

TEST_F(PacedProcessTest, EveryByteCrossesTheInternalLink) {
  options_.rates.internal = kBytes / 0.1;
  const Times times = Measure();
  for (const double time : {times.write_media, times.write_dram, times.read_media, times.read_dram,
                            times.load, times.store}) {
    EXPECT_GE(time, 0.1);
  }
}

TEST_F(PacedProcessTest, HostLinkHasARatePerDirection) {
  options_.link_or_null =
      std::make_shared<csd::HostLink>(HostRates{/*up=*/kBytes / 0.1, /*down=*/kBytes / 0.2, 0});
  const Times times = Measure();
  EXPECT_GE(times.write_media, 0.2);
  EXPECT_GE(times.write_dram, 0.2);
  EXPECT_GE(times.read_media, 0.1);
  EXPECT_GE(times.read_dram, 0.1);
}

TEST_F(PacedProcessTest, DevicesShareTheHostLink) {
  options_.link_or_null = std::make_shared<csd::HostLink>(HostRates{0, 0, /*both=*/kBytes / 0.1});
  Start();
  DeviceProcessOptions other = options_;
  other.device.path += "-other";
  const auto second = DeviceProcess::Start(other, &account_);
  ASSERT_TRUE(second.ok()) << second.status();
  HostMemory bytes(kManySlices), more(kManySlices);
  const double both = Seconds([&] {
    std::thread writer([&] { EXPECT_TRUE(Write(&bytes, kMedia).ok()); });
    const absl::Status status = Wait([&](Device::Done done) {
      (*second)->HostWrite(more.span(), kMedia, Purpose::kState, std::move(done));
    });
    writer.join();
    return status;
  });
  EXPECT_GE(both, 0.2);
}

// A host and its device share the medium.
TEST_F(PacedProcessTest, MediumDoesOneThingAtATime) {
  options_.rates.device_read = kBytes / 0.1;
  options_.rates.host_read = kBytes / 0.1;
  Start();
  const Place dram = *device_->Allocate(kManySlices);
  HostMemory bytes(kManySlices);
  const double both = Seconds([&] {
    std::thread reader([&] { EXPECT_TRUE(Read(kMedia, &bytes).ok()); });
    const absl::Status status = Copy(kMedia, dram, kManySlices);
    reader.join();
    return status;
  });
  EXPECT_GE(both, 0.2);
}

}  // namespace
}  // namespace eps
