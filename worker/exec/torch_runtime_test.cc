#include "worker/exec/torch_runtime.h"

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/arange.h"
#include "ATen/ops/equal.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/job/layout/model_layout.h"
#include "base/job/legality.h"
#include "base/testing/test_programs.h"
#include "gtest/gtest.h"
#include "worker/models/model_stages.h"

namespace eps {
namespace {

JobSpec MakeSpec(int layers) {
  JobSpec spec;
  Gpt2Config& c = spec.model.gpt2;
  c.n_layer = layers;
  c.n_head = 4;
  c.n_embd = 64;
  c.n_positions = 32;
  c.vocab_size = 100;
  spec.training.seq_len = 32;
  EXPECT_TRUE(BuildLayout(0.0, &spec).ok());
  return spec;
}

MicroBatch MakeBatch() {
  MicroBatch batch;
  batch.step = Step(1);
  batch.samples = 2;
  batch.seq_len = 32;
  for (int i = 0; i < 64; ++i) {
    batch.tokens.push_back(i % 100);
    batch.labels.push_back((i + 1) % 100);
  }
  return batch;
}

RuntimeOptions Options(const std::string& stash) {
  RuntimeOptions options;
  options.device = "cpu";
  options.stash = stash;
  options.threads = 2;
  return options;
}

std::unique_ptr<StageRuntime> MakeRuntime(const JobSpec& spec, const std::string& stash,
                                          MemoryAccount* account) {
  auto runtime = NewTorchRuntime(spec, NewModelStage, Options(stash), account);
  EXPECT_TRUE(runtime.ok()) << runtime.status();
  return *std::move(runtime);
}

std::shared_ptr<HostStage> FilledHost(const JobSpec& spec, StageId stage, StageRuntime* runtime,
                                      float value) {
  std::shared_ptr<HostStage> host = runtime->NewHostStage(stage).value();
  const auto& uses = spec.stages[stage.value()].uses;
  for (size_t use = 0; use < uses.size(); ++use) {
    const uint64_t n = spec.tensors[uses[use].tensor.value()].elements();
    for (uint64_t i = 0; i < n; ++i) host->tensor(use)[i] = value;
  }
  return host;
}

// Runs forward and backward of one micro-batch with every stage input in the stash; returns the
// peak of device memory.
uint64_t PeakOfOneStep(int layers, const std::string& stash, MemoryAccount* account,
                       const std::string& codec = "fp32") {
  JobSpec spec = MakeSpec(layers);
  spec.codecs.stash = codec;
  auto runtime = MakeRuntime(spec, stash, account);
  const uint32_t stages = static_cast<uint32_t>(spec.stages.size());
  std::vector<ActivationPtr> inputs(stages);
  ActivationPtr in;
  for (uint32_t s = 0; s + 1 < stages; ++s) {
    auto weights = runtime->Load(StageId(s), FilledHost(spec, StageId(s), runtime.get(), 0.01f));
    auto out = runtime->program(StageId(s)).Forward(*weights, MakeBatch(), in);
    EXPECT_TRUE(out.ok()) << out.status();
    if (in != nullptr) inputs[s] = *runtime->Stash(std::move(in));
    in = *std::move(out);
  }
  ActivationPtr grad;
  for (uint32_t s = stages; s-- > 0;) {
    auto weights = runtime->Load(StageId(s), FilledHost(spec, StageId(s), runtime.get(), 0.01f));
    if (inputs[s] != nullptr) in = *runtime->Unstash(std::move(inputs[s]));
    auto out = runtime->program(StageId(s)).Backward(*weights, MakeBatch(), in, grad, 0, nullptr);
    EXPECT_TRUE(out.ok()) << out.status();
    in = nullptr;
    grad = std::move(out->grad_in);
  }
  return runtime->device_memory().peak_bytes;
}

TEST(TorchRuntimeTest, PeakDeviceMemoryIsIndependentOfDepth) {
  MemoryAccount account;
  const uint64_t of_two = PeakOfOneStep(2, "host", &account);
  EXPECT_GT(of_two, 0u);
  EXPECT_EQ(PeakOfOneStep(12, "host", &account), of_two);
  EXPECT_EQ(account.live_bytes(), 0u);
}

TEST(TorchRuntimeTest, DeviceStashGrowsByLayerInputs) {
  MemoryAccount account;
  const uint64_t input_bytes = 2 * 32 * 64 * sizeof(float);
  const uint64_t of_two = PeakOfOneStep(2, "device", &account);
  EXPECT_EQ(PeakOfOneStep(12, "device", &account), of_two + 10 * input_bytes);
  EXPECT_EQ(account.peak_bytes(MemoryKind::kStash), 0u);
}

TEST(TorchRuntimeTest, EncodedDeviceStashGrowsByEncodedInputs) {
  const uint64_t elements = 2 * 32 * 64;
  const uint64_t of_two = PeakOfOneStep(2, "device", nullptr, "fp8_e4m3");
  EXPECT_EQ(PeakOfOneStep(12, "device", nullptr, "fp8_e4m3"), of_two + 10 * elements);
}

TEST(TorchRuntimeTest, ChargesTheEncodedSizeOfTheStash) {
  JobSpec spec = MakeSpec(1);
  spec.codecs.stash = "bf16";
  MemoryAccount account;
  auto runtime = MakeRuntime(spec, "host", &account);
  auto weights = runtime->Load(StageId(0), FilledHost(spec, StageId(0), runtime.get(), 0.01f));
  const uint64_t before = runtime->device_memory().live_bytes;
  ActivationPtr out = *runtime->program(StageId(0)).Forward(*weights, MakeBatch(), nullptr);
  const uint64_t bytes = out->bytes();
  ActivationPtr stashed = *runtime->Stash(out);
  EXPECT_EQ(stashed->bytes(), bytes / 2);
  EXPECT_EQ(runtime->device_memory().live_bytes, before + bytes) << "the activation still exists";
  EXPECT_EQ(account.live_bytes(MemoryKind::kStash), bytes / 2);
  out = nullptr;
  EXPECT_EQ(runtime->device_memory().live_bytes, before);
  ActivationPtr in = *runtime->Unstash(stashed);
  EXPECT_EQ(runtime->device_memory().live_bytes, before + bytes);
  in = nullptr;
  stashed = nullptr;
  EXPECT_EQ(runtime->device_memory().live_bytes, before);
  EXPECT_EQ(account.live_bytes(MemoryKind::kStash), 0u);
}

TEST(TorchRuntimeTest, ThreadsAddIndexGradientsInOrder) {
  const JobSpec spec = MakeSpec(1);
  auto runtime = NewTorchRuntime(spec, NewModelStage, RuntimeOptions{"cpu", "host", 4}, nullptr);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  const at::NoGradGuard no_grad;
  constexpr int64_t kRows = 1 << 20;
  const at::Tensor rows = at::arange(kRows, at::kLong).remainder(7);
  const at::Tensor values = at::arange(kRows, at::kFloat).mul(0.7f).sin();
  at::Tensor first;
  for (int run = 0; run < 8; ++run) {
    const at::Tensor sum = at::zeros({7}, at::kFloat);
    sum.index_put_({rows}, values, /*accumulate=*/true);
    if (run == 0) first = sum;
    EXPECT_TRUE(sum.equal(first)) << "run " << run;
  }
}

JobSpec Bf16Spec(const std::string& stash) {
  JobSpec spec = MakeSpec(1);
  spec.model = ModelOf(Gpt2Program(spec.model.gpt2, /*fused_gelu=*/true, "bfloat16"));
  spec.training.precision = Precision::kBf16;
  spec.codecs.stash = stash;
  EXPECT_TRUE(BuildLayout(0.0, &spec).ok());
  EXPECT_TRUE(CheckPrecision(spec.training.precision, spec.model).ok());
  return spec;
}

TEST(TorchRuntimeTest, LoadsWeightsAsBf16) {
  const JobSpec spec = Bf16Spec("fp32");
  auto runtime = MakeRuntime(spec, "host", nullptr);
  const uint64_t before = runtime->device_memory().live_bytes;
  std::shared_ptr<HostStage> host = FilledHost(spec, StageId(1), runtime.get(), 0.01f);
  const std::weak_ptr<HostStage> source = host;
  uint64_t elements = 0;
  for (const TensorUse& use : spec.stages[1].uses) {
    elements += spec.tensors[use.tensor.value()].elements();
  }
  auto weights = runtime->Load(StageId(1), std::move(host));
  EXPECT_TRUE(source.expired()) << "the FP32 values are still there";
  EXPECT_EQ(runtime->device_memory().live_bytes, before + 2 * elements);
  weights = nullptr;
  EXPECT_EQ(runtime->device_memory().live_bytes, before);
}

TEST(TorchRuntimeTest, StashesBf16InItsBytes) {
  constexpr uint64_t kElements = 2 * 32 * 64;
  const struct {
    const char* stash;
    uint64_t bytes;  // of an element
  } cases[] = {{"fp32", 2}, {"bf16", 2}, {"fp16", 2}, {"fp8_e5m2", 1}};
  for (const auto& c : cases) {
    for (const char* const place : {"host", "device"}) {
      const JobSpec spec = Bf16Spec(c.stash);
      MemoryAccount account;
      auto runtime = MakeRuntime(spec, place, &account);
      auto weights = runtime->Load(StageId(0), FilledHost(spec, StageId(0), runtime.get(), 0.01f));
      const uint64_t before = runtime->device_memory().live_bytes;
      ActivationPtr out = *runtime->program(StageId(0)).Forward(*weights, MakeBatch(), nullptr);
      ActivationPtr stashed = *runtime->Stash(std::move(out));
      EXPECT_EQ(stashed->bytes(), kElements * c.bytes) << c.stash;
      const bool on_host = std::string(place) == "host";
      EXPECT_EQ(account.live_bytes(MemoryKind::kStash), on_host ? kElements * c.bytes : 0);
      const ActivationPtr in = *runtime->Unstash(std::move(stashed));
      EXPECT_EQ(in->bytes(), 2 * kElements) << c.stash;
      EXPECT_GE(runtime->device_memory().live_bytes, before + 2 * kElements);
      weights = runtime->Load(StageId(1), FilledHost(spec, StageId(1), runtime.get(), 0.01f));
      const auto next = runtime->program(StageId(1)).Forward(*weights, MakeBatch(), in);
      ASSERT_TRUE(next.ok()) << next.status();
      EXPECT_EQ((*next)->bytes(), 2 * kElements);
    }
  }
}

TEST(TorchRuntimeTest, HasSecondCopiesForBothAxes) {
  JobSpec spec = MakeSpec(1);
  spec.codecs.weights = spec.codecs.embedding.weights = "mx6";
  spec.codecs.backward_weights = BackwardWeights::kBothAxes;
  MemoryAccount account;
  auto runtime = MakeRuntime(spec, "host", &account);
  for (uint32_t s = 0; s < spec.stages.size(); ++s) {
    const auto forward = runtime->NewHostStage(StageId(s)).value();
    const auto backward = runtime->NewBackwardStage(StageId(s)).value();
    uint64_t more = 0;
    for (size_t use = 0; use < spec.stages[s].uses.size(); ++use) {
      const TensorUse& of_stage = spec.stages[s].uses[use];
      const TensorSpec& tensor = spec.tensors[of_stage.tensor.value()];
      const bool two = tensor.rank == 2 && of_stage.forward_axis != of_stage.backward_axis;
      EXPECT_EQ(backward->second_copy(use) != nullptr, two) << tensor.name;
      EXPECT_EQ(forward->second_copy(use), nullptr);
      if (two) more += tensor.elements() * sizeof(float);
    }
    EXPECT_EQ(backward->bytes(), forward->bytes() + more);
    EXPECT_EQ(more == 0, s == 0);
  }
}

TEST(TorchRuntimeTest, ChargesHostStashToTheAccount) {
  const JobSpec spec = MakeSpec(1);
  MemoryAccount account;
  auto runtime = MakeRuntime(spec, "host", &account);
  auto weights = runtime->Load(StageId(0), FilledHost(spec, StageId(0), runtime.get(), 0.01f));
  ActivationPtr out = *runtime->program(StageId(0)).Forward(*weights, MakeBatch(), nullptr);
  const uint64_t bytes = out->bytes();
  const uint64_t live = runtime->device_memory().live_bytes;
  ActivationPtr stashed = *runtime->Stash(std::move(out));
  EXPECT_EQ(runtime->device_memory().live_bytes, live - bytes);
  EXPECT_EQ(account.live_bytes(MemoryKind::kStash), bytes);
  stashed = nullptr;
  EXPECT_EQ(account.live_bytes(MemoryKind::kStash), 0u);
}

// The forward pass reads a stage's input, and the backward pass reads it again.
TEST(TorchRuntimeTest, ReadingTheStashLeavesItCharged) {
  const JobSpec spec = MakeSpec(1);
  MemoryAccount account;
  auto runtime = MakeRuntime(spec, "host", &account);
  auto weights = runtime->Load(StageId(0), FilledHost(spec, StageId(0), runtime.get(), 0.01f));
  ActivationPtr out = *runtime->program(StageId(0)).Forward(*weights, MakeBatch(), nullptr);
  const uint64_t bytes = out->bytes();
  const uint64_t live = runtime->device_memory().live_bytes;
  ActivationPtr stashed = *runtime->Stash(out);
  EXPECT_EQ(runtime->device_memory().live_bytes, live) << "the activation still exists";
  EXPECT_EQ(account.live_bytes(MemoryKind::kStash), bytes);
  out = nullptr;
  EXPECT_EQ(runtime->device_memory().live_bytes, live - bytes);

  ActivationPtr in = *runtime->Unstash(stashed);
  EXPECT_EQ(runtime->device_memory().live_bytes, live);
  EXPECT_EQ(account.live_bytes(MemoryKind::kStash), bytes);
  in = nullptr;
  EXPECT_EQ(runtime->device_memory().live_bytes, live - bytes);
  EXPECT_EQ(account.live_bytes(MemoryKind::kStash), bytes);

  in = *runtime->Unstash(stashed);
  stashed = nullptr;
  EXPECT_EQ(runtime->device_memory().live_bytes, live);
  EXPECT_EQ(account.live_bytes(MemoryKind::kStash), 0u);
  in = nullptr;
  EXPECT_EQ(runtime->device_memory().live_bytes, live - bytes);
}

// A copy would need as much memory again.
TEST(TorchRuntimeTest, MovesAGradientWithoutACopy) {
  const JobSpec spec = MakeSpec(1);
  MemoryAccount account;
  auto runtime = MakeRuntime(spec, "host", &account);
  ASSERT_TRUE(runtime->in_host_memory());
  auto weights = runtime->Load(StageId(0), FilledHost(spec, StageId(0), runtime.get(), 0.01f));
  ActivationPtr x = *runtime->program(StageId(0)).Forward(*weights, MakeBatch(), nullptr);
  auto result = runtime->program(StageId(0)).Backward(*weights, MakeBatch(), {}, x, 0, nullptr);
  ASSERT_TRUE(result.ok()) << result.status();
  auto copy = runtime->NewHostStage(StageId(0)).value();
  ASSERT_TRUE(runtime->ToHost(StageId(0), *result->gradient, copy.get()).ok());
  const DeviceMemory before = runtime->device_memory();
  const uint64_t on_host = account.live_bytes(MemoryKind::kStage);

  auto moved = runtime->MoveToHost(StageId(0), std::move(result->gradient));
  ASSERT_TRUE(moved.ok()) << moved.status();
  const uint64_t bytes = (*moved)->bytes();
  EXPECT_EQ(bytes, (100 + 32) * 64 * sizeof(float));
  EXPECT_EQ(runtime->device_memory().live_bytes, before.live_bytes - bytes);
  EXPECT_EQ(runtime->device_memory().peak_bytes, before.peak_bytes) << "it was copied";
  EXPECT_EQ(account.live_bytes(MemoryKind::kStage), on_host + bytes);
  for (size_t use = 0; use < 2; ++use) {
    const uint64_t n = spec.tensors[spec.stages[0].uses[use].tensor.value()].elements();
    EXPECT_EQ(std::memcmp((*moved)->tensor(use), copy->tensor(use), n * sizeof(float)), 0);
  }
  // The client drops it on a thread of its own.
  std::thread([host = *std::move(moved)]() mutable { host = nullptr; }).join();
  EXPECT_EQ(runtime->device_memory().live_bytes, before.live_bytes - bytes);
  EXPECT_EQ(runtime->device_memory().peak_bytes, before.peak_bytes);
  EXPECT_EQ(account.live_bytes(MemoryKind::kStage), on_host);
}

TEST(TorchRuntimeTest, MissingValuesCannotBeRead) {
  const JobSpec spec = MakeSpec(1);
  auto runtime = MakeRuntime(spec, "host", nullptr);
  auto weights = runtime->Load(StageId(0), FilledHost(spec, StageId(0), runtime.get(), 0.01f));
  ActivationPtr x = *runtime->program(StageId(0)).Forward(*weights, MakeBatch(), nullptr);
  const uint64_t live = runtime->device_memory().live_bytes;
  auto without = runtime->WithoutValues(StageId(0));
  EXPECT_EQ(runtime->device_memory().live_bytes, live);
  // The embedding's gradient is the same as with its weights; a forward pass needs values.
  std::vector<std::unique_ptr<HostStage>> gradients;
  for (const auto& w : {weights, without}) {
    auto result = runtime->program(StageId(0)).Backward(*w, MakeBatch(), nullptr, x, 0, nullptr);
    ASSERT_TRUE(result.ok()) << result.status();
    gradients.push_back(*runtime->MoveToHost(StageId(0), std::move(result->gradient)));
  }
  EXPECT_EQ(std::memcmp(gradients[0]->tensor(0), gradients[1]->tensor(0), 100 * 64 * sizeof(float)),
            0);
  const absl::Status status =
      runtime->program(StageId(0)).Forward(*without, MakeBatch(), nullptr).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(absl::StrContains(status.message(), "embedding, forward")) << status;
}

TEST(TorchRuntimeTest, RefusesAStashBeyondTheAccountsLimit) {
  const JobSpec spec = MakeSpec(1);
  MemoryAccount account(40'000);
  auto runtime = MakeRuntime(spec, "host", &account);
  auto weights = runtime->Load(StageId(0), FilledHost(spec, StageId(0), runtime.get(), 0.01f));
  auto stashed =
      runtime->Stash(*runtime->program(StageId(0)).Forward(*weights, MakeBatch(), nullptr));
  EXPECT_EQ(stashed.status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(TorchRuntimeTest, RefusesAStashBeyondWorkerStashHost) {
  const JobSpec spec = MakeSpec(1);
  const uint64_t bytes = 2 * 32 * 64 * sizeof(float);  // of one activation
  RuntimeOptions options = Options("host");
  options.stash_host = 2 * bytes;
  MemoryAccount account;
  auto runtime = *NewTorchRuntime(spec, NewModelStage, options, &account);
  auto weights = runtime->Load(StageId(0), FilledHost(spec, StageId(0), runtime.get(), 0.01f));
  const auto stash_one = [&] {
    return runtime->Stash(*runtime->program(StageId(0)).Forward(*weights, MakeBatch(), nullptr));
  };
  const auto first = stash_one();
  auto second = stash_one();
  ASSERT_TRUE(first.ok() && second.ok()) << second.status();
  const absl::Status refused = stash_one().status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  for (const std::string& text :
       {absl::StrCat(bytes, " bytes wanted"), absl::StrCat(2 * bytes, " in use"),
        absl::StrCat("limit ", 2 * bytes), std::string("worker.stash_host")}) {
    EXPECT_TRUE(absl::StrContains(refused.message(), text)) << text << " in " << refused;
  }
  EXPECT_EQ(account.live_bytes(MemoryKind::kStash), 2 * bytes);
  second = absl::UnavailableError("");  // frees it
  EXPECT_TRUE(stash_one().ok());
}

// The first activations go to a file, and come back with the same bits.
TEST(TorchRuntimeTest, StashesInAFileWhatMemoryLacks) {
  for (const std::string codec : {"fp32", "fp8_e5m2"}) {
    JobSpec spec = MakeSpec(1);
    spec.training.micro_batch_size = 2;
    spec.codecs.stash = codec;
    RuntimeOptions options = Options("auto");
    options.stash_host = 2 * 2 * 32 * 64 * (codec == "fp32" ? 4 : 1);  // two inputs
    options.stash_path = testing::TempDir();
    MemoryAccount account;
    auto runtime = *NewTorchRuntime(spec, NewModelStage, options, &account);
    const auto embedding = [&](int i) {
      const auto value = 0.1f * static_cast<float>(i);
      return runtime->Load(StageId(0), FilledHost(spec, StageId(0), runtime.get(), value));
    };
    // The gradient of the positions adds the two rows of an activation.
    const auto value_of = [&](const ActivationPtr& x) {
      auto back = runtime->program(StageId(0)).Backward(*embedding(0), MakeBatch(), {}, x, 0, {});
      return (*runtime->MoveToHost(StageId(0), std::move(back->gradient)))->tensor(1)[0];
    };
    std::vector<ActivationPtr> stashed;
    std::vector<float> expected;
    ASSERT_TRUE(runtime->BeginStash(5, 0).ok());
    for (int i = 0; i < 5; ++i) {
      auto out = runtime->program(StageId(0)).Forward(*embedding(i), MakeBatch(), nullptr);
      expected.push_back(value_of(*out));
      stashed.push_back(*runtime->Stash(*std::move(out)));
    }
    EXPECT_EQ(account.live_bytes(MemoryKind::kStash), options.stash_host);
    for (size_t i = 5; i-- > 0;) {
      if (i > 0) runtime->WillUnstash(stashed[i - 1]);
      EXPECT_EQ(value_of(*runtime->Unstash(stashed[i])), expected[i]) << i << " " << codec;
    }
  }
}

TEST(TorchRuntimeTest, NamesTheStageWhenLibTorchThrows) {
  const JobSpec spec = MakeSpec(1);
  auto runtime = MakeRuntime(spec, "host", nullptr);
  auto weights = runtime->Load(StageId(0), FilledHost(spec, StageId(0), runtime.get(), 0.01f));
  MicroBatch batch = MakeBatch();
  batch.tokens[5] = 100;
  const absl::Status status =
      runtime->program(StageId(0)).Forward(*weights, batch, nullptr).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(absl::StartsWith(status.message(), "stage embedding, forward: ")) << status;
  EXPECT_FALSE(absl::StrContains(status.message(), "\n")) << status;
}

TEST(TorchRuntimeTest, NamesTheKeyOfARefusedOption) {
  const JobSpec spec = MakeSpec(1);
  RuntimeOptions options = Options("disk");
  absl::Status status = NewTorchRuntime(spec, NewModelStage, options, nullptr).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(status.message(), "worker.stash")) << status;
  JobSpec encoded = spec;
  encoded.codecs.stash = "mx9";
  status = NewTorchRuntime(encoded, NewModelStage, Options("host"), nullptr).status();
  EXPECT_TRUE(absl::StrContains(status.message(), "worker.stash_codec")) << status;
  for (const char* device : {"tpu", "cuda:x", "cuda:-1", "cuda:99", ""}) {
    options = Options("host");
    options.device = device;
    status = NewTorchRuntime(spec, NewModelStage, options, nullptr).status();
    EXPECT_TRUE(absl::StrContains(status.message(), "worker.device")) << device << ": " << status;
  }
}

TEST(TorchRuntimeTest, RefusesALayoutOfAnotherModel) {
  JobSpec spec = MakeSpec(1);
  spec.tensors[spec.stages[1].uses[3].tensor.value()].name = "transformer.h.0.attn.bias";
  const absl::Status status =
      NewTorchRuntime(spec, NewModelStage, Options("host"), nullptr).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(status.message(), "h.0")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), ".attn.c_attn.bias")) << status;
}

TEST(TorchRuntimeTest, FlushesDenormalsWhereItComputes) {
  const JobSpec spec = MakeSpec(1);
  auto runtime = MakeRuntime(spec, "host", nullptr);
  auto embedding = runtime->Load(StageId(0), FilledHost(spec, StageId(0), runtime.get(), 1.0f));
  ActivationPtr out = *runtime->program(StageId(0)).Forward(*embedding, MakeBatch(), nullptr);
  auto head = runtime->Load(StageId(2), FilledHost(spec, StageId(2), runtime.get(), 1.0f));
  for (const int scale_log2 : {100, 140}) {  // 2^-140 is a denormal
    auto result = runtime->program(StageId(2))
                      .Backward(*head, MakeBatch(), out, nullptr, scale_log2, nullptr);
    ASSERT_TRUE(result.ok()) << result.status();
    auto host = runtime->NewHostStage(StageId(2)).value();
    ASSERT_TRUE(runtime->ToHost(StageId(2), *result->gradient, host.get()).ok());
    EXPECT_EQ(host->tensor(2)[0] == 0.0f, scale_log2 == 140) << host->tensor(2)[0];
  }
}

TEST(TorchRuntimeTest, ProfileNamesLibraryIsaAndThreads) {
  const JobSpec spec = MakeSpec(1);
  auto profile = TorchComputeProfile(Options("host"));
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_TRUE(absl::StartsWith(*profile, "libtorch 2.")) << *profile;
  EXPECT_TRUE(absl::EndsWith(*profile, " threads=2")) << *profile;
  EXPECT_EQ(MakeRuntime(spec, "host", nullptr)->compute_profile(), *profile);
}

TEST(TorchRuntimeTest, SaysWhyCudaIsNotUsed) {
  const std::string text = TorchCuda();
  EXPECT_FALSE(absl::StrContains(text, "\n")) << text;
  // Naming the device explicitly reports the same reason.
  const JobSpec spec = MakeSpec(1);
  RuntimeOptions options = Options("host");
  options.device = "cuda";
  const absl::Status status = NewTorchRuntime(spec, NewModelStage, options, nullptr).status();
  const size_t reason = text.find("not used: no ");
  if (reason == std::string::npos) return;  // there is a device, or a driver without a device
  EXPECT_TRUE(absl::StrContains(status.message(), text.substr(reason + 10))) << status;
}

}  // namespace
}  // namespace eps
