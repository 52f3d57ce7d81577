#include "worker/relay/evaluation.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/job/evaluation/evaluation_metrics.h"
#include "base/job/layout/visits.h"
#include "base/numerics/held_out_counts.h"
#include "base/status_macros.h"
#include "worker/relay/weight_stream.h"

namespace eps {
namespace {

// A held-out micro-batch of a hosted part.
struct Item {
  size_t slot = 0;  // index of the part among the hosted ones
  uint32_t index = 0;
};

// Counts what is predicted for the samples of a batch.
absl::StatusOr<HeldOutCounts> CountsOf(const ModelSpec& model, const MicroBatch& batch,
                                       const Predictions& predictions) {
  const size_t samples = batch.targets.empty() ? batch.labels.size() : batch.targets.size();
  const size_t predicted = predictions.classes.size() + predictions.numbers.size();
  if (predicted != samples) {
    return absl::InternalError(
        absl::StrCat("the model predicts ", predicted, " values for ", samples, " samples"));
  }
  if (!batch.targets.empty()) return SumPairs(predictions.numbers, batch.targets);
  return CountClasses(predictions.classes, batch.labels, ClassesToCount(model));
}

// The counts of one part, whose micro-batches are added in order.
class PartCounts {
 public:
  explicit PartCounts(uint32_t micro_batches)
      : micro_batches_(micro_batches), sums_(micro_batches, AddPairs) {}

  void AddNext(const HeldOutCounts& counts) {
    AddIntegers(counts, &counts_);
    sums_.Insert({next_++, 1}, counts.sums);
  }
  // Call it once, after all micro-batches. A part without any has as many classes as the others.
  HeldOutCounts Take(uint32_t classes) {
    AddIntegers(CountClasses({}, {}, classes), &counts_);
    if (micro_batches_ > 0) counts_.sums = sums_.Take();
    return std::move(counts_);
  }

 private:
  const uint32_t micro_batches_;
  uint32_t next_ = 0;
  HeldOutCounts counts_;
  PairTree sums_;
};

// Returns the first held-out micro-batch of a part, or the end of the last one's.
uint64_t FirstOf(uint64_t part, uint64_t micro_batches, uint64_t parts) {
  return part * micro_batches / parts;
}

// Returns the micro-batches of the hosted parts, in order.
std::vector<Item> ItemsOf(const JoinedJob& job, uint64_t micro_batches) {
  const uint64_t parts = job.spec.training.parts;
  std::vector<Item> items;
  for (size_t slot = 0; slot < job.parts.size(); ++slot) {
    const uint64_t part = job.parts[slot].value();
    const uint64_t end = FirstOf(part + 1, micro_batches, parts);
    for (uint64_t m = FirstOf(part, micro_batches, parts); m < end; ++m) {
      items.push_back({slot, static_cast<uint32_t>(m)});
    }
  }
  return items;
}

// One forward pass for some of the items. Consecutive stages visit them in opposite orders, so that
// each visit begins with the activation that the previous one left on the device.
class Round {
 public:
  Round(const JobSpec& spec, StageRuntime* runtime, const Item* items, size_t count,
        bool count_predictions)
      : spec_(spec),
        runtime_(runtime),
        items_(items),
        count_(count),
        count_predictions_(count_predictions) {}

  absl::Status Run(EvaluationSource* source, WeightStream* weights) {
    for (size_t i = 0; i < count_; ++i) {
      EPS_ASSIGN_OR_RETURN(MicroBatch batch, source->Get(items_[i].index));
      batches_.push_back(std::move(batch));
    }
    inputs_.assign(count_, nullptr);
    losses_.resize(count_);
    counts_.resize(count_);
    for (uint32_t s = 0; s < spec_.stages.size(); ++s) {
      EPS_ASSIGN_OR_RETURN(const auto stage_weights, weights->Next());
      EPS_RETURN_IF_ERROR(runtime_->BeginStash(count_, /*gradients=*/0));
      for (size_t place = 0; place < count_; ++place) {
        const size_t item = s % 2 == 0 ? place : count_ - 1 - place;
        const absl::Status status = Visit(StageId(s), *stage_weights, item);
        if (!status.ok()) return InContext(StageId(s), item, status);
      }
    }
    return absl::OkStatus();
  }

  // By item. Call it after Run.
  const std::vector<LossSum>& losses() const { return losses_; }
  const std::vector<HeldOutCounts>& counts() const { return counts_; }

