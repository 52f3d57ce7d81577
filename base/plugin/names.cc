#include "base/plugin/names.h"

#include <cstddef>

#include "absl/strings/ascii.h"

namespace eps {
namespace {

constexpr size_t kMaxNameLength = 63;
constexpr size_t kDigits = 64;

}  // namespace

bool IsPluginName(absl::string_view name) {
  if (name.empty() || name.size() > kMaxNameLength || !absl::ascii_islower(name[0])) return false;
  for (const char c : name) {
    if (!absl::ascii_islower(c) && !absl::ascii_isdigit(c) && c != '_') return false;
  }
  return true;
}

bool IsSha256(absl::string_view text) {
  if (text.size() != kDigits) return false;
  for (const char c : text) {
    if (!absl::ascii_isdigit(c) && (c < 'a' || c > 'f')) return false;
  }
  return true;
}

}  // namespace eps
