#include "worker/models/generate/generator.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/files/safetensors.h"
#include "base/job/layout/model_layout.h"
#include "base/job/models/gpt2.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

constexpr int kVocabulary = 17;
constexpr int kPositions = 8;
constexpr int kWidth = 8;

JobSpec TinySpec() {
  JobSpec spec;
  spec.model.gpt2.n_layer = 2;
  spec.model.gpt2.n_head = 2;
  spec.model.gpt2.n_embd = kWidth;
  spec.model.gpt2.n_positions = kPositions;
  spec.model.gpt2.vocab_size = kVocabulary;
  EXPECT_TRUE(BuildLayout(0.0, &spec).ok());
  return spec;
}

// Returns element `i` of a tensor. The residual projections are 0, so that blocks change nothing
// and the test can predict what the model computes.
float ValueOf(const TensorSpec& tensor, uint64_t i) {
  if (absl::StrContains(tensor.name, "c_proj")) return 0.0f;
  if (tensor.init == Initializer::kOnes) return 1.0f;
  if (tensor.rank == 1) return 0.0f;
  const uint32_t mixed = (static_cast<uint32_t>(i) * 2654435761u + tensor.rows * 97u) >> 8;
  return static_cast<float>(mixed % 1000) / 500.0f - 1.0f;
}

std::string NewFolder(const std::string& name) {
  const std::string folder = absl::StrCat(std::getenv("TEST_TMPDIR"), "/", name);
  std::filesystem::create_directories(folder);
  return folder;
}

