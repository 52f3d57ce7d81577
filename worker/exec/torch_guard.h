#ifndef EPS_WORKER_EXEC_TORCH_GUARD_H_
#define EPS_WORKER_EXEC_TORCH_GUARD_H_

#include <functional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace eps {

// The keys that a user can change if memory runs out in a call.
extern const char kDeviceMemoryKeys[];
extern const char kPinnedMemoryKeys[];

// Runs `body` and converts LibTorch's exceptions; nothing else catches them. Out of memory becomes
// ResourceExhausted and names `keys`, everything else Internal. The message begins with `what`
// ("stage h.3, backward"), followed by LibTorch's own message without its stack.
absl::Status CatchTorch(absl::string_view what, const std::function<void()>& body,
                        absl::string_view keys = kDeviceMemoryKeys);

}  // namespace eps

#endif  // EPS_WORKER_EXEC_TORCH_GUARD_H_
