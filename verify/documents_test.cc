// Rows of a data file, read and computed by the workers' stage programs: documents that share a row
// learn as if each had its own, and masked tokens change no gradient.

#include <cmath>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/job/layout/model_layout.h"
#include "base/memory_account.h"
#include "gtest/gtest.h"
#include "verify/stage_programs.h"
#include "worker/data/batch_source.h"
#include "worker/data/sample_source.h"
#include "worker/data/testing/write_data_file.h"
#include "worker/exec/torch_runtime.h"
#include "worker/models/model_stages.h"

namespace eps {
namespace {

constexpr uint32_t kSeqLen = 12;
using Ids = std::vector<uint16_t>;

// A row of kSeqLen places.
struct Row {
  Ids tokens;
  std::vector<int> mask, starts;
};

Row RowOf(Ids tokens, std::vector<int> mask, std::vector<int> starts) {
  tokens.resize(kSeqLen, 0);
  mask.resize(kSeqLen, 0);
  starts.resize(kSeqLen, 0);
  return {tokens, mask, starts};
}

class DocumentsTest : public testing::Test {
 protected:
  void SetUp() override {
    Gpt2Config& gpt2 = spec_.model.gpt2;
    gpt2.n_layer = 2;
    gpt2.n_head = 2;
    gpt2.n_embd = 32;
    gpt2.vocab_size = 61;
    gpt2.n_positions = kSeqLen;
    gpt2.tie_word_embeddings = true;
    gpt2.resid_pdrop = gpt2.embd_pdrop = gpt2.attn_pdrop = 0;
    spec_.training.micro_batch_size = 1;
    spec_.training.seq_len = kSeqLen;
    spec_.data.order = DataOrder::kSequential;
    ASSERT_TRUE(BuildLayout(0.01, &spec_).ok());
    uint32_t state = 4711;
    for (const TensorSpec& tensor : spec_.tensors) {
      weights_.emplace_back(tensor.elements());
      for (float& w : weights_.back()) {
        state = state * 1664525u + 1013904223u;
        w = (static_cast<float>(state >> 8) / 16777216.0f - 0.5f) * 0.3f;
      }
    }
    auto runtime =
        NewTorchRuntime(spec_, NewModelStage, RuntimeOptions{"cpu", "host", 1}, &account_);
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    runtime_ = *std::move(runtime);
  }

  // Runs one micro-batch of all rows. `packed`: the file has document_starts.
  MicroBatchResult Run(const std::vector<Row>& rows, const std::vector<uint32_t>& lengths,
                       bool packed) {
    Ids tokens;
    std::vector<std::vector<int>> masks, starts;
    for (const Row& row : rows) {
      tokens.insert(tokens.end(), row.tokens.begin(), row.tokens.end());
      masks.push_back(row.mask);
      starts.push_back(row.starts);
    }
    std::vector<TestColumn> columns = {{"tokens", "u16", ColumnBytes(tokens)},
                                       {"loss_mask", "bit", BitRows(masks)}};
    if (packed) columns.push_back({"document_starts", "bit", BitRows(starts)});
    columns.push_back({"lengths", "u32", ColumnBytes(lengths)});
    const std::string path = testing::TempDir() + "/documents.epsd";
    std::ofstream(path, std::ios::binary) << DataFileBytes(
        {{"kind", "rows"}, {"samples", rows.size()}, {"seq_len", kSeqLen}, {"vocab_size", 61}},
        columns);
    auto data = SampleSource::Open({path}, {61});
    EXPECT_TRUE(data.ok()) << data.status();
    JobSpec spec = spec_;
    spec.data.samples = rows.size();
    spec.data.tokens = rows.size() * kSeqLen;
    spec.training.micro_batch_size = static_cast<uint32_t>(rows.size());
    const MicroBatch batch = *NewBatchSource(spec, **data)->Get(Step(1), 0);
    StageInputs inputs;
    for (const StageSpec& stage : spec_.stages) {
      inputs.emplace_back();
      for (const TensorUse& use : stage.uses) {
        inputs.back().push_back(weights_[use.tensor.value()].data());
      }
    }
    return *RunStagePrograms(spec_, runtime_.get(), inputs, inputs, batch, 0);
  }

  // Expects equal gradients; `tolerance` 0 also compares the losses exactly.
  static void ExpectNear(const MicroBatchResult& a, const MicroBatchResult& b, double tolerance) {
    EXPECT_EQ(a.loss.tokens, b.loss.tokens);
    EXPECT_NEAR(a.loss.sum, b.loss.sum, tolerance * std::abs(b.loss.sum));
    for (size_t s = 0; s < a.gradient.size(); ++s) {
      for (size_t use = 0; use < a.gradient[s].size(); ++use) {
        for (size_t i = 0; i < a.gradient[s][use].size(); ++i) {
          ASSERT_NEAR(a.gradient[s][use][i], b.gradient[s][use][i], tolerance)
              << "stage " << s << ", use " << use << ", element " << i;
        }
      }
    }
  }

  JobSpec spec_;
  std::vector<std::vector<float>> weights_;
  MemoryAccount account_;
  std::unique_ptr<StageRuntime> runtime_;
};

TEST_F(DocumentsTest, SharedRowsLearnAsIfApart) {
  const Row both = RowOf({5, 6, 7, 8, 9, 20, 21, 22, 23, 24, 25}, {0, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1},
                         {1, 0, 0, 0, 0, 1});
  const Row one = RowOf({5, 6, 7, 8, 9}, {0, 1, 1, 1, 1}, {1});
  const Row two = RowOf({20, 21, 22, 23, 24, 25}, {0, 1, 1, 1, 1, 1}, {1});
  const MicroBatchResult apart = Run({one, two}, {5, 6}, /*packed=*/false);
  EXPECT_EQ(apart.loss.tokens, 9u);
  ExpectNear(Run({both}, {11}, /*packed=*/true), apart, 1e-5);
  ExpectNear(Run({one, two}, {5, 6}, /*packed=*/true), apart, 1e-5);
}

TEST_F(DocumentsTest, MaskedTokensChangeNoGradient) {
  const std::vector<int> mask = {0, 0, 1, 1, 0, 0};
  const MicroBatchResult before = Run({RowOf({5, 6, 7, 8, 9, 10}, mask, {1})}, {6}, false);
  EXPECT_EQ(before.loss.tokens, 2u);
  // The last token that is learned is 8; what follows it could only be learned.
  const MicroBatchResult after = Run({RowOf({5, 6, 7, 8, 33, 44}, mask, {1})}, {6}, false);
  ExpectNear(after, before, 0);
  const MicroBatchResult shorter = Run({RowOf({5, 6, 7, 8, 9}, mask, {1})}, {5}, false);
  ExpectNear(shorter, before, 0);
  const MicroBatchResult learned = Run({RowOf({5, 6, 7, 9, 9, 10}, mask, {1})}, {6}, false);
  EXPECT_NE(learned.loss.sum, before.loss.sum);
}

}  // namespace
}  // namespace eps
