// `eps certs`: a certificate authority for clusters that have no other one.

#include <cstdint>
#include <cstdio>
#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/config/app_arguments.h"
#include "base/files/files.h"
#include "base/status_macros.h"
#include "wire/security/certificates.h"
#include "wire/security/job_token.h"
#include "wire/security/peer_role.h"

namespace eps {
namespace {

constexpr uint32_t kAuthorityDays = 3650;
constexpr uint32_t kCertificateDays = 365;
constexpr uint32_t kTokenDays = 30;
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

// Those of `token-key` and `token`.
struct TokenArguments {
  std::string keys;  // file of the keys
  std::string job;   // uid of the job in hexadecimal digits, or "all"
  std::string role;  // of the certificate beside which the token is used
  std::string out;
  uint32_t days = kTokenDays;
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
  if (given.request.role == v1::ROLE_SERVER && !given.request.job.empty()) {
    return absl::InvalidArgumentError("--job: a server serves all jobs");
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

// Puts a new key in front of the one that is in the file. That one verifies until the next call.
absl::Status AddTokenKey(const TokenArguments& given) {
  EPS_ASSIGN_OR_RETURN(std::string text, NewTokenKeyLine());
  const absl::StatusOr<std::string> before = ReadTextFile(given.keys);
  if (before.ok()) {
    EPS_RETURN_IF_ERROR(ParseTokenKeys(*before).status());
    absl::StrAppend(&text, before->substr(0, before->find('\n')), "\n");
  } else if (!absl::IsNotFound(before.status())) {
    return before.status();
  }
  EPS_RETURN_IF_ERROR(ReplaceSecret(given.keys, text));
  std::printf("%s: a new key signs tokens%s\n", given.keys.c_str(),
              before.ok() ? "; those of the key before it stay valid until the next one" : "");
  return absl::OkStatus();
}

absl::Status IssueToken(const TokenArguments& given) {
  JobToken token;
  if (given.job != "all" && (!absl::SimpleHexAtoi(given.job, &token.uid) || token.uid == 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--job: expected the uid of a job, as eps job show prints it, or all; found \"", given.job,
        "\""));
  }
  EPS_ASSIGN_OR_RETURN(token.role, RoleOfName(given.role));
  if (token.role == v1::ROLE_SERVER) {
    return absl::InvalidArgumentError("--role: servers serve all jobs and need no token");
  }
  token.not_after = std::time(nullptr) + int64_t{given.days} * 24 * 3600;
  EPS_ASSIGN_OR_RETURN(const std::string keys_text, ReadTextFile(given.keys));
  EPS_ASSIGN_OR_RETURN(const std::vector<TokenKey> keys, ParseTokenKeys(keys_text));
  EPS_RETURN_IF_ERROR(ReplaceSecret(given.out, SignToken(token, keys.front()) + "\n"));
  std::printf("%s: a token of role %s for %s, for %u days\n", given.out.c_str(), given.role.c_str(),
              token.uid == 0 ? "all jobs" : absl::StrFormat("job %016x", token.uid).c_str(),
              given.days);
  return absl::OkStatus();
}

void AddTokenCommands(CLI::App* app, TokenArguments* given) {
  CLI::App* const key = app->add_subcommand(
      "token-key", "make a key that signs tokens; the key before it stays valid");
  key->add_option("FILE", given->keys, "security.token_keys of the servers")->required();
  CLI::App* const token = app->add_subcommand(
      "token", "issue a token, which limits a certificate to one job of the board");
  token->add_option("FILE", given->keys, "the file of token-key")->required();
  token->add_option("--job", given->job, "uid of the job (eps job show), or all")->required();
  token->add_option("--role", given->role, "role of the certificate that is used with it")
      ->required();
  token->add_option("--out", given->out, "file for the token: security.token")->required();
  token->add_option("--days", given->days, "days until it is over")
      ->check(CLI::Range(uint32_t{1}, kMostDays));
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
  issue->add_option("--job", given.request.job,
                    "name of the only job that the certificate serves; not for servers");
  issue->add_option("--out", given.out, "folder for tls.key, tls.crt and ca.crt: security.dir")
      ->required();
  CLI::App* const cluster = app.add_subcommand(
      "cluster", "issue one for each role in DIR/ROLE, with an authority in DIR/ca");
  cluster->add_option("DIR", given.folder, "the folder")->required();
  cluster->add_option("--roles", given.roles, "the roles (default: all)")->delimiter(',');
  TokenArguments tokens;
  AddTokenCommands(&app, &tokens);
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
  if (app.got_subcommand("token-key")) return AddTokenKey(tokens);
  if (app.got_subcommand("token")) return IssueToken(tokens);
  if (init->parsed()) return Init(given);
  if (issue->parsed()) return Issue(std::move(given));
  return IssueAll(std::move(given));
}

}  // namespace eps
