#ifndef EPS_BASE_MACHINE_SHARED_REGIONS_H_
#define EPS_BASE_MACHINE_SHARED_REGIONS_H_

// The memory that this process shares with others, so that who drives a device can register it with
// the device once, and copies need no buffer in between.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "absl/types/span.h"
#include "base/mutex.h"

namespace eps {

// Thread-safe. Calls of a user's functions are serialised; they must not use this object.
class SharedRegions {
 public:
  // The right that this process has to a region.
  enum class Access { kRead, kWrite };

  // How a user registers a region.
  struct User {
    std::function<bool(absl::Span<const uint8_t>, Access)> attach;  // returns whether it succeeded
    std::function<void(absl::Span<const uint8_t>)> detach;          // called if it did
  };

  // Lists memory as long as it exists.
  class Listed {
   public:
    Listed(SharedRegions* owner, const uint8_t* begin) : owner_(owner), begin_(begin) {}
    ~Listed() { owner_->Remove(begin_); }
    Listed(const Listed&) = delete;
    Listed& operator=(const Listed&) = delete;

   private:
    SharedRegions* const owner_;
    const uint8_t* const begin_;
  };

  // Returns the regions of this process.
  static SharedRegions& Get();

  // REQUIRES that the memory stays mapped as long as the result, and overlaps no other region.
  std::unique_ptr<Listed> List(absl::Span<const uint8_t> memory, Access access);

  // Returns whether all of `memory` lies in a region that `user` has attached; attaches it at
  // first. A region has one user, and an attempt that failed is not repeated.
  bool Attached(absl::Span<const uint8_t> memory, const User& user);

 private:
  // One listed range.
  struct Region {
    const uint8_t* begin = nullptr;
    Access access = Access::kRead;
    bool tried = false;
    // Set if the region is attached.
    std::function<void(absl::Span<const uint8_t>)> detach;
  };

  void Remove(const uint8_t* begin);

  Mutex mu_;
  std::map<const uint8_t*, Region> regions_ EPS_GUARDED_BY(mu_);  // by their end
};

}  // namespace eps

#endif  // EPS_BASE_MACHINE_SHARED_REGIONS_H_
