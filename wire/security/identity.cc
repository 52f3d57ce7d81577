#include "wire/security/identity.h"

#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/files/files.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "grpc/support/log.h"
#include "grpcpp/security/tls_certificate_verifier.h"
#include "grpcpp/security/tls_credentials_options.h"
#include "wire/security/job_token.h"
#include "wire/security/open_ssl.h"
#include "wire/security/peer_role.h"

namespace eps {
namespace {

namespace tls = grpc::experimental;

constexpr unsigned kReloadSeconds = 10;
// gRPC 1.51 cannot be told the lowest version. It has no cipher of TLS 1.2 left with this list, and
// those of TLS 1.3 are not in it.
constexpr char kNoCipherOfTls12[] = "PSK-AES256-GCM-SHA384";

std::string PathOf(const SecurityOptions& options, const char* file) {
  return absl::StrCat(options.dir, "/", file);
}

absl::StatusOr<std::string> ReadFile(const SecurityOptions& options, const char* file) {
  const std::string path = PathOf(options, file);
  absl::StatusOr<std::string> text = ReadTextFile(path);
  if (text.ok()) return text;
  return absl::Status(text.status().code(),
                      absl::StrCat("security.dir: ", std::string(text.status().message())));
}

absl::Status BadFile(const SecurityOptions& options, const char* file, const std::string& why) {
  return absl::InvalidArgumentError(
      absl::StrCat("security.dir: ", PathOf(options, file), " ", why));
}

// Accepts servers: their certificate names the host and has the role "server".
class ServerVerifier final : public tls::ExternalCertificateVerifier {
 public:
  explicit ServerVerifier(std::string trust_domain) : trust_domain_(std::move(trust_domain)) {}

  bool Verify(tls::TlsCustomVerificationCheckRequest* request,
              std::function<void(grpc::Status)> /*callback*/, grpc::Status* result) override {
    *result = Check(*request);
    return true;  // it has the result already
  }
  void Cancel(tls::TlsCustomVerificationCheckRequest*) override {}

 private:
  grpc::Status Check(const tls::TlsCustomVerificationCheckRequest& request) const {
    const auto refuse = [](const std::string& why) {
      return grpc::Status(grpc::StatusCode::UNAUTHENTICATED, why);
    };
    const std::string pem(request.peer_cert().data(), request.peer_cert().size());
    const X509Pointer certificate = ReadCertificate(pem);
    if (certificate == nullptr) return refuse("the server's certificate cannot be read");
    const std::string host(request.target_name().data(), request.target_name().size());
    if (X509_check_host(certificate.get(), host.data(), host.size(), 0, nullptr) != 1 &&
        X509_check_ip_asc(certificate.get(), host.c_str(), 0) != 1) {
      return refuse(absl::StrCat("the server's certificate is not for ", host));
    }
    const std::vector<grpc::string_ref> uris = request.uri_names();
    const std::string uri = uris.size() == 1 ? std::string(uris[0].data(), uris[0].size()) : "";
    const absl::StatusOr<PeerName> peer = PeerOfUri(uri, trust_domain_);
    if (!peer.ok()) return refuse(std::string(peer.status().message()));
    if (peer->role != v1::ROLE_SERVER) {
      return refuse(absl::StrCat(host, " has the role ", RoleName(peer->role), ", not server"));
    }
    return grpc::Status::OK;
  }

  const std::string trust_domain_;
};

// Opens a file with a token for a certificate of `role`.
absl::StatusOr<std::shared_ptr<Reloaded<std::string>>> OpenToken(const std::string& path,
                                                                 v1::Role role) {
  const auto parse = [role](const std::string& text) -> absl::StatusOr<std::string> {
    std::string token(absl::StripAsciiWhitespace(text));
    EPS_ASSIGN_OR_RETURN(const JobToken parsed, ParseToken(token));
    if (parsed.role == role) return token;
    return absl::UnauthenticatedError(absl::StrCat("a token of role ", RoleName(parsed.role),
                                                   " beside a certificate of role ",
                                                   RoleName(role)));
  };
  auto opened = Reloaded<std::string>::Open(path, parse);
  if (opened.ok()) return opened;
  return absl::Status(opened.status().code(),
                      absl::StrCat("security.token: ", std::string(opened.status().message())));
}

// Adds the token to each call. gRPC sends it over TLS only.
class TokenPlugin final : public grpc::MetadataCredentialsPlugin {
 public:
  explicit TokenPlugin(std::shared_ptr<Reloaded<std::string>> token) : token_(std::move(token)) {}

  bool IsBlocking() const override { return false; }
  const char* GetType() const override { return "eps-token"; }
  grpc::Status GetMetadata(grpc::string_ref /*url*/, grpc::string_ref /*method*/,
                           const grpc::AuthContext& /*channel*/,
                           std::multimap<grpc::string, grpc::string>* metadata) override {
    metadata->insert({kTokenMetadata, *token_->Get()});
    return grpc::Status::OK;
  }
  grpc::string DebugString() override { return "eps-token"; }

