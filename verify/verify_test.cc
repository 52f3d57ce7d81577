// Writes a run to disk as workers and a server would, without a network, and verifies it: it is
// equal as written, differs for every planted mistake, and is refused if files are damaged or
// missing.

#include "verify/verify.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/config/config.h"
#include "base/exit_code.h"
#include "base/files/safetensors.h"
#include "base/job/layout/model_layout.h"
#include "base/memory_account.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "verify/stage_programs.h"
#include "verify/testing/shard_oracle.h"
#include "worker/data/batch_source.h"
#include "worker/data/sample_source.h"
#include "worker/exec/torch_runtime.h"
#include "worker/models/model_stages.h"

namespace eps {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kThreads = 2;
constexpr uint64_t kSteps = 3;
constexpr const char* kStateFiles[] = {"model.safetensors", "eps/exp_avg.safetensors",
                                       "eps/exp_avg_sq.safetensors"};

// Gives every mistake something to act on: dropout, a tied tensor, four micro-batches in each of
// two parts, clipping that takes effect, weight decay.
JobSpec MakeSpec(const SampleSource& data) {
  JobSpec spec;
  spec.name = "verified";
  Gpt2Config& gpt2 = spec.model.gpt2;
  gpt2.n_layer = 2;
  gpt2.n_head = 2;
  gpt2.n_embd = 32;
  gpt2.n_positions = 16;
  gpt2.resid_pdrop = gpt2.embd_pdrop = 0.1;
  spec.chunk_elements = 1024;
  spec.schedule.name = "linear";
  TrainingSpec& training = spec.training;
  training.steps = kSteps;
  training.micro_batch_size = 2;
  training.micro_batches = 4;
  training.parts = 2;
  training.seq_len = 16;
  training.clip = Clip::kLagged;
  training.max_grad_norm = 0.1;
  training.loss_block_tokens = 20;
  spec.data.tokens = data.tokens();
  spec.data.sha256 = data.Sha256Hex();
  EXPECT_TRUE(BuildLayout(/*weight_decay=*/0.1, &spec).ok());
  EXPECT_TRUE(spec.Validate().ok()) << spec.Validate();
  return spec;
}

// Presents a worker's stage programs as a model of the whole network.
class StageProgramModel final : public ReferenceModel {
 public:
  StageProgramModel(const JobSpec& spec, StageRuntime* runtime) : spec_(spec), runtime_(runtime) {}
  absl::StatusOr<MicroBatchResult> Run(const StageInputs& weights,
                                       const StageInputs& for_input_gradient,
                                       const MicroBatch& batch, int /*loss_scale_log2*/) override {
    return RunStagePrograms(spec_, runtime_, weights, for_input_gradient, batch, 0);
  }

 private:
  const JobSpec& spec_;
  StageRuntime* const runtime_;
};

void WriteText(const std::string& path, const std::string& text, bool append = false) {
  std::ofstream file(path, append ? std::ios::app : std::ios::trunc);
  file << text;
  ASSERT_TRUE(file.good()) << path;
}

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void WriteTensors(const std::string& path, const JobSpec& spec, const TensorValues& values) {
  std::vector<SafetensorsEntry> entries;
  for (const TensorSpec& tensor : spec.tensors) {
    SafetensorsEntry entry;
    entry.name = tensor.name;
    entry.shape = {tensor.rows, tensor.cols};
    if (tensor.rank == 1) entry.shape = {tensor.cols};
    entries.push_back(entry);
  }
  auto writer = SafetensorsWriter::Create(path, entries);
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (size_t t = 0; t < values.size(); ++t) {
    ASSERT_TRUE((*writer)->Write(t, 0, values[t]).ok());
  }
  ASSERT_TRUE((*writer)->Finish().ok());
}

// Writes a run into `folder`, as `eps train --checkpoint.save_steps=1` lays it out.
void MakeRun(const std::string& folder) {
  fs::create_directories(folder);
  Config config;
  config.data.path = {folder + "/data.txt"};
  config.worker.threads = kThreads;
  std::string text;
  for (int i = 0; text.size() < 4000; ++i) absl::StrAppend(&text, i * i, " is a square. ");
  WriteText(config.data.path[0], text);
  const auto data = SampleSource::Open(config.data.path, {256});
  ASSERT_TRUE(data.ok()) << data.status();
  const JobSpec spec = MakeSpec(**data);
  const auto batches = NewBatchSource(spec, **data);
  MemoryAccount account;
  auto runtime =
      NewTorchRuntime(spec, NewModelStage, RuntimeOptions{"cpu", "host", kThreads}, &account);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  StageProgramModel model(spec, runtime->get());
  ShardOracle shard(spec, &model, batches.get());
  for (uint64_t step = 1; step <= kSteps; ++step) {
    const StepFigures figures = shard.RunStep();
    WriteText(folder + "/metrics.jsonl",
              absl::StrFormat("{\"step\":%d,\"loss\":%.17g,\"grad_norm\":%.17g,\"lr\":%.17g,"
                              "\"tokens\":%d,\"term\":1}\n",
                              step, figures.loss, figures.grad_norm, figures.lr, figures.tokens),
              /*append=*/true);
    const std::string checkpoint = absl::StrCat(folder, "/checkpoint-", step);
    fs::create_directories(checkpoint + "/eps");
    WriteText(checkpoint + "/eps/job_spec.txt", spec.ToText());
    WriteText(checkpoint + "/eps/config.yaml", config.ToYaml());
    WriteText(checkpoint + "/eps/compute_profiles.txt", (*runtime)->compute_profile() + "\n");
    const std::vector<TensorValues> state = shard.Read();
    for (size_t field = 0; field < state.size(); ++field) {
      WriteTensors(absl::StrCat(checkpoint, "/", kStateFiles[field]), spec, state[field]);
    }
  }
}

// The result and the output of a verification.
struct Verdict {
  absl::StatusOr<bool> equal;
  std::string text;
};

Verdict Verify(const VerifyOptions& options) {
  std::ostringstream out;
  absl::StatusOr<bool> equal = RunVerify(options, &out);
  return {std::move(equal), out.str()};
}

// Verifies a recorded run, or damaged copies of it.
class VerifyTest : public testing::Test {
 protected:
  // The run is made once. Tests that change it change a copy.
  static void SetUpTestSuite() { MakeRun(RunPath()); }
  static std::string RunPath() { return testing::TempDir() + "/verify_run"; }

