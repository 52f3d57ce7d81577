// The stages of a model program (docs/formats/model_program.md). Forward runs the calls of the
// stage; Backward runs them again under autograd and takes the gradients from the graph, each
// weight being one leaf, whose gradient autograd adds in FP32. The bits are those of LibTorch's
// operators in the order of the program, except:
//
//   dropout    y = x * mask(site); the attention with dropout is written out
//              (program_substitutions.h)
//   both_axes  a product with a weight that has a second copy W' computes dX with it
//   head       for each block of loss_block_tokens rows, in order, if the head works row by row,
//              else for all rows at once: scores = calls(block); the gradient of the scores as in
//              loss_head.h; the gradient of a weight that only multiplies is mm for the first
//              block, addmm_ into it for the others; the others add the blocks' gradients
//   sums       each gradient is added to the sum of earlier micro-batches, if there is one; on a
//              device, products with a weight that only multiplies add to it by themselves
//   BF16       dropout multiplies in FP32; the sums over rows of lookups and norms are FP32; the
//              loss is that of the scores as FP32; the gradients of blocks are added in FP32

#include "worker/models/program_stage.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/arange.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/empty_like.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "torch/csrc/autograd/autograd.h"
#include "worker/exec/torch_stage.h"
#include "worker/models/gradient_sums.h"
#include "worker/models/loss_head.h"
#include "worker/models/model_stages.h"
#include "worker/models/program_evaluator.h"
#include "worker/models/program_tensors.h"
#include "worker/models/stage_inputs.h"

namespace eps {
namespace {

using at::Tensor;

// Returns a gradient that is contiguous and the only reference to its memory; zeros if there is
// none.
Tensor Owned(Tensor gradient, const Tensor& like, at::ScalarType type) {
  if (!gradient.defined()) {
    return at::zeros(like.sizes(), like.options().dtype(type).requires_grad(false));
  }
  const bool shared = gradient.use_count() > 1 || gradient.storage().use_count() > 1;
  return gradient.is_contiguous() && !shared ? gradient
                                             : gradient.clone(at::MemoryFormat::Contiguous);
}

// Returns the weights themselves; or, if they have no values, zeros on the device of `like` that
// take no memory either. No gradient of such a stage depends on a value.
StageTensors WithSomeValues(const StageTensors& weights, const Tensor& like) {
  StageTensors values;
  for (const Tensor& weight : weights) {
    values.push_back(weight.is_meta() ? at::zeros({1}, like.options()).expand(weight.sizes())
                                      : weight);
  }
  return values;
}

// A stage between the first and the last, and the first one.
class ProgramStage : public TorchStage {
 public:
  ProgramStage(const JobSpec& spec, StageId stage, std::unique_ptr<const ProgramEvaluator> calls,
               SumRule adds_within)
      : spec_(spec),
        stage_(stage),
        program_(*spec.model.program),
        of_stage_(program_.stages[stage.value()]),
        type_(ScalarTypeOf(program_.type)),
        list_(program_.calls_of(stage.value())),
        calls_(std::move(calls)),
        constants_(ProgramConstants(program_, of_stage_)),
        passes_gradient_(spec.LowestTrainableStage() < stage),
        adds_within_(adds_within) {
    const std::vector<TensorUse>& uses = spec.stages[stage.value()].uses;
    for (size_t use = 0; use < uses.size(); ++use) {
      trains_.push_back(!spec.IsFrozen(uses[use].tensor));
      const bool is_matrix = program_.tensors[of_stage_.uses[use].tensor].shape.size() == 2;
      by_products_.push_back(trains_[use] && is_matrix && calls_->IsMultipliedOnly(use));
    }
  }

  at::ScalarType type() const override { return type_; }

  Tensor Forward(const StageTensors& weights, const MicroBatch& batch,
                 const Tensor& in) const override {
    ProgramInputs inputs = InputsOf(weights, weights, batch);
    inputs.activation = in;
    Tensor y = Checked(calls_->Run(inputs), batch);
    const bool shares = std::any_of(weights.begin(), weights.end(),
                                    [&](const Tensor& w) { return w.is_alias_of(y); });
    const bool is_input = shares || (in.defined() && in.is_alias_of(y));
    return is_input ? y.clone(at::MemoryFormat::Contiguous) : y.contiguous();
  }

