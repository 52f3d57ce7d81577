#ifndef EPS_BASE_CHECKSUM_H_
#define EPS_BASE_CHECKSUM_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"

namespace eps {

// CRC32C (Castagnoli, RFC 3720 appendix B.4) of `data` appended to bytes whose CRC is `crc`:
// Crc32c(b, Crc32c(a)) == Crc32c(a + b). Crc32c("123456789") == 0xe3069283.
uint32_t Crc32c(absl::string_view data, uint32_t crc = 0);

using Sha256Digest = std::array<uint8_t, 32>;

// SHA-256 (FIPS 180-4), streaming. Thread-compatible.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  void Update(absl::string_view data);
  // Ends the message. Do not use the object afterwards.
  Sha256Digest Finish();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

Sha256Digest Sha256Of(absl::string_view data);
std::string ToHex(const Sha256Digest& digest);

}  // namespace eps

#endif  // EPS_BASE_CHECKSUM_H_
