#include "wire/security/open_ssl.h"

#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <ctime>

namespace eps {
namespace {

struct BioDeleter {
  void operator()(BIO* bio) const { BIO_free(bio); }
};
using BioPointer = std::unique_ptr<BIO, BioDeleter>;

BioPointer Reader(const std::string& text) {
  return BioPointer(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

}  // namespace

X509Pointer ReadCertificate(const std::string& pem) {
  return X509Pointer(PEM_read_bio_X509(Reader(pem).get(), nullptr, nullptr, nullptr));
}

KeyPointer ReadKey(const std::string& pem) {
  // An encrypted key would ask for its password on the terminal.
  const auto no_password = [](char*, int, int, void*) { return 0; };
  return KeyPointer(PEM_read_bio_PrivateKey(Reader(pem).get(), nullptr, no_password, nullptr));
}

int64_t EndOf(const X509& certificate) {
  std::tm end = {};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(&certificate), &end) != 1) return 0;
  return timegm(&end);
}

std::string UriOf(const X509& certificate) {
  const std::unique_ptr<GENERAL_NAMES, decltype(&GENERAL_NAMES_free)> names(
      static_cast<GENERAL_NAMES*>(
          X509_get_ext_d2i(&certificate, NID_subject_alt_name, nullptr, nullptr)),
      &GENERAL_NAMES_free);
  std::string found;
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    if (!found.empty()) return "";
    const ASN1_IA5STRING* const uri = name->d.uniformResourceIdentifier;
    found.assign(reinterpret_cast<const char*>(ASN1_STRING_get0_data(uri)),
                 static_cast<size_t>(ASN1_STRING_length(uri)));
  }
  return found;
}

}  // namespace eps