  std::string CopyOfRun() {
    const std::string copy = testing::TempDir() + "/verify_" +
                             testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::copy(RunPath(), copy, fs::copy_options::recursive);
    return copy;
  }
  static VerifyOptions Options(const std::string& run) {
    VerifyOptions options;
    options.run = run;
    return options;
  }
};

TEST_F(VerifyTest, FindsARunEqual) {
  const Verdict verdict = Verify(Options(RunPath()));
  ASSERT_TRUE(verdict.equal.ok()) << verdict.equal.status();
  EXPECT_TRUE(*verdict.equal) << verdict.text;
  EXPECT_THAT(verdict.text, HasSubstr("step: 3/3 weights: equal exp_avg: equal exp_avg_sq: equal "
                                      "loss: equal grad_norm: equal lr: equal tokens: equal\n"));
  EXPECT_THAT(verdict.text, HasSubstr("verified: 3 steps"));
  // Both sides print equal sums.
  const size_t expected = verdict.text.find("expected: weights sha256:");
  const size_t found = verdict.text.find("found:    weights sha256:");
  ASSERT_NE(expected, std::string::npos) << verdict.text;
  ASSERT_NE(found, std::string::npos) << verdict.text;
  constexpr size_t kLine = 10 + 15 + 64 + 14 + 64;
  EXPECT_EQ(verdict.text.substr(expected + 10, kLine - 10),
            verdict.text.substr(found + 10, kLine - 10));
}

TEST_F(VerifyTest, NoticesEveryPlantedMistake) {
  for (const PlantInfo& info : Plants()) {
    VerifyOptions options = Options(RunPath());
    options.plant = info.plant;
    const Verdict verdict = Verify(options);
    ASSERT_TRUE(verdict.equal.ok()) << info.name << ": " << verdict.equal.status();
    EXPECT_FALSE(*verdict.equal) << info.name;
    const bool later = info.plant == Plant::kStaleWeights;
    EXPECT_THAT(verdict.text, HasSubstr(later ? "different: step 2, weights of transformer."
                                              : "different: step 1, weights of transformer."))
        << info.name;
    EXPECT_THAT(verdict.text, HasSubstr(absl::StrCat("planted: ", info.name))) << info.name;
    EXPECT_THAT(verdict.text, Not(HasSubstr("verified:"))) << info.name;
  }
}

TEST_F(VerifyTest, NamesTheElementThatDiffers) {
  const std::string run = CopyOfRun();
  const std::string path = run + "/checkpoint-2/eps/exp_avg.safetensors";
  uint64_t offset = 0;
  {
    const auto reader = SafetensorsReader::Open(path);
    ASSERT_TRUE(reader.ok());
    offset = (*(*reader)->Find("transformer.h.1.mlp.c_fc.weight"))->offset;
  }
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(offset + 4 * (3 * 128 + 7)));
  const int lowest = file.get();
  file.seekp(static_cast<std::streamoff>(offset + 4 * (3 * 128 + 7)));
  file.put(static_cast<char>(lowest ^ 1));
  file.close();
  const Verdict verdict = Verify(Options(run));
  ASSERT_TRUE(verdict.equal.ok()) << verdict.equal.status();
  EXPECT_FALSE(*verdict.equal);
  EXPECT_THAT(verdict.text, HasSubstr("step: 1/3 weights: equal"));
  EXPECT_THAT(verdict.text, HasSubstr("step: 2/3 weights: equal exp_avg: different exp_avg_sq: "
                                      "equal loss: equal"));
  EXPECT_THAT(verdict.text,
              HasSubstr("different: step 2, exp_avg of transformer.h.1.mlp.c_fc.weight [32 x 128]: "
                        "1 of 4096 elements differ, the first at element 391 (row 3, column 7): "
                        "expected "));
  EXPECT_THAT(verdict.text, Not(HasSubstr("step: 3/3")));
}