  Tensor ForwardAndKeep(const StageTensors& weights, const MicroBatch& batch, const Tensor& in,
                        std::unique_ptr<KeptPass>* kept) const override {
    auto pass = std::make_unique<Pass>(Record(weights, weights, batch, in));
    Tensor y = pass->y.detach().clone(at::MemoryFormat::Contiguous);
    *kept = std::move(pass);
    return y;
  }
  bool keeps_weights() const override { return true; }

  TorchBackward Backward(const StageTensors& given, const StageTensors& for_input_gradient,
                         const MicroBatch& batch, BackwardInputs inputs) const override {
    const bool has_values = !given[0].is_meta();
    const StageTensors weights = WithSomeValues(given, inputs.grad_out);
    Pass pass = inputs.kept != nullptr
                    ? std::move(static_cast<Pass&>(*inputs.kept))
                    : Record(weights, has_values ? for_input_gradient : weights, batch, inputs.in);
    TorchBackward out;
    out.gradient = std::move(inputs.sums);
    out.gradient.resize(weights.size());
    const bool adds_within = adds_within_(weights[0]);
    if (adds_within) SwapSumsOfProducts(&out.gradient, &pass.products);
    std::vector<Tensor> gradients = Gradients(std::move(pass.y), pass.leaves, inputs.grad_out);
    if (passes_gradient_) {
      out.grad_in = Owned(std::move(gradients.back()), inputs.in, type_);
      gradients.pop_back();
    }
    if (adds_within) SwapSumsOfProducts(&out.gradient, &pass.products);
    AddOwned(ByUse(std::move(gradients)), weights, &out.gradient);
    return out;
  }

 protected:
  // A run under autograd.
  struct Pass final : KeptPass {
    Tensor y;                    // carries the graph
    std::vector<Tensor> leaves;  // the weights that are trained; last, the input if it needs one
    StageTensors products;       // by use, the sums to which products in the graph add
  };

  Pass Record(const StageTensors& weights, const StageTensors& for_input_gradient,
              const MicroBatch& batch, const Tensor& in) const {
    ProgramInputs inputs = InputsOf(weights, for_input_gradient, batch);
    Pass pass;
    pass.products.resize(weights.size());
    if (adds_within_(weights[0])) AddProductsTo(&pass.products, &inputs);
    pass.leaves = MakeLeaves(&inputs);
    if (in.defined()) inputs.activation = in.detach();
    if (passes_gradient_) pass.leaves.push_back(inputs.activation.requires_grad_(true));
    const at::AutoGradMode with_grad(true);
    pass.y = Checked(calls_->Run(inputs), batch);
    return pass;
  }

  // `weights` and `for_input_gradient` are those of a pass.
  ProgramInputs InputsOf(const StageTensors& weights, const StageTensors& for_input_gradient,
                         const MicroBatch& batch) const {
    ProgramInputs inputs;
    inputs.device = weights[0].device();
    for (size_t use = 0; use < weights.size(); ++use) {
      const std::vector<int64_t>& shape = program_.tensors[of_stage_.uses[use].tensor].shape;
      ProgramWeight weight;
      weight.value = weights[use].view(shape);
      if (!for_input_gradient[use].is_same(weights[use])) {
        weight.for_input_gradient = for_input_gradient[use].view(shape);
      }
      inputs.weights.push_back(std::move(weight));
    }
    for (const Tensor& constant : constants_) {
      inputs.constants.push_back(constant.to(inputs.device, /*non_blocking=*/true));
    }
    inputs.columns = ProgramColumns(program_, list_, batch, weights[0]);
    if (!batch.held_out) {
      inputs.drop = [this, batch_ptr = &batch](uint16_t site, double p, const Tensor& x) {
        return Drop(MaskKey(spec_, stage_, *batch_ptr, site), p, x);
      };
    }
    return inputs;
  }

