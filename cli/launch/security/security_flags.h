#ifndef EPS_CLI_LAUNCH_SECURITY_SECURITY_FLAGS_H_
#define EPS_CLI_LAUNCH_SECURITY_SECURITY_FLAGS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/config/config.h"

namespace CLI {
class App;
}  // namespace CLI

namespace eps {

// Adds --security.dir, --security.tls, --security.trust_domain and --security.token to a command
// that takes no configuration. Their defaults are those of the environment (EPS_SECURITY__DIR,
// ...).
void AddSecurityFlags(CLI::App* app, SecurityConfig* security);

// Returns the settings of a client as arguments of a command that takes a configuration.
std::vector<std::string> SecurityArguments(const SecurityConfig& security);

// Gives this process the certificate that the settings name, if they name one. Call it at most
// once, before the first connection. Errors are those of wire/security/identity.h.
absl::Status UseSecurity(const SecurityConfig& security);

}  // namespace eps

#endif  // EPS_CLI_LAUNCH_SECURITY_SECURITY_FLAGS_H_
