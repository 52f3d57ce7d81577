#ifndef EPS_WIRE_SECURITY_CERTIFICATES_H_
#define EPS_WIRE_SECURITY_CERTIFICATES_H_

// A certificate authority in a folder, for clusters that have no other one: `eps certs`. Keys are
// of the curve P-256, signatures ECDSA with SHA-256.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "eps/v1/access.pb.h"

namespace eps {

// The name of the authority's key beside kAuthorityFile. Whoever has it can be anybody.
inline constexpr char kAuthorityKeyFile[] = "ca.key";

// Creates an authority in `folder`, which is created if it is missing. AlreadyExists if there is
// one.
absl::Status CreateAuthority(const std::string& folder, uint32_t days);

// The statements of a certificate.
struct CertificateRequest {
  v1::Role role = v1::ROLE_UNSPECIFIED;
  std::string job;  // the only job that it serves; empty: all jobs
  std::string trust_domain;
  std::vector<std::string> hosts;  // names and IP addresses; a server needs those it is reached at
  uint32_t days = 0;               // until it is over
};

// Writes a key, a certificate that the authority in `authority` signs, and the authority's
// certificate to `out`: the folder that security.dir names. Replaces the files of an earlier
// certificate. NotFound if there is no authority; InvalidArgument for a host that is neither a
// name nor an IP address, and for a job that CheckJobOfPeer refuses.
absl::Status IssueCertificate(const std::string& authority, const CertificateRequest& request,
                              const std::string& out);

}  // namespace eps

#endif  // EPS_WIRE_SECURITY_CERTIFICATES_H_
