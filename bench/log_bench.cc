// Compares the contribution log with the disk itself. Each round runs, one after the other:
//   raw          pwrite with O_DIRECT writes as many bytes, a batch at a time, each synced: what
//   the
//                log must do without time for its own work;
//   log          entries of half a MiB are appended at once, and the last one is awaited.
// The figure is the median of the rounds' ratios.
//
// Usage: log_bench [MiB of entries] [rounds] [folder]. Exits with 1 if the goal is missed.

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/mutex.h"
#include "bench/peers/disk_cost.h"
#include "bench/peers/timing.h"
#include "storage/disk/state_arena.h"
#include "storage/log/contribution_log.h"

namespace eps {
namespace {

constexpr uint64_t kEntryBytes = (uint64_t{512} << 10) - 512;  // eight fill a batch
constexpr uint64_t kBatchBytes = uint64_t{4} << 20;

// A log on a real disk, and a file of the same size.
class Log {
 public:
  Log(const std::string& folder, uint64_t entries) : entries_(entries), pool_(2) {
    room_.steps = 1;
    room_.AddEntries(entries, kEntryBytes);
    EPS_CHECK(disk_->CreateFolder(folder).ok());
    auto log = ContributionLog::Open(
        disk_.get(), disk_.get(), folder, ExtentIdentity(), room_, /*live=*/false, &pool_,
        &account_, [this](ContributionLog::Done then) {
          return [this, then](absl::Status status) { pool_.Post([=] { then(status); }); };
        });
    EPS_CHECK_MSG(log.ok(), log.status());
    log_ = std::move(*log);
    log_->Start({Term(1), 1});
    log_->Resume();
    const std::string raw = folder + "/raw";
    EPS_CHECK(disk_->CreateFile(raw, batches() * kBatchBytes).ok());
    raw_ = open(raw.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC);
    EPS_CHECK(raw_ >= 0);
    memory_ = *StateArena::New(kBatchBytes);
    for (int i = 0; i < 16; ++i) {
      payloads_.push_back(Bytes::CopyOf(std::string(kEntryBytes, static_cast<char>('a' + i))));
    }
  }
  ~Log() { close(raw_); }

  uint64_t bytes() const { return batches() * kBatchBytes; }

  void WriteRaw() {
    for (uint64_t i = 0; i < batches(); ++i) {
      EPS_CHECK(pwrite(raw_, memory_->floats(), kBatchBytes, static_cast<off_t>(i * kBatchBytes)) ==
                static_cast<ssize_t>(kBatchBytes));
      EPS_CHECK(fdatasync(raw_) == 0);
    }
  }

  void Append() {
    step_ = step_.Next();
    {
      MutexLock lock(&mu_);
      left_ = entries_;
    }
    for (uint64_t i = 0; i < entries_; ++i) {
      log_->Append({step_, "", payloads_[i % payloads_.size()], Bytes()},
                   [this](const absl::Status& status) {
                     EPS_CHECK_MSG(status.ok(), status);
                     MutexLock lock(&mu_);
                     if (--left_ == 0) done_.NotifyAll();
                   });
    }
    {
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
      MutexLock lock(&mu_);
      while (left_ > 0) {
        EPS_CHECK_MSG(done_.WaitUntil(&mu_, deadline), left_ << " entries were never synced");
      }
    }
    log_->Release(log_->PositionBehind(step_));
  }

 private:
  uint64_t batches() const { return entries_ / 8; }

  const uint64_t entries_;
  LogRoom room_;
  MemoryAccount account_;
  ThreadPool pool_;
  const std::unique_ptr<Disk> disk_ = NewRealDisk(DiskOptions());
  std::unique_ptr<ContributionLog> log_;
  std::unique_ptr<StateArena> memory_;
  int raw_ = -1;
  std::vector<Bytes> payloads_;
  Step step_;
  Mutex mu_;
  CondVar done_;
  uint64_t left_ EPS_GUARDED_BY(mu_) = 0;
};

bool Run(const std::string& folder, uint64_t mib, int rounds) {
  Log log(folder, mib * 2);
  std::printf("%s; %.0f MB in batches of 4 MiB\n", MachineName().c_str(),
              static_cast<double>(log.bytes()) / 1e6);
  std::vector<DiskCost> raw, appended;
  for (int round = -1; round < rounds; ++round) {
    const DiskCost r = CostOf([&] { log.WriteRaw(); });
    const DiskCost a = CostOf([&] { log.Append(); });
    if (round < 0) continue;  // the first round warms up
    raw.push_back(r);
    appended.push_back(a);
  }
  PrintSpeed("raw", log.bytes(), raw);
  PrintSpeed("log", log.bytes(), appended);
  return ReportRatio("log / raw", Ratios(raw, appended), 0.90);
}

}  // namespace
}  // namespace eps

int main(int argc, char** argv) {
  const uint64_t mib = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 128;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 9;
  std::string folder = absl::StrCat(argc > 3 ? argv[3] : "/tmp", "/log_bench-XXXXXX");
  if (mkdtemp(folder.data()) == nullptr) {
    std::perror(folder.c_str());
    return 2;
  }
  const bool reached = eps::Run(folder, mib, rounds);
  std::filesystem::remove_all(folder);
  return reached ? 0 : 1;
}
