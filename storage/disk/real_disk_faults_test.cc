// Fails each system call of a disk that creates, opens, writes, syncs, reads, renames and removes
// real files once, with either queue. The disk must report an error with path and errno or retry;
// it must finish short transfers, leak no descriptor, never hang, and remove a file that it could
// not create completely.

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/disk/disk.h"
#include "storage/testing/failing_calls.h"
#include "storage/testing/watchdog.h"

namespace eps {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kFileBytes = (uint64_t{4} << 20) + 2 * kDiskBlock;  // written in two pieces
constexpr size_t kPieceBytes = 4 * kDiskBlock;
constexpr int kPieces = 5;  // more than the queue keeps in flight

alignas(kDiskBlock) uint8_t written[kPieces][kPieceBytes];
alignas(kDiskBlock) uint8_t found[kPieces][kPieceBytes];

size_t OpenDescriptors() {
  size_t count = 0;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) count += entry.exists() ? 1 : 0;
  return count;
}

// Transfers all pieces at once. Returns the first error, if any.
absl::Status MoveAll(AsyncFile* file, bool read) {
  std::vector<std::future<absl::Status>> moved;
  for (int i = 0; i < kPieces; ++i) {
    // Shared: set_value may still run when its value is known.
    const auto promise = std::make_shared<std::promise<absl::Status>>();
    moved.push_back(promise->get_future());
    const auto done = [promise](absl::Status status) { promise->set_value(std::move(status)); };
    if (read) {
      file->Read(i * kPieceBytes, absl::MakeSpan(found[i]), done);
    } else {
      file->Write(i * kPieceBytes, absl::MakeConstSpan(written[i]), done);
    }
  }
  absl::Status first;
  for (auto& future : moved) first.Update(future.get());
  return first;
}

// Uses the disk as a shard does. Returns OK if everything worked and the bytes read were those
// written.
absl::Status UseDisk(const std::string& folder, bool uring) {
  DiskOptions options;
  options.allow_io_uring = uring;
  options.queue_depth = 2;
  const std::unique_ptr<Disk> disk = NewRealDisk(options);
  const std::string job = folder + "/server/job";
  EPS_RETURN_IF_ERROR(disk->CreateFolder(job));
  EPS_RETURN_IF_ERROR(disk->CreateFolder(job));
  EPS_ASSIGN_OR_RETURN(const auto lock, disk->TakeLock(folder + "/server/LOCK"));
  const absl::Status created = disk->CreateFile(job + "/slot", kFileBytes);
  if (!created.ok()) return created;
  {
    EPS_ASSIGN_OR_RETURN(const std::unique_ptr<AsyncFile> file, disk->Open(job + "/slot"));
    EPS_RETURN_IF_ERROR(MoveAll(file.get(), /*read=*/false));
    EPS_RETURN_IF_ERROR(SyncBlocking(file.get()));
    std::memset(found, 0, sizeof(found));
    EPS_RETURN_IF_ERROR(MoveAll(file.get(), /*read=*/true));
    if (std::memcmp(found, written, sizeof(found)) != 0) return absl::UnknownError("other bytes");
    if (file->size() != kFileBytes) return absl::UnknownError("another size");
  }
  EPS_RETURN_IF_ERROR(disk->CreateFile(job + "/next", 2 * kDiskBlock));
  EPS_RETURN_IF_ERROR(disk->Rename(job + "/next", job + "/slot"));
  EPS_ASSIGN_OR_RETURN(const std::vector<std::string> names, disk->List(job));
  if (names != std::vector<std::string>{"slot"}) return absl::UnknownError("other names");
  EPS_RETURN_IF_ERROR(disk->Remove(job + "/slot"));
  return disk->Remove(job);
}

// The faults of one system call. The disk survives the first kind; it may fail after the second.
struct Kind {
  const char* call;
  std::vector<CallFault> made_up_for;
  std::vector<CallFault> told;
  bool of_uring_alone = false;
  bool of_threads_alone = false;
};

