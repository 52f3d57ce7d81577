#include "worker/relay/relay.h"

#include <chrono>
#include <utility>

#include "common/flush_denormals.h"
#include "common/status_macros.h"
#include "spec/reduction_tree.h"
#include "worker/relay/stage_loader.h"

namespace eps {
namespace {

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

class Relay::Impl {
 public:
  Impl(const JoinedJob& job, ParameterClient* client, StageRuntime* runtime, BatchSource* batches,
       RelayOptions options)
      : job_(job),
        client_(client),
        runtime_(runtime),
        batches_(batches),
        options_(options),
        pool_(job.spec, runtime) {
    const uint32_t g = job.spec.training.micro_batches;
    for (PartId part : job.parts) {
      for (uint32_t j = 0; j < g; ++j) slots_.push_back(Slot{part, j});
    }
  }

  absl::Status Run(const std::function<bool()>& stop,
                   const std::function<void(Step, const LossSum&, const StepTiming&)>& on_step) {
    const ScopedFlushDenormals flush;
    std::vector<PartLossSum> losses;
    for (Step step = job_.next_step;; step = step.Next()) {
      // After a stop nothing of a next step is begun; what is pushed must still be counted.
      if (stop()) return client_->Flush();
      if (step.value() > job_.spec.training.steps) EPS_RETURN_IF_ERROR(client_->Flush());
      EPS_ASSIGN_OR_RETURN(const StepStart start, client_->BeginStep(step, losses));
      if (start.done) return absl::OkStatus();
      StepTiming timing;
      EPS_ASSIGN_OR_RETURN(losses, RunStep(start, &timing));
      LossSum sum;
      for (const PartLossSum& loss : losses) {
        sum.sum += loss.loss_sum;
        sum.tokens += loss.tokens;
      }
      on_step(step, sum, timing);
    }
  }

 private:
  // One micro-batch of a hosted part.
  struct Slot {
    PartId part;
    uint32_t micro_batch = 0;  // within the part
  };
  using GradientTree =
      TreeAccumulator<StageGradientPtr,
                      std::function<StageGradientPtr(StageGradientPtr, StageGradientPtr)>>;
  using LossTree = TreeAccumulator<double, double (*)(double, double)>;

  // What a step holds between its stages.
  struct StepState {
    StepStart start;
    std::vector<MicroBatch> batches;  // by slot
    std::map<PartId, uint64_t> tokens;
    std::vector<std::vector<ActivationPtr>> inputs;  // stashed; by stage, then slot
    std::vector<ActivationPtr> gradients;            // stashed; at the output of a stage, by slot
    std::map<PartId, LossTree> losses;
    // The last activation that was computed is still on the device.
    size_t hot_slot = 0;
    ActivationPtr hot;
  };

  size_t last_stage() const { return job_.spec.stages.size() - 1; }

  // Micro-batches run in zig-zag: up in even stages, down in odd ones, so that a stage begins with
  // what the one before left on the device. The reduction tree gives the same bits either way.
  size_t SlotAt(size_t pass_index, size_t i) const {
    return pass_index % 2 == 0 ? i : slots_.size() - 1 - i;
  }

  absl::StatusOr<std::vector<PartLossSum>> RunStep(const StepStart& start, StepTiming* timing) {
    StepState state;
    state.start = start;
    EPS_RETURN_IF_ERROR(LoadBatches(&state));
    state.inputs.assign(job_.spec.stages.size(), std::vector<ActivationPtr>(slots_.size()));
    state.gradients.resize(slots_.size());
    for (PartId part : job_.parts) {
      state.losses.emplace(
          part, LossTree(
                    job_.spec.training.micro_batches, +[](double a, double b) { return a + b; }));
    }
    // The top stage goes from forward straight into backward: it is fetched once.
    std::vector<StageLoader::Item> items;
    for (uint32_t s = 0; s <= last_stage(); ++s) items.push_back({StageId(s), false});
    for (uint32_t s = static_cast<uint32_t>(last_stage()); s-- > 0;) {
      items.push_back({StageId(s), true});
    }
    StageLoader loader(client_, runtime_, &pool_, std::move(items), start.version,
                       options_.prefetch);
    auto since = std::chrono::steady_clock::now();
    size_t pass = 0;
    for (uint32_t s = 0; s < last_stage(); ++s, ++pass) {
      EPS_RETURN_IF_ERROR(ForwardStage(StageId(s), pass, &loader, &state));
    }
    timing->forward_seconds = SecondsSince(since);
    since = std::chrono::steady_clock::now();
    for (uint32_t s = static_cast<uint32_t>(last_stage()) + 1; s-- > 0; ++pass) {
      EPS_RETURN_IF_ERROR(BackwardStage(StageId(s), pass, &loader, &state, timing));
    }
    timing->backward_seconds = SecondsSince(since);
    timing->fetch_wait_seconds = loader.wait_seconds();
    std::vector<PartLossSum> losses;
    for (PartId part : job_.parts) {
      losses.push_back({part, state.losses.at(part).Take(), state.tokens[part]});
    }
    return losses;
  }

