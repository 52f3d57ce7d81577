// `eps status`: queries every server of servers.addresses and shows all answers.

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "cli/driver/status_text.h"
#include "cli/launch/plan.h"
#include "cli/launch/run_config.h"
#include "cli/launch/security/security_flags.h"
#include "wire/control_client.h"

namespace eps {
namespace {

constexpr std::chrono::seconds kTimeout{5};

}  // namespace

// Queries all servers, then returns the first error. Unavailable names a server that does not
// answer.
absl::Status RunStatus(const RunConfig& run, bool json) {
  EPS_ASSIGN_OR_RETURN(const ServerChoice choice, ChooseServers(run.config.servers));
  if (choice.attach.empty()) {
    return absl::InvalidArgumentError(
        "eps status needs the addresses of servers: --servers=host:port,host:port (or "
        "EPS_SERVERS)");
  }
  EPS_RETURN_IF_ERROR(UseSecurity(run.config.security));
  absl::Status first;
  for (const std::string& address : choice.attach) {
    absl::StatusOr<std::unique_ptr<ControlClient>> client =
        ControlClient::Connect({address}, std::chrono::steady_clock::now() + kTimeout);
    absl::StatusOr<v1::StatusReply> status =
        client.ok() ? (*client)->GetStatus(0, kTimeout) : client.status();
    if (status.ok()) {
      const std::string text =
          json ? LineOf(StatusJson(address, *status)) + "\n" : StatusText(address, *status);
      std::fputs(text.c_str(), stdout);
      continue;
    }
    std::fprintf(stderr, "server %s: %s\n", address.c_str(),
                 std::string(status.status().message()).c_str());
    if (first.ok()) first = status.status();
  }
  return first;
}

}  // namespace eps
