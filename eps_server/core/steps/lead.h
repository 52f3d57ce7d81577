#ifndef EPS_SERVER_CORE_STEPS_LEAD_H_
#define EPS_SERVER_CORE_STEPS_LEAD_H_

// The duties of the lead shard alone: it decides each step (learning rate, clip factor, bias
// corrections, all computed once, here) and records each completed one.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/ids.h"
#include "base/job/job_spec.h"
#include "base/numerics/loss_scale.h"
#include "eps/v1/data.pb.h"
#include "eps/v1/shard.pb.h"
#include "eps/v1/types.pb.h"
#include "eps_server/core/cuts/cut_plan.h"

namespace eps {

// The decisions and records of one term. Thread-compatible. Borrows `spec`, which must outlive it.
// Ignores messages that are repeated, or that belong to a step it has recorded.
class Lead {
 public:
  Lead(const JobSpec& spec, uint32_t chunks, uint32_t shards, CutPlan cuts);

  // Records that a shard holds the state of a border. Returns true once every shard does; the job
  // then opens after that border. Returns false if the job is open. FailedPrecondition if another
  // shard holds another border.
  absl::StatusOr<bool> OnImported(ShardId shard, const v1::Imported& imported, uint64_t now_ms);
  // Forgets what the shards have imported. REQUIRES that the job is not open.
  void ForgetImports() { imported_.assign(imported_.size(), std::nullopt); }
  // Opens the job after a border that every shard holds.
  void Open(const v1::Imported& border, uint64_t now_ms);

  // Return whether a message is news: it is not a repetition, and its step is not recorded yet.
  bool IsNews(ShardId shard, const v1::Stats& stats) const;
  bool IsNews(const v1::PartLoss& loss) const;
  bool IsNewEvaluation(const v1::PartLoss& loss) const;

  // Count a message towards its step. They ignore one that is no news.
  void OnStats(ShardId shard, const v1::Stats& stats);
  void OnLoss(const v1::PartLoss& loss);
  // Counts a part's loss on held-out data, and what it counted of its predictions, with the weights
  // after step loss.step(), which must be the newest border. Returns the record of the evaluation
  // once all parts have reported. Ignores repetitions and evaluations of older borders. `now_ms`
  // stamps the duration.
  std::optional<v1::StepRecord> OnEvaluation(const v1::PartLoss& loss, Term term, uint64_t now_ms);

  // Returns the highest chunk whose gradient overflowed in the next step to decide, if the loss
  // scale cannot fall any further; nullopt otherwise.
  std::optional<ChunkId> OverflowAtLowestScale() const;
  // Returns the decisions that became possible since the last call, in step order. Send them to
  // every shard. `now_ms` may be the reason for a cut.
  std::vector<v1::Decision> TakeDecisions(uint64_t now_ms);
  // Repeats a decision that an earlier process made. Call in step order; ignores any other step.
  void Adopt(const v1::Decision& decision, uint64_t now_ms);
  // Returns the last step that TakeRecords returned, or the border after which the job opened.
  uint64_t recorded_step() const { return next_record_ - 1; }
  // Returns the records that became complete since the last call, in step order. `now_ms` stamps
  // their durations.
  std::vector<v1::StepRecord> TakeRecords(Term term, uint64_t now_ms);
  // Returns the last few decisions, for a shard that may have missed them while its link was down.
  // Such a shard is late by at most one step. A decision is kept after its step is recorded,
  // because a record does not prove that every shard has the decision.
  std::vector<v1::Decision> LastDecisions() const;
  // Adds a decision of an earlier process to LastDecisions.
  void Remember(const v1::Decision& decision) { last_decisions_[decision.step()] = decision; }

  // Returns the gradient norm of one of the last few steps; 0 if it is unknown. A skipped step has
  // the norm of the step before it.
  double NormOf(uint64_t step) const;
  // Makes these steps end with a cut too, unless they are decided: their borders have a gate, so a
  // client reads them, or a server ends there.
  void SetGates(std::set<uint64_t> steps) { gates_ = std::move(steps); }
  // Returns the first step that is not decided; 0 before the job opens.
  uint64_t next_decision() const { return next_decision_; }
  CutPlan& cuts() { return cuts_; }
  // Returns the duration of the last recorded step, in seconds.
  double step_seconds() const { return step_seconds_; }
  // Returns what the opening of the job, or else the oldest open record, waits for, such as "shard
  // 1: gradient statistics of step 7"; empty if there is nothing.
  std::string WaitsFor() const;

 private:
  // The messages and the decision of a step that is not recorded yet.
  struct OpenStep {
    std::optional<v1::Decision> decision;
    std::vector<bool> shard_in;                       // by shard: its statistics have arrived
    uint32_t shards_in = 0;                           // number of true elements of shard_in
    std::vector<double> sum_squares;                  // by chunk
    std::vector<std::optional<v1::PartLoss>> losses;  // by part
    uint32_t losses_in = 0;
    bool nonfinite = false;
    uint32_t nonfinite_chunk = 0;         // with nonfinite: the highest one
    double norm = 0;                      // NaN if the gradient is not finite
    std::optional<LossScale> loss_scale;  // set with the decision
  };

  OpenStep& At(uint64_t step);
  bool Decidable(uint64_t step) const;
  bool Skips(uint64_t step) const;
  v1::Decision Decide(uint64_t step, uint64_t now_ms) const;
  v1::StepRecord Record(uint64_t step, const OpenStep& open) const;
  bool StatsComplete(const OpenStep& open) const { return open.shards_in == shards_; }

  const JobSpec& spec_;
  const uint32_t chunks_;
  const uint32_t shards_;
  CutPlan cuts_;
  std::set<uint64_t> gates_;                           // the steps that have one
  std::vector<std::optional<v1::Imported>> imported_;  // by shard, before the job opens
  bool open_ = false;
  uint64_t base_step_ = 0;    // the border after which the job opened
  uint64_t last_update_ = 0;  // the optimizer's t after the last decision
  uint64_t next_decision_ = 0;
  std::optional<LossScale> loss_scale_;  // of next_decision_
  uint64_t next_record_ = 0;
  uint64_t last_record_ms_ = 0;
  double step_seconds_ = 0;
  uint64_t last_norm_step_ = 0;         // the last step with complete statistics
  std::map<uint64_t, double> norms_;    // by step: the last ones with complete statistics
  std::map<uint64_t, OpenStep> steps_;  // decided or reported on, but not recorded yet
  std::map<uint64_t, v1::Decision> last_decisions_;       // by step
  uint64_t evaluated_step_ = 0;                           // the border of evaluations_
  std::vector<std::optional<v1::PartLoss>> evaluations_;  // by part
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_STEPS_LEAD_H_
