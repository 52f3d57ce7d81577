#ifndef EPS_STORAGE_TESTING_BACKEND_HARNESS_H_
#define EPS_STORAGE_TESTING_BACKEND_HARNESS_H_

#include <chrono>
#include <map>
#include <utility>

#include "base/check.h"
#include "base/mutex.h"
#include "storage/state_backend.h"

namespace eps {

// For tests: collects what a backend completes and lets the test wait for one operation.
// Thread-safe; outlives the backend.
class Completions {
 public:
  BackendDoneFn Sink() {
    return [this](BackendDone done) {
      MutexLock lock(&mu_);
      EPS_CHECK_MSG(done_.emplace(done.op, std::move(done)).second, "completed twice");
      arrived_.NotifyAll();
    };
  }

  // Returns a new operation id.
  OpId Next() { return next_ = next_.Next(); }

  // Waits for the outcome of `op` and removes it; ends the test after a minute.
  BackendDone Take(OpId op) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    MutexLock lock(&mu_);
    for (;;) {
      const auto it = done_.find(op);
      if (it != done_.end()) return std::move(done_.extract(it).mapped());
      EPS_CHECK_MSG(arrived_.WaitUntil(&mu_, deadline), "operation " << op << " never completed");
    }
  }

 private:
  OpId next_;
  Mutex mu_;
  CondVar arrived_;
  std::map<OpId, BackendDone> done_ EPS_GUARDED_BY(mu_);
};

}  // namespace eps

#endif  // EPS_STORAGE_TESTING_BACKEND_HARNESS_H_
