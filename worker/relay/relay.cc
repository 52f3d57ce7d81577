#include "worker/relay/relay.h"

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/job/layout/visits.h"
#include "base/numerics/flush_denormals.h"
#include "base/numerics/reduction_tree.h"
#include "base/status_macros.h"
#include "base/trace/span_names.h"
#include "base/trace/trace_log.h"
#include "worker/relay/host_stage_pool.h"
#include "worker/relay/weight_stream.h"

namespace eps {
namespace {

using std::chrono::steady_clock;

// Gradients of one stage and part in host memory: one is encoded while the next is copied there, or
// computed there.
constexpr size_t kGradientsInHostMemory = 2;
// How long to wait for a gradient's memory before asking the client whether something is wrong.
// Only the client tells the lead that this worker waits for servers, so it must be soon.
constexpr std::chrono::seconds kGradientTimeout{10};

double SecondsSince(steady_clock::time_point start) {
  return std::chrono::duration<double>(steady_clock::now() - start).count();
}

using GradientTree =
    TreeAccumulator<StageGradientPtr,
                    std::function<StageGradientPtr(StageGradientPtr, StageGradientPtr)>>;
using LossAdd = std::function<double(double, double)>;

// One step of the hosted parts. An item is a micro-batch; items are ordered by part, then by place
// in the part. Even stages visit them in ascending order and odd ones in descending order, so that
// each visit begins with the activation that the previous one left on the device. Backward visits
// that add a part to one sum ascend within the part.
class StepRun {
 public:
  StepRun(const JoinedJob& job, ParameterClient* client, StageRuntime* runtime,
          HostStagePool* gradient_pool, const StepStart& start, StepTiming* timing)
      : job_(job),
        client_(client),
        runtime_(runtime),
        gradient_pool_(gradient_pool),
        start_(start),
        timing_(timing),
        stages_(job.spec.stages.size()),
        lowest_(job.spec.LowestTrainableStage()),
        g_(job.spec.training.micro_batches) {}

  // Enqueues the work of all visits. The last gradient may still be on its way to host memory.
  absl::Status VisitStages(BatchSource* batches, WeightStream* weights) {
    EPS_RETURN_IF_ERROR(LoadBatches(batches));
    for (const Visit& visit : VisitsOfStep(job_.spec)) {
      const auto fetch_start = steady_clock::now();
      EPS_ASSIGN_OR_RETURN(const auto stage_weights, Await(visit.stage, weights));
      timing_->fetch_wait_seconds += SecondsSince(fetch_start);
      const auto visit_start = steady_clock::now();
      const double push_wait = timing_->push_wait_seconds;
      const TraceSpan span(visit.backward ? kBackwardSpan : kForwardSpan, PlaceOf(visit.stage));
      if (!visit.backward) {
        EPS_RETURN_IF_ERROR(Forward(visit.stage, *stage_weights));
        timing_->forward_seconds += SecondsSince(visit_start);
      } else {
        EPS_RETURN_IF_ERROR(Backward(visit.stage, *stage_weights));
        timing_->backward_seconds +=
            SecondsSince(visit_start) - (timing_->push_wait_seconds - push_wait);
      }
    }
    return absl::OkStatus();
  }

  // Pushes the last gradient. Call it once, after VisitStages.
  absl::Status Finish() { return PushCopied(); }

  // One per hosted part. Call it after Finish.
  std::vector<PartLossSum> losses() const { return losses_; }

 private:
  static constexpr size_t kNone = SIZE_MAX;

  // A gradient in host memory, or on its way there from a device. By the time it is waited for, the
  // work of the next part or stage has been enqueued on the device.
  struct CopiedGradient {
    StageId stage;
    size_t part = 0;
    std::shared_ptr<HostStage> host;       // null if the device encodes
    std::unique_ptr<PendingCopy> pending;  // null if the copy is complete, or the device encodes
    std::unique_ptr<LeavingGradient> leaving;
    std::shared_ptr<void> counted;  // with `leaving`
  };
  // An encoded gradient that counts as in use.
  struct CountedGradient {
    std::shared_ptr<void> counted;
    std::shared_ptr<const GradientSource> gradient;
  };

  SpanPlace PlaceOf(StageId stage) const { return {start_.step.value(), stage.value() + 1}; }

  absl::StatusOr<std::shared_ptr<const StageWeights>> Await(StageId stage, WeightStream* weights) {
    const TraceSpan span(kWaitForWeightsSpan, PlaceOf(stage));
    return weights->Next();
  }

