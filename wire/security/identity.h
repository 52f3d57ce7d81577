#ifndef EPS_WIRE_SECURITY_IDENTITY_H_
#define EPS_WIRE_SECURITY_IDENTITY_H_

// Who this process is to its peers, and how it recognizes them: mutual TLS 1.3 (RFC 8446).

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "eps/v1/access.pb.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "wire/security/reloaded.h"

namespace eps {

// The settings of the section `security`.
struct SecurityOptions {
  std::string dir;           // holds the three files of IdentityFiles; empty: plaintext
  bool on_loopback = false;  // TLS on loopback addresses, too
  std::string trust_domain = "eps";
  std::string token;  // file with the token that calls carry (job_token.h); empty: none
};

// The names of the files of a certificate, as in a Kubernetes secret of type kubernetes.io/tls.
inline constexpr char kKeyFile[] = "tls.key";
inline constexpr char kCertificateFile[] = "tls.crt";
inline constexpr char kAuthorityFile[] = "ca.crt";

// A certificate, its key, and the authority that must have signed those of peers; PEM files that
// are read again within ten seconds after they change, and so is the token. Connections that are
// open then go on (ServerOptions::connection_age_ms). Thread-safe.
class Identity {
 public:
  // Reads the files. NotFound for a missing one; InvalidArgument, naming the file, for one that is
  // not PEM, a key of another certificate, or a certificate that is over; PermissionDenied for a
  // certificate without a role; Unauthenticated for a file that holds no token, or one of another
  // role.
  static absl::StatusOr<std::shared_ptr<const Identity>> Load(const SecurityOptions& options);

  // The role that the certificate stated when it was loaded.
  v1::Role role() const { return role_; }
  // Reads the certificate's file as it is now, and returns when the certificate is over, in seconds
  // since 1970; 0 if it cannot be read.
  int64_t CertificateEnd() const;
  const std::string& trust_domain() const { return options_.trust_domain; }
  // Whether connections over loopback use TLS, too.
  bool on_loopback() const { return options_.on_loopback; }

  // Credentials of a client. It accepts a server whose certificate has the role "server" and the
  // host name, or IP address, to which the client connects.
  std::shared_ptr<grpc::ChannelCredentials> ForClients() const;
  // Credentials of a server. The handshake of a client without a certificate fails. The server must
  // check the client's role at each call (eps_server/rpc/role_guard.h).
  std::shared_ptr<grpc::ServerCredentials> ForServers() const;

 private:
  using TokenFile = std::shared_ptr<Reloaded<std::string>>;

  Identity(SecurityOptions options, v1::Role role, TokenFile token_or_null);

  const SecurityOptions options_;
  const v1::Role role_;
  const TokenFile token_or_null_;
  const std::shared_ptr<grpc::experimental::CertificateProviderInterface> files_;
};

// Makes `identity` that of all channels and servers of this process. Call it at most once, before
// the first of them.
void SetProcessIdentity(std::shared_ptr<const Identity> identity);
// Returns null if this process has none: it uses plaintext.
const Identity* ProcessIdentityOrNull();
// Loads the identity of this process, unless options.dir is empty. `tls` is the value of
// security.tls, and sets options.on_loopback. Errors as Identity::Load; InvalidArgument for `tls`
// other than auto and always, and for always, or a token, without a folder.
absl::Status UseSecurity(SecurityOptions options, const std::string& tls);

}  // namespace eps

#endif  // EPS_WIRE_SECURITY_IDENTITY_H_
