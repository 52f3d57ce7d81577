#ifndef EPS_SERVER_CORE_PUSH_CREDIT_BOOK_H_
#define EPS_SERVER_CORE_PUSH_CREDIT_BOOK_H_

// The contributions that have credit and whose payload is on its way, and the processes whose
// payloads arrive damaged.

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "eps/v1/data.pb.h"

namespace eps {

// Names a contribution within a step: use, first part, number of parts, chunk.
using ContributionName = std::array<uint32_t, 4>;
ContributionName NameOf(const v1::ContributionKey& key);

// Thread-compatible. A contribution has at most one credit at a time.
class CreditBook {
 public:
  // Names one contribution on one stream.
  using Tag = std::pair<StreamId, uint64_t>;

  // REQUIRES: the contribution has no credit, and the tag is not in use.
  void Give(const Tag& tag, const v1::PushHeader& header, uint64_t now_ms);
  // Returns the header with this credit; null if there is none.
  const v1::PushHeader* FindOrNull(const Tag& tag) const;
  // Ends a credit and returns its header; nullopt if there is none.
  std::optional<v1::PushHeader> Take(const Tag& tag);

  bool HasCredit(const v1::ContributionKey& key) const { return names_.count(NameOf(key)) > 0; }
  std::vector<Tag> OfStream(StreamId stream) const;
  // Returns the credits that were given at this time or before, oldest first.
  std::vector<Tag> GivenUntil(uint64_t ms) const;
  // Returns when the oldest credit was given; nullopt if there is none.
  std::optional<uint64_t> oldest_ms() const;
  size_t size() const { return credits_.size(); }

 private:
  // A credit. Serial numbers count credits, so that their order is that of Give.
  struct Credit {
    v1::PushHeader header;
    uint64_t serial = 0;
  };

  std::map<Tag, Credit> credits_;
  std::set<ContributionName> names_;                     // of credits_
  std::map<uint64_t, std::pair<uint64_t, Tag>> by_age_;  // by serial: the time, and the tag
  uint64_t next_serial_ = 0;
};

// Counts damaged payloads in the open step, by contribution and process. Thread-compatible.
class DamageCounts {
 public:
  // So many damaged payloads of one contribution are final for the process that sent them.
  static constexpr uint32_t kFinal = 3;
  // For each contribution, so many processes are remembered: those that were noted last.
  static constexpr size_t kMostProcesses = 8;

  void Note(const v1::PushHeader& header);
  // Returns whether the process may not offer this contribution again.
  bool IsFinal(const v1::PushHeader& header) const;
  // Forgets everything: the next step opens.
  void Reset() { counts_.clear(); }

 private:
  // A process and its damaged payloads.
  struct Count {
    uint64_t nonce = 0;
    uint32_t damaged = 0;
  };
  std::map<ContributionName, std::vector<Count>> counts_;  // the process noted last is at the end
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_PUSH_CREDIT_BOOK_H_