  absl::Status LoadBatches(BatchSource* batches) {
    const TraceSpan span(kLoadDataSpan, {start_.step.value()});
    for (const PartId part : job_.parts) {
      uint64_t tokens = 0;
      for (uint32_t j = 0; j < g_; ++j) {
        EPS_ASSIGN_OR_RETURN(MicroBatch batch, batches->Get(start_.step, part.value() * g_ + j));
        tokens += CountedTokens(batch);
        items_.push_back(std::move(batch));
      }
      losses_.push_back({part, 0.0, tokens});
      loss_sums_.emplace_back(g_, LossAdd([](double a, double b) { return a + b; }));
    }
    loss_known_.assign(losses_.size(), false);
    reported_.assign(losses_.size(), false);
    inputs_.assign(stages_, std::vector<ActivationPtr>(items_.size()));
    output_gradients_.assign(items_.size(), nullptr);
    return runtime_->BeginStash((stages_ - 1) * items_.size(), items_.size());
  }

  size_t ItemAt(StageId stage, size_t place) const {
    return stage.value() % 2 == 0 ? place : items_.size() - 1 - place;
  }
  // As ItemAt, in a backward visit.
  size_t BackwardItemAt(StageId stage, size_t place) const {
    const size_t item = ItemAt(stage, place);
    return fuses() ? item / g_ * g_ + place % g_ : item;
  }
  bool fuses() const { return job_.spec.training.gradient_sum == GradientSum::kFused; }

  // Returns `stashed` of an item on the device; it is still there if the last visit ended with it.
  absl::StatusOr<ActivationPtr> OnDevice(size_t item, const ActivationPtr& stashed) {
    const ActivationPtr at_hand = std::move(at_hand_);
    at_hand_ = nullptr;
    if (at_hand != nullptr && at_hand_item_ == item) return at_hand;
    return runtime_->Unstash(stashed);
  }

  absl::StatusOr<ActivationPtr> Keep(size_t item, ActivationPtr activation) {
    at_hand_ = activation;
    at_hand_item_ = item;
    return runtime_->Stash(std::move(activation));
  }

  // Announces that `stage` will need its input of `item`.
  void Announce(StageId stage, size_t item) {
    const ActivationPtr& input = inputs_[stage.value()][item];
    if (input != nullptr) runtime_->WillUnstash(input);
  }

  absl::Status Forward(StageId stage, const StageWeights& weights) {
    const size_t s = stage.value();
    for (size_t place = 0; place < items_.size(); ++place) {
      const size_t item = ItemAt(stage, place);
      if (place + 1 < items_.size()) Announce(stage, ItemAt(stage, place + 1));
      ActivationPtr in;
      if (s > 0) {
        EPS_ASSIGN_OR_RETURN(in, OnDevice(item, inputs_[s][item]));
      }
      at_hand_ = nullptr;
      if (stage < lowest_) inputs_[s][item] = nullptr;  // no visit follows on the way down
      absl::StatusOr<ActivationPtr> out =
          runtime_->program(stage).Forward(weights, items_[item], in);
      if (!out.ok()) return InContext(stage, item, out.status());
      EPS_ASSIGN_OR_RETURN(inputs_[s + 1][item], Keep(item, *std::move(out)));
    }
    return absl::OkStatus();
  }

  absl::Status Backward(StageId stage, const StageWeights& weights) {
    for (size_t slot = 0; slot < job_.parts.size(); ++slot) {
      const size_t part = stage.value() % 2 == 0 ? slot : job_.parts.size() - 1 - slot;
      GradientTree tree(g_, [this](StageGradientPtr left, StageGradientPtr right) {
        return runtime_->Add(std::move(left), std::move(right));
      });
      StageGradientPtr sum;
      for (size_t place = slot * g_; place < (slot + 1) * g_; ++place) {
        if (place + 1 < items_.size()) Announce(stage, BackwardItemAt(stage, place + 1));
        const size_t item = BackwardItemAt(stage, place);
        EPS_ASSIGN_OR_RETURN(sum, BackwardItem(stage, weights, item, std::move(sum)));
        const uint32_t leaf = static_cast<uint32_t>(item % g_);
        if (!fuses()) tree.Insert({leaf, 1}, std::move(sum));
      }
      if (!fuses()) {
        EPS_CHECK(tree.complete());
        sum = tree.Take();
      }
      EPS_RETURN_IF_ERROR(PushPart(stage, part, std::move(sum)));
    }
    return absl::OkStatus();
  }

