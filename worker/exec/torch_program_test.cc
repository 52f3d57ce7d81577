// Runs stages over slots of a simulated device, as a worker with a device does.

#include "worker/exec/torch_program.h"

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "base/ids.h"
#include "base/job/job_spec.h"
#include "base/job/layout/model_layout.h"
#include "base/testing/test_programs.h"
#include "gtest/gtest.h"
#include "worker/exec/queues/device_copies.h"
#include "worker/exec/queues/device_slots.h"
#include "worker/exec/tensor_memory.h"
#include "worker/exec/testing/simulated_queues.h"
#include "worker/exec/torch_activations.h"
#include "worker/exec/torch_gradient.h"
#include "worker/exec/torch_host_stage.h"
#include "worker/exec/torch_stage.h"
#include "worker/models/model_stages.h"
#include "worker/models/testing/values.h"
#include "worker/relay/stage_program.h"
#include "worker/relay/stash_codec.h"

namespace eps {
namespace {

using at::Tensor;

constexpr uint32_t kBlocks = 4;  // stages 1 to 4
constexpr uint32_t kMicroBatches = 3;

JobSpec JobOf(bool program) {
  JobSpec spec;
  Gpt2Config& c = spec.model.gpt2;
  c.n_layer = kBlocks;
  c.n_head = 2;
  c.n_embd = 16;
  c.n_positions = 8;
  c.vocab_size = 31;
  if (program) spec.model = ModelOf(Gpt2Program(c, /*fused_gelu=*/true));
  EXPECT_TRUE(BuildLayout(0.0, &spec).ok());
  return spec;
}

MicroBatch BatchOf(uint32_t index) {
  MicroBatch batch;
  batch.step = Step(1);
  batch.index = index;
  batch.samples = 2;
  batch.seq_len = 8;
  return batch;
}

ActivationPtr ValuesOf(uint32_t seed) {
  return std::make_shared<TorchActivation>(Values({2, 8, 16}, seed));
}

// A worker's device: slots, and the programs of the blocks.
class Device {
 public:
  explicit Device(const JobSpec& spec)
      : spec_(spec),
        queues_(new SimulatedQueues(/*seed=*/1)),
        copies_(std::unique_ptr<DeviceQueues>(queues_), SizesOf(spec),
                /*account_or_null=*/nullptr) {
    for (uint32_t s = 1; s <= kBlocks; ++s) {
      auto stage = NewModelStage(spec, StageId(s));
      EXPECT_TRUE(stage.ok()) << stage.status();
      programs_.push_back(
          std::make_unique<TorchProgram>(spec, StageId(s), *std::move(stage),
                                         *StashCodec::Find(spec.codecs.stash).value(), &copies_));
    }
  }

  TorchProgram& program(uint32_t stage) { return *programs_[stage - 1]; }
  // Returns the number of slots, whose memory is all that comes from the queues.
  uint64_t slots() const { return queues_->peak_device_bytes() / LargestStage(spec_); }

  // Returns the weights of a stage in a slot. LibTorch computes at once, so the queues are empty.
  std::shared_ptr<const StageWeights> Load(uint32_t stage) {
    const StageLayout layout(spec_, spec_.stages[stage], /*backward=*/true);
    std::shared_ptr<HostStage> owner =
        TorchHostStage::New("stage", layout, /*pinned=*/false, /*account=*/nullptr).value();
    const Tensor& host = static_cast<const TorchHostStage&>(*owner).all();
    for (size_t use = 0; use < layout.uses(); ++use) {
      TensorIn(host, layout, use).copy_(Values(layout.shape(use), 100 * stage));
    }
    auto weights = std::make_shared<TorchWeights>();
    weights->lent = copies_.slots().Take(StageId(stage));
    weights->lent->CopyFrom(host, owner);
    weights->lent->Ready();
    while (queues_->pending() > 0) queues_->Advance();
    for (size_t use = 0; use < layout.uses(); ++use) {
      weights->tensors.push_back(TensorIn(weights->lent->bytes(), layout, use));
    }
    weights->for_input_gradient = weights->tensors;
    return weights;
  }

