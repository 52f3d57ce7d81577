#include "worker/client/shared/share_memory.h"

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace eps::internal {

absl::Status ReportSharing(Transport transport, absl::string_view payload,
                           const std::string& address, const absl::Status& status) {
  if (status.ok()) {
    EPS_LOG_INFO("server " << address << ": " << payload << " travel in shared memory");
    return absl::OkStatus();
  }
  if (transport == Transport::kAuto) {
    EPS_LOG_INFO("server " << address << ": " << payload
                           << " travel in messages, because memory is not shared: "
                           << status.message());
    return absl::OkStatus();
  }
  const std::string text = absl::StrCat(
      "server ", address, " shares no memory for ", payload, ": ", std::string(status.message()),
      "; run the worker on the server's machine as its user, or set worker.transport "
      "to auto or grpc (it is shm)");
  return absl::IsUnavailable(status) ? absl::UnavailableError(text)
                                     : absl::FailedPreconditionError(text);
}

}  // namespace eps::internal
