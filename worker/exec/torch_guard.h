#ifndef EPS_WORKER_EXEC_TORCH_GUARD_H_
#define EPS_WORKER_EXEC_TORCH_GUARD_H_

#include <functional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace eps {

// Runs `body`, the one place where LibTorch's exceptions are caught. Out of memory becomes
// ResourceExhausted, everything else Internal; the message begins with `what` ("stage h.3,
// backward") and is LibTorch's own without its stack.
absl::Status CatchTorch(absl::string_view what, const std::function<void()>& body);

}  // namespace eps

#endif  // EPS_WORKER_EXEC_TORCH_GUARD_H_
