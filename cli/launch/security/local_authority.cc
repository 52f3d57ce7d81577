#include "cli/launch/security/local_authority.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "cli/launch/security/security_flags.h"
#include "wire/security/certificates.h"
#include "wire/security/peer_role.h"

namespace eps {
namespace {

constexpr uint32_t kDays = 3650;  // no run lasts longer

}  // namespace

absl::StatusOr<std::unique_ptr<LocalAuthority>> LocalAuthority::Create() {
  EPS_ASSIGN_OR_RETURN(std::string folder, MakeTemporaryFolder("certificates"));
  std::unique_ptr<LocalAuthority> authority(new LocalAuthority(std::move(folder)));
  const std::string& path = authority->folder_.path;
  EPS_RETURN_IF_ERROR(CreateAuthority(path + "/ca", kDays));
  CertificateRequest request;
  request.hosts = {"127.0.0.1", "::1", "localhost"};
  request.days = kDays;
  for (const v1::Role role : {v1::ROLE_SERVER, v1::ROLE_DRIVER}) {
    const SecurityConfig security = authority->Of(role);
    request.role = role;
    request.trust_domain = security.trust_domain;
    EPS_RETURN_IF_ERROR(IssueCertificate(path + "/ca", request, security.dir));
  }
  return authority;
}

SecurityConfig LocalAuthority::Of(v1::Role role) const {
  SecurityConfig security;
  security.dir = absl::StrCat(folder_.path, "/", RoleName(role));
  security.tls = "always";
  return security;
}

absl::StatusOr<std::unique_ptr<LocalAuthority>> UseSecurityOfRun(const SecurityConfig& security,
                                                                 bool spawns) {
  std::unique_ptr<LocalAuthority> authority;
  if (!spawns || security.tls != "always") {
    EPS_RETURN_IF_ERROR(UseSecurity(security));
    return authority;
  }
  EPS_ASSIGN_OR_RETURN(authority, LocalAuthority::Create());
  EPS_RETURN_IF_ERROR(UseSecurity(authority->Of(v1::ROLE_DRIVER)));
  return authority;
}

}  // namespace eps
