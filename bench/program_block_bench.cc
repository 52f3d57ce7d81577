// Compares a block of GPT-2 as a model program with the one written by hand
// (worker/models/gpt2.cc): processor time of a forward pass and of a backward pass with
// recomputation, and the peak of the memory that the backward pass adds. The program is measured
// twice: with the activation in one call, as by hand, and as transformers computes it, in eight.
//
//   program_block_bench [rounds width heads tokens samples]

#include <time.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Parallel.h"
#include "ATen/core/Tensor.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/empty.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/job/initial_values.h"
#include "base/job/layout/model_layout.h"
#include "base/testing/test_programs.h"
#include "bench/peers/timing.h"
#include "worker/exec/tensor_memory.h"
#include "worker/exec/torch_stage.h"
#include "worker/models/model_stages.h"

namespace eps {
namespace {

using at::Tensor;

constexpr double kForwardGoal = 1 / 1.05, kBackwardGoal = 1 / 1.10, kPeakGoal = 1 / 1.15;

double ThreadSeconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// One block of a model, with its weights and one micro-batch.
class Block {
 public:
  Block(const ModelSpec& model, int tokens, int samples) {
    spec_.model = model;
    EPS_CHECK(BuildLayout(0, &spec_).ok());
    absl::StatusOr<std::unique_ptr<TorchStage>> stage = NewModelStage(spec_, StageId(1));
    EPS_CHECK_MSG(stage.ok(), stage.status());
    stage_ = *std::move(stage);
    for (const TensorUse& use : spec_.stages[1].uses) {
      const TensorSpec& tensor = spec_.tensors[use.tensor.value()];
      std::vector<int64_t> shape = {tensor.rows, tensor.cols};
      if (tensor.rank == 1) shape = {tensor.cols};
      weights_.push_back(at::empty(shape));
      FillInitialValues(
          spec_, use.tensor, 0,
          absl::MakeSpan(weights_.back().mutable_data_ptr<float>(), tensor.elements()));
    }
    batch_.step = Step(1);
    batch_.samples = static_cast<uint32_t>(samples);
    batch_.seq_len = static_cast<uint32_t>(tokens);
    x_ = Noise({samples, tokens, model.gpt2.n_embd}, 1);
    dy_ = Noise({samples, tokens, model.gpt2.n_embd}, 2);
  }

  double ForwardSeconds() const {
    const at::NoGradGuard no_grad;
    const double start = ThreadSeconds();
    stage_->Forward(weights_, batch_, x_);
    return ThreadSeconds() - start;
  }
  double BackwardSeconds() const {
    const at::NoGradGuard no_grad;
    const double start = ThreadSeconds();
    stage_->Backward(weights_, weights_, batch_, {x_, dy_});
    return ThreadSeconds() - start;
  }
  double PeakBytes() const {
    TensorMemory& memory = TensorMemory::Get();
    const uint64_t before = memory.live_bytes();
    memory.ResetPeak();
    BackwardSeconds();
    return static_cast<double>(memory.peak_bytes() - before);
  }

 private:
  Tensor Noise(std::vector<int64_t> shape, uint32_t number) const {
    Tensor noise = at::empty(shape);
    JobSpec spec = spec_;
    spec.tensors[0].init = Initializer::kNormal;
    spec.tensors[0].init_std = 1;
    spec.training.seed = number;
    FillInitialValues(spec, TensorId(0), 0,
                      absl::MakeSpan(noise.mutable_data_ptr<float>(), noise.numel()));
    return noise;
  }

  JobSpec spec_;
  std::unique_ptr<TorchStage> stage_;
  std::vector<Tensor> weights_;
  MicroBatch batch_;
  Tensor x_, dy_;
};

void Compare(const std::string& name, const Block& by_hand, const Block& program, int rounds) {
  std::vector<double> forward, backward;
  for (int round = -2; round < rounds; ++round) {  // the first two warm up
    const double f = by_hand.ForwardSeconds() / program.ForwardSeconds();
    const double b = by_hand.BackwardSeconds() / program.BackwardSeconds();
    if (round < 0) continue;
    forward.push_back(f);
    backward.push_back(b);
  }
  const double peak = by_hand.PeakBytes() / program.PeakBytes();
  ReportRatio(absl::StrCat(name, ", forward, by hand / program"), forward, kForwardGoal);
  ReportRatio(absl::StrCat(name, ", backward, by hand / program"), backward, kBackwardGoal);
  ReportRatio(absl::StrCat(name, ", peak bytes, by hand / program"), {peak}, kPeakGoal);
}

int Argument(int argc, char** argv, int i, int usual) {
  return argc > i ? std::atoi(argv[i]) : usual;
}

void Run(int argc, char** argv) {
  TensorMemory::Get();
  at::set_num_threads(1);
  const int rounds = Argument(argc, argv, 1, 25);
  ModelSpec by_hand;
  by_hand.gpt2.n_layer = 1;
  by_hand.gpt2.n_embd = Argument(argc, argv, 2, 768);
  by_hand.gpt2.n_head = Argument(argc, argv, 3, 12);
  const int tokens = Argument(argc, argv, 4, 256);
  const int samples = Argument(argc, argv, 5, 1);
  by_hand.gpt2.n_positions = tokens;
  std::printf("%s, 1 thread; width %d, %d heads, %d x %d tokens, %d rounds\n",
              MachineName().c_str(), by_hand.gpt2.n_embd, by_hand.gpt2.n_head, samples, tokens,
              rounds);
  const Block hand(by_hand, tokens, samples);
  for (const bool fused : {true, false}) {
    ModelSpec model = ModelOf(Gpt2Program(by_hand.gpt2, fused));
    model.gpt2 = by_hand.gpt2;  // of which the size of an activation is read
    Compare(fused ? "activation in one call" : "activation as in transformers", hand,
            Block(model, tokens, samples), rounds);
  }
}

}  // namespace
}  // namespace eps

int main(int argc, char** argv) {
  eps::Run(argc, argv);
  return 0;
}