TEST_F(VerifyTest, ComparesTheFiguresOfARecord) {
  const std::string run = CopyOfRun();
  const std::string path = run + "/metrics.jsonl";
  std::string text = ReadText(path);
  const size_t at = text.find("\"loss\":", text.find("\"step\":3")) + 7;
  text.replace(at, text.find(',', at) - at, "5.5");
  WriteText(path, text);
  const Verdict verdict = Verify(Options(run));
  ASSERT_TRUE(verdict.equal.ok()) << verdict.equal.status();
  EXPECT_FALSE(*verdict.equal);
  EXPECT_THAT(verdict.text, HasSubstr("step: 3/3 weights: equal exp_avg: equal exp_avg_sq: equal "
                                      "loss: different grad_norm: equal"));
  EXPECT_THAT(verdict.text, HasSubstr("found 5.5 (0x4016000000000000)"));
}

TEST_F(VerifyTest, StartsFromTheWeightsOfAFile) {
  VerifyOptions options = Options(RunPath());
  options.weights = RunPath() + "/checkpoint-1/model.safetensors";
  options.steps = 1;
  const Verdict verdict = Verify(options);
  ASSERT_TRUE(verdict.equal.ok()) << verdict.equal.status();
  EXPECT_FALSE(*verdict.equal);
  EXPECT_THAT(verdict.text, HasSubstr("weights: " + options.weights));
}

TEST_F(VerifyTest, ReportsMissingAndBadFiles) {
  struct Case {
    const char* name;
    std::function<void(const std::string& run)> damage;
    ExitCode code;
    const char* message;
  };
  const auto remove = [](const char* file) {
    return [file](const std::string& run) { fs::remove_all(run + "/" + file); };
  };
  const Case cases[] = {
      {"no run", remove(""), ExitCode::kNoInput, "--checkpoint.save_steps=1"},
      {"no first checkpoint", remove("checkpoint-1"), ExitCode::kNoInput, "save_steps=1"},
      {"no later checkpoint", remove("checkpoint-2"), ExitCode::kNoInput, "checkpoint-2"},
      {"no moments", remove("checkpoint-2/eps/exp_avg_sq.safetensors"), ExitCode::kNoInput,
       "exp_avg_sq.safetensors"},
      {"no metrics", remove("metrics.jsonl"), ExitCode::kNoInput, "metrics.jsonl"},
      {"no data", [](const std::string& run) { WriteText(run + "/data.txt", "short"); },
       ExitCode::kDataInvalid, "the run read"},
      {"a broken spec",
       [](const std::string& run) { WriteText(run + "/checkpoint-1/eps/job_spec.txt", "eps"); },
       ExitCode::kDataInvalid, "job_spec.txt"},
      {"another job's checkpoint",
       [](const std::string& run) {
         const std::string path = run + "/checkpoint-2/eps/job_spec.txt";
         std::string text = ReadText(path);
         text.replace(text.find("seed = 42"), 9, "seed = 43");
         WriteText(path, text);
       },
       ExitCode::kDataInvalid, "training.seed"},
      {"a cut tensor file",
       [](const std::string& run) { fs::resize_file(run + "/checkpoint-1/model.safetensors", 99); },
       ExitCode::kDataInvalid, "model.safetensors"},
      {"a malformed record",
       [](const std::string& run) {
         WriteText(run + "/metrics.jsonl", "{\"step\":4}\n", /*append=*/true);
       },
       ExitCode::kDataInvalid, "metrics.jsonl:4"},
      {"a missing record", [](const std::string& run) { WriteText(run + "/metrics.jsonl", ""); },
       ExitCode::kDataInvalid, "no record of step 1"},
      {"a GPU in a later step",
       [](const std::string& run) {
         WriteText(run + "/checkpoint-2/eps/compute_profiles.txt",
                   "libtorch 2.11.0 cuda NVIDIA H100 80GB HBM3 sm_90\n", /*append=*/true);
       },
       ExitCode::kUsage, "computed with \"libtorch 2.11.0 cuda NVIDIA H100"},
      {"a CUDA worker",
       [](const std::string& run) {
         fs::remove(run + "/checkpoint-1/eps/compute_profiles.txt");
         const std::string path = run + "/checkpoint-1/eps/config.yaml";
         Config config;
         EXPECT_TRUE(config.MergeYaml(ReadText(path), path).ok());
         config.worker.device = "cuda:0";
         WriteText(path, config.ToYaml());
       },
       ExitCode::kUsage, "worker.device=cpu"},
  };
  for (const Case& c : cases) {
    const std::string run = CopyOfRun();
    // Otherwise the data of the original run would be read, without the damage.
    VerifyOptions options = Options(run);
    options.data = {run + "/data.txt"};
    c.damage(run);
    const Verdict verdict = Verify(options);
    EXPECT_EQ(ExitCodeOf(verdict.equal.status()), c.code)
        << c.name << ": " << verdict.equal.status();
    EXPECT_THAT(std::string(verdict.equal.status().message()), HasSubstr(c.message)) << c.name;
    fs::remove_all(run);
  }
}

