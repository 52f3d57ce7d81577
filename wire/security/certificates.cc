#include "wire/security/certificates.h"

#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/files/files.h"
#include "base/folder.h"
#include "base/status_macros.h"
#include "wire/security/identity.h"
#include "wire/security/open_ssl.h"
#include "wire/security/peer_role.h"

namespace eps {
namespace {

constexpr int kVersion3 = 2;  // as X.509 counts (RFC 5280, section 4.1.2.1)
constexpr int64_t kSecondsInDay = 86'400;
// A machine whose clock is a little slow accepts the certificate, too.
constexpr int64_t kBackdatedSeconds = 600;

absl::Status OpenSslError(absl::string_view what) {
  return absl::InternalError(absl::StrCat("OpenSSL could not ", what));
}

// Appends an extension, whose value is written as in openssl.cnf.
bool AddExtension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
  if (extension == nullptr) return false;
  const bool added = X509_add_ext(certificate, extension, -1) == 1;
  X509_EXTENSION_free(extension);
  return added;
}

// Returns a certificate without extensions and signature for `key`; null if OpenSSL fails.
X509Pointer NewCertificate(const std::string& name, EVP_PKEY* key, uint32_t days) {
  X509Pointer certificate(X509_new());
  if (certificate == nullptr) return nullptr;
  unsigned char serial[16];
  if (RAND_bytes(serial, sizeof(serial)) != 1) return nullptr;
  serial[0] &= 0x7f;  // positive
  const std::unique_ptr<BIGNUM, decltype(&BN_free)> number(
      BN_bin2bn(serial, sizeof(serial), nullptr), &BN_free);
  X509* const c = certificate.get();
  X509_NAME* const subject = X509_get_subject_name(c);
  const bool ok = X509_set_version(c, kVersion3) == 1 &&
                  BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(c)) != nullptr &&
                  X509_gmtime_adj(X509_getm_notBefore(c), -kBackdatedSeconds) != nullptr &&
                  X509_gmtime_adj(X509_getm_notAfter(c), kSecondsInDay * days) != nullptr &&
                  X509_set_pubkey(c, key) == 1 &&
                  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8,
                                             reinterpret_cast<const unsigned char*>(name.data()),
                                             static_cast<int>(name.size()), -1, 0) == 1;
  return ok ? std::move(certificate) : nullptr;
}

// Returns the PEM text that `write` makes; empty if OpenSSL fails.
template <class Write>
std::string Pem(const Write& write) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> out(BIO_new(BIO_s_mem()), &BIO_free);
  if (out == nullptr || write(out.get()) != 1) return "";
  char* data = nullptr;
  const long size = BIO_get_mem_data(out.get(), &data);
  return std::string(data, static_cast<size_t>(size));
}

// Writes a file that only its owner may read.
absl::Status WriteKey(const std::string& path, EVP_PKEY* key) {
  const std::string text = Pem([key](BIO* out) {
    return PEM_write_bio_PrivateKey(out, key, nullptr, nullptr, 0, nullptr, nullptr);
  });
  if (text.empty()) return OpenSslError("write a key");
  return ReplaceSecret(path, text);
}

absl::Status WriteCertificate(const std::string& path, X509* certificate) {
  const std::string text =
      Pem([certificate](BIO* out) { return PEM_write_bio_X509(out, certificate); });
  if (text.empty()) return OpenSslError("write a certificate");
  return ReplaceFile(path, text);
}

bool IsIp(const std::string& host) {
  const std::unique_ptr<ASN1_OCTET_STRING, decltype(&ASN1_OCTET_STRING_free)> address(
      a2i_IPADDRESS(host.c_str()), &ASN1_OCTET_STRING_free);
  return address != nullptr;
}

// Returns whether the text may stand in an extension: it has no character of their syntax.
bool IsName(const std::string& host) {
  return std::all_of(host.begin(), host.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '.' || c == '*';
  });
}

// Returns the value of the extension subjectAltName.
absl::StatusOr<std::string> AltNames(const CertificateRequest& request) {
  if (!request.job.empty()) EPS_RETURN_IF_ERROR(CheckJobOfPeer(request.job));
  std::vector<std::string> names = {"URI:" +
                                    UriOfPeer({request.role, request.job}, request.trust_domain)};
  for (const std::string& host : request.hosts) {
    const bool ip = IsIp(host);
    if (host.empty() || (!ip && !IsName(host))) {
      return absl::InvalidArgumentError(absl::StrCat(
          "\"", host, "\" is no host: expected a name or an IP address, without a port"));
    }
    names.push_back(absl::StrCat(ip ? "IP:" : "DNS:", host));
  }
  return absl::StrJoin(names, ",");
}

}  // namespace

