#ifndef EPS_SERVER_CORE_STEPS_LEASE_TABLE_H_
#define EPS_SERVER_CORE_STEPS_LEASE_TABLE_H_

// Which worker process computes which part (docs/protocol.md, "Leases", L1 and L10). A process that
// holds no part is a standby. A process gets all parts that it wants or none, and its leases begin
// and end together.
//
// With a target, the parts are dealt instead: contiguous shares of equal size to at most that many
// processes. Where that takes another deal, all holders yield: they give back their leases, each at
// a border of its own, and come back as new processes; the parts are dealt when they are there. A
// holder that is in the middle of a step may need parts that nobody holds: after a moment a standby
// gets these, and yields at the next border, too. Without a standby, the leases of all end.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace eps {

// For one thread. Times are milliseconds of one monotonic clock and never go back; every method
// that takes the time first ends whatever is over by then. Never uses a clock of its own.
class LeaseTable {
 public:
  static constexpr uint64_t kNever = UINT64_MAX;
  // The most processes without a part.
  static constexpr size_t kMaxStandbys = 1024;
  // A deal waits so long for holders that have given back their leases to come back.
  static constexpr uint64_t kDealMs = 5'000;
  // And so long for other holders to reach their border.
  static constexpr uint64_t kYieldMs = 1'000;

  // Durations in milliseconds.
  struct Limits {
    uint64_t lease_ms = 10'000;        // after the last Beat or Join
    uint64_t close_grace_ms = 10'000;  // after the session closed
    uint64_t stuck_ms = 0;             // without a visit; 0 disables
  };
  // Why a process lost its leases, or its place among the standbys.
  enum class End { kExpired, kLeft, kClosed, kStuck, kDealt };
  // The lease of a part, or the time without one.
  struct Part {
    uint64_t generation = 0;     // of the last grant; 0: never granted
    uint64_t holder = 0;         // its nonce; 0: the part is free
    uint64_t free_since_ms = 0;  // valid while it is free
    uint64_t last_holder = 0;    // valid while it is free; 0: there was none
    End ended = End::kExpired;   // how the lease of last_holder ended
  };
  // A process got its leases (no `end`), shall give them back (`yields`), or is no longer known.
  struct Change {
    uint64_t nonce = 0;
    std::optional<End> end;
    std::vector<uint32_t> parts;  // that it got, or that it held until now
    bool yields = false;          // it got nothing: it shall give back its leases and come back
  };

  LeaseTable(uint32_t parts, const Limits& limits);

  // The job opens: parts that nobody holds wait from now on.
  void Open(uint64_t now_ms);
  // Adds a process, which gets its parts at once if they are free. `wanted` names the parts,
  // ascending; if it is empty, the process gets every part that is free, if there is one. Of a
  // process that is known, keeps what it wants and renews its leases. Returns false, and does
  // nothing, if there are kMaxStandbys. REQUIRES: nonce is not 0.
  bool Join(uint64_t nonce, std::vector<uint32_t> wanted, uint64_t now_ms);
  // Renews the leases of a process, and opens its session. `visits` counts the stages that it has
  // computed; `waits`: the work is not with the worker. Returns false if the process is not known.
  bool Beat(uint64_t nonce, uint64_t visits, bool waits, uint64_t now_ms);
  // The session of the process closed. Ignores an unknown process.
  void CloseSession(uint64_t nonce, uint64_t now_ms);
  // The process gives back its leases. Ignores an unknown process.
  void Leave(uint64_t nonce, uint64_t now_ms);
  // Ends whatever is over by now.
  void Advance(uint64_t now_ms);

  // Deals the parts to at most `workers` processes from now on; 0: each process gets what it wants.
  void SetTarget(uint32_t workers, uint64_t now_ms);
  uint32_t target() const { return target_; }
  // Whether a holder shall give back its leases and come back.
  bool Yields(uint64_t nonce) const;

  // Sets the state of a part that an earlier process of the lead recorded; `holder` 0: nobody holds
  // it. Call Open when all parts are set: it gives every lease its full length.
  void Restore(uint32_t part, uint64_t generation, uint64_t holder);

  // Returns what changed since the last call, in order.
  std::vector<Change> TakeChanges();
  // Nothing ends by itself before this time. kNever if nothing can end.
  uint64_t NextDeadline() const { return next_ms_; }

  const std::vector<Part>& parts() const { return parts_; }
  bool Knows(uint64_t nonce) const { return processes_.count(nonce) > 0; }
  // Returns the parts of a process, ascending; empty for a standby.
  std::vector<uint32_t> PartsOf(uint64_t nonce) const;
  // Returns the processes without a part, in the order in which they came.
  const std::vector<uint64_t>& standbys() const { return standbys_; }
  // Returns when the process joined. REQUIRES: it is known.
  uint64_t JoinedAt(uint64_t nonce) const { return processes_.at(nonce).joined_ms; }
  // Holders and standbys.
  size_t processes() const { return processes_.size(); }

 private:
  // A worker process that joined.
  struct Process {
    std::vector<uint32_t> wanted;
    std::vector<uint32_t> held;
    uint64_t joined_ms = 0;
    uint64_t expires_ms = 0;
    bool is_open = false;         // its session
    uint64_t closes_ms = kNever;  // end of the grace after its session closed
    uint64_t visits = 0;          // as of its last Beat
    bool waits = true;            // as of its last Beat
    uint64_t still_since_ms = 0;  // `visits` has not changed since then
  };

  uint64_t StuckAt(const Process& process) const;
  uint64_t EndOf(const Process& process) const;
  bool TryGrant(uint64_t nonce, Process* process, uint64_t now_ms);
  void GrantStandbys(uint64_t now_ms);
  void Grant(uint64_t nonce, std::vector<uint32_t> parts, uint64_t now_ms);
  // Returns the standbys whose session is open, in the order in which they came.
  std::vector<uint64_t> OpenStandbys() const;
  size_t Holders() const { return processes_.size() - standbys_.size(); }
  // Gives the parts to standbys, or has the holders yield, if there is a target.
  void Deal(uint64_t now_ms);
  // Ends the leases of all holders.
  void EndHolders(uint64_t now_ms);
  // Begins a deal if the parts are not dealt as they should be.
  void BeginDeal(size_t open_standbys);
  // Returns when the deal goes on without those that it waits for.
  uint64_t DealBy() const;
  // Returns the parts that nobody holds, ascending.
  std::vector<uint32_t> FreeParts() const;
  // Gives all parts, which are free, to the first of `standbys`.
  void DealAll(const std::vector<uint64_t>& standbys, uint64_t now_ms);
  // Whether every part has a holder, and as many as possible hold equal shares.
  bool IsDealt(size_t most_holders) const;
  void Remove(uint64_t nonce, End end, uint64_t now_ms);
  void FindDeadline();

  const Limits limits_;
  std::vector<Part> parts_;
  std::map<uint64_t, Process> processes_;  // by nonce
  std::vector<uint64_t> standbys_;         // nonces, in the order in which they came
  std::vector<Change> changes_;
  uint32_t target_ = 0;              // the most holders; 0: no deals
  std::optional<size_t> deal_to_;    // during a deal: the processes that are expected back
  uint64_t free_since_ms_ = kNever;  // during a deal: when parts became free
  uint64_t next_ms_ = kNever;        // no process ends before; may be too early
};

// Says why a lease is over, such as "it sent no Beat for 10 s (servers.worker_lease)".
std::string TextOf(LeaseTable::End end, const LeaseTable::Limits& limits);

}  // namespace eps

#endif  // EPS_SERVER_CORE_STEPS_LEASE_TABLE_H_
