// `eps certs`: a certificate authority for clusters that have no other one.

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "base/config/app_arguments.h"
#include "base/status_macros.h"
#include "wire/security/certificates.h"
#include "wire/security/peer_role.h"

namespace eps {
namespace {

constexpr uint32_t kAuthorityDays = 3650;
constexpr uint32_t kCertificateDays = 365;
constexpr uint32_t kMostDays = 36500;

}  // namespace

absl::Status RunCerts(const std::vector<std::string>& arguments) {
  CLI::App app{
      "Makes the certificates with which servers, workers and drivers recognize each other.",
      "eps certs"};
  app.require_subcommand(1);
  std::string authority;
  std::string role;
  std::string out;
  CertificateRequest request;
  request.trust_domain = "eps";
  request.days = kCertificateDays;
  uint32_t authority_days = kAuthorityDays;
  CLI::App* const init = app.add_subcommand("init", "create a certificate authority");
  init->add_option("CA", authority, "its folder; keep ca.key secret")->required();
  init->add_option("--days", authority_days, "days until it is over")
      ->check(CLI::Range(uint32_t{1}, kMostDays));
  CLI::App* const issue = app.add_subcommand("issue", "issue a certificate for one role");
  issue->add_option("CA", authority, "folder of the authority")->required();
  issue->add_option("--role", role, "server, worker, driver, scheduler, admin or viewer")
      ->required();
  issue
      ->add_option("--hosts", request.hosts,
                   "names and IP addresses at which clients reach a server, such as a,b,10.0.0.1")
      ->delimiter(',');
  issue->add_option("--trust-domain", request.trust_domain, "security.trust_domain of the cluster");
  issue->add_option("--days", request.days, "days until it is over")
      ->check(CLI::Range(uint32_t{1}, kMostDays));
  issue->add_option("--out", out, "folder for tls.key, tls.crt and ca.crt: security.dir")
      ->required();
  EPS_ASSIGN_OR_RETURN(const std::string help, ParseAppArguments(&app, arguments));
  if (!help.empty()) {
    std::fputs(help.c_str(), stdout);
    return absl::OkStatus();
  }
  if (init->parsed()) {
    EPS_RETURN_IF_ERROR(CreateAuthority(authority, authority_days));
    std::printf("%s: a certificate authority for %u days\n", authority.c_str(), authority_days);
    return absl::OkStatus();
  }
  EPS_ASSIGN_OR_RETURN(request.role, RoleOfName(role));
  if (request.role == v1::ROLE_SERVER && request.hosts.empty()) {
    return absl::InvalidArgumentError(
        "--hosts: a server needs the names or addresses at which clients reach it");
  }
  EPS_RETURN_IF_ERROR(IssueCertificate(authority, request, out));
  std::printf("%s: a certificate of role %s for %u days\n", out.c_str(), role.c_str(),
              request.days);
  return absl::OkStatus();
}

}  // namespace eps
