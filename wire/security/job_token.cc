#include "wire/security/job_token.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "wire/security/peer_role.h"

namespace eps {
namespace {

constexpr absl::string_view kScheme = "EPS1 ";
constexpr char kAllJobs[] = "*";
constexpr size_t kUidDigits = 16;
constexpr size_t kKeyBytes = 32;
constexpr size_t kMaxTokenBytes = 256;
constexpr size_t kMaxKeys = 2;

absl::Status NoToken(absl::string_view why) {
  return absl::UnauthenticatedError(
      absl::StrCat("the token of this call is not valid: ", why, " (security.token)"));
}

bool IsHex(absl::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return absl::ascii_isxdigit(static_cast<unsigned char>(c)); });
}

std::string Mac(absl::string_view text, const TokenKey& key) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> mac = {};
  unsigned size = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
       reinterpret_cast<const unsigned char*>(text.data()), text.size(), mac.data(), &size);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(mac.data()), size));
}

// Splits a token into the text that is signed and the MAC.
std::pair<absl::string_view, absl::string_view> SplitMac(absl::string_view text) {
  const size_t dot = text.rfind('.');
  if (dot == absl::string_view::npos) return {text, ""};
  return {text.substr(0, dot), text.substr(dot + 1)};
}

}  // namespace

std::string SignToken(const JobToken& token, const TokenKey& key) {
  const std::string signed_text =
      absl::StrCat(kScheme, token.uid == 0 ? kAllJobs : absl::StrFormat("%016x", token.uid), ".",
                   RoleName(token.role), ".", token.not_after);
  return absl::StrCat(signed_text, ".", Mac(signed_text, key));
}

absl::StatusOr<JobToken> ParseToken(absl::string_view text) {
  if (text.size() > kMaxTokenBytes || !absl::ConsumePrefix(&text, kScheme)) {
    return NoToken("it does not begin with \"EPS1 \"");
  }
  const std::vector<absl::string_view> fields = absl::StrSplit(text, '.');
  if (fields.size() != 4) return NoToken("it needs UID.ROLE.NOT_AFTER.MAC");
  JobToken token;
  if (fields[0] != kAllJobs) {
    const bool is_uid = fields[0].size() == kUidDigits && IsHex(fields[0]) &&
                        absl::SimpleHexAtoi(fields[0], &token.uid) && token.uid != 0;
    if (!is_uid) return NoToken("its uid needs 16 hexadecimal digits");
  }
  const absl::StatusOr<v1::Role> role = RoleOfName(fields[1]);
  if (!role.ok()) return NoToken("it names no role");
  token.role = *role;
  if (!absl::SimpleAtoi(fields[2], &token.not_after)) return NoToken("its end is no number");
  return token;
}

absl::StatusOr<JobToken> VerifyToken(absl::string_view text, const std::vector<TokenKey>& keys,
                                     int64_t now) {
  absl::StatusOr<JobToken> token = ParseToken(text);
  if (!token.ok()) return token;
  const auto [signed_text, mac] = SplitMac(text);
  bool valid = false;
  for (const TokenKey& key : keys) {
    const std::string expected = Mac(signed_text, key);
    valid |= mac.size() == expected.size() &&
             CRYPTO_memcmp(mac.data(), expected.data(), expected.size()) == 0;
  }
  if (!valid) return NoToken("no key of the server has signed it (security.token_keys)");
  if (token->not_after < now) {
    return NoToken(absl::StrCat("it was over ", now - token->not_after, " s ago"));
  }
  return token;
}

absl::StatusOr<std::string> NewTokenKeyLine() {
  std::string key(kKeyBytes, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(key.data()), static_cast<int>(kKeyBytes)) != 1) {
    return absl::InternalError("OpenSSL has no random numbers for a key");
  }
  return absl::StrCat(absl::BytesToHexString(key), "\n");
}

absl::StatusOr<std::vector<TokenKey>> ParseTokenKeys(absl::string_view text) {
  std::vector<TokenKey> keys;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (line.empty()) continue;
    if (line.size() != 2 * kKeyBytes || !IsHex(line)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "each line of a file of token keys is a key of ", 2 * kKeyBytes, " hexadecimal digits"));
    }
    keys.push_back(absl::HexStringToBytes(line));
  }
  if (keys.empty() || keys.size() > kMaxKeys) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a file of token keys has one key, or two while one is replaced; found ", keys.size()));
  }
  return keys;
}

}  // namespace eps
