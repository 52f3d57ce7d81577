#include "cli/driver/train_text.h"

#include "gtest/gtest.h"

namespace eps {
namespace {

ModelSpec ModelOf(int vocabulary) {
  ModelSpec model;
  model.gpt2.vocab_size = vocabulary;
  return model;
}

TEST(TrainText, SpeaksOfLettersForBytesOnly) {
  EXPECT_EQ(LossText(ModelOf(256), 2, 20, 4),
            "loss: 2.0000 over the last 20 steps; guessing from letter frequencies alone gives "
            "4.0000 (ratio 0.50)\n");
  EXPECT_EQ(LossText(ModelOf(50257), 2, 20, 4),
            "loss: 2.0000 over the last 20 steps; guessing from token frequencies alone gives "
            "4.0000 (ratio 0.50)\n");
}

TEST(TrainText, NamesTheHeldOutLoss) {
  v1::StepRecord record;
  record.set_step(120);
  record.mutable_evaluation()->set_loss(2.43117);
  record.mutable_evaluation()->set_tokens(8192);
  EXPECT_EQ(HeldOutText(record),
            "held-out loss: 2.4312 after step 120, on 8,192 tokens of other data\n");
}

TEST(TrainText, SuggestsAPromptThatTheModelReads) {
  EXPECT_EQ(GenerateHint(ModelOf(256), "out/1"),
            "  eps generate --model=out/1 --prompt=\"This License\"\n");
  EXPECT_EQ(GenerateHint(ModelOf(50257), "out/1"), "  eps generate --model=out/1 --prompt-ids=0\n");
  ModelSpec synthetic;
  synthetic.type = ModelType::kSynthetic;
  EXPECT_EQ(GenerateHint(synthetic, "out/1"), "");
}

}  // namespace
}  // namespace eps
