#ifndef EPS_BASE_CHECKSUM_H_
#define EPS_BASE_CHECKSUM_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "base/bytes.h"
#include "base/mutex.h"

namespace eps {

// CRC32C (Castagnoli, RFC 3720 appendix B.4) of `data` appended to bytes whose CRC is `crc`:
// Crc32c(b, Crc32c(a)) == Crc32c(a + b). Crc32c("123456789") == 0xe3069283.
uint32_t Crc32c(absl::string_view data, uint32_t crc = 0);

// The CRC32C of bytes that are sent more than once: the first sender computes it, for all. Shares
// the memory of the bytes. Thread-safe.
class SharedCrc {
 public:
  explicit SharedCrc(Bytes bytes) : bytes_(std::move(bytes)) {}

  // Returns the CRC32C. The first call passes over the bytes and adds 1 to `computed`; calls on
  // other threads wait for it. Do not call it on a gRPC callback thread.
  uint32_t Get(std::atomic<uint64_t>* computed) EPS_EXCLUDES(mu_);

 private:
  const Bytes bytes_;
  Mutex mu_;
  std::optional<uint32_t> crc_ EPS_GUARDED_BY(mu_);
};

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
