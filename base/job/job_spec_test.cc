#include "base/job/job_spec.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/job/optimizers.h"
#include "base/testing/test_specs.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

std::string Replaced(const std::string& text, const std::string& from, const std::string& to) {
  EXPECT_TRUE(absl::StrContains(text, from)) << from;
  return absl::StrReplaceAll(text, {{from, to}});
}

TEST(JobSpecText, MatchesTheGoldenTextOfGpt2) {
  EXPECT_EQ(TinyGpt2Spec().ToText(), ReadFile("base/job/testdata/gpt2_tiny.txt"));
}

TEST(JobSpecText, DigestAndIdAreThoseOfTheText) {
  const JobSpec spec = TinyGpt2Spec();
  EXPECT_EQ(ToHex(spec.Digest()),
            "c75dc55424536140c4ddcc9736aab432a276c66111fde7337d07e3c16fc07c0b");
  EXPECT_EQ(absl::StrCat(absl::Hex(spec.id().value(), absl::kZeroPad16)),
            ToHex(spec.Digest()).substr(0, 16));
}

TEST(JobSpecText, ReadsBackWhatItWrote) {
  for (const JobSpec& spec : {TinyGpt2Spec(), TinySyntheticSpec()}) {
    const std::string text = spec.ToText();
    const absl::StatusOr<JobSpec> read = JobSpec::Parse(text);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->ToText(), text);
    EXPECT_EQ(read->id(), spec.id());
    EXPECT_EQ(read->tensors.size(), spec.tensors.size());
    EXPECT_EQ(read->tensors[1].init_std, spec.tensors[1].init_std);
    EXPECT_EQ(read->stages.back().uses.size(), spec.stages.back().uses.size());
  }
}

TEST(JobSpecText, HoldsTheNumbersOfItsOptimizerAlone) {
  JobSpec spec = TinyGpt2Spec();
  spec.optimizer.name = OptimizerName::kSgd;
  spec.optimizer.momentum = 0.9;
  const std::string text = spec.ToText();
  EXPECT_TRUE(absl::StrContains(text,
                                "optimizer.name = sgd\noptimizer.lr = 0.001\n"
                                "optimizer.momentum = 0.9\nlr_scheduler.name = "))
      << text;
  const absl::StatusOr<JobSpec> read = JobSpec::Parse(text);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->optimizer.momentum, 0.9);
  EXPECT_EQ(read->ToText(), text);

  spec.optimizer.momentum = 1.0;
  EXPECT_TRUE(absl::StrContains(spec.Validate().message(), "optimizer.momentum"));
  spec.optimizer.momentum = 0.9;
  spec.optimizer.beta1 = 0.8;  // would not be in the text
  EXPECT_TRUE(absl::StrContains(spec.Validate().message(), "optimizer.beta1"));
  spec = TinyGpt2Spec();
  spec.optimizer.momentum = 0.9;  // nor this one
  EXPECT_TRUE(absl::StrContains(spec.Validate().message(), "optimizer.momentum"));
}

TEST(JobSpecText, LaterParametersHaveLinesOnlyWhenUsed) {
  JobSpec spec = TinyGpt2Spec();
  spec.optimizer.name = OptimizerName::kSgd;
  spec.optimizer.momentum = 0.5;
  EXPECT_FALSE(absl::StrContains(spec.ToText(), "nesterov"));
  EXPECT_FALSE(absl::StrContains(spec.ToText(), "dampening"));
  spec.optimizer.nesterov = true;
  std::string text = spec.ToText();
  EXPECT_TRUE(
      absl::StrContains(text, "momentum = 0.5\noptimizer.nesterov = true\nlr_scheduler.name = "))
      << text;
  absl::StatusOr<JobSpec> read = JobSpec::Parse(text);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(read->optimizer.nesterov);
  EXPECT_EQ(read->ToText(), text);
  spec.optimizer.nesterov = false;
  spec.optimizer.dampening = 0.25;
  text = spec.ToText();
  EXPECT_TRUE(
      absl::StrContains(text, "momentum = 0.5\noptimizer.dampening = 0.25\nlr_scheduler.name = "))
      << text;
  read = JobSpec::Parse(text);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->optimizer.dampening, 0.25);
}

