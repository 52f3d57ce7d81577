#ifndef EPS_SERVER_CORE_STEPS_STEP_DESK_H_
#define EPS_SERVER_CORE_STEPS_STEP_DESK_H_

// The open step: reduces each chunk's gradient, updates the chunk as soon as the lead's decision
// allows it, and completes the step after the last chunk.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "eps/v1/shard.pb.h"
#include "eps_server/core/desk_queries.h"
#include "eps_server/core/events.h"
#include "eps_server/core/outbox.h"
#include "eps_server/core/shard_facts.h"
#include "optimizer/reduced_gradient.h"
#include "optimizer/update_request.h"

namespace eps {

// For one thread. Borrows facts, queries and outbox, which outlive it.
class StepDesk {
 public:
  // Statistics are kept for so many steps, because the lead may have missed them.
  static constexpr size_t kStatsKept = 2;

  StepDesk(const ShardFacts* facts, const DeskQueries* queries, Outbox* outbox);

  // Returns false, and does nothing, if the call is not one of this desk.
  bool On(const event::OpDone& e);
  void On(const internal_event::ChunkComplete& e);
  void On(const internal_event::Decided& e);
  // A decision in a message from the lead. Logs it if it is new.
  void OnMessage(const v1::Decision& decision);
  // Logs the decisions that arrived before the border was opened.
  void On(const internal_event::BorderOpened& e);
  void On(const internal_event::StepOpened& e);
  void On(const internal_event::LeadReached& e);
  void On(const internal_event::SessionReplayed& e);
  // Starts every update that nothing holds back any longer.
  void StartReadyUpdates();

  bool idle() const { return ops_.empty(); }
  bool has_decision() const { return decisions_.count(facts_.step) > 0; }
  // Whether the gradient of the chunk is being reduced.
  bool IsReducing(ChunkId chunk) const { return chunks_[facts_.local[chunk.value()]].reducing; }
  // Statistics of the last steps, oldest first.
  const std::deque<v1::Stats>& last_stats() const { return last_stats_; }

 private:
  // The gradient of a chunk in the open step.
  struct Chunk {
    ChunkId id;
    bool complete = false;
    std::optional<uint64_t> tokens;
    std::vector<UpdateInput> inputs;
    bool nonfinite = false;  // complete, but without a gradient: the step will be skipped
    // Sealed mode: the reduced gradient waits for the decision.
    bool reducing = false;
    bool measuring = false;  // its norms were asked for
    std::shared_ptr<const ReducedGradient> reduced;
  };
  // A backend call in flight.
  struct Op {
    enum class Kind { kReduction, kUpdate } kind;
    ChunkId chunk;
  };

  void MaybeStartUpdate(Chunk* chunk);
  UpdateRequest NewRequest(Chunk* chunk) const;
  UpdateRequest NewUpdate(Chunk* chunk, const v1::Decision& decision) const;
  void StartReduction(Chunk* chunk);
  void DropGradient(Chunk* chunk);
  void StartUpdate(Chunk* chunk, const v1::Decision& decision);
  void OnReduced(Chunk* chunk, const BackendDone& done);
  void OnUpdated(Chunk* chunk, const BackendDone& done);
  void MaybeComplete();
  void CloseStep(const v1::Decision& decision);
  v1::Stats StatsOf(uint64_t step) const;
  void KeepStats(v1::Stats stats);
  void SendStats();
  size_t IndexOf(const Chunk& chunk) const { return facts_.local[chunk.id.value()]; }

  const ShardFacts& facts_;
  const DeskQueries& queries_;
  Outbox* const outbox_;
  std::vector<Chunk> chunks_;               // as ShardFacts::owned
  uint64_t trained_ = 0;                    // chunks that are not frozen
  std::map<OpId, Op> ops_;                  // in flight
  uint64_t updated_ = 0;                    // chunks updated in the open step
  uint64_t reduced_ = 0;                    // sealed: chunks whose gradient is reduced or dropped
  std::optional<ChunkId> nonfinite_chunk_;  // the highest one whose gradient was dropped
  std::vector<double> sum_squares_;         // of each chunk's gradient in the open step
  std::map<uint64_t, v1::Decision> decisions_;  // by step, from the open one on
  std::deque<v1::Stats> last_stats_;            // at most kStatsKept
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_STEPS_STEP_DESK_H_
