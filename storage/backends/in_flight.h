#ifndef EPS_STORAGE_BACKENDS_IN_FLIGHT_H_
#define EPS_STORAGE_BACKENDS_IN_FLIGHT_H_

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/executor.h"
#include "base/mutex.h"
#include "storage/disk/disk.h"
#include "storage/state_backend.h"

namespace eps::durable {

using Outcome = absl::StatusOr<BackendValue>;

// The status of an operation that Quiesce or the destructor cancels.
absl::Status Cancelled(absl::string_view what);

// Counts the operations in flight of a durable backend, completes them, and waits for the last one.
// Holds the first failure, after which no operation begins. Thread-safe; its lock is a leaf, and it
// calls back without it.
class InFlight {
 public:
  // `executor` must outlive this object.
  InFlight(Executor* executor, BackendDoneFn done) : executor_(executor), done_(std::move(done)) {}

  // Call once, before anything begins. `on_failure` runs after each call of Fail.
  void set_on_failure(std::function<void(const absl::Status&)> on_failure) {
    on_failure_ = std::move(on_failure);
  }

  Executor* executor(Lane lane) const { return executor_->lane(lane); }

  // Call Begin and End around everything that Drain and Quiesce have to wait for. The backend may
  // be destroyed during the last End.
  void Begin() EPS_EXCLUDES(mu_);
  void End() EPS_EXCLUDES(mu_);
  // Reports the outcome of an operation.
  void Report(OpId op, Outcome outcome, double seconds = 0);
  // Reports, then ends.
  void Complete(OpId op, Outcome outcome, double seconds = 0) EPS_EXCLUDES(mu_);
  // Returns a completion for the disk that runs `then` in that lane of the executor. It counts as
  // in flight until the disk's thread no longer uses the executor, which may be destroyed with the
  // backend.
  template <class Then>
  AsyncFile::Done Posted(Lane lane, Then then) EPS_EXCLUDES(mu_) {
    Begin();
    return [this, lane, then](absl::Status status) {
      executor(lane)->Post([then, status = std::move(status)] { then(status); });
      End();
    };
  }

  // Returns the first failure, or OK.
  absl::Status failure() EPS_EXCLUDES(mu_);
  // Stops the backend: operations in flight end, and no other operation begins.
  void Fail(const absl::Status& status) EPS_EXCLUDES(mu_);

  // Returns true from Quiesce until it completes, and during Drain. Cancel operations that would
  // wait for a cut or a slot while it is true.
  bool quiescing() EPS_EXCLUDES(mu_);
  // Completes `op` once only Quiesce operations are in flight. `cancel` must cancel all waiting
  // operations.
  void Quiesce(OpId op, const std::function<void()>& cancel) EPS_EXCLUDES(mu_);
  // Blocks until nothing is in flight. For destructors.
  void Drain(const std::function<void()>& cancel) EPS_EXCLUDES(mu_);

 private:
  void CompleteQuiesces() EPS_REQUIRES(mu_);

  Executor* const executor_;
  const BackendDoneFn done_;
  std::function<void(const absl::Status&)> on_failure_;

  Mutex mu_;
  CondVar idle_;
  uint64_t pending_ EPS_GUARDED_BY(mu_) = 0;  // includes the operations in quiesces_
  absl::Status failure_ EPS_GUARDED_BY(mu_);
  bool quiescing_ EPS_GUARDED_BY(mu_) = false;
  std::vector<OpId> quiesces_ EPS_GUARDED_BY(mu_);
};

}  // namespace eps::durable

#endif  // EPS_STORAGE_BACKENDS_IN_FLIGHT_H_