absl::Status CreateAuthority(const std::string& folder, uint32_t days) {
  const std::string key_path = absl::StrCat(folder, "/", kAuthorityKeyFile);
  std::error_code error;
  if (std::filesystem::exists(key_path, error)) {
    return absl::AlreadyExistsError(absl::StrCat(
        key_path, " exists: who replaces it makes all certificates that it signed useless"));
  }
  EPS_RETURN_IF_ERROR(CreateFolder(folder));
  const KeyPointer key(EVP_EC_gen("P-256"));
  if (key == nullptr) return OpenSslError("make a key");
  const X509Pointer certificate = NewCertificate("EPS certificate authority", key.get(), days);
  if (certificate == nullptr) return OpenSslError("make a certificate");
  X509* const c = certificate.get();
  const bool ok = X509_set_issuer_name(c, X509_get_subject_name(c)) == 1 &&
                  AddExtension(c, c, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") &&
                  AddExtension(c, c, NID_key_usage, "critical,keyCertSign,cRLSign") &&
                  AddExtension(c, c, NID_subject_key_identifier, "hash") &&
                  X509_sign(c, key.get(), EVP_sha256()) != 0;
  if (!ok) return OpenSslError("sign a certificate");
  EPS_RETURN_IF_ERROR(WriteKey(key_path, key.get()));
  return WriteCertificate(absl::StrCat(folder, "/", kAuthorityFile), c);
}

absl::Status IssueCertificate(const std::string& authority, const CertificateRequest& request,
                              const std::string& out) {
  EPS_ASSIGN_OR_RETURN(const std::string alt_names, AltNames(request));
  EPS_ASSIGN_OR_RETURN(const std::string issuer_text,
                       ReadTextFile(absl::StrCat(authority, "/", kAuthorityFile)));
  EPS_ASSIGN_OR_RETURN(const std::string issuer_key_text,
                       ReadTextFile(absl::StrCat(authority, "/", kAuthorityKeyFile)));
  const X509Pointer issuer = ReadCertificate(issuer_text);
  const KeyPointer issuer_key = ReadKey(issuer_key_text);
  if (issuer == nullptr || issuer_key == nullptr ||
      X509_check_private_key(issuer.get(), issuer_key.get()) != 1) {
    return absl::InvalidArgumentError(absl::StrCat(authority, ": ", kAuthorityFile, " and ",
                                                   kAuthorityKeyFile,
                                                   " are not a certificate and its key"));
  }
  const KeyPointer key(EVP_EC_gen("P-256"));
  if (key == nullptr) return OpenSslError("make a key");
  const X509Pointer certificate =
      NewCertificate(absl::StrCat("eps ", RoleName(request.role)), key.get(), request.days);
  if (certificate == nullptr) return OpenSslError("make a certificate");
  X509* const c = certificate.get();
  const bool ok = X509_set_issuer_name(c, X509_get_subject_name(issuer.get())) == 1 &&
                  AddExtension(c, issuer.get(), NID_basic_constraints, "critical,CA:FALSE") &&
                  AddExtension(c, issuer.get(), NID_key_usage, "critical,digitalSignature") &&
                  AddExtension(c, issuer.get(), NID_ext_key_usage, "serverAuth,clientAuth") &&
                  AddExtension(c, issuer.get(), NID_subject_alt_name, alt_names) &&
                  // Tells authorities of the same name apart, where two are accepted.
                  AddExtension(c, issuer.get(), NID_authority_key_identifier, "keyid") &&
                  X509_sign(c, issuer_key.get(), EVP_sha256()) != 0;
  if (!ok) return OpenSslError("sign a certificate");
  EPS_RETURN_IF_ERROR(CreateFolder(out));
  EPS_RETURN_IF_ERROR(WriteKey(absl::StrCat(out, "/", kKeyFile), key.get()));
  EPS_RETURN_IF_ERROR(WriteCertificate(absl::StrCat(out, "/", kAuthorityFile), issuer.get()));
  return WriteCertificate(absl::StrCat(out, "/", kCertificateFile), c);
}

}  // namespace eps
