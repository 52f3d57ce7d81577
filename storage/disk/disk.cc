#include "storage/disk/disk.h"

#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "base/mutex.h"

namespace eps {
namespace {

constexpr std::chrono::milliseconds kLockPause{100};

// Waits for the completion of one operation.
class Waiter {
 public:
  AsyncFile::Done Sink() {
    return [this](absl::Status status) {
      MutexLock lock(&mu_);
      status_ = std::move(status);
      done_ = true;
      arrived_.NotifyAll();
    };
  }

  absl::Status Wait() {
    MutexLock lock(&mu_);
    while (!done_) arrived_.WaitFor(&mu_, std::chrono::seconds(10));
    return status_;
  }

 private:
  Mutex mu_;
  CondVar arrived_;
  bool done_ EPS_GUARDED_BY(mu_) = false;
  absl::Status status_ EPS_GUARDED_BY(mu_);
};

}  // namespace

absl::Status ReadBlocking(AsyncFile* file, uint64_t offset, absl::Span<uint8_t> into) {
  Waiter waiter;
  file->Read(offset, into, waiter.Sink());
  return waiter.Wait();
}

absl::Status WriteBlocking(AsyncFile* file, uint64_t offset, absl::Span<const uint8_t> from) {
  Waiter waiter;
  file->Write(offset, from, waiter.Sink());
  return waiter.Wait();
}

absl::Status SyncBlocking(AsyncFile* file) {
  Waiter waiter;
  file->Sync(waiter.Sink());
  return waiter.Wait();
}

absl::StatusOr<std::unique_ptr<Disk::Lock>> TakeLockWithin(Disk* disk, const std::string& path,
                                                           std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  for (;;) {
    absl::StatusOr<std::unique_ptr<Disk::Lock>> lock = disk->TakeLock(path);
    const bool held = absl::IsFailedPrecondition(lock.status());
    if (!held || std::chrono::steady_clock::now() > deadline) return lock;
    std::this_thread::sleep_for(kLockPause);
  }
}

AsyncFile::Done AfterAll(size_t operations, AsyncFile::Done done) {
  struct All {
    Mutex mu;
    size_t left EPS_GUARDED_BY(mu) = 0;
    absl::Status status EPS_GUARDED_BY(mu);
    AsyncFile::Done done;
  };
  auto all = std::make_shared<All>();
  {
    MutexLock lock(&all->mu);
    all->left = operations;
  }
  all->done = std::move(done);
  return [all](absl::Status status) {
    absl::Status outcome;
    {
      MutexLock lock(&all->mu);
      if (!status.ok()) all->status = std::move(status);
      if (--all->left > 0) return;
      outcome = all->status;
    }
    all->done(std::move(outcome));
  };
}

}  // namespace eps