TEST(JobSpecText, ReadsBackEveryOptimizer) {
  for (const OptimizerRow& row : Optimizers()) {
    JobSpec spec = TinyGpt2Spec();
    static_cast<OptimizerSettings&>(spec.optimizer) = row.defaults;
    if (row.adapts) spec.training.mode = Mode::kSealed;
    const absl::StatusOr<JobSpec> read = JobSpec::Parse(spec.ToText());
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->optimizer.name, row.name);
    EXPECT_EQ(read->optimizer.beta2, row.defaults.beta2);
    EXPECT_EQ(read->optimizer.eps, row.defaults.eps);
    EXPECT_EQ(read->ToText(), spec.ToText());
  }
}

JobSpec SpecWithPlugin() {
  JobSpec spec = TinyGpt2Spec();
  spec.optimizer.name = OptimizerName::kPlugin;
  spec.optimizer.plugin = {
      "rmsprop", std::string(64, 'a'), {"square_avg"}, {{"alpha", 0.99}, {"eps", 1e-8}}};
  return spec;
}

TEST(JobSpecText, ReadsBackAPlugin) {
  JobSpec spec = SpecWithPlugin();
  ASSERT_TRUE(spec.Validate().ok()) << spec.Validate();
  const std::string line = absl::StrCat("optimizer.plugin = rmsprop ", std::string(64, 'a'),
                                        " square_avg alpha=0.99,eps=1e-08\n");
  EXPECT_TRUE(absl::StrContains(spec.ToText(), line)) << spec.ToText();
  absl::StatusOr<JobSpec> read = JobSpec::Parse(spec.ToText());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->optimizer.plugin, spec.optimizer.plugin);
  EXPECT_EQ(StateFields(read->optimizer), std::vector<std::string>{"square_avg"});

  spec.optimizer.plugin.fields.clear();
  spec.optimizer.plugin.parameters.clear();
  EXPECT_TRUE(absl::StrContains(spec.ToText(), " - -\nlr_scheduler")) << spec.ToText();
  read = JobSpec::Parse(spec.ToText());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->optimizer.plugin, spec.optimizer.plugin);
}

TEST(JobSpecText, RefusesADamagedPlugin) {
  const std::string text = SpecWithPlugin().ToText();
  const std::pair<const char*, const char*> changes[] = {
      {"optimizer.name = plugin", "optimizer.name = sgd"},
      {"square_avg alpha", "square_avg,square_avg alpha"},
      {"square_avg alpha", "Square alpha"},
      {"square_avg alpha", "../square alpha"},
      {"square_avg alpha", "a,b,c,d,e alpha"},
      {"square_avg alpha", "alpha"},
      {"alpha=0.99", "alpha"},
      {"alpha=0.99", "alpha=0.990"},
      {"alpha=0.99", "alpha=inf"},
      {"alpha=0.99", "alpha=0.99=1"},
      {"alpha=0.99", "alpha=0.99,"},
      {"alpha=0.99", "eps=0.99"},
      {"rmsprop aa", "rmsprop Aa"},
      {"rmsprop aa", "rmsprop a"},
  };
  for (const auto& [from, to] : changes) {
    const absl::Status status = JobSpec::Parse(Replaced(text, from, to)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << to;
    EXPECT_TRUE(absl::StrContains(status.message(), "optimizer.")) << to << ": " << status;
  }
  JobSpec foreign = SpecWithPlugin();
  foreign.optimizer.name = OptimizerName::kAdamW;
  EXPECT_TRUE(absl::StrContains(foreign.Validate().message(), "the line is left out for")) << text;
  JobSpec without = TinyGpt2Spec();
  without.optimizer.name = OptimizerName::kPlugin;
  EXPECT_EQ(without.Validate().code(), absl::StatusCode::kInvalidArgument);
}

TEST(JobSpecText, LeavesOutWhatIsAsUsual) {
  JobSpec spec = TinyGpt2Spec();
  EXPECT_FALSE(absl::StrContains(spec.ToText(), "nonfinite"));
  spec.training.mode = Mode::kSealed;
  spec.training.nonfinite = Nonfinite::kSkip;
  const std::string text = spec.ToText();
  EXPECT_TRUE(absl::StrContains(text, "max_grad_norm = 1\ntraining.nonfinite = skip\ntraining.rep"))
      << text;
  const absl::StatusOr<JobSpec> read = JobSpec::Parse(text);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->training.nonfinite, Nonfinite::kSkip);
  const absl::Status twice =
      JobSpec::Parse(Replaced(text, "nonfinite = skip", "nonfinite = halt")).status();
  EXPECT_TRUE(absl::StrContains(twice.message(), "the line is left out for halt")) << twice;
  const absl::Status moved =
      JobSpec::Parse(
          Replaced(text, "training.clip = ", "training.nonfinite = skip\ntraining.clip = "))
          .status();
  EXPECT_TRUE(absl::StrContains(moved.message(), "expected 'training.clip = ...'")) << moved;
}

