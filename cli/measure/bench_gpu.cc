#include "cli/measure/bench_gpu.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/config/app_arguments.h"
#include "base/exit_code.h"
#include "base/files/files.h"
#include "base/job/keys.h"
#include "base/job/names.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "cli/launch/planned_run.h"
#include "cli/measure/worker_answer.h"
#include "planner/hardware.h"

namespace eps {
namespace {

using nlohmann::json;

constexpr std::chrono::minutes kTimeout{30};
constexpr double kFlat = 1.01;
constexpr double kOverSlowerHalf = 1.05;

constexpr char kHelp[] =
    "Trains a GPT-2 of this shape for a few steps on this machine's device, against servers that "
    "answer at once, and compares a step with its two halves: computing alone, and transfers "
    "alone. "
    "Then does so with twice as many layers and compares the device's memory, which must be the "
    "same. Exits with 0 if it is, else with 1.";

struct Options {
  uint32_t layers = 12;
  uint32_t width = 768;
  uint32_t heads = 12;
  uint32_t vocab = 50257;
  uint32_t seq_len = 1024;
  uint32_t samples = 8;
  uint32_t micro_batches = 2;
  uint32_t steps = 5;
  std::string precision = "bf16";
  std::string gradient_sum = "tree";
  std::string keep = "none";  // what is kept grows with depth
  std::string device = "auto";
  std::string stash = "host";  // a stash on the device grows with depth
  std::string trace;
  int threads = 0;
  std::string hardware;
  bool json = false;
};

absl::StatusOr<std::string> ParseArguments(const std::vector<std::string>& arguments, Options* o) {
  CLI::App app{kHelp, "eps bench gpu"};
  const auto number = [&](const char* name, uint32_t* value, const char* help) {
    app.add_option(name, *value, help)->capture_default_str()->check(CLI::PositiveNumber);
  };
  number("--layers", &o->layers, "blocks of the model");
  number("--width", &o->width, "width of the model");
  number("--heads", &o->heads, "heads of a block");
  number("--vocab", &o->vocab, "size of the vocabulary");
  number("--seq-len", &o->seq_len, "tokens of a sample");
  number("--samples", &o->samples, "samples in a micro-batch");
  number("--micro-batches", &o->micro_batches, "micro-batches in a step");
  number("--steps", &o->steps, "steps to time");
  app.add_option("--precision", o->precision, "fp32, bf16 or cmp")->capture_default_str();
  app.add_option("--gradient-sum", o->gradient_sum, "tree or fused")->capture_default_str();
  app.add_option("--keep", o->keep, "none or auto")->capture_default_str();
  app.add_option("--device", o->device, "auto, cpu, cuda or cuda:N")->capture_default_str();
  app.add_option("--stash", o->stash, "auto, host or device")->capture_default_str();
  app.add_option("--threads", o->threads, "0 uses all cores")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  app.add_option("--trace", o->trace, "a file for a Chrome trace of a step");
  app.add_option(
      "--hardware", o->hardware,
      "description of the machine, which has the peak of the device: a file, or an example "
      "(eps plan --examples)");
  app.add_flag("--json", o->json, "print the result as JSON");
  return ParseAppArguments(&app, arguments);
}

absl::StatusOr<StepAnswer> Measure(const Options& o, uint32_t layers, uint32_t steps,
                                   const std::string& trace, const std::string& folder) {
  std::vector<std::string> arguments = {
      absl::StrCat("--layers=", layers),     absl::StrCat("--width=", o.width),
      absl::StrCat("--heads=", o.heads),     absl::StrCat("--vocab=", o.vocab),
      absl::StrCat("--seq-len=", o.seq_len), absl::StrCat("--samples=", o.samples),
      absl::StrCat("--steps=", steps),       absl::StrCat("--precision=", o.precision),
      absl::StrCat("--device=", o.device),   absl::StrCat("--stash=", o.stash),
      absl::StrCat("--threads=", o.threads), absl::StrCat("--micro-batches=", o.micro_batches),
      absl::StrCat("--keep=", o.keep),       absl::StrCat("--gradient-sum=", o.gradient_sum)};
  if (!trace.empty()) arguments.push_back(absl::StrCat("--trace=", trace));
  std::fprintf(stderr, "bench gpu: %u layers\n", layers);
  EPS_ASSIGN_OR_RETURN(const json answer, AskWorker("step", arguments, folder, kTimeout));
  return ReadStepAnswer(answer);
}

absl::StatusOr<double> PeakOf(const Options& options) {
  if (options.hardware.empty()) return 0.0;
  Precision precision = Precision::kFp32;
  if (!FindName(options.precision, &precision)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--precision=", options.precision, ": expected fp32, bf16 or cmp"));
  }
  EPS_ASSIGN_OR_RETURN(const planner::Hardware hardware, ReadHardware(options.hardware));
  return hardware.workers.front().device.peak(precision).value();
}

// `folder` takes the worker's logs.
absl::StatusOr<GpuBench> MeasureGpu(const Options& options, const std::string& folder) {
  GpuBench bench;
  EPS_ASSIGN_OR_RETURN(bench.peak_flops, PeakOf(options));
  EPS_ASSIGN_OR_RETURN(bench.shape,
                       Measure(options, options.layers, options.steps, options.trace, folder));
  EPS_ASSIGN_OR_RETURN(bench.deeper, Measure(options, 2 * options.layers, /*steps=*/1,
                                             /*trace=*/"", folder));
  return bench;
}

}  // namespace

absl::StatusOr<StepAnswer> ReadStepAnswer(const json& answer) {
  StepAnswer read;
  try {
    read.device = answer.at("device").get<std::string>();
    read.layers = answer.at("layers").get<uint32_t>();
    read.parameters = answer.at("parameters").get<uint64_t>();
    read.tokens = answer.at("tokens").get<uint64_t>();
    read.step = answer.at("step_s").get<double>();
    read.compute = answer.at("compute_s").get<double>();
    read.transfer = answer.at("transfer_s").get<double>();
    read.device_peak = answer.at("device_peak_bytes").get<uint64_t>();
  } catch (const json::exception& error) {
    return absl::InternalError(
        absl::StrCat("eps-worker step printed ", answer.dump(), ": ", error.what()));
  }
  return read;
}

double GpuBench::mfu() const {
  if (peak_flops == 0) return 0;
  return 6.0 * static_cast<double>(shape.parameters) * static_cast<double>(shape.tokens) /
         shape.step / peak_flops;
}

double GpuBench::over_slower_half() const {
  return shape.step / std::max(shape.compute, shape.transfer);
}

bool GpuBench::is_flat() const {
  return static_cast<double>(deeper.device_peak) <= kFlat * static_cast<double>(shape.device_peak);
}

std::string GpuBenchText(const GpuBench& bench) {
  const StepAnswer& s = bench.shape;
  std::string text = absl::StrCat(s.device, "\n");
  absl::StrAppendFormat(&text, "model          %u layers, %.4g parameters, %u tokens in a step\n",
                        s.layers, static_cast<double>(s.parameters), s.tokens);
  absl::StrAppendFormat(&text, "step           %.4g s, %.4g tokens/s", s.step,
                        static_cast<double>(s.tokens) / s.step);
  if (bench.peak_flops > 0) absl::StrAppendFormat(&text, ", MFU %.1f %%", 100 * bench.mfu());
  absl::StrAppendFormat(&text, "\ncomputing      %.4g s alone\ntransfers      %.4g s alone\n",
                        s.compute, s.transfer);
  absl::StrAppendFormat(&text, "overlap        step / slower half %.3f (goal %.2f)\n",
                        bench.over_slower_half(), kOverSlowerHalf);
  absl::StrAppendFormat(&text, "device memory  %s with %u layers, %s with %u: %s\n",
                        FormatBytes(static_cast<double>(s.device_peak)), s.layers,
                        FormatBytes(static_cast<double>(bench.deeper.device_peak)),
                        bench.deeper.layers, bench.is_flat() ? "flat" : "NOT FLAT");
  return text;
}

std::string GpuBenchJson(const GpuBench& bench) {
  const StepAnswer& s = bench.shape;
  json result = {{"device", s.device},
                 {"layers", s.layers},
                 {"parameters", s.parameters},
                 {"tokens", s.tokens},
                 {"step_seconds", s.step},
                 {"compute_seconds", s.compute},
                 {"transfer_seconds", s.transfer},
                 {"over_slower_half", bench.over_slower_half()},
                 {"device_peak_bytes", s.device_peak},
                 {"deeper_device_peak_bytes", bench.deeper.device_peak},
                 {"flat", bench.is_flat()}};
  if (bench.peak_flops > 0) result["mfu"] = bench.mfu();
  return result.dump();
}

absl::Status RunBenchGpu(const std::vector<std::string>& arguments) {
  Options options;
  EPS_ASSIGN_OR_RETURN(const std::string help, ParseArguments(arguments, &options));
  if (!help.empty()) {
    std::fputs(help.c_str(), stdout);
    return absl::OkStatus();
  }
  EPS_ASSIGN_OR_RETURN(const std::string folder, MakeTemporaryFolder("bench-gpu"));
  const absl::StatusOr<GpuBench> measured = MeasureGpu(options, folder);
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  if (!measured.ok()) return measured.status();
  const GpuBench& bench = *measured;
  std::printf("%s%s", (options.json ? GpuBenchJson(bench) : GpuBenchText(bench)).c_str(),
              options.json ? "\n" : "");
  if (bench.is_flat()) return absl::OkStatus();
  return WithExitCode(absl::UnknownError(""), ExitCode::kDifferent);
}

}  // namespace eps