  // Lets products add the gradients of their weights to `sums`, by use, where these lie until the
  // backward pass.
  void AddProductsTo(StageTensors* sums, ProgramInputs* inputs) const {
    for (size_t use = 0; use < by_products_.size(); ++use) {
      if (by_products_[use]) inputs->weights[use].gradient_sum = &(*sums)[use];
    }
  }
  void SwapSumsOfProducts(StageTensors* a, StageTensors* b) const {
    for (size_t use = 0; use < by_products_.size(); ++use) {
      if (by_products_[use]) std::swap((*a)[use], (*b)[use]);
    }
  }

  // Makes each weight that is trained a leaf of its own; returns the leaves.
  std::vector<Tensor> MakeLeaves(ProgramInputs* inputs) const {
    std::vector<Tensor> leaves;
    for (size_t use = 0; use < trains_.size(); ++use) {
      Tensor& weight = inputs->weights[use].value;
      weight = weight.detach();
      if (!trains_[use]) continue;
      weight.requires_grad_(true).set_grad_dtype(at::kFloat);
      leaves.push_back(weight);
    }
    return leaves;
  }

  // Puts the gradients of the leaves at their uses; frozen ones stay undefined.
  std::vector<Tensor> ByUse(std::vector<Tensor> of_leaves) const {
    std::vector<Tensor> by_use(trains_.size());
    size_t leaf = 0;
    for (size_t use = 0; use < trains_.size(); ++use) {
      if (trains_[use]) by_use[use] = std::move(of_leaves[leaf++]);
    }
    return by_use;
  }

  // Adds the gradients of one micro-batch, by use, to `sums` with the shapes of `weights`.
  void AddOwned(std::vector<Tensor> gradients, const StageTensors& weights,
                StageTensors* sums) const {
    for (size_t use = 0; use < weights.size(); ++use) {
      if (!trains_[use] || (!gradients[use].defined() && (*sums)[use].defined())) continue;
      const Tensor gradient = Owned(std::move(gradients[use]), weights[use], at::kFloat);
      AddTerm(gradient.view(weights[use].sizes()), &(*sums)[use]);
    }
  }

  // Returns the gradients of the leaves and frees the graph of `y`.
  static std::vector<Tensor> Gradients(Tensor y, const std::vector<Tensor>& leaves,
                                       const Tensor& grad_out) {
    if (!y.requires_grad()) return std::vector<Tensor>(leaves.size());
    return torch::autograd::grad({y}, leaves, {grad_out}, /*retain_graph=*/false,
                                 /*create_graph=*/false, /*allow_unused=*/true);
  }

  // Checks the output of a stage that is not the last.
  Tensor Checked(Tensor y, const MicroBatch& batch) const {
    const int64_t tokens = program_.tokens > 0 ? program_.tokens : batch.seq_len;
    const std::vector<int64_t> expected = {batch.samples, tokens, program_.width};
    TORCH_CHECK(y.sizes() == expected && y.scalar_type() == type_,
                "the program gives an activation of type ", y.scalar_type(), " and shape ",
                y.sizes(), ", expected ", type_, " ", at::IntArrayRef(expected));
    return y;
  }

  const JobSpec& spec_;
  const StageId stage_;
  const ModelProgram& program_;
  const ProgramStageSpec& of_stage_;
  const at::ScalarType type_;
  const CallList& list_;
  const std::unique_ptr<const ProgramEvaluator> calls_;
  const std::vector<Tensor> constants_;
  const bool passes_gradient_;  // to the stage below
  const SumRule adds_within_;
  std::vector<bool> trains_;  // by use: it is not frozen
  // By use: its gradient is the sum of products, in its shape, which is a matrix.
  std::vector<bool> by_products_;
};

// The last stage: scores and their loss.
class ProgramHead final : public ProgramStage {
 public:
  using ProgramStage::ProgramStage;