void WriteText(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

// Writes the model as Hugging Face does; without `with_prefix`, names lack "transformer.".
void WriteModel(const std::string& folder, bool with_prefix, const std::string& missing = "") {
  const JobSpec spec = TinySpec();
  WriteText(folder + "/config.json", Gpt2ConfigToJson(spec.model.gpt2));
  std::vector<SafetensorsEntry> entries;
  std::vector<const TensorSpec*> tensors;
  for (const TensorSpec& tensor : spec.tensors) {
    if (tensor.name == missing) continue;
    SafetensorsEntry entry;
    absl::string_view name = tensor.name;
    if (!with_prefix) absl::ConsumePrefix(&name, "transformer.");
    entry.name = std::string(name);
    entry.shape = {tensor.rows, tensor.cols};
    if (tensor.rank == 1) entry.shape = {tensor.cols};
    entries.push_back(std::move(entry));
    tensors.push_back(&tensor);
  }
  auto writer = SafetensorsWriter::Create(folder + "/model.safetensors", std::move(entries));
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (size_t e = 0; e < tensors.size(); ++e) {
    std::vector<float> values(tensors[e]->elements());
    for (size_t i = 0; i < values.size(); ++i) values[i] = ValueOf(*tensors[e], i);
    ASSERT_TRUE((*writer)->Write(e, 0, values).ok());
  }
  ASSERT_TRUE((*writer)->Finish().ok());
}

RuntimeOptions Cpu() {
  RuntimeOptions options;
  options.device = "cpu";
  options.threads = 2;
  return options;
}

std::unique_ptr<Generator> LoadOrDie(const std::string& folder) {
  auto generator = Generator::Load(folder, Cpu());
  EXPECT_TRUE(generator.ok()) << generator.status();
  return *std::move(generator);
}

// Computes the likeliest token after `token` at `position` by hand: norm(wte + wpe) against wte.
int32_t ExpectedNext(int32_t token, int position) {
  const JobSpec spec = TinySpec();
  const TensorSpec& wte = spec.tensors[0];
  const TensorSpec& wpe = spec.tensors[1];
  std::vector<double> h(kWidth);
  double mean = 0, variance = 0;
  for (int c = 0; c < kWidth; ++c) {
    h[c] = double{ValueOf(wte, token * kWidth + c)} + ValueOf(wpe, position * kWidth + c);
    mean += h[c] / kWidth;
  }
  for (int c = 0; c < kWidth; ++c) variance += (h[c] - mean) * (h[c] - mean) / kWidth;
  int32_t best = 0;
  double best_score = -1e30;
  for (int32_t t = 0; t < kVocabulary; ++t) {
    double score = 0;
    for (int c = 0; c < kWidth; ++c) {
      score += (h[c] - mean) / std::sqrt(variance + 1e-5) * ValueOf(wte, t * kWidth + c);
    }
    if (score > best_score) {
      best = t;
      best_score = score;
    }
  }
  return best;
}

TEST(GeneratorTest, ReturnsTheTokensOfTheModel) {
  const std::string folder = NewFolder("computes");
  WriteModel(folder, /*with_prefix=*/true);
  auto generator = LoadOrDie(folder);
  SamplerOptions greedy;
  greedy.temperature = 0;
  for (int32_t token = 0; token < kVocabulary; ++token) {
    auto next = generator->Continue({3, token}, 1, greedy);
    ASSERT_TRUE(next.ok()) << next.status();
    EXPECT_EQ(next->at(0), ExpectedNext(token, /*position=*/1)) << "after " << token;
    auto scores = generator->Scores({3, token});
    ASSERT_TRUE(scores.ok()) << scores.status();
    ASSERT_EQ(scores->size(), size_t{kVocabulary});
    EXPECT_EQ(std::max_element(scores->begin(), scores->end()) - scores->begin(), next->at(0));
  }
}

TEST(GeneratorTest, UsesTheLastPositionsOfLongTexts) {
  const std::string folder = NewFolder("long");
  WriteModel(folder, /*with_prefix=*/true);
  auto generator = LoadOrDie(folder);
  SamplerOptions greedy;
  greedy.temperature = 0;
  std::vector<int32_t> prompt(3 * kPositions, 5);
  prompt.back() = 11;
  auto next = generator->Continue(prompt, 4, greedy);
  ASSERT_TRUE(next.ok()) << next.status();
  int32_t last = 11;
  for (const int32_t token : *next) {
    EXPECT_EQ(token, ExpectedNext(last, kPositions - 1));
    last = token;
  }
}

TEST(GeneratorTest, GivesEqualTokensForEqualSeedsOnly) {
  const std::string folder = NewFolder("seeds");
  WriteModel(folder, /*with_prefix=*/true);
  SamplerOptions sampling;
  sampling.temperature = 5;
  sampling.seed = 1;
  auto first = LoadOrDie(folder)->Continue({1}, 30, sampling);
  auto again = LoadOrDie(folder)->Continue({1}, 30, sampling);
  sampling.seed = 2;
  auto other = LoadOrDie(folder)->Continue({1}, 30, sampling);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(*first, *again);
  EXPECT_NE(*first, *other);
}

TEST(GeneratorTest, ReadsUnprefixedNamesAndCheckpointFolders) {
  const std::string root = NewFolder("root");
  WriteModel(NewFolder("root/checkpoint-7"), /*with_prefix=*/false);
  WriteText(root + "/latest", "checkpoint-7\n");
  EXPECT_EQ(LoadOrDie(root)->vocabulary(), uint32_t{kVocabulary});
}

TEST(GeneratorTest, ErrorsNameFileAndTensor) {
  const std::string missing = NewFolder("missing");
  WriteModel(missing, /*with_prefix=*/true, "transformer.h.1.ln_2.weight");
  const std::string no_weights = NewFolder("no_weights");
  WriteText(no_weights + "/config.json", Gpt2ConfigToJson(TinySpec().model.gpt2));
  const std::string other_shape = NewFolder("other_shape");
  WriteModel(other_shape, /*with_prefix=*/true);
  Gpt2Config config = TinySpec().model.gpt2;
  config.vocab_size = 18;
  WriteText(other_shape + "/config.json", Gpt2ConfigToJson(config));
  const struct {
    std::string folder, text;
  } cases[] = {{NewFolder("empty"), "--model"},
               {missing, "h.1.ln_2.weight"},
               {no_weights, "model.safetensors"},
               {other_shape, "wte.weight"}};
  for (const auto& c : cases) {
    const absl::Status status = Generator::Load(c.folder, Cpu()).status();
    EXPECT_FALSE(status.ok()) << c.folder;
    EXPECT_TRUE(absl::StrContains(status.message(), c.text)) << status;
  }
}

TEST(GeneratorTest, RefusesAnEmptyPromptAndUnknownIds) {
  const std::string folder = NewFolder("prompts");
  WriteModel(folder, /*with_prefix=*/true);
  auto generator = LoadOrDie(folder);
  for (const std::vector<int32_t>& prompt :
       {std::vector<int32_t>{}, std::vector<int32_t>{kVocabulary}, std::vector<int32_t>{-1}}) {
    EXPECT_EQ(generator->Continue(prompt, 1, SamplerOptions()).status().code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(generator->Scores(prompt).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace eps
