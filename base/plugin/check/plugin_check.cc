#include "base/plugin/check/plugin_check.h"

#include <unistd.h>

#include <algorithm>

namespace eps {

uint64_t ElementsBeyondCaches() {
  const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
  const uint64_t fitting = cache > 0 ? static_cast<uint64_t>(cache) / 2 / sizeof(float) : 0;
  return std::clamp(fitting, uint64_t{16} << 20, uint64_t{64} << 20);
}

bool AllPassed(const std::vector<PluginCheck>& checks) {
  return std::all_of(checks.begin(), checks.end(), [](const PluginCheck& check) {
    return check.outcome == PluginCheck::Outcome::kPassed;
  });
}

}  // namespace eps
