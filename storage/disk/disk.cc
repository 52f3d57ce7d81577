#include "storage/disk/disk.h"

#include <chrono>
#include <memory>
#include <utility>

#include "base/mutex.h"

namespace eps {
namespace {

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

AsyncFile::Done AfterBoth(AsyncFile::Done done) {
  struct Both {
    Mutex mu;
    int left EPS_GUARDED_BY(mu) = 2;
    absl::Status status EPS_GUARDED_BY(mu);
    AsyncFile::Done done;
  };
  auto both = std::make_shared<Both>();
  both->done = std::move(done);
  return [both](absl::Status status) {
    absl::Status outcome;
    {
      MutexLock lock(&both->mu);
      if (!status.ok()) both->status = std::move(status);
      if (--both->left > 0) return;
      outcome = both->status;
    }
    both->done(std::move(outcome));
  };
}

}  // namespace eps
