#include "base/machine/shared_regions.h"

#include <utility>

#include "base/check.h"

namespace eps {

SharedRegions& SharedRegions::Get() {
  static SharedRegions* const regions = new SharedRegions();
  return *regions;
}

std::unique_ptr<SharedRegions::Listed> SharedRegions::List(absl::Span<const uint8_t> memory,
                                                           Access access) {
  Region region;
  region.begin = memory.data();
  region.access = access;
  MutexLock lock(&mu_);
  const bool added = regions_.emplace(memory.data() + memory.size(), std::move(region)).second;
  EPS_CHECK(added);
  return std::make_unique<Listed>(this, memory.data());
}

bool SharedRegions::Attached(absl::Span<const uint8_t> memory, const User& user) {
  const uint8_t* const end = memory.data() + memory.size();
  MutexLock lock(&mu_);
  const auto it = regions_.lower_bound(end);
  if (it == regions_.end() || memory.data() < it->second.begin) return false;
  Region& region = it->second;
  if (!region.tried) {
    region.tried = true;
    const auto size = static_cast<size_t>(it->first - region.begin);
    if (user.attach({region.begin, size}, region.access)) region.detach = user.detach;
  }
  return region.detach != nullptr;
}

void SharedRegions::Remove(const uint8_t* begin) {
  MutexLock lock(&mu_);
  const auto it = regions_.upper_bound(begin);
  EPS_CHECK(it != regions_.end() && it->second.begin == begin);
  if (it->second.detach != nullptr) {
    it->second.detach({begin, static_cast<size_t>(it->first - begin)});
  }
  regions_.erase(it);
}

}  // namespace eps