TEST_F(VerifyTest, RefusesASyntheticModel) {
  const std::string run = CopyOfRun();
  const std::string path = run + "/checkpoint-1/eps/job_spec.txt";
  JobSpec spec = *JobSpec::Parse(ReadText(path));
  spec.model.type = ModelType::kSynthetic;
  ASSERT_TRUE(BuildLayout(0.1, &spec).ok());
  WriteText(path, spec.ToText());
  const Verdict verdict = Verify(Options(run));
  EXPECT_EQ(ExitCodeOf(verdict.equal.status()), ExitCode::kUsage);
  EXPECT_THAT(std::string(verdict.equal.status().message()), HasSubstr("type synthetic"));
}

TEST(CheckComputedLike, RefusesOtherDevices) {
  const std::string here = "libtorch 2.11.0 cuda A sm_90", other = "libtorch 2.11.0 cuda B sm_90";
  EXPECT_TRUE(CheckComputedLike({here, here}, here).ok());
  for (const absl::Status& status :
       {CheckComputedLike({here, other}, here), CheckComputedLike({}, here)}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(absl::StrContains(status.message(), "--device")) << status;
  }
}

TEST(CheckComputedOnCpu, RefusesGpusAlsoIfChosenByAuto) {
  const std::string cpu = "libtorch 2.11.0 cpu AVX512 AuthenticAMD/25/17 threads=2";
  const std::string gpu = "libtorch 2.11.0 cuda NVIDIA H100 80GB HBM3 sm_90";
  EXPECT_TRUE(CheckComputedOnCpu({}, "cpu", gpu).ok());
  EXPECT_TRUE(CheckComputedOnCpu({}, "auto", cpu).ok());
  EXPECT_TRUE(CheckComputedOnCpu({cpu}, "auto", gpu).ok()) << "a GPU of this machine";
  for (const absl::Status& status :
       {CheckComputedOnCpu({}, "auto", gpu), CheckComputedOnCpu({}, "cuda", cpu),
        CheckComputedOnCpu({}, "cuda:1", gpu), CheckComputedOnCpu({gpu}, "auto", cpu),
        CheckComputedOnCpu({cpu, gpu}, "cpu", cpu)}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(absl::StrContains(status.message(), "--worker.device=cpu")) << status;
  }
}

TEST(VerifyArguments, ParsesOrNamesEachArgument) {
  const auto full = ParseVerifyArguments({"--run=out", "--data=a.txt", "--data", "b.txt",
                                          "--threads=3", "--plant=swapped_tree", "--steps=7"});
  ASSERT_TRUE(full.ok()) << full.status();
  EXPECT_EQ(full->options.run, "out");
  EXPECT_EQ(full->options.data, (std::vector<std::string>{"a.txt", "b.txt"}));
  EXPECT_EQ(full->options.threads, 3);
  EXPECT_EQ(full->options.steps, 7u);
  EXPECT_EQ(full->options.plant, Plant::kSwappedTree);
  EXPECT_THAT(ParseVerifyArguments({"--plant=list"})->text, HasSubstr("wrong_bias_correction"));
  EXPECT_THAT(ParseVerifyArguments({"--help"})->text, HasSubstr("--threads"));
  const std::pair<std::vector<std::string>, const char*> bad[] = {
      {{}, "--run"},
      {{"--run=out", "--threads=0"}, "--threads"},
      {{"--run=out", "--plant=nothing"}, "nothing"},
      {{"--run=out", "--speed"}, "--speed"},
  };
  for (const auto& [arguments, named] : bad) {
    const absl::Status status = ParseVerifyArguments(arguments).status();
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage) << named;
    EXPECT_THAT(std::string(status.message()), HasSubstr(named));
  }
}

}  // namespace
}  // namespace eps