TEST(JobSpecText, KeepsEveryBitOfANumber) {
  for (double lr : {0.1, 1.0 / 3, 2.5e-05, 1e-300, 0.30000000000000004, 123456.789}) {
    JobSpec spec = TinyGpt2Spec();
    spec.optimizer.lr = lr;
    const absl::StatusOr<JobSpec> read = JobSpec::Parse(spec.ToText());
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->optimizer.lr, lr);
  }
}

TEST(JobSpecText, EveryFieldChangesTheDigest) {
  const std::string base = TinyGpt2Spec().ToText();
  const std::vector<std::function<void(JobSpec*)>> changes = {
      [](JobSpec* s) { s->name = "other"; },
      [](JobSpec* s) { s->model.gpt2.resid_pdrop = 0.1; },
      [](JobSpec* s) { s->groups[0].weight_decay = 0.1; },
      [](JobSpec* s) { s->groups[0].lr_multiplier = 0.5; },
      [](JobSpec* s) { s->tensors[3].init = Initializer::kOnes; },
      [](JobSpec* s) { s->stages[1].uses[2].forward_axis = Axis::kRow; },
      [](JobSpec* s) { s->chunk_elements *= 2; },
      [](JobSpec* s) { s->optimizer.beta2 = 0.95; },
      [](JobSpec* s) { s->optimizer.name = OptimizerName::kSgd; },
      [](JobSpec* s) { s->optimizer.name = OptimizerName::kAdam; },
      [](JobSpec* s) { s->schedule.power = 2; },
      [](JobSpec* s) { s->training.seed = 1; },
      [](JobSpec* s) { s->training.clip = Clip::kNone; },
      [](JobSpec* s) { s->training.nonfinite = Nonfinite::kSkip; },
      [](JobSpec* s) { s->training.determinism = Determinism::kRelaxed; },
      [](JobSpec* s) { s->training.loss_block_tokens = 512; },
      [](JobSpec* s) { s->training.label_smoothing = 0.1; },
      [](JobSpec* s) { s->training.precision = Precision::kBf16; },
      [](JobSpec* s) { s->data.order = DataOrder::kSequential; },
      [](JobSpec* s) { s->data.samples = 5; },
      [](JobSpec* s) { s->codecs.gradients = "bf16"; },
      [](JobSpec* s) { s->numerics_version = 2; },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    JobSpec spec = TinyGpt2Spec();
    changes[i](&spec);
    EXPECT_NE(spec.ToText(), base) << "change " << i;
  }
}

struct BadText {
  const char* from;
  const char* to;
  const char* message;  // a part of it
};

