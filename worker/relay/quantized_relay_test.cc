// Tests quantization in a relay: second copies, rounding of decoded weights, encoded stash.

#include <string>

#include "gtest/gtest.h"
#include "worker/relay/testing/relay_rig.h"

namespace eps {
namespace {

TEST(QuantizedRelay, ComputesInputGradientsWithSecondCopies) {
  for (const bool tied : {false, true}) {
    for (const int prefetch : {0, 2}) {
      JobShape shape;
      shape.tied = tied;
      shape.weights = "mx9";
      const JobSpec one_axis = SpecOf(shape);
      shape.backward_weights = BackwardWeights::kBothAxes;
      const JobSpec spec = SpecOf(shape);
      const Reference reference(spec, 0);
      EXPECT_NE(reference.pushes, Reference(one_axis, 0).pushes);
      Rig rig(shape, prefetch);
      ASSERT_TRUE(rig.Run().ok());
      ExpectSamePushes(rig.client->pushes, reference.pushes);
      EXPECT_EQ(rig.client->weights(), reference.weights);
    }
  }
}

TEST(QuantizedRelay, HasNoSecondCopiesForUnblockedCodecs) {
  JobShape shape;
  shape.weights = "fp8_e4m3";
  const Reference reference(SpecOf(shape), 0);
  shape.backward_weights = BackwardWeights::kBothAxes;
  Rig rig(shape);
  ASSERT_TRUE(rig.Run().ok());
  ExpectSamePushes(rig.client->pushes, reference.pushes);
}

TEST(QuantizedRelay, RoundsMatricesOnceWithDecodeOnce) {
  JobShape shape;
  const Pushes exact = Reference(SpecOf(shape), 0).pushes;
  shape.backward_weights = BackwardWeights::kDecodeOnce;
  const Reference reference(SpecOf(shape), 0);
  EXPECT_NE(reference.pushes, exact);
  Rig rig(shape);
  ASSERT_TRUE(rig.Run().ok());
  ExpectSamePushes(rig.client->pushes, reference.pushes);
  EXPECT_EQ(rig.client->weights(), reference.weights);
}

TEST(QuantizedRelay, AllStageInputsHaveStashCodecValues) {
  const Pushes exact = Reference(SpecOf(JobShape()), 0).pushes;
  for (const char* const codec : {"bf16", "fp16", "fp8_e4m3", "fp8_e5m2"}) {
    JobShape shape;
    shape.stash = codec;
    shape.micro_batches = 5;
    const Reference reference(SpecOf(shape), 0);
    EXPECT_NE(reference.pushes, exact);
    Rig rig(shape);
    ASSERT_TRUE(rig.Run().ok());
    ExpectSamePushes(rig.client->pushes, reference.pushes);
  }
}

TEST(QuantizedRelay, ChargesTheEncodedSizeOfStageInputs) {
  JobShape shape;
  shape.layers = 6;
  shape.stash = "fp8_e5m2";
  Rig rig(shape);
  ASSERT_TRUE(rig.Run().ok());
  const uint64_t items = shape.parts * shape.micro_batches;
  const uint64_t activation = rig.spec.training.micro_batch_size * 64;
  // In the backward pass, FP32 gradients replace the inputs of one stage.
  EXPECT_EQ(rig.account.peak_bytes(MemoryKind::kStash),
            4 * items * activation + items * activation * sizeof(float));
  EXPECT_EQ(rig.account.live_bytes(MemoryKind::kStash), 0u);
}

}  // namespace
}  // namespace eps