std::vector<Kind> Kinds() {
  using F = CallFault;
  const auto again = {F::kInterrupted, F::kAgain, F::kHalf};
  const auto less = {F::kIoError, F::kPiece, F::kNothing};
  return {{"open", {}, {F::kIoError, F::kNoSpace, F::kInvalid}},
          {"stat", {}, {F::kIoError}},
          {"statx", {}, {F::kIoError}},
          {"statvfs", {}, {F::kIoError}},
          {"mkdir", {}, {F::kIoError, F::kNoSpace}},
          {"fsync", {}, {F::kIoError, F::kNoSpace}},
          {"rename", {}, {F::kIoError, F::kNoSpace}},
          {"remove", {}, {F::kIoError}},
          {"flock", {}, {F::kIoError, F::kAgain}},
          {"opendir", {}, {F::kIoError}},
          {"readdir", {}, {F::kIoError}},
          {"pwrite",
           {F::kInterrupted, F::kHalf},
           {F::kIoError, F::kNoSpace, F::kPiece, F::kNothing},
           false,
           true},
          {"pread", again, less, false, true},
          {"fdatasync", {F::kInterrupted}, {F::kIoError, F::kNoSpace}, false, true},
          {"io_uring_queue_init", {F::kIoError, F::kNoSpace}, {}, true},
          {"io_uring_submit", {F::kInterrupted, F::kAgain}, {}, true},
          {"io_uring_wait_cqe", {F::kInterrupted}, {}, true},
          {"uring read", {F::kHalf}, {F::kBadFile, F::kPiece, F::kNothing}, true},
          {"uring write", {F::kHalf}, {F::kBadFile, F::kNoSpace, F::kPiece, F::kNothing}, true},
          {"uring sync", {}, {F::kBadFile}, true}};
}

class RealDiskFaults : public testing::TestWithParam<bool> {
 protected:
  RealDiskFaults() : folder_(FolderOfTest()) {
    for (int i = 0; i < kPieces; ++i) {
      for (size_t at = 0; at < kPieceBytes; ++at) {
        written[i][at] = static_cast<uint8_t>(at * 31 + at / 256 + i * 7 + 1);
      }
    }
    BeginFailing({});  // opens the descriptors that stay open
    EndFailing();
    const absl::Status good = Run({});
    EXPECT_TRUE(good.ok()) << good;
  }
  ~RealDiskFaults() override { fs::remove_all(folder_); }

  // Returns a folder on a disk, for direct I/O where the file system allows it.
  static std::string FolderOfTest() {
    std::string folder = testing::TempDir() + "/eps-faults-XXXXXX";
    EXPECT_NE(mkdtemp(folder.data()), nullptr);
    return folder;
  }

  absl::Status Run(std::vector<CallPlan> plans) {
    fs::remove_all(folder_ + "/server");
    const size_t open_before = OpenDescriptors();
    std::string name = GetParam() ? "io_uring" : "threads";
    for (const CallPlan& plan : plans) {
      absl::StrAppend(&name, ", ", plan.call, " number ", plan.n, ": ", NameOf(plan.fault),
                      plan.lasts ? " from then on" : "");
    }
    name_ = name;
    Watch(name);
    BeginFailing(std::move(plans));
    absl::Status status = UseDisk(folder_, GetParam());
    report_ = EndFailing();
    StopWatching();
    EXPECT_EQ(OpenDescriptors(), open_before) << name << ": descriptors are left open";
    if (!status.ok()) {
      EXPECT_TRUE(absl::StrContains(status.message(), folder_)) << name << ": " << status;
      EXPECT_NE(status.code(), absl::StatusCode::kUnknown) << name << ": " << status;
    }
    return status;
  }

  // Checks that the error names the failure of the call.
  void ExpectTold(const absl::Status& status, CallFault fault) {
    const int error = ErrnoOf(fault);
    const std::string said = error == 0
                                 ? "bytes were moved"
                                 : absl::StrCat(std::strerror(error), " (errno ", error, ")");
    EXPECT_TRUE(absl::StrContains(status.message(), said) ||
                (fault == CallFault::kNoSpace && absl::IsResourceExhausted(status)) ||
                (fault == CallFault::kAgain && absl::IsFailedPrecondition(status)))
        << name_ << ": " << status;
  }