 private:
  absl::Status Visit(StageId stage, const StageWeights& weights, size_t item) {
    ActivationPtr in;
    if (stage.value() > 0) {
      if (at_hand_ != nullptr && at_hand_item_ == item) {
        in = std::move(at_hand_);
      } else {
        EPS_ASSIGN_OR_RETURN(in, runtime_->Unstash(inputs_[item]));
      }
    }
    at_hand_ = nullptr;
    if (stage.value() + 1 == spec_.stages.size()) {
      inputs_[item] = nullptr;
      Predictions predictions;
      EPS_ASSIGN_OR_RETURN(losses_[item], runtime_->program(stage).Loss(
                                              weights, batches_[item], in,
                                              count_predictions_ ? &predictions : nullptr));
      if (!count_predictions_) return absl::OkStatus();
      EPS_ASSIGN_OR_RETURN(counts_[item], CountsOf(spec_.model, batches_[item], predictions));
      return absl::OkStatus();
    }
    EPS_ASSIGN_OR_RETURN(ActivationPtr out,
                         runtime_->program(stage).Forward(weights, batches_[item], in));
    // Released before the next one is stashed, so that a round holds one activation per item.
    in = nullptr;
    inputs_[item] = nullptr;
    at_hand_ = out;
    at_hand_item_ = item;
    EPS_ASSIGN_OR_RETURN(inputs_[item], runtime_->Stash(std::move(out)));
    return absl::OkStatus();
  }

  absl::Status InContext(StageId stage, size_t item, const absl::Status& status) const {
    return absl::Status(status.code(),
                        absl::StrCat("evaluation: stage ", stage.value(), " (",
                                     spec_.stages[stage.value()].name, "), held-out micro-batch ",
                                     items_[item].index, ": ", std::string(status.message())));
  }

  const JobSpec& spec_;
  StageRuntime* const runtime_;
  const Item* const items_;
  const size_t count_;
  const bool count_predictions_;
  std::vector<MicroBatch> batches_;
  std::vector<ActivationPtr> inputs_;  // by item, stashed: the next stage's inputs
  std::vector<LossSum> losses_;        // by item
  std::vector<HeldOutCounts> counts_;  // by item
  ActivationPtr at_hand_;              // the last stashed activation, still on the device
  size_t at_hand_item_ = 0;
};

}  // namespace

bool EvaluationIsDue(uint64_t step, uint64_t every, uint64_t steps) {
  return every > 0 && step > 0 && (step % every == 0 || step == steps);
}

absl::StatusOr<std::vector<PartLossSum>> EvaluateParts(
    const JoinedJob& job, ParameterClient* client, StageRuntime* runtime, HostStagePool* pool,
    int prefetch, Version version, EvaluationSource* source, bool count_predictions) {
  const uint64_t parts = job.spec.training.parts;
  std::vector<PartLossSum> losses;
  std::vector<PartCounts> counts;
  for (const PartId part : job.parts) {
    losses.push_back({part, 0.0, 0});
    const uint64_t share = FirstOf(part.value() + 1, source->micro_batches(), parts) -
                           FirstOf(part.value(), source->micro_batches(), parts);
    counts.emplace_back(static_cast<uint32_t>(share));
  }
  const std::vector<Item> items = ItemsOf(job, source->micro_batches());
  const size_t stages = job.spec.stages.size();
  std::vector<Visit> visits;
  for (uint32_t s = 0; s < stages; ++s) visits.push_back({StageId(s), /*backward=*/false});
  // A training step stashes the inputs of all stages but the first at the same time.
  const size_t most =
      job.parts.size() * job.spec.training.micro_batches * std::max<size_t>(1, stages - 1);
  for (size_t first = 0; first < items.size(); first += most) {
    const size_t count = std::min(most, items.size() - first);
    WeightStream weights(job.spec, client, runtime, pool, prefetch, version, visits);
    Round round(job.spec, runtime, &items[first], count, count_predictions);
    EPS_RETURN_IF_ERROR(round.Run(source, &weights));
    for (size_t i = 0; i < count; ++i) {
      PartLossSum& part = losses[items[first + i].slot];
      part.loss_sum += round.losses()[i].sum;
      part.tokens += round.losses()[i].tokens;
      counts[items[first + i].slot].AddNext(round.counts()[i]);
    }
  }
  for (size_t slot = 0; count_predictions && slot < losses.size(); ++slot) {
    losses[slot].counts = counts[slot].Take(ClassesToCount(job.spec.model));
  }
  return losses;
}

}  // namespace eps
