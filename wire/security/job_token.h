#ifndef EPS_WIRE_SECURITY_JOB_TOKEN_H_
#define EPS_WIRE_SECURITY_JOB_TOKEN_H_

// Tokens: they narrow what a certificate may reach to one job of the board, for a time, where many
// jobs share certificates (docs/guides/security.md). A token is the text
//
//   EPS1 UID.ROLE.NOT_AFTER.MAC
//
// UID: the job's, in 16 hexadecimal digits, or * for all jobs. NOT_AFTER: seconds since 1970. MAC:
// HMAC-SHA-256 (RFC 2104) of the text before the last dot, in 64 hexadecimal digits. A call carries
// it in the metadata "authorization".

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "eps/v1/access.pb.h"

namespace eps {

inline constexpr char kTokenMetadata[] = "authorization";

// The statements of a token. Plain value.
struct JobToken {
  uint64_t uid = 0;                      // of the job; 0: all jobs
  v1::Role role = v1::ROLE_UNSPECIFIED;  // that the certificate of its holder has
  int64_t not_after = 0;                 // seconds since 1970
};

// A secret of 32 bytes that servers share with whoever issues tokens.
using TokenKey = std::string;

// Returns the text of a token.
std::string SignToken(const JobToken& token, const TokenKey& key);
// Reads a token, and does not verify it. Unauthenticated, without quoting the text, if it is none.
absl::StatusOr<JobToken> ParseToken(absl::string_view text);
// Reads a token that one of the keys has signed. Unauthenticated for any other one, and for one
// that was over before `now`, in seconds since 1970.
absl::StatusOr<JobToken> VerifyToken(absl::string_view text, const std::vector<TokenKey>& keys,
                                     int64_t now);

// Returns the text of a new key: a line of 64 hexadecimal digits. Internal if the machine has no
// random numbers.
absl::StatusOr<std::string> NewTokenKeyLine();
// Reads the keys of a file: one line, or two while a key is replaced. The first one signs, each
// verifies. InvalidArgument for anything else.
absl::StatusOr<std::vector<TokenKey>> ParseTokenKeys(absl::string_view text);

}  // namespace eps

#endif  // EPS_WIRE_SECURITY_JOB_TOKEN_H_
