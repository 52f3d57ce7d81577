#ifndef EPS_STORAGE_CSD_LINK_BYTES_H_
#define EPS_STORAGE_CSD_LINK_BYTES_H_

// The bytes that the links of a storage device have carried. They are counted where they are
// transferred, never derived from what an operation should move.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace eps {

// The links of a device.
enum class Link : uint8_t {
  kHost,      // between the host and the device
  kInternal,  // between the medium and the memory of the device
  kMedia,     // the medium itself
};
inline constexpr size_t kLinks = 3;

// Seen from the end that is nearer to the host: host bytes are read by the host, internal ones by
// the memory of the device, media bytes from the medium.
enum class Direction : uint8_t { kRead, kWritten };
inline constexpr size_t kDirections = 2;

// Why a byte is moved.
enum class Purpose : uint8_t {
  kState,     // weights and optimizer state of an update
  kGradient,  // gradients on their way to an update
  kWeights,   // new weights on their way to the host
  kPadding,   // up to whole blocks, and footers
  kCheck,     // scrubs, and checks of a cut
  kMove,      // import, export, backups
  kControl,   // tables of files, and filling new ones
};
inline constexpr size_t kPurposes = 7;

// Returns a lower-case name of one word.
const char* NameOf(Link link);
const char* NameOf(Direction direction);
const char* NameOf(Purpose purpose);

// Bytes by link, direction and purpose. Plain value.
class LinkBytes {
 public:
  uint64_t of(Link link, Direction direction, Purpose purpose) const {
    return bytes_[IndexOf(link, direction, purpose)];
  }
  // Calls `visit` with link, direction, purpose and bytes, in this order, for all of them.
  template <class Visit>
  void ForEach(const Visit& visit) const {
    for (size_t i = 0; i < kCounters; ++i) {
      visit(static_cast<Link>(i / kPurposes / kDirections),
            static_cast<Direction>(i / kPurposes % kDirections),
            static_cast<Purpose>(i % kPurposes), bytes_[i]);
    }
  }
  // Of all purposes.
  uint64_t of(Link link, Direction direction) const;
  void Add(Link link, Direction direction, Purpose purpose, uint64_t bytes) {
    bytes_[IndexOf(link, direction, purpose)] += bytes;
  }
  void Add(const LinkBytes& other);
  // Returns the same without the bytes of the host link.
  LinkBytes WithoutHost() const;
  // Returns what was added since `earlier`, an earlier state of the same counters.
  LinkBytes Since(const LinkBytes& earlier) const;

  friend bool operator==(const LinkBytes& a, const LinkBytes& b) { return a.bytes_ == b.bytes_; }

 private:
  friend class LinkLedger;
  static constexpr size_t kCounters = kLinks * kDirections * kPurposes;
  static constexpr size_t IndexOf(Link link, Direction direction, Purpose purpose) {
    return (static_cast<size_t>(link) * kDirections + static_cast<size_t>(direction)) * kPurposes +
           static_cast<size_t>(purpose);
  }

  std::array<uint64_t, kCounters> bytes_{};
};

// The counters of one device. Thread-safe, lock-free.
class LinkLedger {
 public:
  void Add(Link link, Direction direction, Purpose purpose, uint64_t bytes) {
    counters_[LinkBytes::IndexOf(link, direction, purpose)].fetch_add(bytes,
                                                                      std::memory_order_relaxed);
  }
  // Each counter has all bytes whose operations completed before the call.
  LinkBytes Read() const;

 private:
  std::array<std::atomic<uint64_t>, LinkBytes::kCounters> counters_{};
};

}  // namespace eps

#endif  // EPS_STORAGE_CSD_LINK_BYTES_H_
