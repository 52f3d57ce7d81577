#include "storage/csd/process/device_process.h"

#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <map>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/csd/process/child.h"
#include "storage/csd/process/exchange.h"
#include "storage/csd/process/frames.h"
#include "storage/disk/disk.h"
#include "storage/disk/state_arena.h"

namespace eps {
namespace {

using ::testing::HasSubstr;

constexpr char kProgram[] = "storage/csd/process/eps-csd";
constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kMediaBytes = 8 * kMiB;
constexpr uint64_t kDramBytes = 4 * kMiB;
// More than two slices, and no multiple of one.
constexpr uint64_t kManySlices = 2 * csd::kSliceBytes + 3 * kDiskBlock;
constexpr Place kMedia = {Place::Where::kMedia, 0};

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

// The counters that the kernel keeps for a process.
struct KernelLedger {
  explicit KernelLedger(pid_t pid) {
    std::ifstream file(absl::StrCat("/proc/", pid, "/io"));
    std::string name;
    uint64_t value = 0;
    while (file >> name >> value) values[name] = value;
  }
  uint64_t Since(const KernelLedger& earlier, const std::string& name) const {
    return values.at(name) - earlier.values.at(name);
  }
  std::map<std::string, uint64_t> values;
};

std::string ReadFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

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

// The host, the device and the kernel count the same bytes, each on its own.
TEST_F(DeviceProcessTest, ThreeLedgersAgree) {
  Start();
  const Place dram = *device_->Allocate(kManySlices);
  HostMemory memory(kManySlices);
  memory.Fill(5);
  ASSERT_TRUE(Sync().ok());
  const LinkBytes host_before = device_->link_bytes();
  const LinkBytes device_before = *device_->DeviceLedger();
  const KernelLedger kernel_before(device_->pid());
  ASSERT_TRUE(Write(&memory, kMedia).ok());
  ASSERT_TRUE(Write(&memory, dram, Purpose::kGradient).ok());
  ASSERT_TRUE(Read(kMedia, &memory, Purpose::kWeights).ok());
  ASSERT_TRUE(Copy(kMedia, dram, kManySlices).ok());
  ASSERT_TRUE(Copy(dram, kMedia.At(4 * kMiB), kManySlices).ok());
  ASSERT_TRUE(Sync().ok());
  const KernelLedger kernel_after(device_->pid());
  const LinkBytes device = device_->DeviceLedger()->Since(device_before);
  const LinkBytes host = device_->link_bytes().Since(host_before);

  LinkBytes expected;
  const auto add = [&](Link link, Direction direction, Purpose purpose) {
    expected.Add(link, direction, purpose, kManySlices);
  };
  add(Link::kHost, Direction::kWritten, Purpose::kState);
  add(Link::kHost, Direction::kWritten, Purpose::kGradient);
  add(Link::kHost, Direction::kRead, Purpose::kWeights);
  for (const Direction direction : {Direction::kRead, Direction::kWritten}) {
    add(Link::kInternal, direction, Purpose::kGradient);
    add(Link::kMedia, direction, Purpose::kGradient);
  }
  add(Link::kMedia, Direction::kWritten, Purpose::kState);
  add(Link::kMedia, Direction::kRead, Purpose::kWeights);
  EXPECT_TRUE(device == expected);
  EXPECT_TRUE(host == expected);

  constexpr uint64_t kCommands = 6;
  constexpr uint64_t kReplies = 5 + 3;  // the read has three slices
  EXPECT_EQ(kernel_after.Since(kernel_before, "rchar:"),
            device.of(Link::kHost, Direction::kWritten) +
                device.of(Link::kMedia, Direction::kRead) + kCommands * csd::kCommandBytes);
  EXPECT_EQ(kernel_after.Since(kernel_before, "wchar:"),
            device.of(Link::kHost, Direction::kRead) +
                device.of(Link::kMedia, Direction::kWritten) + kReplies * csd::kReplyBytes);
  // Blocks of the drive; writes include metadata of the file system.
  EXPECT_EQ(kernel_after.Since(kernel_before, "read_bytes:"),
            device.of(Link::kMedia, Direction::kRead))
      << "the medium must lie on a drive with direct I/O, not in memory";
  const uint64_t written = kernel_after.Since(kernel_before, "write_bytes:");
  EXPECT_GE(written, device.of(Link::kMedia, Direction::kWritten));
  EXPECT_LE(written, device.of(Link::kMedia, Direction::kWritten) * 1001 / 1000 + kDiskBlock);
}

TEST_F(DeviceProcessTest, SharesOnlySocketsAndFiles) {
  Start();
  int sockets = 0;
  const std::string proc = absl::StrCat("/proc/", device_->pid());
  for (const auto& entry : std::filesystem::directory_iterator(proc + "/fd")) {
    const int fd = std::stoi(entry.path().filename());
    const std::string target = std::filesystem::read_symlink(entry.path());
    if (target.rfind("socket:", 0) == 0) ++sockets;
    if (fd < csd::kFirstLane || target.rfind("socket:", 0) == 0) continue;
    EXPECT_THAT(target, HasSubstr("/medium")) << "descriptor " << fd;
  }
  EXPECT_GE(sockets, csd::kLaneCount);
  for (const auto line : absl::StrSplit(ReadFile(proc + "/maps"), '\n', absl::SkipEmpty())) {
    const std::vector<std::string> fields = absl::StrSplit(line, ' ');
    EXPECT_EQ(fields.at(1).at(3), 'p') << line;
  }
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_THAT(ReadFile(proc + "/status"), HasSubstr("Seccomp:\t2"));
  EXPECT_THAT(ReadFile(proc + "/limits"), ::testing::Not(HasSubstr("Max address space         "
                                                                   "unlimited")));
#endif
}

TEST_F(DeviceProcessTest, KilledDeviceFailsEveryOperation) {
  Start();
  HostMemory memory(kManySlices);
  ASSERT_EQ(kill(device_->pid(), SIGSTOP), 0);
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
  EXPECT_EQ(device_->link_bytes().of(Link::kMedia, Direction::kRead), 0u);
}

TEST_F(DeviceProcessTest, DeviceIsKilledAtTheDeadline) {
  options_.command_timeout = std::chrono::milliseconds(100);
  Start();
  ASSERT_EQ(kill(device_->pid(), SIGSTOP), 0);
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