  const std::string folder_;
  std::string name_;  // of the last run
  CallReport report_;
};

TEST_P(RealDiskFaults, FailedCallsAreReportedOrRetried) {
  const std::map<std::string, uint64_t> counts = report_.counts;
  std::set<std::string> expected;
  for (const Kind& kind : Kinds()) {
    if (GetParam() ? kind.of_threads_alone : kind.of_uring_alone) continue;
    expected.insert(kind.call);
    const auto it = counts.find(kind.call);
    ASSERT_NE(it, counts.end()) << kind.call << " is never called";
    uint64_t told = 0, made_up_for = 0, missed = 0;
    for (uint64_t n = 1; n <= it->second; ++n) {
      std::vector<CallFault> faults = kind.told;
      faults.insert(faults.end(), kind.made_up_for.begin(), kind.made_up_for.end());
      for (size_t i = 0; i < faults.size(); ++i) {
        const absl::Status status = Run({{kind.call, n, faults[i]}});
        if (!status.ok()) ExpectTold(status, faults[i]);
        EXPECT_TRUE(status.ok() || i < kind.told.size()) << name_ << ": " << status;
        // A file system that refuses direct I/O is used without it.
        const bool is_either = report_.failed == 0 || faults[i] == CallFault::kInvalid;
        EXPECT_TRUE(!status.ok() || i >= kind.told.size() || is_either) << name_;
        ++(report_.failed == 0 ? missed : status.ok() ? made_up_for : told);
      }
    }
    std::printf("  %-20s %3lu calls: %3lu reported, %3lu survived, %lu not reached\n", kind.call,
                it->second, told, made_up_for, missed);
    EXPECT_GT(told + made_up_for, 0u) << kind.call;
    EXPECT_TRUE(told > 0 || kind.told.empty()) << kind.call;
  }
  for (const auto& [call, count] : counts) {
    if (call == "uring nothing") continue;  // ends the queue's thread
    EXPECT_EQ(expected.count(call), 1u)
        << count << " calls of " << call << " have no planned fault";
  }
}

// Every transfer moves fewer bytes than requested.
TEST_P(RealDiskFaults, ShortTransfersAreFinishedOrReported) {
  for (const char* const call : {"pwrite", "pread", "uring read", "uring write"}) {
    if (report_.counts.count(call) == 0) continue;
    for (const CallFault fault : {CallFault::kHalf, CallFault::kPiece, CallFault::kNothing}) {
      const absl::Status status = Run({{call, 1, fault, /*lasts=*/true}});
      EXPECT_GT(report_.failed, 0u) << name_;
      EXPECT_FALSE(status.ok()) << name_;
      EXPECT_TRUE(absl::StrContains(status.message(), "bytes were moved"))
          << name_ << ": " << status;
    }
  }
}

TEST_P(RealDiskFaults, RemovesAFileThatCannotBeCreated) {
  const auto is_there = [this] { return fs::exists(folder_ + "/server/job/slot"); };
  const char* const write = GetParam() ? "uring write" : "pwrite";
  for (uint64_t n = 1; n <= 2; ++n) {
    for (const CallFault fault :
         {GetParam() ? CallFault::kBadFile : CallFault::kIoError, CallFault::kNoSpace}) {
      EXPECT_FALSE(Run({{write, n, fault, /*lasts=*/true}}).ok());
      EXPECT_FALSE(is_there()) << name_;
      const absl::Status both =
          Run({{write, n, fault, /*lasts=*/true}, {"unlink", 1, CallFault::kIoError}});
      EXPECT_GE(report_.failed, 2u) << name_ << ": the first reason is reported";
      ExpectTold(both, fault);
      EXPECT_TRUE(is_there()) << name_;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Queues, RealDiskFaults, testing::Values(true, false),
                         [](const testing::TestParamInfo<bool>& info) {
                           return info.param ? "Uring" : "Threads";
                         });

}  // namespace
}  // namespace eps