  // Returns the gradient of an item, added to `sum_or_null`.
  absl::StatusOr<StageGradientPtr> BackwardItem(StageId stage, const StageWeights& weights,
                                                size_t item, StageGradientPtr sum_or_null) {
    const size_t s = stage.value();
    const bool last = s + 1 == stages_;
    ActivationPtr in;
    ActivationPtr grad_out;
    if (last && s > 0) {
      EPS_ASSIGN_OR_RETURN(in, OnDevice(item, inputs_[s][item]));
    } else if (!last) {
      EPS_ASSIGN_OR_RETURN(grad_out, OnDevice(item, output_gradients_[item]));
      if (s > 0) {
        EPS_ASSIGN_OR_RETURN(in, runtime_->Unstash(inputs_[s][item]));
      }
    }
    at_hand_ = nullptr;
    inputs_[s][item] = nullptr;
    output_gradients_[item] = nullptr;
    absl::StatusOr<StageProgram::BackwardResult> result = runtime_->program(stage).Backward(
        weights, items_[item], in, grad_out, start_.loss_scale_log2, std::move(sum_or_null));
    if (!result.ok()) return InContext(stage, item, result.status());
    if (stage != lowest_) {
      EPS_ASSIGN_OR_RETURN(output_gradients_[item], Keep(item, std::move(result->grad_in)));
    }
    if (result->late_loss != nullptr) {
      late_losses_.emplace_back(item, std::move(result->late_loss));
    } else if (last) {
      EPS_RETURN_IF_ERROR(CountLoss(stage, item, result->loss));
    }
    return std::move(result->gradient);
  }

  // Reads the losses that Backward left open; a part's report is the first to need them.
  absl::Status ReadLateLosses() {
    const StageId last(static_cast<uint32_t>(stages_ - 1));
    for (const auto& [item, late] : late_losses_) {
      absl::StatusOr<LossSum> loss = late->Wait();
      if (!loss.ok()) return InContext(last, item, loss.status());
      EPS_RETURN_IF_ERROR(CountLoss(last, item, *loss));
    }
    late_losses_.clear();
    return absl::OkStatus();
  }

  // Reports all losses that are known and not reported. The pushes of the lowest stage that is
  // trained come after it, so that a step whose gradients are complete has its losses, even if this
  // process ends here.
  absl::Status ReportLosses() {
    EPS_RETURN_IF_ERROR(ReadLateLosses());
    std::vector<PartLossSum> known;
    for (size_t part = 0; part < losses_.size(); ++part) {
      if (reported_[part] || !loss_known_[part]) continue;
      reported_[part] = true;
      known.push_back(losses_[part]);
    }
    return known.empty() ? absl::OkStatus() : client_->ReportLosses(known);
  }

  absl::Status CountLoss(StageId stage, size_t item, const LossSum& loss) {
    // The server divides by the tokens of the pushes, counted before the loss was known.
    if (loss.tokens != CountedTokens(items_[item])) {
      return InContext(
          stage, item,
          absl::InternalError(absl::StrCat("the loss counts ", loss.tokens, " tokens, the labels ",
                                           CountedTokens(items_[item]))));
    }
    const size_t part = item / g_;
    loss_sums_[part].Insert({static_cast<uint32_t>(item % g_), 1}, loss.sum);
    if (!loss_sums_[part].complete()) return absl::OkStatus();
    losses_[part].loss_sum = loss_sums_[part].Take();
    loss_known_[part] = true;
    return absl::OkStatus();
  }

  absl::Status PushPart(StageId stage, size_t part, StageGradientPtr gradient) {
    const auto start = steady_clock::now();
    const bool moves = runtime_->in_host_memory();
    EPS_RETURN_IF_ERROR(WaitForMemory(stage, part, moves));
    timing_->push_wait_seconds += SecondsSince(start);
    CopiedGradient next;
    next.stage = stage;
    next.part = part;
    if (moves) {
      EPS_ASSIGN_OR_RETURN(auto moved, runtime_->MoveToHost(stage, std::move(gradient)));
      next.host = gradient_pool_->Adopt(std::move(moved));
    } else {
      EPS_RETURN_IF_ERROR(StartCopy(*gradient, &next));
      gradient.reset();
    }
    EPS_RETURN_IF_ERROR(PushCopied());
    copied_ = std::move(next);
    const bool complete = copied_.pending == nullptr && copied_.leaving == nullptr;
    return complete ? PushCopied() : absl::OkStatus();
  }

