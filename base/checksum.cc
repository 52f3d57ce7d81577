#include "base/checksum.h"

#include <isa-l/crc.h>
#include <openssl/evp.h>

#include <algorithm>

#include "absl/strings/escaping.h"
#include "base/check.h"

namespace eps {

uint32_t Crc32c(absl::string_view data, uint32_t crc) {
  // The library's length is an int: larger inputs go in pieces.
  constexpr size_t kPiece = size_t{1} << 30;
  crc = ~crc;
  while (!data.empty()) {
    const size_t n = std::min(kPiece, data.size());
    auto* bytes = reinterpret_cast<unsigned char*>(const_cast<char*>(data.data()));
    crc = crc32_iscsi(bytes, static_cast<int>(n), crc);
    data.remove_prefix(n);
  }
  return ~crc;
}

uint32_t SharedCrc::Get(std::atomic<uint64_t>* computed) {
  MutexLock lock(&mu_);
  if (!crc_.has_value()) {
    crc_ = Crc32c(bytes_.view());
    computed->fetch_add(1, std::memory_order_relaxed);
  }
  return *crc_;
}

struct Sha256::Context {
  EVP_MD_CTX* ctx = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(ctx); }
};

Sha256::Sha256() : context_(new Context()) {
  EPS_CHECK(context_->ctx != nullptr);
  EPS_CHECK(EVP_DigestInit_ex(context_->ctx, EVP_sha256(), nullptr) == 1);
}

Sha256::~Sha256() = default;

void Sha256::Update(absl::string_view data) {
  EPS_CHECK(EVP_DigestUpdate(context_->ctx, data.data(), data.size()) == 1);
}

Sha256Digest Sha256::Finish() {
  Sha256Digest digest;
  unsigned int size = 0;
  EPS_CHECK(EVP_DigestFinal_ex(context_->ctx, digest.data(), &size) == 1 && size == digest.size());
  return digest;
}

Sha256Digest Sha256Of(absl::string_view data) {
  Sha256 sha;
  sha.Update(data);
  return sha.Finish();
}

std::string ToHex(const Sha256Digest& digest) {
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size()));
}

}  // namespace eps
