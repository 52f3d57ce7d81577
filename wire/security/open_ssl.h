#ifndef EPS_WIRE_SECURITY_OPEN_SSL_H_
#define EPS_WIRE_SECURITY_OPEN_SSL_H_

// OpenSSL's objects with owners, and the parts of certificates that EPS reads.

#include <openssl/evp.h>
#include <openssl/x509.h>

#include <cstdint>
#include <memory>
#include <string>

namespace eps {

// Frees OpenSSL's objects.
struct OpenSslDeleter {
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
using X509Pointer = std::unique_ptr<X509, OpenSslDeleter>;
using KeyPointer = std::unique_ptr<EVP_PKEY, OpenSslDeleter>;

// Return the first certificate, or private key, of a PEM text; null if there is none.
X509Pointer ReadCertificate(const std::string& pem);
KeyPointer ReadKey(const std::string& pem);

// Returns the time after which a certificate is over, in seconds since 1970.
int64_t EndOf(const X509& certificate);

// Returns the only SAN URI of a certificate; empty if it has none, or several.
std::string UriOf(const X509& certificate);

}  // namespace eps

#endif  // EPS_WIRE_SECURITY_OPEN_SSL_H_
