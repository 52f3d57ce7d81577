#include "wire/security/peer_role.h"

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

std::string UriOfRole(v1::Role role, absl::string_view trust_domain) {
  return absl::StrCat(kScheme, trust_domain, kPath, RoleName(role));
}

absl::StatusOr<v1::Role> RoleOfUri(absl::string_view uri, absl::string_view trust_domain) {
  for (const v1::Role role : kRoles) {
    if (uri == UriOfRole(role, trust_domain)) return role;
  }
  if (uri.empty()) {
    return absl::PermissionDeniedError(
        "the certificate states no role: it needs exactly one SAN URI, such as " +
        UriOfRole(v1::ROLE_WORKER, trust_domain));
  }
  return absl::PermissionDeniedError(
      absl::StrCat("the certificate's SAN URI \"", uri, "\" is no role of trust domain ",
                   trust_domain, " (", UriOfRole(v1::ROLE_WORKER, trust_domain), ")"));
}

}  // namespace eps
