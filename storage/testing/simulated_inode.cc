#include "storage/testing/simulated_inode.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>

namespace eps {
namespace {

// The completion number of an image that no later sync makes durable.
constexpr uint64_t kLost = std::numeric_limits<uint64_t>::max();

}  // namespace

uint64_t NextDraw(uint64_t* state) {
  uint64_t x = *state += 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

void SimulatedInode::Apply(uint64_t offset, const std::vector<uint8_t>& data, uint64_t bytes,
                           uint64_t completion) {
  for (uint64_t done = 0; done < bytes; done += kSector) {
    Image image;
    image.completion = completion;
    std::memcpy(image.bytes.data(), data.data() + done, kSector);
    unsynced[(offset + done) / kSector].push_back(image);
  }
  std::copy_n(data.begin(), bytes, now.begin() + static_cast<ptrdiff_t>(offset));
}

void SimulatedInode::Sync(uint64_t limit, bool failed) {
  for (auto it = unsynced.begin(); it != unsynced.end();) {
    std::vector<Image>& images = it->second;
    for (size_t i = images.size(); i-- > 0;) {
      if (images[i].completion > limit) continue;
      if (failed) {
        images[i].completion = kLost;
        continue;
      }
      SetDurable(it->first, images[i].bytes);
      images.erase(images.begin(), images.begin() + static_cast<ptrdiff_t>(i) + 1);
      break;
    }
    it = images.empty() ? unsynced.erase(it) : std::next(it);
  }
}

void SimulatedInode::SetDurable(uint64_t sector, const Sector& bytes) {
  std::memcpy(durable.data() + sector * kSector, bytes.data(), kSector);
}

void SimulatedInode::Cut(uint64_t mode, uint64_t* draws) {
  for (auto& [sector, images] : unsynced) {
    size_t kept = images.size();  // one more than the index of the kept image
    if (mode == 0) kept = 0;
    if (mode >= 2) kept = NextDraw(draws) % (images.size() + 1);
    if (kept == 0) continue;
    Sector bytes = images[kept - 1].bytes;
    if (mode == 3 && NextDraw(draws) % 4 == 0) {
      const uint64_t whole = NextDraw(draws) % kSector;
      std::memcpy(bytes.data() + whole, durable.data() + sector * kSector + whole, kSector - whole);
    }
    SetDurable(sector, bytes);
  }
  unsynced.clear();
  now = durable;
}

}  // namespace eps
