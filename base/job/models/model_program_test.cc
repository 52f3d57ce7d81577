#include "base/job/models/model_program.h"

#include <functional>
#include <random>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/job/job_spec.h"
#include "base/job/layout/codec_table.h"
#include "base/job/layout/model_layout.h"
#include "base/job/models/model_family.h"
#include "base/testing/test_programs.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

using nlohmann::json;

std::string Tiny() { return LlamaProgram(LlamaShape()); }

TEST(ModelProgram, ReadsAWholeProgram) {
  const absl::StatusOr<ModelProgram> program = ParseModelProgram(Tiny());
  ASSERT_TRUE(program.ok()) << program.status();
  EXPECT_EQ(program->architecture, "LlamaForCausalLM");
  EXPECT_EQ(program->text, Tiny());
  EXPECT_EQ(program->stages.size(), 4u);
  EXPECT_EQ(program->programs.size(), 3u);  // both layers run one
  const CallList& layer = program->calls_of(1);
  EXPECT_EQ(layer.first_weight(), 1u);
  EXPECT_EQ(layer.first_constant(), 10u);
  EXPECT_EQ(layer.first_input(), 11u);
  EXPECT_EQ(layer.first_call(), 12u);
  EXPECT_EQ(layer.inputs[0], ProgramInput::kPositionIds);
  EXPECT_EQ(layer.output, layer.first_call() + layer.calls.size() - 1);
  EXPECT_EQ(program->constants[0].bytes.size(), 16u);
  EXPECT_EQ(program->tensors[0].shape, (std::vector<int64_t>{256, 32}));
  EXPECT_TRUE(program->rowwise);
}

TEST(ModelProgram, WritesOneTextForEqualPrograms) {
  const std::string spread = json::parse(Tiny()).dump(3);
  EXPECT_NE(spread, Tiny());
  EXPECT_EQ(ParseModelProgram(spread)->text, Tiny());
}

TEST(ModelProgram, FrozenTensorsHaveTheirOwnGroup) {
  json root = json::parse(Tiny());
  root["tensors"][0]["frozen"] = true;
  root["lora"] = {{"r", 4}, {"alpha", 8.0}, {"dropout", 0.5}, {"targets", {"q_proj"}}};
  ModelSpec model;
  model.type = ModelType::kProgram;
  const absl::StatusOr<ModelProgram> program = ParseModelProgram(root.dump());
  ASSERT_TRUE(program.ok()) << program.status();
  EXPECT_EQ(program->lora.r, 4u);
  EXPECT_EQ(program->lora.targets, (std::vector<std::string>{"q_proj"}));
  model.program = std::make_shared<const ModelProgram>(*program);
  JobSpec spec;
  spec.model = model;
  ASSERT_TRUE(BuildLayout(0.5, &spec).ok());
  ASSERT_EQ(spec.groups.size(), 3u);
  EXPECT_TRUE(spec.groups[2].frozen);
  for (uint32_t t = 0; t < spec.tensors.size(); ++t) {
    EXPECT_EQ(spec.IsFrozen(TensorId(t)), t == 0) << t;
  }
  root["tensors"][0]["frozen"] = false;
  const absl::Status status = ParseModelProgram(root.dump()).status();
  EXPECT_TRUE(absl::StrContains(status.message(), "frozen: expected true")) << status;
}

TEST(ModelProgram, ReadsEveryKindOfArgument) {
  json root = json::parse(Tiny());
  root["programs"][2]["calls"][0][1] = json::parse(
      R"([{"slot":0},1,-2.5,true,null,"x",[{"slot":1},[2]],{"dtype":"bool"},{"device":""},)"
      R"({"memory_format":"preserve"},{"float":"-inf"}])");
  const absl::StatusOr<ModelProgram> program = ParseModelProgram(root.dump());
  ASSERT_TRUE(program.ok()) << program.status();
  const std::vector<ProgramArgument>& arguments = program->calls_of(3).calls[0].arguments;
  using Kind = ProgramArgument::Kind;
  const Kind kinds[] = {Kind::kSlot,   Kind::kInteger,      Kind::kReal, Kind::kBool,
                        Kind::kNone,   Kind::kText,         Kind::kList, Kind::kElementType,
                        Kind::kDevice, Kind::kMemoryFormat, Kind::kReal};
  ASSERT_EQ(arguments.size(), std::size(kinds));
  for (size_t i = 0; i < arguments.size(); ++i) EXPECT_EQ(arguments[i].kind, kinds[i]) << i;
  EXPECT_EQ(arguments[2].real, -2.5);
  EXPECT_EQ(arguments[6].items[1].items[0].integer, 2);
  EXPECT_LT(arguments[10].real, -1e300);
}

