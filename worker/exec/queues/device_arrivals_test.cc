#include "worker/exec/queues/device_arrivals.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "base/bytes.h"
#include "base/job/layout/model_layout.h"
#include "base/testing/test_specs.h"
#include "compression/codec.h"
#include "gtest/gtest.h"
#include "worker/client/stages/stage_sink.h"
#include "worker/exec/queues/device_copies.h"
#include "worker/exec/queues/job_chunks.h"
#include "worker/exec/testing/simulated_queues.h"
#include "worker/exec/torch_host_stage.h"

namespace eps {
namespace {

JobSpec SpecOf(const std::string& codec, BackwardWeights backward) {
  JobSpec spec = TinySyntheticSpec();
  spec.model.synthetic.n_embd = 48;
  spec.training.precision = Precision::kBf16;
  spec.chunk_elements = 1024;
  spec.codecs.weights = spec.codecs.embedding.weights = spec.codecs.head.weights = codec;
  spec.codecs.backward_weights = backward;
  EXPECT_TRUE(BuildLayout(0.0, &spec).ok());
  return spec;
}

// Returns the bits of a float rounded to bfloat16, to nearest, ties to even.
uint16_t Rounded(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Lends bytes, and overwrites them once they are given back.
struct Lender {
  Bytes Lend(const Bytes& bytes) {
    memory.emplace_back(bytes.data(), bytes.data() + bytes.size());
    std::vector<uint8_t>& copy = memory.back();
    ++held;
    std::shared_ptr<const void> owner(copy.data(), [this, &copy](const void*) {
      std::fill(copy.begin(), copy.end(), 0xee);
      --held;
    });
    return Bytes::Borrow({copy.data(), copy.size()}, std::move(owner));
  }
  std::deque<std::vector<uint8_t>> memory;
  int held = 0;  // not given back
};

// Lets a stage arrive on a simulated device, which copies from pinned memory, or from where the
// bytes are if it reaches them. Returns the number of elements compared.
size_t CompareStage(const JobSpec& spec, StageId stage, bool backward, bool reaches,
                    uint32_t seed = 7) {
  const auto chunks = JobChunks::Build(spec);
  const auto arrivals = DeviceArrivals::New(*chunks, /*has_codecs=*/true);
  EXPECT_EQ(arrivals->sizes().type, at::kBFloat16);
  auto queues = std::make_unique<SimulatedQueues>(seed);
  if (reaches) queues->ReachEverything();
  Lender lender;
  DeviceCopies copies(std::move(queues), arrivals->sizes(), nullptr);
  const auto slot = copies.slots().Take(stage);
  const auto sink = arrivals->NewSink(stage, backward, slot.get());
  const StageSpec& of_stage = spec.stages[stage.value()];
  const StageLayout layout(spec, of_stage, backward, at::kBFloat16);
  EXPECT_EQ(slot->bytes().numel(), static_cast<int64_t>(LargestStage(spec, at::kBFloat16)));
  // The host decodes the same bytes to FP32; second copies follow.
  std::vector<std::vector<float>> expected(2 * of_stage.uses.size());
  TensorPointers pointers;
  for (size_t i = 0; i < expected.size(); ++i) {
    const TensorUse& use = of_stage.uses[i % of_stage.uses.size()];
    expected[i].resize(spec.tensors[use.tensor.value()].elements());
    pointers.push_back(expected[i].data());
  }
  HostSink on_host(&spec, stage, pointers);
  for (const ChunkId id : chunks->map().ChunksOfStage(stage)) {
    const Chunk& chunk = chunks->map().chunk(id);
    const WeightAxes axes = chunks->codecs().axes(stage, id, backward);
    std::vector<float> values(chunk.elements);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = 0.37f * static_cast<float>((i * 2654435761u + id.value()) % 1009) - 150.1f;
    }
    for (uint32_t view = 0; view < (axes.has_second ? 2 : 1); ++view) {
      EncodedWeights weights;
      weights.chunk = &chunk;
      weights.codec = &chunks->codecs().weights(id);
      weights.axis = view == 0 ? axes.first : axes.second;
      weights.view = view;
      EncodeOptions options;
      options.axis = weights.axis;
      weights.bytes = EncodeChunk(*weights.codec, chunk, options, values.data());
      EXPECT_TRUE(on_host.Take(weights).ok());
      weights.bytes = lender.Lend(weights.bytes);
      EXPECT_TRUE(sink->Take(weights).ok());
    }
  }
  if (!reaches) {
    EXPECT_EQ(lender.held, 0);
  }
  slot->Ready();
  WaitFor(*copies.queues().Record(DeviceQueue::kCompute));
  const auto next = copies.slots().Take(stage);
  EXPECT_EQ(lender.held, 0);
  size_t compared = 0;
  for (size_t use = 0; use < layout.uses(); ++use) {
    for (int view = 0; view < (layout.has_second_copy(use) ? 2 : 1); ++view) {
      const at::Tensor found = view == 0 ? TensorIn(slot->bytes(), layout, use)
                                         : SecondCopyIn(slot->bytes(), layout, use);
      const std::vector<float>& values = expected[use + (view == 0 ? 0 : layout.uses())];
      const auto* const bits = static_cast<const uint16_t*>(found.const_data_ptr());
      size_t differing = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        differing += bits[i] != Rounded(values[i]) ? 1 : 0;
      }
      EXPECT_EQ(differing, 0u) << "stage " << stage << ", use " << use << ", view " << view;
      compared += values.size();
    }
  }
  return compared;
}

TEST(DeviceArrivals, WeightsLandAsBfloat16) {
  for (const std::string codec : {"fp32", "bf16", "fp16", "fp8_e4m3", "mx9", "mx4", "mxfp4_e2m1"}) {
    for (const BackwardWeights backward_weights :
         {BackwardWeights::kRecomputeAxis, BackwardWeights::kBothAxes}) {
      SCOPED_TRACE(codec);
      const JobSpec spec = SpecOf(codec, backward_weights);
      for (uint32_t s = 0; s < spec.stages.size(); ++s) {
        for (const bool reaches : {false, true}) {
          EXPECT_GT(CompareStage(spec, StageId(s), /*backward=*/true, reaches), 48u * 48u);
        }
      }
    }
  }
}

TEST(DeviceArrivals, BytesAreHeldUntilTheyAreRead) {
  for (const std::string codec : {"bf16", "mx6"}) {
    const JobSpec spec = SpecOf(codec, BackwardWeights::kBothAxes);
    for (uint32_t seed = 0; seed < 100; ++seed) {
      EXPECT_GT(CompareStage(spec, StageId(1), /*backward=*/true, /*reaches=*/true, seed), 0u);
    }
  }
}

TEST(DeviceArrivals, TakeHalfOfASlot) {
  const JobSpec narrow = SpecOf("bf16", BackwardWeights::kRecomputeAxis);
  JobSpec wide = narrow;
  wide.training.precision = Precision::kFp32;
  const auto of_narrow = JobChunks::Build(narrow);
  const auto of_wide = JobChunks::Build(wide);
  const uint64_t bytes = DeviceArrivals::New(*of_narrow, true)->sizes().decoded;
  EXPECT_LT(bytes, DeviceArrivals::New(*of_wide, true)->sizes().decoded * 51 / 100);
  EXPECT_EQ(DeviceArrivals::New(*of_wide, true)->sizes().type, at::kFloat);
}

}  // namespace
}  // namespace eps
