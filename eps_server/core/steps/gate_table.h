#ifndef EPS_SERVER_CORE_STEPS_GATE_TABLE_H_
#define EPS_SERVER_CORE_STEPS_GATE_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "eps/v1/shard.pb.h"

namespace eps {

// The holder of the gate of the program that drives the job.
inline constexpr char kDriverHolder[] = "driver";
// The holder of the gate of a job that the board holds.
inline constexpr char kBoardHolder[] = "board";
// Returns the holder of the gate of a shard that drains.
std::string DrainHolder(ShardId shard);
// Returns whether the holder is that of a shard that drains.
bool IsDrainHolder(const std::string& holder);
// Describes a gate that has a step for the status page: the step, and who holds it.
std::string GateText(const v1::Gate& gate);

// The gates of a job, one for each holder, and which shards know the lowest of them. The lowest
// gate holds. Each call of Set and Lift is a new revision, which every shard is told and answers.
// Thread-compatible.
class GateTable {
 public:
  explicit GateTable(size_t shards) : answers_(shards) {}

  // Sets or moves the gate of a holder: the steps after `step` are withheld.
  void Set(const std::string& holder, uint64_t step);
  // As Set, and the gate ends at `at_ms` unless this is called again. Without a change of the step,
  // it is no new revision.
  void SetUntil(const std::string& holder, uint64_t step, uint64_t at_ms);
  // Removes the gate of a holder, if it has one.
  void Lift(const std::string& holder);
  // Removes the gates that end at `now_ms` or before. Returns whether there was one; they are one
  // revision.
  bool LiftEnded(uint64_t now_ms);
  // Returns when the next gate ends; nullopt if none does.
  std::optional<uint64_t> NextEnd() const;
  const std::map<std::string, uint64_t>& gates() const { return gates_; }
  // Returns the number of the holder's last request; 0 if there was none. The table keeps the
  // driver's for ever, and another holder's as long as its gate.
  uint64_t LastNumber(const std::string& holder) const;
  void SetLastNumber(const std::string& holder, uint64_t number);
  // Whether the driver has set or lifted its gate.
  bool driver_spoke() const { return driver_spoke_; }
  // Returns the lowest gate in force, and its holders; without a step if there is no gate.
  v1::Gate InForce() const;
  uint64_t revision() const { return revision_; }

  // Records that a shard has the gate of a revision, and the first border at which it can stop.
  // Ignores a revision before one that the shard has answered, and one that does not exist.
  void OnAnswer(ShardId shard, uint64_t revision, uint64_t first_border);
  // Forgets all answers: a new term begins, and the shards have no gate in it yet.
  void ForgetAnswers();
  // Returns the first shard that has answered neither the revision nor a later one.
  std::optional<ShardId> Missing(uint64_t revision) const;
  // Returns the highest of the borders in the last answers. REQUIRES that none is missing.
  uint64_t FirstBorder() const;

 private:
  // Removes the gate of a holder, if it has one.
  void Erase(const std::string& holder);

  // The last answer of a shard.
  struct Answer {
    uint64_t revision = 0;
    uint64_t first_border = 0;
  };

  std::map<std::string, uint64_t> gates_;    // by holder
  std::map<std::string, uint64_t> ends_ms_;  // by holder, of those gates that end
  std::map<std::string, uint64_t> numbers_;  // by holder, of its last request
  bool driver_spoke_ = false;
  uint64_t revision_ = 0;
  std::vector<std::optional<Answer>> answers_;  // by shard
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_STEPS_GATE_TABLE_H_
