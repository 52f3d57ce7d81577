// Trains the model of a run in one process, without servers and wire, and prints one JSON line per
// step: the peer with which `eps train` is compared (bench/record/step_ratio.py). Reads the
// configuration that a run wrote to logs/config.yaml and prints the id of the resulting job, which
// equals the run's if model, data, order, seed and numbers are all the same.
//
//   whole_model_step --config=FILE [--steps=N] [--keep-activations]
//
// Exits with 64 if the arguments or the configuration do not fit. Exceptions of LibTorch end it.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/config/config.h"
#include "base/files/files.h"
#include "base/job/job_spec.h"
#include "base/status_macros.h"
#include "bench/peers/whole_model.h"
#include "cli/launch/plan.h"
#include "cli/launch/run_config.h"
#include "worker/data/batch_source.h"
#include "worker/data/sample_source.h"
#include "worker/exec/tensor_memory.h"

namespace eps {
namespace {

// The command line.
struct Options {
  std::string config_path;
  uint64_t steps = 0;  // 0 means all steps of the configuration
  bool recompute = true;
};

absl::StatusOr<Options> ParseOptions(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    if (absl::ConsumePrefix(&argument, "--config=")) {
      options.config_path = std::string(argument);
    } else if (absl::ConsumePrefix(&argument, "--steps=") &&
               absl::SimpleAtoi(argument, &options.steps)) {
      continue;
    } else if (argument == "--keep-activations") {
      options.recompute = false;
    } else {
      return absl::InvalidArgumentError(absl::StrCat("unknown argument ", argv[i]));
    }
  }
  if (options.config_path.empty()) return absl::InvalidArgumentError("--config=FILE is missing");
  return options;
}

// A run's job: its model, data and settings.
struct Job {
  Config config;
  JobSpec spec;
  std::shared_ptr<const SampleSource> data;
};

absl::StatusOr<Job> LoadJob(const std::string& config_path) {
  Job job;
  RunConfig run;
  run.origin = config_path;
  EPS_ASSIGN_OR_RETURN(const std::string yaml, ReadTextFile(config_path));
  EPS_RETURN_IF_ERROR(run.config.MergeYaml(yaml, config_path));
  EPS_ASSIGN_OR_RETURN(TrainPlan plan, MakePlan(run));
  job.config = std::move(plan.config);
  job.spec = std::move(plan.spec);
  const Gpt2Config& gpt2 = job.spec.model.gpt2;
  if (gpt2.resid_pdrop > 0 || gpt2.embd_pdrop > 0 || gpt2.attn_pdrop > 0) {
    return absl::InvalidArgumentError(
        "the model has dropout, which would make the two programs draw different masks; set "
        "resid_pdrop, embd_pdrop and attn_pdrop to 0");
  }
  EPS_ASSIGN_OR_RETURN(
      job.data, SampleSource::Open(job.config.data.path, {static_cast<uint32_t>(gpt2.vocab_size)}));
  return job;
}

absl::Status Run(const Options& options) {
  EPS_ASSIGN_OR_RETURN(const Job job, LoadJob(options.config_path));
  const JobSpec& spec = job.spec;
  PrepareLibTorch(job.config.worker.threads);
  WholeModel model(spec, options.recompute);
  const std::unique_ptr<BatchSource> batches = NewBatchSource(spec, *job.data);
  std::printf("{\"job\":\"%s\",\"threads\":%d,\"parameters\":%s,\"recompute\":%s}\n",
              absl::StrFormat("%016x", spec.id().value()).c_str(), job.config.worker.threads,
              absl::StrCat(spec.total_elements()).c_str(), options.recompute ? "true" : "false");
  std::fflush(stdout);

  const uint64_t steps = options.steps == 0 ? spec.training.steps : options.steps;
  for (uint64_t step = 1; step <= steps; ++step) {
    const auto start = std::chrono::steady_clock::now();
    const uint64_t tokens = spec.tokens_per_step();
    double loss = 0;
    for (uint32_t i = 0; i < spec.training.parts * spec.training.micro_batches; ++i) {
      EPS_ASSIGN_OR_RETURN(const MicroBatch batch, batches->Get(Step(step), i));
      loss += model.AddMicroBatch(batch, tokens);
    }
    const auto computed = std::chrono::steady_clock::now();
    const double norm = model.Update();
    const auto end = std::chrono::steady_clock::now();
    std::printf(
        "{\"step\":%s,\"loss\":%.9g,\"grad_norm\":%.9g,\"tokens\":%s,\"step_seconds\":%.6f,"
        "\"update_seconds\":%.6f,\"peak_bytes\":%s}\n",
        absl::StrCat(step).c_str(), loss / static_cast<double>(tokens), norm,
        absl::StrCat(tokens).c_str(), std::chrono::duration<double>(end - start).count(),
        std::chrono::duration<double>(end - computed).count(),
        absl::StrCat(TensorMemory::Get().peak_bytes()).c_str());
    std::fflush(stdout);
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  const absl::StatusOr<Options> options = ParseOptions(argc, argv);
  const absl::Status status = options.ok() ? Run(*options) : options.status();
  if (status.ok()) return 0;
  std::fprintf(stderr,
               "whole_model_step: %s\n"
               "usage: whole_model_step --config=FILE [--steps=N] [--keep-activations]\n",
               std::string(status.message()).c_str());
  return 64;
}

}  // namespace
}  // namespace eps

int main(int argc, char** argv) { return eps::Main(argc, argv); }
