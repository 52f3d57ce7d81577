#ifndef EPS_CLI_LAUNCH_SECURITY_LOCAL_AUTHORITY_H_
#define EPS_CLI_LAUNCH_SECURITY_LOCAL_AUTHORITY_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "base/config/config.h"
#include "base/files/files.h"
#include "eps/v1/access.pb.h"

namespace eps {

// A certificate authority for the processes of one run on this machine, so that they use TLS over
// loopback without any file of the user. Its folder goes with this object. Immutable.
class LocalAuthority {
 public:
  // Makes certificates of the roles server and driver in a folder that only this user can read.
  static absl::StatusOr<std::unique_ptr<LocalAuthority>> Create();

  // Returns the settings of a process of that role. REQUIRES: the role is one of Create.
  SecurityConfig Of(v1::Role role) const;

 private:
  explicit LocalAuthority(std::string folder) : folder_{std::move(folder)} {}

  const ScratchFolder folder_;
};

// Gives this process its certificate, as UseSecurity does. If it starts servers of its own
// (`spawns`) and security.tls is always, makes certificates for all processes of the run and
// returns them; else returns null.
absl::StatusOr<std::unique_ptr<LocalAuthority>> UseSecurityOfRun(const SecurityConfig& security,
                                                                 bool spawns);

}  // namespace eps

#endif  // EPS_CLI_LAUNCH_SECURITY_LOCAL_AUTHORITY_H_
