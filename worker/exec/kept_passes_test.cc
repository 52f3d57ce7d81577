#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "base/job/layout/model_layout.h"
#include "base/job/layout/step_memory.h"
#include "base/testing/test_programs.h"
#include "gtest/gtest.h"
#include "worker/exec/stash/stash_tiers.h"
#include "worker/exec/torch_host_stage.h"
#include "worker/exec/torch_runtime.h"
#include "worker/models/model_stages.h"

namespace eps {
namespace {

constexpr uint32_t kVocabulary = 61;
constexpr uint32_t kMicroBatches = 2;
constexpr uint32_t kSamples = 2;
constexpr uint32_t kTokens = 16;

// A job of four blocks, stages 1 to 4.
JobSpec JobOf(bool program, double pdrop, BackwardWeights backward = {}) {
  JobSpec spec;
  Gpt2Config& c = spec.model.gpt2;
  c.n_layer = 4;
  c.n_head = 2;
  c.n_embd = 32;
  c.n_positions = kTokens;
  c.vocab_size = kVocabulary;
  c.resid_pdrop = c.embd_pdrop = c.attn_pdrop = pdrop;
  if (program) spec.model = ModelOf(Gpt2Program(c, /*fused_gelu=*/true));
  spec.training.seq_len = kTokens;
  spec.training.micro_batch_size = kSamples;
  spec.training.micro_batches = kMicroBatches;
  spec.codecs.weights = "mx9";
  spec.codecs.backward_weights = backward;
  EXPECT_TRUE(BuildLayout(0.0, &spec).ok());
  return spec;
}

MicroBatch BatchOf(uint32_t index) {
  MicroBatch batch;
  batch.step = Step(1);
  batch.index = index;
  batch.samples = kSamples;
  batch.seq_len = kTokens;
  for (uint32_t i = 0; i < kSamples * kTokens; ++i) {
    batch.tokens.push_back(static_cast<int32_t>((7 * i + 3 * index) % kVocabulary));
    batch.labels.push_back(static_cast<int32_t>((5 * i + index) % kVocabulary));
  }
  return batch;
}

std::unique_ptr<StageRuntime> RuntimeOf(const JobSpec& spec, const std::string& keep,
                                        uint64_t room) {
  RuntimeOptions options;
  options.device = "cpu";
  options.stash = "host";
  options.threads = 1;
  options.keep = keep;
  options.device_memory = DeviceBytesWithoutStash(spec, LargestStage(spec)) + room;
  auto runtime = NewTorchRuntime(spec, NewModelStage, options, nullptr);
  EXPECT_TRUE(runtime.ok()) << runtime.status();
  return *std::move(runtime);
}

std::shared_ptr<const StageWeights> Load(const JobSpec& spec, StageRuntime* runtime, StageId s) {
  std::shared_ptr<HostStage> host = runtime->NewBackwardStage(s).value();
  const auto& uses = spec.stages[s.value()].uses;
  for (size_t use = 0; use < uses.size(); ++use) {
    const uint64_t n = spec.tensors[uses[use].tensor.value()].elements();
    for (uint64_t i = 0; i < n; ++i) {
      const uint64_t k = (i * 31 + use * 7 + s.value() * 5) % 23;
      host->tensor(use)[i] = 0.02f * static_cast<float>(k) - 0.2f;
    }
    if (host->second_copy(use) == nullptr) continue;
    for (uint64_t i = 0; i < n; ++i) host->second_copy(use)[i] = 0.5f * host->tensor(use)[i];
  }
  return runtime->Load(s, std::move(host));
}

// The results of one step, and the bytes on the device between its passes.
struct StepResult {
  std::vector<std::vector<float>> gradients;  // by micro-batch and stage, all tensors of each
  double loss = 0;
  uint64_t between_passes = 0;
};

StepResult RunStep(const JobSpec& spec, StageRuntime* runtime) {
  const auto last = static_cast<uint32_t>(spec.stages.size() - 1);
  std::vector<std::vector<ActivationPtr>> inputs(kMicroBatches,
                                                 std::vector<ActivationPtr>(last + 1));
  EXPECT_TRUE(runtime->BeginStash(last * kMicroBatches, kMicroBatches).ok());
  for (uint32_t s = 0; s < last; ++s) {
    const auto weights = Load(spec, runtime, StageId(s));
    for (uint32_t j = 0; j < kMicroBatches; ++j) {
      const ActivationPtr in = s == 0 ? nullptr : *runtime->Unstash(inputs[j][s]);
      auto out = runtime->program(StageId(s)).Forward(*weights, BatchOf(j), in);
      EXPECT_TRUE(out.ok()) << out.status();
      inputs[j][s + 1] = *runtime->Stash(*std::move(out));
    }
  }
  StepResult result;
  result.between_passes = runtime->device_memory().live_bytes;
  std::vector<ActivationPtr> gradients(kMicroBatches);
  for (uint32_t s = last + 1; s-- > 0;) {
    const StageId id(s);
    // Memory that was given back too early holds these weights now.
    const auto others = Load(spec, runtime, StageId(s == 1 ? 2 : 1));
    const auto weights = Load(spec, runtime, id);
    for (uint32_t j = 0; j < kMicroBatches; ++j) {
      const ActivationPtr in = s == 0 ? nullptr : *runtime->Unstash(inputs[j][s]);
      auto out = runtime->program(id).Backward(*weights, BatchOf(j), in, gradients[j], 0, nullptr);
      EXPECT_TRUE(out.ok()) << out.status();
      gradients[j] = std::move(out->grad_in);
      result.loss += out->loss.sum;
      const auto host = runtime->NewHostStage(id).value();
      EXPECT_TRUE(runtime->ToHost(id, *out->gradient, host.get()).ok());
      std::vector<float>& all = result.gradients.emplace_back();
      const auto& uses = spec.stages[s].uses;
      for (size_t use = 0; use < uses.size(); ++use) {
        const uint64_t n = spec.tensors[uses[use].tensor.value()].elements();
        all.insert(all.end(), host->tensor(use), host->tensor(use) + n);
      }
    }
  }
  return result;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void ExpectEqual(const StepResult& found, const StepResult& expected) {
  EXPECT_EQ(found.loss, expected.loss);
  ASSERT_EQ(found.gradients.size(), expected.gradients.size());
  for (size_t i = 0; i < found.gradients.size(); ++i) {
    EXPECT_TRUE(SameBits(found.gradients[i], expected.gradients[i])) << i;
  }
}

// Room for the last `stages` blocks.
uint64_t RoomFor(const JobSpec& spec, uint32_t stages) {
  double room = 1;
  for (uint32_t i = 0; i < stages; ++i) room += KeptBytes(spec, StageId(4 - i), kMicroBatches);
  return static_cast<uint64_t>(room);
}

TEST(KeptPasses, GiveTheSameBits) {
  for (const bool program : {false, true}) {
    for (const double pdrop : {0.0, 0.2}) {
      for (const BackwardWeights backward :
           {BackwardWeights::kRecomputeAxis, BackwardWeights::kBothAxes}) {
        const JobSpec spec = JobOf(program, pdrop, backward);
        const StepResult expected = RunStep(spec, RuntimeOf(spec, "none", 0).get());
        const auto runtime = RuntimeOf(spec, "auto", RoomFor(spec, 3));
        for (int step = 0; step < 2; ++step) ExpectEqual(RunStep(spec, runtime.get()), expected);
        EXPECT_EQ(runtime->device_memory().live_bytes, 0u);
      }
    }
  }
}

TEST(KeptPasses, FillTheRoomAndNoMore) {
  for (const bool program : {false, true}) {
    const JobSpec spec = JobOf(program, 0.0);
    uint64_t before = 0;
    for (uint32_t stages = 0; stages <= 5; ++stages) {
      const uint64_t room = stages < 5 ? RoomFor(spec, stages) : uint64_t{1} << 30;
      const uint64_t kept = RunStep(spec, RuntimeOf(spec, "auto", room).get()).between_passes;
      EXPECT_LE(kept, room);
      if (stages == 0 || stages == 5) {
        EXPECT_EQ(kept, before);  // the first and the last stage keep nothing
      } else {
        EXPECT_GT(kept, before);
      }
      before = kept;
    }
  }
}

TEST(KeptPasses, SecondCopiesAreNotKeptByPrograms) {
  const JobSpec spec = JobOf(/*program=*/true, 0.0, BackwardWeights::kBothAxes);
  EXPECT_EQ(RunStep(spec, RuntimeOf(spec, "auto", RoomFor(spec, 4)).get()).between_passes, 0u);
}

TEST(KeptPasses, AreDroppedWithTheirStep) {
  const JobSpec spec = JobOf(/*program=*/false, 0.0);
  const auto runtime = RuntimeOf(spec, "auto", RoomFor(spec, 4));
  ASSERT_TRUE(runtime->BeginStash(5 * kMicroBatches, kMicroBatches).ok());
  {
    ActivationPtr x;
    for (uint32_t s = 0; s < 5; ++s) {
      x = *runtime->program(StageId(s))
               .Forward(*Load(spec, runtime.get(), StageId(s)), BatchOf(0), x);
    }
  }
  EXPECT_GT(runtime->device_memory().live_bytes, 0u);
  ASSERT_TRUE(runtime->BeginStash(5, /*gradients=*/0).ok());
  EXPECT_EQ(runtime->device_memory().live_bytes, 0u);
}

TEST(KeptPasses, RefuseAnotherName) {
  const JobSpec spec = JobOf(/*program=*/false, 0.0);
  RuntimeOptions options;
  options.keep = "all";
  const auto runtime = NewTorchRuntime(spec, NewModelStage, options, nullptr);
  EXPECT_TRUE(absl::StrContains(runtime.status().message(), "worker.keep")) << runtime.status();
}

}  // namespace
}  // namespace eps
