// `eps certs`: a certificate authority for clusters that have no other one.

#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/config/app_arguments.h"
#include "base/status_macros.h"
#include "wire/security/certificates.h"
#include "wire/security/peer_role.h"

namespace eps {
namespace {

constexpr uint32_t kAuthorityDays = 3650;
constexpr uint32_t kCertificateDays = 365;
constexpr uint32_t kMostDays = 36500;

// The arguments of all subcommands.
struct CertsArguments {
  std::string folder;              // of the authority; of `cluster`, of everything
  std::string role;                // of `issue`
  std::vector<std::string> roles;  // of `cluster`
  std::string out;
  uint32_t authority_days = kAuthorityDays;
  CertificateRequest request;
};

absl::Status Init(const CertsArguments& given) {
  EPS_RETURN_IF_ERROR(CreateAuthority(given.folder, given.authority_days));
  std::printf("%s: a certificate authority for %u days\n", given.folder.c_str(),
              given.authority_days);
  return absl::OkStatus();
}

absl::Status Issue(CertsArguments given) {
  EPS_ASSIGN_OR_RETURN(given.request.role, RoleOfName(given.role));
  if (given.request.role == v1::ROLE_SERVER && given.request.hosts.empty()) {
    return absl::InvalidArgumentError(
        "--hosts: a server needs the names or addresses at which clients reach it");
  }
  EPS_RETURN_IF_ERROR(IssueCertificate(given.folder, given.request, given.out));
  std::printf("%s: a certificate of role %s for %u days\n", given.out.c_str(), given.role.c_str(),
              given.request.days);
  return absl::OkStatus();
}

// Issues a certificate of each of several roles. Keeps an authority that is there, so that
// processes that run accept the new certificates.
absl::Status IssueAll(CertsArguments given) {
  const std::string authority = given.folder + "/ca";
  const absl::Status created = CreateAuthority(authority, given.authority_days);
  if (!created.ok() && !absl::IsAlreadyExists(created)) return created;
  for (const std::string& role : given.roles) {
    EPS_ASSIGN_OR_RETURN(given.request.role, RoleOfName(role));
    EPS_RETURN_IF_ERROR(
        IssueCertificate(authority, given.request, absl::StrCat(given.folder, "/", role)));
  }
  std::printf("%s: certificates for %u days in %s\n", given.folder.c_str(), given.request.days,
              absl::StrJoin(given.roles, ", ").c_str());
  return absl::OkStatus();
}

}  // namespace

absl::Status RunCerts(const std::vector<std::string>& arguments) {
  CLI::App app{
      "Makes the certificates with which servers, workers and drivers recognize each other.",
      "eps certs"};
  app.require_subcommand(1);
  CertsArguments given;
  given.request.trust_domain = "eps";
  given.request.days = kCertificateDays;
  given.roles = {"server", "worker", "driver", "scheduler", "admin", "viewer"};
  CLI::App* const init = app.add_subcommand("init", "create a certificate authority");
  init->add_option("CA", given.folder, "its folder; keep ca.key secret")->required();
  init->add_option("--days", given.authority_days, "days until it is over")
      ->check(CLI::Range(uint32_t{1}, kMostDays));
  CLI::App* const issue = app.add_subcommand("issue", "issue a certificate for one role");
  issue->add_option("CA", given.folder, "folder of the authority")->required();
  issue->add_option("--role", given.role, "server, worker, driver, scheduler, admin or viewer")
      ->required();
  issue->add_option("--out", given.out, "folder for tls.key, tls.crt and ca.crt: security.dir")
      ->required();
  CLI::App* const cluster = app.add_subcommand(
      "cluster", "issue one for each role in DIR/ROLE, with an authority in DIR/ca");
  cluster->add_option("DIR", given.folder, "the folder")->required();
  cluster->add_option("--roles", given.roles, "the roles (default: all)")->delimiter(',');
  for (CLI::App* const command : {issue, cluster}) {
    command
        ->add_option("--hosts", given.request.hosts,
                     "names and IP addresses at which clients reach servers, such as a,b,10.0.0.1")
        ->delimiter(',')
        ->required(command == cluster);
    command->add_option("--trust-domain", given.request.trust_domain,
                        "security.trust_domain of the cluster");
    command->add_option("--days", given.request.days, "days until a certificate is over")
        ->check(CLI::Range(uint32_t{1}, kMostDays));
  }
  EPS_ASSIGN_OR_RETURN(const std::string help, ParseAppArguments(&app, arguments));
  if (!help.empty()) {
    std::fputs(help.c_str(), stdout);
    return absl::OkStatus();
  }
  if (init->parsed()) return Init(given);
  if (issue->parsed()) return Issue(std::move(given));
  return IssueAll(std::move(given));
}

}  // namespace eps