  TorchBackward Backward(const StageTensors& weights, const StageTensors& for_input_gradient,
                         const MicroBatch& batch, BackwardInputs inputs) const override {
    const Tensor& in = inputs.in;
    TorchBackward out;
    StageTensors of_blocks(weights.size());
    out.gradient = std::move(inputs.sums);
    out.gradient.resize(weights.size());
    const bool adds_within = adds_within_(in);
    if (adds_within) SwapSumsOfProducts(&out.gradient, &of_blocks);
    out.grad_in = at::empty_like(in, at::MemoryFormat::Contiguous);
    const double scale = std::ldexp(1.0, -inputs.loss_scale_log2);
    ForEachBlock(weights, for_input_gradient, batch, in, [&](Block block) {
      AddProductsTo(&of_blocks, &block.inputs);
      std::vector<Tensor> leaves = MakeLeaves(&block.inputs);
      block.inputs.activation.requires_grad_(true);
      leaves.push_back(block.inputs.activation);
      std::vector<Tensor> gradients;
      {
        const at::AutoGradMode with_grad(true);
        Tensor scores = calls_->Run(block.inputs);
        const Tensor dscores = ScoresGradient(block, scores, scale, &out);
        gradients = Gradients(std::move(scores), leaves, dscores);
      }
      block.RowsOf(out.grad_in).copy_(Owned(gradients.back(), block.inputs.activation, type_));
      gradients.pop_back();
      gradients = ByUse(std::move(gradients));
      for (size_t use = 0; use < weights.size(); ++use) {
        AddGradient(std::move(gradients[use]), &of_blocks[use]);
      }
    });
    if (adds_within) SwapSumsOfProducts(&out.gradient, &of_blocks);
    AddOwned(std::move(of_blocks), weights, &out.gradient);
    return out;
  }

  Tensor LabelLogP(const StageTensors& weights, const MicroBatch& batch, const Tensor& in,
                   Tensor* predictions_or_null) const override {
    TorchBackward out;
    ForEachBlock(weights, weights, batch, in, [&](const Block& block) {
      const Tensor scores = calls_->Run(block.inputs);
      const Tensor rows = RowsOfScores(block, scores, &out).to(at::kFloat);
      if (predictions_or_null != nullptr) *predictions_or_null = PredictionsOf(rows);
      if (program_.head == HeadKind::kMse) {
        SquaredErrorGradient(rows, block.labels, 1.0, block.Part(out.label_log_p));
      } else {
        WriteLabelLogP(rows, block.labels, block.Part(out.label_log_p));
      }
    });
    return out.label_log_p;
  }

  Tensor Logits(const StageTensors& weights, const Tensor& in) const override {
    TORCH_CHECK(program_.rowwise && program_.head == HeadKind::kTokens,
                "the head of the program does not give scores row by row");
    MicroBatch batch;
    batch.held_out = true;
    batch.samples = 1;
    batch.seq_len = static_cast<uint32_t>(in.size(0));
    batch.tokens.resize(batch.seq_len);
    ProgramInputs inputs = InputsOf(weights, weights, batch);
    inputs.activation = in.unsqueeze(0);
    return calls_->Run(inputs).squeeze(0).to(at::kFloat);
  }

 private:
  // The rows that the calls compute at once.
  struct Block {
    ProgramInputs inputs;
    Tensor labels;          // of its rows
    int64_t first = 0;      // row
    int64_t count = 0;      // of rows
    int64_t rows = 0;       // of all blocks
    bool is_whole = false;  // the activation keeps its shape
    Tensor Part(const Tensor& of_rows) const { return of_rows.narrow(0, first, count); }
    // The part of an activation.
    Tensor RowsOf(const Tensor& activation) const {
      if (is_whole) return activation;
      return activation.view({1, -1, activation.size(-1)}).narrow(1, first, count);
    }
  };

  Tensor Labels(const MicroBatch& batch, const Tensor& like) const {
    switch (program_.head) {
      case HeadKind::kTokens:
        return IdTensor(batch.labels, batch, like).view({-1});
      case HeadKind::kClasses:
        return SampleLabels(batch.labels, batch, like);
      case HeadKind::kMse:
        break;
    }
    return SampleTargets(batch.targets, batch, like);
  }

