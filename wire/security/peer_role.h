#ifndef EPS_WIRE_SECURITY_PEER_ROLE_H_
#define EPS_WIRE_SECURITY_PEER_ROLE_H_

// The statements of a certificate about its process: its role, and perhaps its only job, in the SAN
// URI spiffe://TRUST_DOMAIN/eps/ROLE[/JOB] (SECURITY.md).

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "eps/v1/access.pb.h"

namespace eps {

// Who a process is. Plain value.
struct PeerName {
  v1::Role role = v1::ROLE_UNSPECIFIED;
  std::string job;  // the name of its only job; empty: all jobs

  friend bool operator==(const PeerName& a, const PeerName& b) {
    return a.role == b.role && a.job == b.job;
  }
};

// Returns who `uri` names. PermissionDenied, with what is wrong, for any other text, for another
// trust domain, for the roles "any" and "unspecified", which no certificate has, and for a server
// with a job: servers serve all.
absl::StatusOr<PeerName> PeerOfUri(absl::string_view uri, absl::string_view trust_domain);

// Returns the URI of a peer. REQUIRES: it has a role that a certificate may have.
std::string UriOfPeer(const PeerName& peer, absl::string_view trust_domain);

// InvalidArgument unless a certificate may name this job: letters, digits, "-", "_" and "."; at
// most 63, so that a name of the board of jobs fits.
absl::Status CheckJobOfPeer(absl::string_view job);

// Returns the name of a role as people write it: "worker".
std::string RoleName(v1::Role role);
// InvalidArgument, with all names, for a text that names no role of a certificate.
absl::StatusOr<v1::Role> RoleOfName(absl::string_view name);

}  // namespace eps

#endif  // EPS_WIRE_SECURITY_PEER_ROLE_H_
