#ifndef EPS_WIRE_SECURITY_PEER_ROLE_H_
#define EPS_WIRE_SECURITY_PEER_ROLE_H_

// The role of a process, as its certificate states it: the SAN URI
// spiffe://TRUST_DOMAIN/eps/ROLE (SECURITY.md).

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "eps/v1/access.pb.h"

namespace eps {

// Returns the role that `uri` names. PermissionDenied, with what is wrong, for any other text, for
// another trust domain, and for the roles "any" and "unspecified", which no certificate has.
absl::StatusOr<v1::Role> RoleOfUri(absl::string_view uri, absl::string_view trust_domain);

// Returns the URI of a role. REQUIRES: it is a role that a certificate may have.
std::string UriOfRole(v1::Role role, absl::string_view trust_domain);

// Returns the name of a role as people write it: "worker".
std::string RoleName(v1::Role role);
// InvalidArgument, with all names, for a text that names no role of a certificate.
absl::StatusOr<v1::Role> RoleOfName(absl::string_view name);

}  // namespace eps

#endif  // EPS_WIRE_SECURITY_PEER_ROLE_H_
