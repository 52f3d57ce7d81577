#ifndef EPS_SERVER_CORE_STEPS_LEAD_H_
#define EPS_SERVER_CORE_STEPS_LEAD_H_

// What only the lead shard does: the decision of each step (learning rate, clip factor, bias
// corrections: computed once, here) and the record of each completed one.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/ids.h"
#include "eps/v1/data.pb.h"
#include "eps/v1/shard.pb.h"
#include "eps/v1/types.pb.h"
#include "base/job/job_spec.h"
#include "storage/cuts/cut.h"

namespace eps {

// Which steps end with a cut. Plain value.
class CutPlan {
 public:
  CutPlan() = default;  // none does
  // As CoreLimits::cut_steps. The last step of a job always does.
  explicit CutPlan(uint64_t cut_steps);

  bool enabled() const { return cuts_; }
  bool Due(uint64_t step, uint64_t last_step) const;
  void OnDecided(uint64_t step) { last_cut_ = step; }
  // No more steps than that may lie between two cuts; 0: any number.
  void Limit(uint64_t most_steps);
  // How long the shards took for a cut, from the border on, and a step takes: with auto, the cuts
  // from now on are as far apart as base/job/cut_interval.h says.
  void OnMeasured(double cut_seconds, double step_seconds);
  uint64_t interval() const { return interval_; }

 private:
  bool cuts_ = false;
  bool auto_ = false;
  uint64_t interval_ = 0;  // 0: the last step only
  uint64_t most_ = 0;      // 0: no limit
  uint64_t last_cut_ = 0;
};

// Thread-compatible. `spec` is borrowed and outlives it.
class Lead {
 public:
  Lead(const JobSpec& spec, uint32_t chunks, uint32_t shards, CutPlan cuts);

  // A shard holds the state of a border. True when all shards do: the job opens behind it.
  // FailedPrecondition if it is not the border that the others hold.
  absl::StatusOr<bool> OnImported(ShardId shard, const v1::Imported& imported, uint64_t now_ms);
  // All shards hold the border: the job is open behind it.
  void Open(const v1::Imported& border, uint64_t now_ms);

  // Whether a message would count: it is of a step that is not recorded, and not a repeated one.
  bool IsNews(ShardId shard, const v1::Stats& stats) const;
  bool IsNews(const v1::PartLoss& loss) const;
  bool IsNewEvaluation(const v1::PartLoss& loss) const;
  // Whether the record of the step, which is complete, still waits for the part's loss.
  bool MissesLoss(uint64_t step, PartId part) const;

  // What is no news counts for nothing.
  void OnStats(ShardId shard, const v1::Stats& stats);
  void OnLoss(const v1::PartLoss& loss);
  // What a part found on held-out data with the weights behind step loss.step(), the newest border.
  // The record of the evaluation when it was the last part's.
  std::optional<v1::StepRecord> OnEvaluation(const v1::PartLoss& loss, Term term, uint64_t now_ms);

  // Decisions that became possible since the last call, in step order: for every shard.
  std::vector<v1::Decision> TakeDecisions();
  // A decision that was made before this process began. Those of a job come in order.
  void Adopt(const v1::Decision& decision);
  // The last step that TakeRecords gave the record of, or the border behind which the job opened.
  uint64_t recorded_step() const { return next_record_ - 1; }
  // Records that became complete since the last call, in step order. `now_ms` stamps their
  // duration.
  std::vector<v1::StepRecord> TakeRecords(Term term, uint64_t now_ms);
  // The last few decisions: what a shard that links again may miss. It is one step behind the
  // others at most; that a step is recorded does not say that every shard has its decision.
  std::vector<v1::Decision> LastDecisions() const;
  // Of LastDecisions, before this process began.
  void Remember(const v1::Decision& decision) { last_decisions_[decision.step()] = decision; }

  // The gradient norm of a step, one of the last few; 0 if it is not known. Of a skipped step it is
  // that of the one before, as if the step had never been.
  double NormOf(uint64_t step) const;
  // The border behind the step will be held and read: it is worth a cut, too. 0: none.
  void Gate(uint64_t step) { gate_step_ = step; }
  CutPlan& cuts() { return cuts_; }
  // Of the last step that was recorded.
  double step_seconds() const { return step_seconds_; }
  // "shard 1: gradient statistics of step 7", or empty: what the oldest open record waits for.
  std::string WaitsFor() const;

 private:
  struct OpenStep {
    std::optional<v1::Decision> decision;
    std::vector<bool> shard_in;
    uint32_t shards_in = 0;
    std::vector<double> sum_squares;  // by chunk
    std::vector<std::optional<v1::PartLoss>> losses;
    uint32_t losses_in = 0;
    bool nonfinite = false;
    double norm = 0;  // NaN if the gradient is not finite
  };

  OpenStep& At(uint64_t step);
  bool Decidable(uint64_t step) const;
  bool Skips(uint64_t step) const;
  v1::Decision Decide(uint64_t step) const;
  v1::StepRecord Record(uint64_t step, const OpenStep& open) const;
  bool StatsComplete(const OpenStep& open) const { return open.shards_in == shards_; }

  const JobSpec& spec_;
  const uint32_t chunks_;
  const uint32_t shards_;
  CutPlan cuts_;
  uint64_t gate_step_ = 0;
  std::vector<std::optional<v1::Imported>> imported_;
  bool open_ = false;
  uint64_t base_step_ = 0;    // the border behind which the job opened
  uint64_t last_update_ = 0;  // the optimizer's t after the last decision
  uint64_t next_decision_ = 0;
  uint64_t next_record_ = 0;
  uint64_t last_record_ms_ = 0;
  double step_seconds_ = 0;
  uint64_t last_norm_step_ = 0;
  std::map<uint64_t, double> norms_;                 // of the last steps with complete statistics
  std::map<uint64_t, OpenStep> steps_;               // decided or heard of, not yet recorded
  std::map<uint64_t, v1::Decision> last_decisions_;  // by step
  uint64_t evaluated_step_ = 0;                      // the border that evaluations_ speaks of
  std::vector<std::optional<v1::PartLoss>> evaluations_;  // by part
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_STEPS_LEAD_H_