TEST(JobSpecText, RefusesEveryDeviationAndNamesItsLine) {
  const std::string text = TinyGpt2Spec().ToText();
  const BadText cases[] = {
      {"eps_job_spec = 1\n", "eps_job_spec = 2\n", "line 1: eps_job_spec: expected version 1"},
      {"name = tiny\n", "", "line 3: expected 'name = ...', found 'model.type = gpt2'"},
      {"name = tiny\n", "name = tiny\nname = tiny\n", "line 4: expected 'model.type = ...'"},
      {"name = tiny\n", "name=tiny\n", "line 3: expected 'name = ...'"},
      {"name = tiny\n", "name = tiny\r\n", "name: expected letters"},
      {"model.type = gpt2\n", "model.type = bert\n", "line 4: model.type: expected a known name"},
      {"training.seed = 42\n", "training.seed = 042\n", "training.seed: expected '42'"},
      {"training.seed = 42\n", "training.seed = +42\n", "training.seed: expected a whole number"},
      {"training.seed = 42\n", "training.seed = -42\n", "training.seed: expected a whole number"},
      {"training.seed = 42\n", "training.seed = \n", "training.seed: expected a whole number"},
      {"training.seed = 42\n", "training.seed = 18446744073709551616\n",
       "training.seed: expected a whole number"},
      {"training.parts = 2\n", "training.parts = 4294967297\n", "training.parts: expected a whole"},
      {"optimizer.lr = 0.001\n", "optimizer.lr = 1e-3\n", "optimizer.lr: expected '0.001'"},
      {"optimizer.lr = 0.001\n", "optimizer.lr = nan\n", "optimizer.lr: expected a finite number"},
      {"optimizer.lr = 0.001\n", "optimizer.lr = inf\n", "optimizer.lr: expected a finite number"},
      {"optimizer.lr = 0.001\n", "optimizer.lr = -0\n", "optimizer.lr: expected a number from 0"},
      {"tie_word_embeddings = true", "tie_word_embeddings = 1", "expected true or false"},
      {"group.0 = decay 0.01\n", "group.0 = decay  0.01\n", "group.0: expected 'name weight"},
      {"tensor.0 = transformer.wte.weight 256x64", "tensor.0 = transformer.wte.weight 256x64x1",
       "tensor.0: expected 'name shape"},
      {"tensor.2 = transformer.h.0.ln_1.weight 64 1 ones",
       "tensor.2 = transformer.h.0.ln_1.weight 64 1 ones:0", "tensor.2: expected 'name shape"},
      {"stage.0 = embedding 0:row:row", "stage.0 = embedding 0:row", "stage.0: expected 'name te"},
      {"stage.0 = embedding 0:row:row", "stage.0 = embedding 00:row:row", "stage.0: expected 'em"},
      {"groups = 2\n", "groups = 257\n", "groups: expected at most 256"},
      {"groups = 2\n", "groups = 3\n", "expected 'group.2 = ...', found 'tensors = "},
      {"stages = 4\n", "stages = 5\n", "expected 'stage.4 = ...' and a line end, found the end"},
      {"stages = 4\n", "stages = 3\n", "expected the end of the text, found 'stage.3 = head"},
      {"tensors = 28\n", "tensors = 1048577\n", "tensors: expected at most 1048576"},
  };
  for (const BadText& c : cases) {
    const absl::StatusOr<JobSpec> spec = JobSpec::Parse(Replaced(text, c.from, c.to));
    ASSERT_FALSE(spec.ok()) << c.to;
    EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument) << c.to;
    EXPECT_TRUE(absl::StrContains(spec.status().message(), c.message))
        << spec.status() << "\nexpected " << c.message;
    EXPECT_LE(spec.status().message().size(), 1024u);
  }
}

TEST(JobSpecText, RefusesEveryPrefixAndAnyAddition) {
  const std::string text = TinySyntheticSpec().ToText();
  for (size_t size = 0; size < text.size(); ++size) {
    EXPECT_FALSE(JobSpec::Parse(text.substr(0, size)).ok()) << size;
  }
  EXPECT_FALSE(JobSpec::Parse(text + "\n").ok());
  EXPECT_FALSE(JobSpec::Parse(text + "x = 1\n").ok());
}

TEST(JobSpecText, RefusesOrPreservesAChangedByte) {
  const std::string text = TinySyntheticSpec().ToText();
  for (size_t i = 0; i < text.size(); ++i) {
    for (char c : {'\0', '\n', ' ', '0', '9', '-', ':', 'x', '\x80'}) {
      std::string changed = text;
      changed[i] = c;
      const absl::StatusOr<JobSpec> spec = JobSpec::Parse(changed);
      if (!spec.ok()) continue;
      EXPECT_EQ(spec->ToText(), changed);
    }
  }
}