 private:
  static SlotSizes SizesOf(const JobSpec& spec) {
    SlotSizes sizes;
    sizes.decoded = LargestStage(spec);
    return sizes;
  }

  const JobSpec& spec_;
  SimulatedQueues* const queues_;  // of copies_
  DeviceCopies copies_;
  std::vector<std::unique_ptr<TorchProgram>> programs_;
};

// Returns the gradients of all blocks and micro-batches of a step.
std::vector<StageTensors> GradientsOf(Device* device, bool keeps) {
  for (uint32_t s = 1; s <= kBlocks; ++s) {
    device->program(s).BeginStep(keeps);
    const auto weights = device->Load(s);
    for (uint32_t j = 0; j < kMicroBatches; ++j) {
      EXPECT_TRUE(device->program(s).Forward(*weights, BatchOf(j), ValuesOf(s + j)).ok());
    }
  }
  std::vector<StageTensors> gradients;
  for (uint32_t s = kBlocks; s > 0; --s) {
    const auto weights = device->Load(s);
    const auto others = device->Load(s == 1 ? 2 : 1);  // in the slot of the forward pass
    for (uint32_t j = 0; j < kMicroBatches; ++j) {
      auto out = device->program(s).Backward(*weights, BatchOf(j), ValuesOf(s + j),
                                             ValuesOf(50 + s + j), 0, nullptr);
      EXPECT_TRUE(out.ok()) << out.status();
      gradients.push_back(std::move(static_cast<TorchGradient&>(*out->gradient).tensors));
    }
  }
  return gradients;
}

TEST(TorchProgram, KeptPassesHoldNoSlot) {
  for (const bool program : {false, true}) {
    const JobSpec spec = JobOf(program);
    Device device(spec), keeping(spec);
    const std::vector<StageTensors> expected = GradientsOf(&device, /*keeps=*/false);
    for (int step = 0; step < 2; ++step) {
      const std::vector<StageTensors> found = GradientsOf(&keeping, /*keeps=*/true);
      ASSERT_EQ(found.size(), expected.size());
      for (size_t i = 0; i < found.size(); ++i) {
        for (size_t use = 0; use < expected[i].size(); ++use) {
          EXPECT_TRUE(found[i][use].equal(expected[i][use])) << program << " " << i << " " << use;
        }
      }
    }
    EXPECT_EQ(device.slots(), 2u);
    EXPECT_EQ(keeping.slots(), device.slots());
  }
}

TEST(TorchProgram, KeptPassesShareOneCopyOfWeights) {
  const JobSpec spec = JobOf(/*program=*/true);
  Device device(spec);
  TensorMemory& memory = TensorMemory::Get();
  int64_t bytes = 0;  // of the stage's weights
  for (const TensorUse& use : spec.stages[1].uses) {
    bytes += static_cast<int64_t>(sizeof(float) * spec.tensors[use.tensor.value()].elements());
  }
  const auto kept_bytes = [&](uint32_t micro_batches) {
    device.program(1).BeginStep(/*keeps=*/true);
    const auto before = static_cast<int64_t>(memory.live_bytes());
    const auto weights = device.Load(1);
    for (uint32_t j = 0; j < micro_batches; ++j) {
      EXPECT_TRUE(device.program(1).Forward(*weights, BatchOf(j), ValuesOf(1)).ok());
    }
    return static_cast<int64_t>(memory.live_bytes()) - before;
  };
  const int64_t one = kept_bytes(1), two = kept_bytes(2), three = kept_bytes(3);
  EXPECT_EQ(three - two, two - one);  // of activations
  EXPECT_EQ(one - (two - one), bytes);
  device.program(1).BeginStep(/*keeps=*/false);
}

}  // namespace
}  // namespace eps