 private:
  const std::shared_ptr<Reloaded<std::string>> token_;
};

// Logs what gRPC says, but of failed handshakes only the first, second, fourth, ...: strangers must
// not fill the log.
void LogOfGrpc(gpr_log_func_args* entry) {
  static std::atomic<uint64_t> failed{0};
  const bool of_handshake = absl::StrContains(entry->file, "ssl_transport_security") ||
                            absl::StrContains(entry->file, "tls_security_connector");
  if (!of_handshake) {
    EPS_LOG_WARN("gRPC: " << entry->message);
    return;
  }
  const uint64_t count = failed.fetch_add(1) + 1;
  if ((count & (count - 1)) != 0) return;
  EPS_LOG_WARN("TLS handshakes that failed so far: " << count
                                                     << "; the last one: " << entry->message);
}

std::shared_ptr<const Identity>* ProcessIdentitySlot() {
  static auto* const slot = new std::shared_ptr<const Identity>();
  return slot;
}

}  // namespace

Identity::Identity(SecurityOptions options, v1::Role role, TokenFile token_or_null)
    : options_(std::move(options)),
      role_(role),
      token_or_null_(std::move(token_or_null)),
      files_(std::make_shared<tls::FileWatcherCertificateProvider>(
          PathOf(options_, kKeyFile), PathOf(options_, kCertificateFile),
          PathOf(options_, kAuthorityFile), kReloadSeconds)) {}

absl::StatusOr<std::shared_ptr<const Identity>> Identity::Load(const SecurityOptions& options) {
  EPS_ASSIGN_OR_RETURN(const std::string key_text, ReadFile(options, kKeyFile));
  EPS_ASSIGN_OR_RETURN(const std::string certificate_text, ReadFile(options, kCertificateFile));
  EPS_ASSIGN_OR_RETURN(const std::string authority_text, ReadFile(options, kAuthorityFile));
  const KeyPointer key = ReadKey(key_text);
  if (key == nullptr) return BadFile(options, kKeyFile, "is no private key in PEM");
  const X509Pointer certificate = ReadCertificate(certificate_text);
  if (certificate == nullptr) {
    return BadFile(options, kCertificateFile, "is no certificate in PEM");
  }
  if (ReadCertificate(authority_text) == nullptr) {
    return BadFile(options, kAuthorityFile, "is no certificate in PEM");
  }
  if (X509_check_private_key(certificate.get(), key.get()) != 1) {
    return BadFile(options, kKeyFile, absl::StrCat("is not the key of ", kCertificateFile));
  }
  if (X509_cmp_current_time(X509_get0_notAfter(certificate.get())) <= 0) {
    return BadFile(options, kCertificateFile, "is over (notAfter); issue another one");
  }
  const absl::StatusOr<PeerName> peer = PeerOfUri(UriOf(*certificate), options.trust_domain);
  if (!peer.ok()) {
    return absl::PermissionDeniedError(
        absl::StrCat("security.dir: ", PathOf(options, kCertificateFile), ": ",
                     std::string(peer.status().message())));
  }
  TokenFile token;
  if (!options.token.empty()) {
    EPS_ASSIGN_OR_RETURN(token, OpenToken(options.token, peer->role));
  }
  gpr_set_log_function(&LogOfGrpc);
  // gRPC reads it when it is initialised.
  setenv("GRPC_SSL_CIPHER_SUITES", kNoCipherOfTls12, /*overwrite=*/1);
  return std::shared_ptr<const Identity>(new Identity(options, peer->role, token));
}

int64_t Identity::CertificateEnd() const {
  const absl::StatusOr<std::string> text = ReadFile(options_, kCertificateFile);
  const X509Pointer certificate = text.ok() ? ReadCertificate(*text) : nullptr;
  return certificate == nullptr ? 0 : EndOf(*certificate);
}

std::shared_ptr<grpc::ChannelCredentials> Identity::ForClients() const {
  tls::TlsChannelCredentialsOptions tls_options;
  tls_options.set_certificate_provider(files_);
  tls_options.watch_root_certs();
  tls_options.watch_identity_key_cert_pairs();
  tls_options.set_check_call_host(false);
  tls_options.set_certificate_verifier(
      tls::ExternalCertificateVerifier::Create<ServerVerifier>(options_.trust_domain));
  const std::shared_ptr<grpc::ChannelCredentials> channel = tls::TlsCredentials(tls_options);
  if (token_or_null_ == nullptr) return channel;
  return grpc::CompositeChannelCredentials(
      channel, grpc::MetadataCredentialsFromPlugin(std::make_unique<TokenPlugin>(token_or_null_)));
}

std::shared_ptr<grpc::ServerCredentials> Identity::ForServers() const {
  tls::TlsServerCredentialsOptions tls_options(files_);
  tls_options.watch_root_certs();
  tls_options.watch_identity_key_cert_pairs();
  tls_options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  return tls::TlsServerCredentials(tls_options);
}

void SetProcessIdentity(std::shared_ptr<const Identity> identity) {
  EPS_CHECK_MSG(*ProcessIdentitySlot() == nullptr, "the process has an identity already");
  *ProcessIdentitySlot() = std::move(identity);
}

const Identity* ProcessIdentityOrNull() { return ProcessIdentitySlot()->get(); }

absl::Status UseSecurity(SecurityOptions options, const std::string& tls) {
  if (tls != "auto" && tls != "always") {
    return absl::InvalidArgumentError(
        absl::StrCat("security.tls: expected auto or always, found \"", tls, "\""));
  }
  if (options.dir.empty()) {
    if (tls == "auto" && options.token.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        tls == "auto" ? "security.token: a token" : "security.tls: always",
        " needs security.dir, a folder with tls.key, tls.crt and ca.crt (eps certs issue makes "
        "one)"));
  }
  options.on_loopback = tls == "always";
  EPS_ASSIGN_OR_RETURN(std::shared_ptr<const Identity> identity, Identity::Load(options));
  SetProcessIdentity(std::move(identity));
  return absl::OkStatus();
}

}  // namespace eps
