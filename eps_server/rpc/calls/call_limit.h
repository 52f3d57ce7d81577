#ifndef EPS_SERVER_RPC_CALLS_CALL_LIMIT_H_
#define EPS_SERVER_RPC_CALLS_CALL_LIMIT_H_

#include <atomic>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace eps {

// Limits the RPCs of one method that are open at a time. Thread-safe.
class CallLimit {
 public:
  // Held by an open RPC; releasing it lets another one begin.
  using Place = std::shared_ptr<void>;

  // `method` is the name for error texts, a literal. Places may outlive the limit.
  CallLimit(const char* method, int most) : method_(method), most_(most) {}
  CallLimit(const CallLimit&) = delete;
  CallLimit& operator=(const CallLimit&) = delete;

  // Sets `*place`, or returns Unavailable if all are taken.
  absl::Status Take(Place* place) {
    if (open_->fetch_add(1) < most_) {
      *place = Place(nullptr, [open = open_](void*) { open->fetch_sub(1); });
      return absl::OkStatus();
    }
    open_->fetch_sub(1);
    return absl::UnavailableError(
        absl::StrCat(method_, ": ", most_,
                     " of these calls are open on this server, the most that may be; end one, or "
                     "try again later"));
  }

 private:
  const char* const method_;
  const int most_;
  const std::shared_ptr<std::atomic<int>> open_ = std::make_shared<std::atomic<int>>(0);
};

}  // namespace eps

#endif  // EPS_SERVER_RPC_CALLS_CALL_LIMIT_H_