  absl::Status StartCopy(const StageGradient& gradient, CopiedGradient* next) {
    EPS_ASSIGN_OR_RETURN(next->leaving,
                         runtime_->StartEncoding(next->stage, start_.step, gradient, client_));
    if (next->leaving != nullptr) {
      next->counted = gradient_pool_->Count();
      return absl::OkStatus();
    }
    EPS_ASSIGN_OR_RETURN(next->host, gradient_pool_->Take(next->stage));
    EPS_ASSIGN_OR_RETURN(next->pending,
                         runtime_->StartToHost(next->stage, gradient, next->host.get()));
    return absl::OkStatus();
  }

  absl::Status WaitForMemory(StageId stage, size_t part, bool moves) {
    SpanPlace place = PlaceOf(stage);
    place.part = losses_[part].part.value() + 1;
    const TraceSpan span(kWaitForMemorySpan, place);
    const size_t others = kGradientsInHostMemory - (moves ? 1 : 0);
    while (!gradient_pool_->WaitUntilFewerInUse(others, kGradientTimeout)) {
      EPS_RETURN_IF_ERROR(client_->Flush());  // servers may be slow; Flush fails if they are gone
    }
    return absl::OkStatus();
  }

  // Pushes the gradient that was copied last, if there is one.
  absl::Status PushCopied() {
    if (copied_.host == nullptr && copied_.leaving == nullptr) return absl::OkStatus();
    CopiedGradient copied = std::move(copied_);
    copied_ = CopiedGradient();
    std::shared_ptr<const GradientSource> gradient;
    EPS_ASSIGN_OR_RETURN(gradient, Arrived(&copied));
    const auto start = steady_clock::now();
    if (copied.stage == lowest_) EPS_RETURN_IF_ERROR(ReportLosses());
    const PartLossSum& part = losses_[copied.part];
    const absl::Status status =
        client_->Push(copied.stage, part.part, part.tokens, std::move(gradient));
    timing_->push_wait_seconds += SecondsSince(start);
    return status;
  }

  // Waits for a gradient and returns it.
  absl::StatusOr<std::shared_ptr<const GradientSource>> Arrived(CopiedGradient* copied) {
    if (copied->leaving != nullptr) {
      auto gradient = std::make_shared<CountedGradient>();
      gradient->counted = std::move(copied->counted);
      EPS_ASSIGN_OR_RETURN(gradient->gradient, copied->leaving->Wait());
      return std::shared_ptr<const GradientSource>(gradient, gradient->gradient.get());
    }
    if (copied->pending != nullptr) EPS_RETURN_IF_ERROR(copied->pending->Wait());
    TensorPointers pointers;
    for (size_t use = 0; use < job_.spec.stages[copied->stage.value()].uses.size(); ++use) {
      pointers.push_back(copied->host->tensor(use));
    }
    return std::shared_ptr<const GradientSource>(std::make_shared<HostGradient>(
        job_.spec, copied->stage, pointers, std::move(copied->host)));
  }

  absl::Status InContext(StageId stage, size_t item, const absl::Status& status) const {
    return absl::Status(
        status.code(),
        absl::StrCat("stage ", stage.value(), " (", job_.spec.stages[stage.value()].name,
                     "), micro-batch ", items_[item].index, " of step ", start_.step.value(), ": ",
                     status.message()));
  }

  const JoinedJob& job_;
  ParameterClient* const client_;
  StageRuntime* const runtime_;
  HostStagePool* const gradient_pool_;
  const StepStart start_;
  StepTiming* const timing_;
  const size_t stages_;
  const StageId lowest_;  // the last one on the way down
  const uint32_t g_;

  std::vector<MicroBatch> items_;
  std::vector<PartLossSum> losses_;  // by hosted part
  std::vector<bool> loss_known_;     // by hosted part
  std::vector<bool> reported_;       // by hosted part
  std::vector<TreeAccumulator<double, LossAdd>> loss_sums_;
  std::vector<std::vector<ActivationPtr>> inputs_;  // by stage and item, stashed until used
  // By item, stashed: gradients of the output of the stage that the backward pass visits next.
  std::vector<ActivationPtr> output_gradients_;
  std::vector<std::pair<size_t, std::unique_ptr<LateLoss>>> late_losses_;  // with their items
  ActivationPtr at_hand_;  // the activation that the last Keep stashed, still on the device
  size_t at_hand_item_ = kNone;
  CopiedGradient copied_;  // not yet pushed; has no host memory if there is none
};

}  // namespace

// Runs one StepRun after another.
class Relay::Impl {
 public:
  Impl(const JoinedJob& job, ParameterClient* client, StageRuntime* runtime, BatchSource* batches,
       RelayOptions options)
      : job_(job),
        client_(client),
        runtime_(runtime),
        batches_(batches),
        options_(options),
        weight_pool_(runtime, &job_.spec, static_cast<size_t>(options.prefetch) + 1),
        gradient_pool_(runtime, &job_.spec, kGradientsInHostMemory) {
    runtime_->AllowLateLosses();
  }