TEST(JobSpecText, RefusesATextThatIsTooLong) {
  const absl::StatusOr<JobSpec> spec = JobSpec::Parse(std::string(kMaxSpecTextBytes + 1, 'x'));
  EXPECT_TRUE(absl::StrContains(spec.status().message(), "expected at most 16777216 bytes"));
  // A long line costs no more than itself, whatever it is made of.
  for (char c : {' ', ':', 'x', '0'}) {
    EXPECT_FALSE(JobSpec::Parse(Replaced(TinyGpt2Spec().ToText(), "stage.0 = embedding",
                                         absl::StrCat("stage.0 = ", std::string(10'000'000, c))))
                     .ok());
  }
}

struct BadSpec {
  std::function<void(JobSpec*)> change;
  const char* message;  // a part of it
};

void ExpectRefused(const std::vector<BadSpec>& cases) {
  for (const BadSpec& c : cases) {
    JobSpec spec = TinyGpt2Spec();
    c.change(&spec);
    const absl::Status status = spec.Validate();
    EXPECT_TRUE(absl::StrContains(status.message(), c.message))
        << status << "\nexpected " << c.message;
  }
}

TEST(JobSpecValidate, AcceptsTheSmallSpecs) {
  EXPECT_TRUE(TinyGpt2Spec().Validate().ok()) << TinyGpt2Spec().Validate();
  EXPECT_TRUE(TinySyntheticSpec().Validate().ok());
}

TEST(JobSpecValidate, NamesTheKeyOfABadSetting) {
  ExpectRefused({
      {[](JobSpec* s) { s->numerics_version = 0; }, "numerics_version: expected 1"},
      {[](JobSpec* s) { s->name = "a b"; }, "name: expected letters"},
      {[](JobSpec* s) { s->name = std::string(257, 'a'); }, "name: expected at most 256"},
      {[](JobSpec* s) { s->model.gpt2.n_head = 7; }, "model.n_embd: expected a multiple"},
      {[](JobSpec* s) { s->model.gpt2.n_layer = 4095; }, "model.n_layer: expected 1 to 4094"},
      {[](JobSpec* s) { s->model.gpt2.attn_pdrop = 1; }, "model.attn_pdrop"},
      {[](JobSpec* s) { s->model.gpt2.layer_norm_epsilon = 0; }, "model.layer_norm_epsilon"},
      {[](JobSpec* s) { s->optimizer.beta1 = 1; }, "optimizer.beta1"},
      {[](JobSpec* s) { s->optimizer.eps = 0; }, "optimizer.eps"},
      {[](JobSpec* s) { s->optimizer.eps = 1e-310; }, "optimizer.eps"},
      {[](JobSpec* s) { s->schedule.name = "cosin"; }, "did you mean 'cosine'?"},
      {[](JobSpec* s) { s->training.steps = 0; }, "training.steps: expected 1"},
      {[](JobSpec* s) { s->training.parts = 0; }, "training.parts: expected 1 to 1024"},
      {[](JobSpec* s) { s->training.parts = 1025; }, "training.parts: expected 1 to 1024"},
      {[](JobSpec* s) { s->training.micro_batches = 0; }, "training.micro_batches"},
      {[](JobSpec* s) {
         s->training.parts = 1024;
         s->training.micro_batches = 1 << 16;
         s->training.micro_batch_size = 1 << 16;
       },
       "samples in a step"},
      {[](JobSpec* s) { s->training.seq_len = 33; }, "training.seq_len: expected at most"},
      {[](JobSpec* s) { s->training.max_grad_norm = 0; }, "training.max_grad_norm"},
      {[](JobSpec* s) { s->training.label_smoothing = 1; }, "training.label_smoothing"},
      {[](JobSpec* s) { s->training.clip = Clip::kExact; }, "training.clip=exact"},
      {[](JobSpec* s) { s->data.tokens = 32; }, "data.tokens: expected at least"},
      {[](JobSpec* s) { s->data.tokens = UINT64_MAX; }, "data.tokens: expected"},
      {[](JobSpec* s) { s->data.sha256[3] = 'A'; }, "data.sha256: expected 64 digits"},
      {[](JobSpec* s) { s->data.samples = s->data.tokens - 1; },
       "data.samples: expected a divisor"},
      {[](JobSpec* s) { s->data.samples = UINT64_MAX; }, "data.samples: expected"},
      {[](JobSpec* s) { s->data.mlm_probability = 0; }, "data.mlm_probability"},
      {[](JobSpec* s) { s->data.mlm_probability = 0.3; }, "does not guess masked tokens"},
      {[](JobSpec* s) { s->data.mask_token = 3; }, "does not guess masked tokens"},
      {[](JobSpec* s) { s->data.special_tokens = {3}; }, "does not guess masked tokens"},
      {[](JobSpec* s) { s->codecs.weights = ""; }, "quantization.weights"},
      {[](JobSpec* s) { s->codecs.gradients = "top k"; }, "quantization.gradients"},
  });
}