  template <class Visitor>
  void ForEachBlock(const StageTensors& weights, const StageTensors& for_input_gradient,
                    const MicroBatch& batch, const Tensor& in, const Visitor& visit) const {
    const Tensor labels = Labels(batch, in);
    const bool by_rows = program_.rowwise && program_.head == HeadKind::kTokens;
    const ProgramInputs whole = InputsOf(weights, for_input_gradient, batch);
    Block block;
    block.rows = labels.size(0);
    block.is_whole = !by_rows;
    const int64_t most = by_rows ? int64_t{spec_.training.loss_block_tokens} : block.rows;
    for (block.first = 0; block.first < block.rows; block.first += block.count) {
      block.count = std::min(most, block.rows - block.first);
      block.labels = block.Part(labels);
      block.inputs = whole;
      block.inputs.activation = block.RowsOf(in).detach();
      if (by_rows) {
        for (Tensor& column : block.inputs.columns) {
          column = column.view({1, -1}).narrow(1, block.first, block.count);
        }
      }
      visit(block);
    }
  }

  // Returns the scores as [rows, classes], and makes room for the losses of all rows.
  Tensor RowsOfScores(const Block& block, const Tensor& scores, TorchBackward* out) const {
    const bool typed = scores.scalar_type() == type_ || scores.scalar_type() == at::kFloat;
    TORCH_CHECK(typed && scores.dim() > 0 && scores.numel() % block.count == 0,
                "the head gives scores of type ", scores.scalar_type(), " and shape ",
                scores.sizes(), " for ", block.count, " rows");
    if (!out->label_log_p.defined()) {
      out->label_log_p =
          at::empty({block.rows}, scores.options().dtype(at::kFloat).requires_grad(false));
    }
    return scores.reshape({block.count, -1});
  }

  // Fills the block's part of out->label_log_p; returns the gradient of `scores`, in their type.
  // The values of `scores` are lost if nothing else needs them.
  Tensor ScoresGradient(const Block& block, const Tensor& scores, double scale,
                        TorchBackward* out) const {
    const at::NoGradGuard no_grad;
    Tensor rows = RowsOfScores(block, scores.detach(), out);
    const Tensor minus_loss = block.Part(out->label_log_p);
    Tensor gradient;
    if (program_.head == HeadKind::kMse) {
      gradient = SquaredErrorGradient(rows.to(at::kFloat), block.labels, scale, minus_loss);
    } else {
      if (!calls_->output_is_free()) rows = rows.clone();
      gradient = CrossEntropyGradient(std::move(rows), block.labels, scale,
                                      spec_.training.label_smoothing, minus_loss);
    }
    return gradient.to(scores.scalar_type()).view(scores.sizes());
  }

  // Such a head has one block. argmax takes the first of several highest scores.
  Tensor PredictionsOf(const Tensor& rows) const {
    TORCH_CHECK(program_.head != HeadKind::kTokens, "predictions of tokens are not counted");
    return program_.head == HeadKind::kMse ? rows.view({-1}).clone() : rows.argmax(1);
  }

  static void AddGradient(Tensor gradient, Tensor* sum) {
    if (!gradient.defined()) return;
    if (sum->defined()) {
      sum->add_(gradient.view(sum->sizes()));
    } else {
      *sum = Owned(std::move(gradient), Tensor(), at::kFloat);
    }
  }
};

const ProgramRegistration kProgram(ModelType::kProgram, [](const JobSpec& spec, StageId stage) {
  return NewProgramStage(spec, stage, AddsWithinProducts);
});

}  // namespace

absl::StatusOr<std::unique_ptr<TorchStage>> NewProgramStage(const JobSpec& spec, StageId stage,
                                                            SumRule adds_within) {
  EPS_RETURN_IF_ERROR(CheckProgramLayout(spec, stage));
  const ModelProgram& program = *spec.model.program;
  const size_t s = stage.value();
  EPS_ASSIGN_OR_RETURN(auto calls,
                       ProgramEvaluator::Create(program.calls_of(s), program.stages[s].name));
  if (s + 1 < program.stages.size()) {
    return std::make_unique<ProgramStage>(spec, stage, std::move(calls), adds_within);
  }
  return std::make_unique<ProgramHead>(spec, stage, std::move(calls), adds_within);
}

}  // namespace eps
