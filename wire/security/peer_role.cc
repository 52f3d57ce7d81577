#include "wire/security/peer_role.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace eps {
namespace {

constexpr absl::string_view kScheme = "spiffe://";
constexpr absl::string_view kPath = "/eps/";

constexpr v1::Role kRoles[] = {v1::ROLE_WORKER,    v1::ROLE_SERVER, v1::ROLE_DRIVER,
                               v1::ROLE_SCHEDULER, v1::ROLE_ADMIN,  v1::ROLE_VIEWER};

}  // namespace

std::string RoleName(v1::Role role) {
  return absl::AsciiStrToLower(absl::StripPrefix(v1::Role_Name(role), "ROLE_"));
}

absl::StatusOr<v1::Role> RoleOfName(absl::string_view name) {
  std::string names;
  for (const v1::Role role : kRoles) {
    if (RoleName(role) == name) return role;
    absl::StrAppend(&names, names.empty() ? "" : ", ", RoleName(role));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", name, "\" is no role; the roles are ", names));
}

std::string UriOfPeer(const PeerName& peer, absl::string_view trust_domain) {
  return absl::StrCat(kScheme, trust_domain, kPath, RoleName(peer.role),
                      peer.job.empty() ? "" : "/", peer.job);
}

absl::Status CheckJobOfPeer(absl::string_view job) {
  constexpr size_t kMaxName = 63;
  const bool allowed = std::all_of(job.begin(), job.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
  });
  if (!job.empty() && job.size() <= kMaxName && allowed) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", job.substr(0, kMaxName), "\" cannot be the job of a certificate: expected 1 to ",
      kMaxName, " letters, digits, \"-\", \"_\" or \".\""));
}

absl::StatusOr<PeerName> PeerOfUri(absl::string_view uri, absl::string_view trust_domain) {
  for (const v1::Role role : kRoles) {
    const std::string of_role = UriOfPeer({role, ""}, trust_domain);
    absl::string_view job = uri;
    if (uri == of_role) return PeerName{role, ""};
    if (!absl::ConsumePrefix(&job, absl::StrCat(of_role, "/"))) continue;
    if (role == v1::ROLE_SERVER) {
      return absl::PermissionDeniedError(absl::StrCat("the certificate's SAN URI \"", uri,
                                                      "\" names a job; a server's certificate is ",
                                                      of_role));
    }
    if (CheckJobOfPeer(job).ok()) return PeerName{role, std::string(job)};
  }
  const std::string example = UriOfPeer({v1::ROLE_WORKER, ""}, trust_domain);
  if (uri.empty()) {
    return absl::PermissionDeniedError(
        "the certificate states no role: it needs exactly one SAN URI, such as " + example);
  }
  return absl::PermissionDeniedError(
      absl::StrCat("the certificate's SAN URI \"", uri, "\" is no role of trust domain ",
                   trust_domain, " (", example, ", or with a job: ", example, "/JOB)"));
}

}  // namespace eps
