#ifndef EPS_CHECKPOINT_TRAINER_STATE_H_
#define EPS_CHECKPOINT_TRAINER_STATE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/job/evaluation/evaluation_metrics.h"
#include "base/job/job_spec.h"
#include "eps/v1/types.pb.h"

namespace eps {

// The best checkpoint of a run.
struct BestCheckpoint {
  double figure = 0;   // of eval.best_metric
  std::string folder;  // empty if there is none
};

// The step records of a run in bounded memory, and the trainer_state.json made from them.
// Thread-compatible.
class TrainerHistory {
 public:
  // Adds the record of a step, or that of an evaluation with its figures, in the order of the run.
  // Returns false, and ignores the record, for an evaluation of a border that the history already
  // has: a resumed run evaluates its border again.
  bool Add(const v1::StepRecord& record, const std::vector<Figure>& figures = {});

  // trainer_state.json as Hugging Face's Trainer writes it. log_history has at most some thousand
  // steps, evenly spread; evaluations have entries of their own. `eval_steps` is the configured
  // interval; 0 leaves it out.
  std::string Text(const JobSpec& spec, uint64_t step, uint64_t eval_steps,
                   const BestCheckpoint& best = {}) const;
  // Whether the history has the evaluation after `step`, or a later one.
  bool Evaluated(uint64_t step) const { return step > 0 && last_evaluated_ >= step; }
  // The step of the last step record; 0 if there is none.
  uint64_t last_step() const { return last_step_; }

 private:
  // A record and, of an evaluation, its figures.
  struct Entry {
    v1::StepRecord record;
    std::vector<Figure> figures;
  };
  // At most some thousand records, evenly spread: those whose places are multiples of `stride`.
  struct Sample {
    uint64_t stride = 1;
    std::vector<std::pair<uint64_t, Entry>> records;  // by place
    void Add(uint64_t place, const Entry& entry);
  };

  Sample steps_;                   // a record's place is its step
  Sample evaluations_;             // a record's place is its number
  uint64_t evaluations_seen_ = 0;  // count, including those that the sample dropped
  uint64_t last_evaluated_ = 0;    // step
  uint64_t last_step_ = 0;
};

}  // namespace eps

#endif  // EPS_CHECKPOINT_TRAINER_STATE_H_