  absl::Status LoadBatches(StepState* state) {
    for (const Slot& slot : slots_) {
      const uint32_t index =
          slot.part.value() * job_.spec.training.micro_batches + slot.micro_batch;
      EPS_ASSIGN_OR_RETURN(MicroBatch batch, batches_->Get(state->start.step, index));
      state->tokens[slot.part] += CountedTokens(batch);
      state->batches.push_back(std::move(batch));
    }
    return absl::OkStatus();
  }

  // The activation of `slot`, which is hot or comes back from the stash.
  absl::StatusOr<ActivationPtr> Bring(StepState* state, size_t slot, const ActivationPtr& stashed) {
    if (stashed == nullptr) return ActivationPtr();
    if (state->hot != nullptr && state->hot_slot == slot) return std::move(state->hot);
    return runtime_->Unstash(stashed);
  }

  absl::Status ForwardStage(StageId stage, size_t pass, StageLoader* loader, StepState* state) {
    EPS_ASSIGN_OR_RETURN(auto weights, loader->Next());
    StageProgram& program = runtime_->program(stage);
    for (size_t i = 0; i < slots_.size(); ++i) {
      const size_t slot = SlotAt(pass, i);
      EPS_ASSIGN_OR_RETURN(const ActivationPtr in,
                           Bring(state, slot, state->inputs[stage.value()][slot]));
      EPS_ASSIGN_OR_RETURN(ActivationPtr out, program.Forward(*weights, state->batches[slot], in));
      state->hot = out;
      state->hot_slot = slot;
      EPS_ASSIGN_OR_RETURN(state->inputs[stage.value() + 1][slot], runtime_->Stash(std::move(out)));
    }
    return absl::OkStatus();
  }

  absl::Status BackwardStage(StageId stage, size_t pass, StageLoader* loader, StepState* state,
                             StepTiming* timing) {
    EPS_ASSIGN_OR_RETURN(auto weights, loader->Next());
    StageProgram& program = runtime_->program(stage);
    const bool top = stage.value() == last_stage();
    const uint32_t g = job_.spec.training.micro_batches;
    std::map<PartId, GradientTree> trees;
    for (PartId part : job_.parts) {
      trees.emplace(part, GradientTree(g, [this](StageGradientPtr a, StageGradientPtr b) {
                      return runtime_->Add(std::move(a), std::move(b));
                    }));
    }
    for (size_t i = 0; i < slots_.size(); ++i) {
      const size_t slot = SlotAt(pass, i);
      const auto [part, micro_batch] = slots_[slot];
      ActivationPtr& stashed_in = state->inputs[stage.value()][slot];
      ActivationPtr in;
      ActivationPtr grad_out;
      if (top) {
        EPS_ASSIGN_OR_RETURN(in, Bring(state, slot, stashed_in));
      } else {
        EPS_ASSIGN_OR_RETURN(grad_out, Bring(state, slot, state->gradients[slot]));
        if (stashed_in != nullptr) {
          EPS_ASSIGN_OR_RETURN(in, runtime_->Unstash(stashed_in));
        }
      }
      stashed_in.reset();
      state->gradients[slot].reset();
      EPS_ASSIGN_OR_RETURN(StageProgram::BackwardResult result,
                           program.Backward(*weights, state->batches[slot], in, grad_out,
                                            state->start.loss_scale_log2));
      if (top) state->losses.at(part).Insert(TreeRange{micro_batch, 1}, result.loss.sum);
      if (result.grad_in != nullptr) {
        state->hot = result.grad_in;
        state->hot_slot = slot;
        EPS_ASSIGN_OR_RETURN(state->gradients[slot], runtime_->Stash(std::move(result.grad_in)));
      }
      GradientTree& tree = trees.at(part);
      tree.Insert(TreeRange{micro_batch, 1}, std::move(result.gradient));
      if (tree.complete()) {
        EPS_RETURN_IF_ERROR(Push(stage, part, tree.Take(), *state, timing));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Push(StageId stage, PartId part, StageGradientPtr gradient, const StepState& state,
                    StepTiming* timing) {
    std::shared_ptr<HostStage> host = pool_.Get(stage);
    EPS_RETURN_IF_ERROR(runtime_->ToHost(stage, *gradient, host.get()));
    gradient.reset();
    const auto since = std::chrono::steady_clock::now();
    TensorPointers pointers = pool_.Pointers(stage, host.get());
    EPS_RETURN_IF_ERROR(
        client_->Push(stage, part, state.tokens.at(part), std::move(pointers), std::move(host)));
    timing->push_wait_seconds += SecondsSince(since);
    return absl::OkStatus();
  }

  const JoinedJob& job_;
  ParameterClient* const client_;
  StageRuntime* const runtime_;
  BatchSource* const batches_;
  const RelayOptions options_;
  HostStagePool pool_;
  std::vector<Slot> slots_;  // hosted micro-batches, by part, then place in the part
};

Relay::Relay(const JoinedJob& job, ParameterClient* client, StageRuntime* runtime,
             BatchSource* batches, RelayOptions options)
    : impl_(new Impl(job, client, runtime, batches, options)) {}

Relay::~Relay() = default;

absl::Status Relay::Run(
    const std::function<bool()>& stop,
    const std::function<void(Step, const LossSum&, const StepTiming&)>& on_step) {
  return impl_->Run(stop, on_step);
}

}  // namespace eps