  absl::Status Run(const std::function<bool()>& stop,
                   const std::function<void(Step, const LossSum&, const StepTiming&)>& on_step) {
    const ScopedFlushDenormals flush;  // programs and sums run on this thread
    if (job_.done) return absl::OkStatus();
    std::unique_ptr<WeightStream> ahead;  // of the next step
    for (Step step = job_.next_step;; step = step.Next()) {
      const bool past_end = step.value() > job_.spec.training.steps;
      EPS_RETURN_IF_ERROR(client_->Flush());
      if (stop && stop()) return absl::OkStatus();
      StepTiming timing;
      const auto begin = steady_clock::now();
      std::unique_ptr<WeightStream> weights = std::move(ahead);
      EPS_ASSIGN_OR_RETURN(const StepStart start, client_->BeginStep(step));
      timing.begin_wait_seconds = SecondsSince(begin);
      EPS_RETURN_IF_ERROR(EvaluateBehind(step.value() - 1, start.version));
      if (start.done) return absl::OkStatus();
      if (past_end) {
        return absl::InternalError(absl::StrCat("the servers begin step ", step.value(),
                                                " of a job of ", job_.spec.training.steps));
      }
      if (start.counted) continue;  // by the process that hosted these parts before
      if (weights == nullptr || weights->version() != start.version) {
        weights = nullptr;
        weights = Open(start.version);
      }
      StepRun run(job_, client_, runtime_, &gradient_pool_, start, &timing);
      EPS_RETURN_IF_ERROR(run.VisitStages(batches_, weights.get()));
      weights = nullptr;
      if (FetchesAhead(step.Next())) {
        ahead = Open(start.version.Next());
        EPS_RETURN_IF_ERROR(ahead->Start());
      }
      EPS_RETURN_IF_ERROR(run.Finish());
      LossSum sum;
      for (const PartLossSum& part : run.losses()) {
        sum.sum += part.loss_sum;
        sum.tokens += part.tokens;
      }
      if (on_step) on_step(step, sum, timing);
    }
  }

 private:
  bool EvaluatesBehind(uint64_t step) const {
    return options_.evaluation_or_null != nullptr &&
           EvaluationIsDue(step, options_.eval_steps, job_.spec.training.steps);
  }

  // Returns whether the first fetches of `step` are sent when the last visit of the step before is
  // enqueued, so that the servers answer them as soon as the chunks of these stages are updated.
  // BeginStep is answered only when all chunks are. An evaluation needs the memory first, and a
  // step that may be skipped may make no new version.
  bool FetchesAhead(Step step) const {
    return step.value() <= job_.spec.training.steps &&
           job_.spec.training.nonfinite != Nonfinite::kSkip && !EvaluatesBehind(step.value() - 1);
  }

  std::unique_ptr<WeightStream> Open(Version version) {
    return std::make_unique<WeightStream>(job_.spec, client_, runtime_, &weight_pool_,
                                          options_.prefetch, version, VisitsOfStep(job_.spec));
  }

  absl::Status EvaluateBehind(uint64_t step, Version version) {
    if (!EvaluatesBehind(step)) return absl::OkStatus();
    const TraceSpan span(kEvaluateSpan, {step});
    EPS_ASSIGN_OR_RETURN(
        const std::vector<PartLossSum> losses,
        EvaluateParts(job_, client_, runtime_, &weight_pool_, options_.prefetch, version,
                      options_.evaluation_or_null, options_.count_predictions));
    return client_->ReportEvaluation(losses);
  }

  const JoinedJob& job_;
  ParameterClient* const client_;
  StageRuntime* const runtime_;
  BatchSource* const batches_;
  const RelayOptions options_;
  HostStagePool weight_pool_;
  HostStagePool gradient_pool_;
};

Relay::Relay(const JoinedJob& job, ParameterClient* client, StageRuntime* runtime,
             BatchSource* batches, RelayOptions options)
    : impl_(std::make_unique<Impl>(job, client, runtime, batches, options)) {}

Relay::~Relay() = default;

absl::Status Relay::Run(
    const std::function<bool()>& stop,
    const std::function<void(Step, const LossSum&, const StepTiming&)>& on_step) {
  return impl_->Run(stop, on_step);
}

}  // namespace eps
