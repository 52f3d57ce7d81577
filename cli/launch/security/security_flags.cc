#include "cli/launch/security/security_flags.h"

#include <cstdlib>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "wire/security/identity.h"

namespace eps {
namespace {

void FromEnvironment(const char* name, std::string* value) {
  const char* const set = std::getenv(name);
  if (set != nullptr) *value = set;
}

}  // namespace

void AddSecurityFlags(CLI::App* app, SecurityConfig* security) {
  FromEnvironment("EPS_SECURITY__DIR", &security->dir);
  FromEnvironment("EPS_SECURITY__TLS", &security->tls);
  FromEnvironment("EPS_SECURITY__TRUST_DOMAIN", &security->trust_domain);
  FromEnvironment("EPS_SECURITY__TOKEN", &security->token);
  app->add_option("--security.dir", security->dir, "folder with tls.key, tls.crt and ca.crt");
  app->add_option("--security.tls", security->tls, "auto (not on loopback) or always");
  app->add_option("--security.trust_domain", security->trust_domain,
                  "trust domain of the roles in certificates");
  app->add_option("--security.token", security->token, "file with a token (eps certs token)");
}

std::vector<std::string> SecurityArguments(const SecurityConfig& security) {
  return {absl::StrCat("--security.dir=", security.dir),
          absl::StrCat("--security.tls=", security.tls),
          absl::StrCat("--security.trust_domain=", security.trust_domain),
          absl::StrCat("--security.token=", security.token)};
}

absl::Status UseSecurity(const SecurityConfig& security) {
  SecurityOptions options;
  options.dir = security.dir;
  options.trust_domain = security.trust_domain;
  options.token = security.token;
  return UseSecurity(std::move(options), security.tls);
}

}  // namespace eps
