#include "compression/codec_table.h"

#include <string>

#include "base/testing/test_specs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using testing::HasSubstr;

ChunkId ChunkOf(const JobSpec& spec, const ChunkMap& chunks, const std::string& tensor) {
  for (const Chunk& chunk : chunks.chunks()) {
    if (spec.tensors[chunk.segments.front().tensor.value()].name == tensor) return chunk.id;
  }
  ADD_FAILURE() << tensor;
  return ChunkId(0);
}

TEST(CodecTable, SelectsCodecsByKindAndStep) {
  JobSpec spec = TinyGpt2Spec();
  spec.codecs.weights = "mx6";
  spec.codecs.gradients = "topk:0.01";
  spec.codecs.embedding = {"bf16", "fp16"};
  spec.codecs.warmup_steps = 2;
  spec.codecs.residual = "mx9";
  const ChunkMap chunks = ChunkMap::Build(spec);
  const auto table = CodecTable::Build(spec, chunks);
  ASSERT_TRUE(table.ok()) << table.status();
  const ChunkId block = ChunkOf(spec, chunks, "transformer.h.0.attn.c_attn.weight");
  const ChunkId embedding = ChunkOf(spec, chunks, "transformer.wte.weight");
  EXPECT_EQ(table->weights(block).name(), "mx6");
  EXPECT_EQ(table->gradient(block, Step(2)).name(), "bf16");
  EXPECT_EQ(table->gradient(block, Step(3)).name(), "topk:0.01");
  EXPECT_EQ(table->residual_or_null(block, Step(2)), nullptr);
  ASSERT_NE(table->residual_or_null(block, Step(3)), nullptr);
  EXPECT_EQ(table->residual_or_null(block, Step(3))->name(), "mx9");
  EXPECT_EQ(table->weights(embedding).name(), "bf16");
  EXPECT_EQ(table->gradient(embedding, Step(3)).name(), "fp16");
  EXPECT_EQ(table->residual_or_null(embedding, Step(3)), nullptr);
  spec.codecs.error_feedback = false;
  EXPECT_EQ(CodecTable::Build(spec, chunks)->residual_or_null(block, Step(3)), nullptr);
}

TEST(CodecTable, OnlyBlockCodecsNeedASecondCopy) {
  JobSpec spec = TinyGpt2Spec();
  spec.codecs.backward_weights = BackwardWeights::kBothAxes;
  const ChunkMap chunks = ChunkMap::Build(spec);
  const ChunkId block = ChunkOf(spec, chunks, "transformer.h.0.attn.c_attn.weight");
  for (const auto& [codec, two] :
       std::vector<std::pair<std::string, bool>>{{"fp8_e4m3", false}, {"mx6", true}}) {
    spec.codecs.weights = codec;
    const auto table = CodecTable::Build(spec, chunks);
    ASSERT_TRUE(table.ok()) << table.status();
    EXPECT_FALSE(table->axes(StageId(1), block, /*backward=*/false).has_second) << codec;
    EXPECT_EQ(table->axes(StageId(1), block, /*backward=*/true).has_second, two) << codec;
  }
}

TEST(CodecTable, RefusalsNameTheKey) {
  const struct {
    void (*change)(CodecSpec*);
    const char* message;
  } cases[] = {
      {[](CodecSpec* c) { c->weights = "mx7"; }, "quantization.weights: there is no codec"},
      {[](CodecSpec* c) { c->weights = "topk:0.1"; }, "quantization.weights=topk:0.1"},
      {[](CodecSpec* c) { c->gradients = "topk:0.9"; }, "quantization.gradients: codec"},
      {[](CodecSpec* c) { c->embedding.weights = "fp4"; }, "quantization.embedding_weights"},
      {[](CodecSpec* c) { c->norm.gradients = "fp4"; }, "quantization.norm_gradients"},
      {[](CodecSpec* c) { c->residual = "topk:0.1"; }, "quantization.residual=topk:0.1"},
      {[](CodecSpec* c) { c->stash = "fp4"; }, "worker.stash_codec: there is no codec"},
      {[](CodecSpec* c) { c->stash = "mx9"; }, "worker.stash_codec=mx9"},
  };
  for (const auto& c : cases) {
    JobSpec spec = TinyGpt2Spec();
    c.change(&spec.codecs);
    const absl::Status status = CodecTable::Build(spec, ChunkMap::Build(spec)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message));
  }
}

}  // namespace
}  // namespace eps
