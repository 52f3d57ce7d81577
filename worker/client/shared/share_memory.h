#ifndef EPS_WORKER_CLIENT_SHARED_SHARE_MEMORY_H_
#define EPS_WORKER_CLIENT_SHARED_SHARE_MEMORY_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "eps/v1/control.pb.h"
#include "worker/client/parameter_client.h"

namespace eps {

namespace internal {
// Logs once that memory is shared, or why not. Returns the error for a client that insists on it:
// Unavailable if the server is gone, and else FailedPrecondition with the key.
absl::Status ReportSharing(Transport transport, absl::string_view payload,
                           const std::string& address, const absl::Status& status);
}  // namespace internal

// Connects to the memory that a server offers for a kind of payload ("weights"): Memory is
// ShmWeights or ShmGradients. Returns null if payloads are to travel in messages, and an error with
// Transport::kShm only. Blocks for at most a few seconds.
template <class Memory>
absl::StatusOr<std::shared_ptr<Memory>> ShareMemory(Transport transport, absl::string_view payload,
                                                    const std::string& address,
                                                    const v1::HelloReply& hello) {
  if (transport == Transport::kGrpc) return std::shared_ptr<Memory>();
  absl::StatusOr<std::shared_ptr<Memory>> memory =
      hello.has_shared_memory()
          ? Memory::Connect(hello.shared_memory())
          : absl::NotFoundError("it offers none (servers.shm_weights, servers.shm_gradients)");
  const absl::Status status = internal::ReportSharing(transport, payload, address, memory.status());
  if (!status.ok()) return status;
  return memory.ok() ? *std::move(memory) : nullptr;
}

}  // namespace eps

#endif  // EPS_WORKER_CLIENT_SHARED_SHARE_MEMORY_H_