TEST(JobSpecValidate, NamesTheWrongTensorOrStage) {
  ExpectRefused({
      {[](JobSpec* s) { s->groups.clear(); }, "groups: expected 1 to"},
      {[](JobSpec* s) { s->groups[0].weight_decay = -1; }, "optimizer.weight_decay"},
      {[](JobSpec* s) { s->groups[0].lr_multiplier = -1; }, "lr_multiplier"},
      {[](JobSpec* s) { s->tensors[1].name = "transformer.wte.weight"; }, "stands twice"},
      {[](JobSpec* s) { s->tensors[1].name = ""; }, "tensor.1: expected a name"},
      {[](JobSpec* s) { s->tensors[1].rank = 3; }, "tensor.1 (transformer.wpe.weight) rank"},
      {[](JobSpec* s) { s->tensors[1].rank = 1; }, "wpe.weight) rows: expected 1 to 1"},
      {[](JobSpec* s) { s->tensors[1].rows = 0; }, "wpe.weight) rows"},
      {[](JobSpec* s) { s->tensors[1].cols = 0; }, "wpe.weight) columns"},
      {[](JobSpec* s) { s->tensors[1].cols = kMaxTensorCols + 1; }, "wpe.weight) columns"},
      {[](JobSpec* s) { s->tensors[1].group = GroupId(2); }, "wpe.weight) group: expected 0 to 1"},
      {[](JobSpec* s) { s->tensors[2].init_std = 0.5; }, "initial deviation"},
      {[](JobSpec* s) {
         s->tensors[0].rows = s->tensors[1].rows = UINT32_MAX;
         s->tensors[0].cols = s->tensors[1].cols = kMaxTensorCols;
       },
       "elements in all tensors"},
      {[](JobSpec* s) {
         s->tensors[0].rows = 1u << 28;
         s->chunk_elements = 1;
       },
       "training.chunk_elements: 1 cuts the tensors"},
      {[](JobSpec* s) { s->chunk_elements = 0; }, "training.chunk_elements: expected"},
      {[](JobSpec* s) { s->stages.clear(); }, "stages: expected 1 to 4096"},
      {[](JobSpec* s) { s->stages[0].uses.clear(); }, "stage.0: embedding uses no tensor"},
      {[](JobSpec* s) { s->stages[0].uses[1].tensor = TensorId(28); }, "only 28"},
      {[](JobSpec* s) { s->stages[0].uses[1].tensor = TensorId(0); }, "wte.weight twice"},
      {[](JobSpec* s) { s->stages[0].uses.pop_back(); }, "wpe.weight is used by no stage"},
  });
}

TEST(FirstDifference, NamesTheKeyAndBothValues) {
  JobSpec theirs = TinyGpt2Spec();
  JobSpec ours = TinyGpt2Spec();
  EXPECT_EQ(FirstDifference(theirs.ToText(), ours.ToText()), "");
  theirs.training.seed = 1;
  theirs.data.tokens = 5;
  ours.training.seed = 2;
  EXPECT_EQ(FirstDifference(theirs.ToText(), ours.ToText()), "training.seed: 1 there, 2 here");
}

TEST(FirstDifference, NamesLinesThatOnlyOneHas) {
  EXPECT_EQ(FirstDifference("a = 1\n", "a = 1\nb = 2\n"), "b: absent there, 2 here");
  EXPECT_EQ(FirstDifference("a = 1\nb = 2\n", "a = 1\n"), "b: 2 there, absent here");
  EXPECT_EQ(FirstDifference("a = 1\nb = 2\n", "a = 1\nc = 2\n"),
            "line 2: 'b = 2' there, 'c = 2' here");
}

}  // namespace
}  // namespace eps
