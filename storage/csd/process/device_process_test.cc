#include "storage/csd/process/device_process.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <future>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/csd/process/child.h"
#include "storage/csd/process/exchange.h"
#include "storage/csd/process/frames.h"
#include "storage/csd/process/testing/device_process_fixture.h"
#include "storage/disk/disk.h"

namespace eps {
namespace {

using ::testing::HasSubstr;

// Returns whether a child of this process has stopped. It may answer until then.
bool StopProcess(pid_t pid) {
  siginfo_t stopped;
  return kill(pid, SIGSTOP) == 0 && waitid(P_PID, static_cast<id_t>(pid), &stopped, WSTOPPED) == 0;
}

TEST_F(DeviceProcessTest, BytesComeBackOnEveryWay) {
  Start();
  EXPECT_EQ(account_.live_bytes(MemoryKind::kState), kDramBytes);
  const Place dram = *device_->Allocate(kManySlices);
  HostMemory sent(kManySlices), seen(kManySlices);
  sent.Fill(1);
  ASSERT_TRUE(Write(&sent, kMedia.At(kDiskBlock)).ok());
  ASSERT_TRUE(Read(kMedia.At(kDiskBlock), &seen).ok());
  EXPECT_TRUE(seen.span() == sent.span());
  seen.Fill(2);
  ASSERT_TRUE(Copy(kMedia.At(kDiskBlock), dram, kManySlices).ok());
  ASSERT_TRUE(Read(dram, &seen).ok());
  EXPECT_TRUE(seen.span() == sent.span());
  sent.Fill(3);
  ASSERT_TRUE(Write(&sent, dram).ok());
  ASSERT_TRUE(Copy(dram, kMedia.At(4 * kMiB), kManySlices).ok());
  ASSERT_TRUE(Read(kMedia.At(4 * kMiB), &seen).ok());
  EXPECT_TRUE(seen.span() == sent.span());
  ASSERT_TRUE(Sync().ok());
}

TEST_F(DeviceProcessTest, MediumOutlivesTheProcess) {
  Start();
  HostMemory sent(kDiskBlock), seen(kDiskBlock);
  sent.Fill(4);
  ASSERT_TRUE(Write(&sent, kMedia.At(3 * kDiskBlock)).ok());
  device_.reset();
  EXPECT_EQ(account_.live_bytes(), 0u);
  Start();
  ASSERT_TRUE(Read(kMedia.At(3 * kDiskBlock), &seen).ok());
  EXPECT_TRUE(seen.span() == sent.span());
}

TEST_F(DeviceProcessTest, FailedStartsGiveTheReason) {
  Start();
  const auto second = DeviceProcess::Start(options_, &account_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition) << second.status();
  device_.reset();
  options_.device.media_bytes += kMiB;
  const absl::Status other_size = TryStart();
  EXPECT_EQ(other_size.code(), absl::StatusCode::kFailedPrecondition) << other_size;
  EXPECT_THAT(other_size.message(), HasSubstr("expected 9437184"));
  options_.program = "/nowhere/eps-csd";
  EXPECT_EQ(TryStart().code(), absl::StatusCode::kNotFound);
  options_.program = "/bin/false";
  const absl::Status other_program = TryStart();
  EXPECT_EQ(other_program.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(other_program.message(), HasSubstr("ended with exit code 1 during its start"));
}

TEST_F(DeviceProcessTest, ErrorsOfTheDeviceLeaveItUsable) {
  Start();
  HostMemory memory(kManySlices);
  const absl::Status past = Write(&memory, kMedia.At(kMediaBytes - kMiB));
  EXPECT_EQ(past.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(past.message(), HasSubstr("device csd-0: HostWrite of"));
  EXPECT_EQ(Read(kMedia.At(kMediaBytes), &memory).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(Copy(kMedia, kMedia, kDiskBlock).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(device_->Allocate(kDramBytes + 1).status().code(),
            absl::StatusCode::kResourceExhausted);
  for (int lane = 0; lane < 2 * csd::kLaneCount; ++lane) {
    EXPECT_TRUE(Read(kMedia, &memory).ok());
  }
}

TEST_F(DeviceProcessTest, KilledDeviceFailsEveryOperation) {
  std::atomic<int> lost{0};
  options_.lost = [&](const absl::Status& status) {
    EXPECT_THAT(status.message(), HasSubstr("was ended by signal 9"));
    ++lost;
  };
  Start();
  HostMemory memory(kManySlices);
  ASSERT_TRUE(Write(&memory, kMedia).ok());
  EXPECT_EQ(device_->link_bytes().of(Link::kMedia, Direction::kWritten), kManySlices);
  ASSERT_TRUE(StopProcess(device_->pid()));
  std::promise<absl::Status> ends[2 * csd::kLaneCount];  // the second half waits for a lane
  for (auto& end : ends) {
    device_->HostRead(kMedia, memory.span(), Purpose::kState,
                      [&](absl::Status status) { end.set_value(std::move(status)); });
  }
  ASSERT_EQ(kill(device_->pid(), SIGKILL), 0);
  for (auto& end : ends) {
    const absl::Status status = end.get_future().get();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(status.message(), HasSubstr(absl::StrCat("device csd-0 (", folder_,
                                                         "/medium) was ended by signal 9")));
    EXPECT_THAT(status.message(), HasSubstr("HostRead of 2109440 bytes from 0 of the medium"));
  }
  EXPECT_EQ(Sync().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(lost, 1);
  EXPECT_EQ(device_->link_bytes().of(Link::kMedia, Direction::kWritten), kManySlices)
      << "the last report of the device";
}

// A terminal sends Ctrl-C to the device, too, and its host may still need it.
TEST_F(DeviceProcessTest, OnlyItsHostEndsTheDevice) {
  Start();
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    ASSERT_EQ(kill(device_->pid(), signal), 0);
    EXPECT_TRUE(Sync().ok()) << strsignal(signal);
  }
}

TEST_F(DeviceProcessTest, DeviceIsKilledAtTheDeadline) {
  options_.command_timeout = std::chrono::milliseconds(100);
  Start();
  ASSERT_TRUE(StopProcess(device_->pid()));
  const absl::Status status = Sync();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("was killed, because Sync took longer than 100 ms"));
  EXPECT_NE(kill(device_->pid(), 0), 0) << "the process is still there";
}

// A device trusts nothing that comes from its host.
class RawLanesTest : public DeviceProcessTest {
 protected:
  RawLanesTest() {
    child_ = *csd::Child::Start(kProgram, {"csd-0", options_.device.path, absl::StrCat(kMediaBytes),
                                           absl::StrCat(kDramBytes)});
    csd::Command start;
    start.kind = csd::Command::Kind::kStart;
    start.number = 1;
    absl::Status answer;
    EXPECT_TRUE(csd::Exchange(child_->socket(0), start, {}, Deadline(), &answer).ok());
    EXPECT_TRUE(answer.ok()) << answer;
  }
  static std::chrono::steady_clock::time_point Deadline() {
    return std::chrono::steady_clock::now() + std::chrono::seconds(20);
  }
  std::string End() { return child_->End(std::chrono::seconds(20)); }

  std::unique_ptr<csd::Child> child_;
};

TEST_F(RawLanesTest, DeviceEndsWithItsSockets) { EXPECT_EQ(End(), "ended with exit code 0"); }

TEST_F(RawLanesTest, GarbageEndsTheDevice) {
  const std::string garbage(csd::kCommandBytes, 'x');
  ASSERT_EQ(send(child_->socket(2), garbage.data(), garbage.size(), 0),
            static_cast<ssize_t>(garbage.size()));
  csd::Command sync;
  sync.number = 1;
  absl::Status answer;
  // The other lanes end too.
  while (csd::Exchange(child_->socket(1), sync, {}, Deadline(), &answer).ok()) {
  }
  EXPECT_EQ(End(), "ended with exit code 65");
}

TEST_F(RawLanesTest, EveryLengthIsChecked) {
  csd::Command read;
  read.kind = csd::Command::Kind::kHostRead;
  read.number = 1;
  HostMemory memory(kDiskBlock);
  for (const uint64_t bytes :
       {uint64_t{0}, uint64_t{1}, kMediaBytes + kDiskBlock, ~uint64_t{4095}}) {
    read.bytes = bytes;
    absl::Status answer;
    const absl::Status status =
        csd::Exchange(child_->socket(0), read, {{}, memory.span(), nullptr}, Deadline(), &answer);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_FALSE(answer.ok()) << bytes;
  }
  EXPECT_EQ(End(), "ended with exit code 0");
}

}  // namespace
}  // namespace eps