struct Bad {
  std::function<void(json*)> change;
  const char* message;  // a part of it
};

json& FirstCall(json* root, int program) { return (*root)["programs"][program]["calls"][0]; }

void ExpectRefused(const std::vector<Bad>& cases) {
  for (const Bad& c : cases) {
    json root = json::parse(Tiny());
    c.change(&root);
    const absl::Status status = ParseModelProgram(root.dump()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.message;
    EXPECT_TRUE(absl::StrContains(status.message(), c.message))
        << status << "\nexpected " << c.message;
    EXPECT_LE(status.message().size(), 600u);
  }
}

TEST(ModelProgram, NamesTheStageAndTheCall) {
  ExpectRefused({
      {[](json* r) {
         FirstCall(r, 0)[1][0] = {{"slot", 2}};
       },
       "stage embed, call 0 (aten::embedding): reads slot 2, but only those below 2"},
      {[](json* r) {
         FirstCall(r, 1)[1][0] = {{"slot", 4'000'000'000u}};
       },
       "stage layers.0, call"},
      {[](json* r) {
         FirstCall(r, 1)[1][0] = {{"slot", -1}};
       },
       "slot: expected a whole number"},
      {[](json* r) {
         FirstCall(r, 1)[1][0] = {{"slot", 0}, {"x", 1}};
       },
       "unknown key \"x\""},
      {[](json* r) {
         FirstCall(r, 1)[1][0] = {{"tensor", 0}};
       },
       "expected an argument"},
      {[](json* r) {
         FirstCall(r, 1)[1][0] = {{"dtype", "complex64"}};
       },
       "found \"complex64\""},
      {[](json* r) {
         FirstCall(r, 1)[1][0] = {{"device", "cuda:1"}};
       },
       "device: expected a text"},
      {[](json* r) {
         FirstCall(r, 1)[1][0] = {{"memory_format", "channels_last"}};
       },
       "expected memory_format contiguous or preserve"},
      {[](json* r) {
         FirstCall(r, 1)[1][0] = {{"float", "1"}};
       },
       "expected float inf, -inf or nan"},
      {[](json* r) { FirstCall(r, 1)[1][1] = (1 << 28) + 1; }, "whole numbers up to 268435456"},
      {[](json* r) { FirstCall(r, 1)[1][1] = -(1 << 28) - 1; }, "whole numbers up to 268435456"},
      {[](json* r) { FirstCall(r, 1)[1][1] = UINT64_MAX; }, "whole numbers up to 268435456"},
      {[](json* r) {
         FirstCall(r, 1)[1][1] = {1 << 20, 1 << 20};
       },
       "product above 2147483648"},
      {[](json* r) { FirstCall(r, 1)[1][1] = std::string(65, 'x'); }, "expected a short text"},
      {[](json* r) { FirstCall(r, 1)[1] = 5; }, "call 0: expected [operator, arguments]"},
      {[](json* r) { FirstCall(r, 1) = json::array({"aten::neg"}); }, "call 0: expected [operator"},
      {[](json* r) { FirstCall(r, 1)[0] = "aten::rand"; },
       "stage layers.0, call 0 (\"aten::rand\"): is not among the operators"},
      {[](json* r) { FirstCall(r, 1)[0] = "aten::add_.Tensor"; }, "is not among the operators"},
      {[](json* r) { FirstCall(r, 1)[0] = "aten::from_file"; }, "is not among the operators"},
      {[](json* r) { FirstCall(r, 1)[0] = "prim::Print"; }, "is not among the operators"},
      {[](json* r) { FirstCall(r, 1)[0] = std::string(200, 'a'); }, "expected [operator"},
      {[](json* r) { (*r)["programs"][1]["output"] = 9'999; }, "stage layers.0.output: expected"},
      {[](json* r) { (*r)["programs"][1]["inputs"][0] = "labels"; }, "expected names of columns"},
      {[](json* r) {
         (*r)["programs"][1]["flops"] = {1, -1};
       },
       "flops: expected two numbers"},
      {[](json* r) { (*r)["programs"][1]["saved"] = {1}; }, "saved: expected two numbers"},
  });
}

TEST(ModelProgram, NamesTheFieldOfABadSection) {
  ExpectRefused({
      {[](json* r) { (*r)["format"] = 2; }, "format: expected a whole number from 1 to 1, found 2"},
      {[](json* r) { r->erase("variant"); }, "variant: is missing"},
      {[](json* r) { (*r)["extra"] = 1; }, "unknown key \"extra\""},
      {[](json* r) { (*r)["task"] = "chat"; }, "task: expected causal_lm or mlm"},
      {[](json* r) { (*r)["shape"]["width"] = 0; }, "shape.width: expected a whole number from 1"},
      {[](json* r) { (*r)["shape"]["depth"] = 1; }, "shape: unknown key"},
      {[](json* r) { (*r)["head"]["kind"] = "rank"; }, "head.kind: expected tokens or classes"},
      {[](json* r) { (*r)["head"]["rowwise"] = 1; }, "head.rowwise: expected true or false"},
      {[](json* r) { (*r)["constants"][0]["data"] = "AAAA"; }, "constants[0]: expected the base64"},
      {[](json* r) { (*r)["constants"][0]["data"] = "!"; }, "constants[0]: expected the base64"},
      {[](json* r) {
         (*r)["constants"][0]["shape"] = {1 << 28, 1 << 28};
       },
       "constants[0]: expec"},
      {[](json* r) { (*r)["tensors"][3]["name"] = "a b"; }, "tensors[3].name: expected letters"},
      {[](json* r) { (*r)["tensors"][3]["shape"] = {0}; }, "tensors[3].shape: expected whole"},
      {[](json* r) {
         (*r)["tensors"][3]["shape"] = {1 << 24, 1 << 24};
       },
       "is too large"},
      {[](json* r) { (*r)["tensors"][3]["init"]["kind"] = "zero"; }, "init.kind: expected zeros"},
      {[](json* r) { (*r)["tensors"][3]["init"]["a"] = -1; }, "init.a: expected a number from 0"},
      {[](json* r) { (*r)["tensors"][3]["init"]["b"] = 1; }, "init.b: expected a number from 0 to"},
      {[](json* r) { (*r)["tensors"][3]["files"]["names"].clear(); }, "names: expected one name"},
      {[](json* r) { (*r)["tensors"][3]["files"]["kind"] = "sum"; }, "kind: expected name or st"},
      {[](json* r) {
         (*r)["tensors"][3]["files"] = {{"kind", "stack"}, {"names", {"a", "b", "c"}}};
       },
       "stacks 3 matrices of equal height, but has 16 rows"},
      {[](json* r) {
         (*r)["shape"]["image"] = {3, 4};
       },
       "expected channels, height and width"},
      {[](json* r) {
         (*r)["tensors"][3]["aliases"] = {"lm_head.weight", 2};
       },
       "expected names"},
      {[](json* r) { (*r)["tensors"][3]["aliases"] = {"model.norm.weight"}; }, "stands twice"},
      {[](json* r) { (*r)["stages"][1]["program"] = 3; }, "runs program 3, there are 3"},
      {[](json* r) { (*r)["stages"][1]["uses"][2]["tensor"] = 99; }, "tensor: expected a whole"},
      {[](json* r) { (*r)["stages"][1]["uses"][2]["role"] = "head"; }, "role: expected embedding"},
      {[](json* r) { (*r)["stages"][1]["uses"][7]["role"] = "linear_out_in"; },
       "stage layers.0: model.layers.0.input_layernorm.weight has the role linear_out_in, but is"},
      {[](json* r) { (*r)["stages"][1]["uses"].erase(2); },
       "stage layers.0: names 8 tensors and 1 constants, its program has 9 and 1"},
      {[](json* r) { (*r)["stages"][1]["constants"].clear(); }, "names 9 tensors and 0 constants"},
      {[](json* r) { (*r)["stages"][1]["constants"] = {1}; }, "constants: expected whole numbers"},
      {[](json* r) { (*r)["stages"].erase(3); }, "programs: one is run by no stage"},
      {[](json* r) { (*r)["stages"].erase(0); }, "has no activation to read"},
      {[](json* r) { (*r)["stages"][1] = (*r)["stages"][0]; }, "reads no activation"},
  });
}

TEST(ModelProgram, BoundsTheWorkOfReading) {
  json root = json::parse(Tiny());
  json& calls = root["programs"][2]["calls"];
  const json call = calls[0];
  while (calls.size() <= kMaxProgramCalls) calls.push_back(call);
  EXPECT_TRUE(absl::StrContains(ParseModelProgram(root.dump()).status().message(),
                                "calls: expected a list of at most 10000 values"));
  root = json::parse(Tiny());
  root["programs"][2]["calls"][0][1] = json::array();
  json& lists = root["programs"][2]["calls"][0][1];
  for (int i = 0; i < 10; ++i) lists.push_back(json(std::vector<int>(60'000, 1)));
  EXPECT_TRUE(absl::StrContains(ParseModelProgram(root.dump()).status().message(),
                                "the calls have more than 524288 arguments"));
  EXPECT_TRUE(absl::StrContains(ParseModelProgram(std::string(10'000'000, '[')).status().message(),
                                "at most 3145728 bytes"));
  EXPECT_TRUE(absl::StrContains(ParseModelProgram(std::string(100'000, '[')).status().message(),
                                "nested deeper than 12 levels"));
  for (const char* text : {"", "[]", "{", "nul", "{\"format\":1}", "\"\\ud800\"", "\xff"}) {
    EXPECT_FALSE(ParseModelProgram(text).ok()) << text;
  }
}

TEST(ModelProgram, CountsTheArgumentsOfEveryStage) {
  json root = json::parse(Tiny());
  const json layer = root["stages"][1];
  for (int i = 0; i < 4'000; ++i) root["stages"].insert(root["stages"].begin() + 1, layer);
  EXPECT_TRUE(absl::StrContains(ParseModelProgram(root.dump()).status().message(),
                                "arguments in the calls of all stages"));
}

// Whatever a change of bytes makes of the text: a refusal, or a program that reads back.
TEST(ModelProgram, RefusesOrKeepsAChangedText) {
  const std::string text = Tiny();
  std::mt19937 random(7);
  const std::string bytes = "0123456789{}[]\",:-.eslotnu\\\x80 ";
  int read = 0;
  for (int i = 0; i < 1'000; ++i) {
    std::string changed = text;
    for (uint32_t n = 1 + random() % 3; n > 0; --n) {
      const size_t at = random() % changed.size();
      if (random() % 4 == 0) {
        changed.erase(at, 1 + random() % 8);
      } else {
        changed[at] = bytes[random() % bytes.size()];
      }
    }
    const absl::StatusOr<ModelProgram> program = ParseModelProgram(changed);
    if (!program.ok()) continue;
    ++read;
    EXPECT_EQ(ParseModelProgram(program->text)->text, program->text);
  }
  EXPECT_GT(read, 0);
}

JobSpec SpecOf(const std::string& program) {
  JobSpec spec;
  spec.model = ModelOf(program);
  spec.training.steps = 1;
  spec.training.seq_len = 32;
  spec.data.tokens = 1000;
  spec.data.sha256 = std::string(64, 'a');
  spec.chunk_elements = 4096;
  EXPECT_TRUE(BuildLayout(/*weight_decay=*/0.01, &spec).ok());
  return spec;
}

TEST(ProgramFamily, LaysOutTensorsByTheirRoles) {
  Gpt2Config gpt2;
  gpt2.n_layer = 2;
  JobSpec by_hand;
  by_hand.model.gpt2 = gpt2;
  ASSERT_TRUE(BuildLayout(0.01, &by_hand).ok());
  for (const bool tied : {true, false}) {
    gpt2.tie_word_embeddings = by_hand.model.gpt2.tie_word_embeddings = tied;
    ASSERT_TRUE(BuildLayout(0.01, &by_hand).ok());
    const JobSpec spec = SpecOf(Gpt2Program(gpt2, /*fused_gelu=*/true));
    ASSERT_EQ(spec.tensors.size(), by_hand.tensors.size());
    for (size_t i = 0; i < spec.tensors.size(); ++i) {
      const TensorSpec& ours = spec.tensors[i];
      const TensorSpec& theirs = by_hand.tensors[i];
      EXPECT_EQ(ours.name, theirs.name);
      EXPECT_EQ(ours.rank, theirs.rank);
      EXPECT_EQ(ours.rows, theirs.rows);
      EXPECT_EQ(ours.cols, theirs.cols);
      EXPECT_EQ(ours.group, theirs.group);
      EXPECT_EQ(ours.init, theirs.init);
      EXPECT_EQ(ours.init_std, theirs.init_std);
    }
    ASSERT_EQ(spec.stages.size(), by_hand.stages.size());
    for (size_t s = 0; s < spec.stages.size(); ++s) {
      ASSERT_EQ(spec.stages[s].uses.size(), by_hand.stages[s].uses.size());
      for (size_t u = 0; u < spec.stages[s].uses.size(); ++u) {
        EXPECT_EQ(spec.stages[s].uses[u].tensor, by_hand.stages[s].uses[u].tensor);
        EXPECT_EQ(spec.stages[s].uses[u].forward_axis, by_hand.stages[s].uses[u].forward_axis);
        EXPECT_EQ(spec.stages[s].uses[u].backward_axis, by_hand.stages[s].uses[u].backward_axis);
      }
    }
  }
}

TEST(ProgramFamily, StoresMoreDimensionsAsAMatrix) {
  json root = json::parse(Tiny());
  json& tensor = root["tensors"][7];  // the down projection of layer 0
  ASSERT_EQ(tensor["name"], "model.layers.0.mlp.down_proj.weight");
  tensor["shape"] = {2, 3, 5};
  tensor["init"] = {{"kind", "uniform"}, {"a", -0.5}, {"b", 0.25}};
  tensor["files"] = {{"kind", "stack"}, {"names", {"a.0", "a.1"}}};

  const JobSpec spec = SpecOf(root.dump());
  const TensorSpec& stored = spec.tensors[7];
  EXPECT_EQ(stored.rank, 2u);
  EXPECT_EQ(stored.rows, 6u);
  EXPECT_EQ(stored.cols, 5u);
  EXPECT_EQ(stored.init, Initializer::kUniform);
  EXPECT_EQ(stored.init_low, -0.5);
  EXPECT_EQ(stored.init_high, 0.25);
  EXPECT_EQ(spec.stages[1].uses[6].forward_axis, Axis::kRow);
  EXPECT_EQ(spec.stages[1].uses[6].backward_axis, Axis::kRow);
  const ModelFamily& family = FamilyOf(spec.model.type);
  const std::vector<FileTensor> files = family.InFiles(spec.model, stored, 7);
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(files[1].name, "a.1");
  EXPECT_EQ(files[1].shape, (std::vector<uint64_t>{3, 5}));
  const std::vector<FilePiece> pieces = PiecesOf(files, 10, 12);
  ASSERT_EQ(pieces.size(), 2u);
  EXPECT_EQ(pieces[0].first, 10u);
  EXPECT_EQ(pieces[0].count, 5u);
  EXPECT_EQ(pieces[1].file_tensor, 1u);
  EXPECT_EQ(pieces[1].first, 0u);
  EXPECT_EQ(pieces[1].offset, 5u);
  EXPECT_EQ(pieces[1].count, 7u);
}

TEST(ProgramFamily, TravelsInTheJobSpec) {
  const JobSpec spec = SpecOf(Tiny());
  const std::string text = spec.ToText();
  const absl::StatusOr<JobSpec> read = JobSpec::Parse(text);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->ToText(), text);
  EXPECT_EQ(read->model.program->text, Tiny());
  // The digest covers every character of the program.
  const std::string other = absl::StrReplaceAll(Tiny(), {{"a test", "A test"}});
  EXPECT_NE(SpecOf(other).Digest(), spec.Digest());
}

TEST(ProgramFamily, RefusesAProgramInOtherLines) {
  const std::string text = SpecOf(Tiny()).ToText();
  const size_t first = text.find("\nmodel.program.0 = ") + 1;
  // Moves one character from the second line to the first.
  const size_t end = text.find('\n', first);
  const size_t second = text.find(" = ", end) + 3;
  std::string moved = text;
  moved.erase(second, 1);
  moved.insert(end, 1, text[second]);
  const absl::Status status = JobSpec::Parse(moved).status();
  EXPECT_TRUE(absl::StrContains(status.message(), "in lines of 80 characters")) << status;
}

TEST(ProgramFamily, KnowsWhatItsTaskPredicts) {
  json root = json::parse(Tiny());
  const ModelFamily& family = FamilyOf(ModelType::kProgram);
  EXPECT_TRUE(family.CheckReadsTokens(ModelOf(root.dump())).ok());
  root["task"] = "mlm";
  EXPECT_TRUE(absl::StrContains(family.CheckReadsTokens(ModelOf(root.dump())).message(),
                                "exported for the task mlm"));
  EXPECT_EQ(family.labels(ModelOf(root.dump())), LabelKind::kMaskedTokens);
  root["task"] = "causal_lm";
  EXPECT_FALSE(family.SeparatesDocuments(ModelOf(root.dump())));
  root["variant"] = "packed";
  EXPECT_TRUE(family.SeparatesDocuments(ModelOf(root.dump())));
  for (const char* const type : {"float32", "bfloat16", "float16"}) {
    root["dtype"] = type;
    EXPECT_TRUE(ValidateModel(ModelOf(root.dump())).ok()) << type;
  }
  root["dtype"] = "float64";
  const absl::Status status = ValidateModel(ModelOf(root.dump()));
  EXPECT_TRUE(absl::StrContains(status.message(), "as --dtype")) << status;
  ModelSpec empty;
  empty.type = ModelType::kProgram;
  EXPECT_TRUE(absl::StrContains(ValidateModel(empty).message(), "model.program: is missing"));
}

TEST(ProgramFamily, HeadsSayWhatTheyPredict) {
  const ModelFamily& family = FamilyOf(ModelType::kProgram);
  EXPECT_EQ(family.labels(ModelOf(Tiny())), LabelKind::kTokens);
  const std::pair<const char*, LabelKind> heads[] = {{"classes", LabelKind::kClasses},
                                                     {"mse", LabelKind::kNumbers}};
  for (const auto& [head, kind] : heads) {
    json root = json::parse(Tiny());
    root["task"] = kind == LabelKind::kClasses ? "classify" : "regress";
    root["variant"] = "encoder";
    root["head"] = {{"kind", head}, {"rowwise", false}};
    root["shape"]["classes"] = 3;
    const ModelSpec model = ModelOf(root.dump());
    EXPECT_FALSE(family.CheckReadsTokens(model).ok());
    EXPECT_EQ(family.labels(model), kind);
    EXPECT_EQ(family.classes(model), 3u);
  }
}

TEST(ProgramFamily, ImagesHaveThePositionsOfTheirPatches) {
  const ModelFamily& family = FamilyOf(ModelType::kProgram);
  EXPECT_TRUE(family.image(ModelOf(Tiny())).empty());
  json root = json::parse(Tiny());
  root["task"] = "image";
  root["variant"] = "encoder";
  root["head"] = {{"kind", "classes"}, {"rowwise", false}};
  root["shape"].update({{"vocab_size", 0}, {"classes", 3}, {"tokens", 17}, {"max_seq_len", 5}});
  root["shape"]["image"] = {1, 16, 16};
  root["programs"][0]["inputs"] = {"pixel_values"};
  const ModelSpec model = ModelOf(root.dump());
  EXPECT_TRUE(family.ReadsData(model));
  EXPECT_EQ(family.vocabulary(model), 0u);
  EXPECT_EQ(family.image(model), std::vector<int64_t>({1, 16, 16}));
  EXPECT_EQ(family.max_seq_len(model), 17u);
  EXPECT_EQ(family.default_seq_len(model), 17u);
}

TEST(ProgramFamily, CountsByTheCostsOfItsStages) {
  const ModelSpec model = ModelOf(Tiny());
  const ProgramCost& flops = model.program->calls_of(2).flops;
  const ModelFamily& family = FamilyOf(model.type);
  EXPECT_EQ(family.ForwardFlops(model, {2, 4, 0, 8}), flops.linear * 8 + flops.quadratic * 64);
  // The loss also holds the scores, their softmax and its gradient.
  EXPECT_EQ(family.ActivationBytes(model, {3, 4, 0, 8}),
            model.program->calls_of(3).saved.linear * 8 + 3 * 4.0 * 256 * 8);
  EXPECT_EQ(family.ActivationBytes(model, {2, 4, 0, 8}),
            model.program->calls_of(2).saved.linear * 8);
  EXPECT_EQ(family.width(model), 32u);
  EXPECT_EQ(family.vocabulary(model), 256u);
  EXPECT_EQ(family.default_seq_len(model), 64u);
}

}  // namespace
}  // namespace eps
