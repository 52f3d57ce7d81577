#include "cli/measure/calibrate.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/config/app_arguments.h"
#include "base/files/files.h"
#include "base/job/models/gpt2.h"
#include "base/machine/machine_limits.h"
#include "base/status_macros.h"
#include "cli/measure/exchange_speed.h"
#include "cli/measure/machine_speed.h"
#include "cli/measure/worker_answer.h"
#include "nlohmann/json.hpp"
#include "planner/units.h"

namespace eps {
namespace {

using planner::Bytes;
using planner::BytesPerSecond;
using planner::Flops;
using planner::FlopsPerSecond;
using planner::Seconds;

constexpr std::chrono::minutes kComputeTimeout{5};
// One codec of each kind that quantization.weights and quantization.gradients accept.
constexpr const char* kCodecs[] = {"fp32", "bf16", "fp16",       "fp8_e4m3", "mx9",
                                   "mx6",  "mx4",  "mxfp8_e4m3", "topk:0.01"};

constexpr char kHelp[] =
    "Measures this machine (memory, kernels, codecs, loopback, an exchange with a server, the disk "
    "of --folder, a block of GPT-2 of that shape on the device) and writes a description for eps "
    "plan --hardware. Takes about a minute; keep the machine otherwise idle.";

void Say(const std::string& what) { std::fprintf(stderr, "calibrate: %s\n", what.c_str()); }

// Rounds to three digits; more would be noise.
double Rounded(double value) {
  double rounded = value;
  EPS_CHECK(!std::isfinite(value) || absl::SimpleAtod(absl::StrFormat("%.2e", value), &rounded));
  return rounded;
}
template <class Quantity>
Quantity Rounded(Quantity quantity) {
  return Quantity(Rounded(quantity.value()));
}

// The result of `eps-worker calibrate` (worker/stage_speed.h), in operations.
struct Compute {
  std::string profile;
  FlopsPerSecond peak;       // rate of the products
  FlopsPerSecond peak_bf16;  // the same in BF16
  BytesPerSecond activations;
  // Of a device; 0 if the host computes.
  Bytes memory;
  BytesPerSecond to_device;
  BytesPerSecond from_device;
  Seconds pass;
};

// The measurement of a block: a forward, a recomputation and a backward pass of a micro-batch. The
// backward pass counts as two forward passes.
struct Block {
  Flops products;
  Bytes activations;
  Seconds took;
};
Block BlockOf(uint32_t seq_len, uint32_t width, uint32_t heads, uint32_t samples, Seconds took) {
  const double passes = 4.0 * samples;
  return {passes * planner::Flops(BlockForwardFlops(seq_len, width, 4.0 * width)),
          passes * planner::Bytes(BlockActivationBytes(seq_len, width, heads)), took};
}

// Computes the rates of products and of all other operations from two blocks of different shape. If
// noise prevents that, uses the rate of products for both.
void SetRates(const Block& narrow, const Block& wide, Compute* compute) {
  const double apart = narrow.products.value() * wide.activations.value() -
                       wide.products.value() * narrow.activations.value();
  const double product = (narrow.took.value() * wide.activations.value() -
                          wide.took.value() * narrow.activations.value()) /
                         apart;
  const double activation =
      (narrow.products.value() * wide.took.value() - wide.products.value() * narrow.took.value()) /
      apart;
  if (apart != 0 && product > 0 && activation > 0) {
    compute->peak = FlopsPerSecond(1 / product);
    compute->activations = BytesPerSecond(1 / activation);
  } else {
    compute->peak = narrow.products / narrow.took;
    compute->activations = planner::kNoLimit;
  }
}

// Computes the rate of products in BF16 from a block, whose other operations move half the bytes.
void SetBf16(const Block& block, Compute* compute) {
  const Seconds others = 0.5 * block.activations / compute->activations;
  compute->peak_bf16 = block.products / Max(block.took - others, 0.1 * block.took);
}

absl::StatusOr<Compute> MeasureCompute(const CalibrateOptions& options,
                                       const std::string& log_folder) {
  EPS_ASSIGN_OR_RETURN(
      const nlohmann::json json,
      AskWorker(
          "calibrate",
          {absl::StrCat("--width=", options.width), absl::StrCat("--heads=", options.heads),
           absl::StrCat("--seq-len=", options.seq_len), absl::StrCat("--samples=", options.samples),
           absl::StrCat("--device=", options.device), absl::StrCat("--threads=", options.threads)},
          log_folder, kComputeTimeout));
  Compute compute;
  try {
    compute.profile = json.at("profile").get<std::string>();
    compute.pass = Seconds(json.at("pass_seconds").get<double>());
    SetRates(BlockOf(options.seq_len, options.width, options.heads, options.samples,
                     Seconds(json.at("block_seconds").get<double>())),
             BlockOf(options.seq_len, json.at("wide_width").get<uint32_t>(),
                     json.at("wide_heads").get<uint32_t>(), json.at("wide_samples").get<uint32_t>(),
                     Seconds(json.at("wide_block_seconds").get<double>())),
             &compute);
    SetBf16(BlockOf(options.seq_len, json.at("wide_width").get<uint32_t>(),
                    json.at("wide_heads").get<uint32_t>(), json.at("wide_samples").get<uint32_t>(),
                    Seconds(json.at("wide_block_bf16_seconds").get<double>())),
            &compute);
    compute.memory = Bytes(json.at("device_memory").get<double>());
    compute.to_device = BytesPerSecond(json.at("to_device_bytes_per_second").get<double>());
    compute.from_device = BytesPerSecond(json.at("from_device_bytes_per_second").get<double>());
  } catch (const nlohmann::json::exception& error) {
    return absl::InternalError(
        absl::StrCat("eps-worker calibrate printed ", json.dump(), ": ", error.what()));
  }
  return compute;
}

// Returns the help to print if the arguments ask for it, else an empty text.
absl::StatusOr<std::string> ParseArguments(const std::vector<std::string>& arguments,
                                           CalibrateOptions* options, std::string* out) {
  CLI::App app{kHelp, "eps bench calibrate"};
  app.add_option("--out", *out, "the file to write (default: stdout)");
  app.add_option("--folder", options->folder, "folder on the disk to measure");
  app.add_option("--device", options->device, "auto, cpu, cuda or cuda:N")->capture_default_str();
  app.add_option("--threads", options->threads, "0 uses all cores")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  const auto shape = [&](const char* name, uint32_t* value, const char* help) {
    app.add_option(name, *value, help)->capture_default_str()->check(CLI::PositiveNumber);
  };
  shape("--width", &options->width, "width of the block");
  shape("--heads", &options->heads, "heads of the block");
  shape("--seq-len", &options->seq_len, "tokens of a sample");
  shape("--samples", &options->samples, "samples in a micro-batch");
  return ParseAppArguments(&app, arguments);
}

// `temporary` is an empty folder.
absl::StatusOr<planner::Hardware> MeasureHere(const CalibrateOptions& options,
                                              const std::string& temporary) {
  const std::string folder = options.folder.empty() ? temporary : options.folder;
  planner::WorkerKind worker;
  planner::ServerKind server;
  planner::Hardware hardware;
  hardware.name = "this machine";
  hardware.one_machine = true;

  Say("memory, updates and codecs");
  server.cores = UsableProcessors();
  EPS_ASSIGN_OR_RETURN(const uint64_t memory, MemoryCapacity());
  server.memory = worker.memory = worker.device.memory =
      planner::Bytes(static_cast<double>(memory));
  server.memory_bandwidth = Rounded(MeasureMemory());
  server.update = Rounded(MeasureUpdate());
  for (const char* name : kCodecs) {
    EPS_ASSIGN_OR_RETURN(const planner::CodecRates rates, MeasureCodec(name));
    hardware.codecs.push_back({rates.name, Rounded(rates.encode), Rounded(rates.decode)});
  }
  server.encode = worker.encode = hardware.CodecOrNull("bf16")->encode;
  worker.decode = hardware.CodecOrNull("bf16")->decode;

  Say("loopback");
  EPS_ASSIGN_OR_RETURN(const BytesPerSecond loopback, MeasureLoopback());
  server.send = server.receive = worker.send = worker.receive = Rounded(loopback);
  EPS_ASSIGN_OR_RETURN(const Seconds latency, MeasureLatency());
  worker.latency = Rounded(latency);

  Say("the exchange between a worker and a server");
  EPS_ASSIGN_OR_RETURN(const ExchangeSpeed exchange,
                       MeasureExchange(server, *hardware.CodecOrNull("fp32")));
  server.transport = worker.transport = Rounded(exchange.transport);
  server.chunk_overhead = worker.chunk_overhead = Rounded(exchange.chunk);

  Say(absl::StrCat("the disk of ", folder));
  EPS_ASSIGN_OR_RETURN(const DiskSpeed disk, MeasureDisk(folder));

  Say("a block of GPT-2");
  EPS_ASSIGN_OR_RETURN(const Compute compute, MeasureCompute(options, temporary));

  planner::StorageDevices& storage = server.storage.emplace();
  storage.capacity = disk.free;
  storage.read = Rounded(disk.read);
  storage.write = Rounded(disk.write);
  worker.name = server.name = "here";
  worker.device.name = compute.profile;
  worker.device.host = compute.profile.find(" cpu ") != std::string::npos;
  if (worker.device.host) {
    Say("no device: the cores of this machine compute");
  } else {
    worker.device.memory = compute.memory;
    worker.device.to_device = Rounded(compute.to_device);
    worker.device.from_device = Rounded(compute.from_device);
  }
  worker.device.peak_fp32 = Rounded(compute.peak);
  worker.device.peak_bf16 = Rounded(compute.peak_bf16);
  worker.device.activations = Rounded(compute.activations);
  worker.device.stage_overhead = Rounded(compute.pass);
  hardware.source =
      absl::StrCat("eps bench calibrate: a block of width ", options.width, ", ", options.heads,
                   " heads, ", options.samples, " x ", options.seq_len, " tokens");
  hardware.workers = {worker};
  hardware.servers = {server};
  return hardware;
}

}  // namespace

absl::StatusOr<planner::Hardware> Calibrate(const CalibrateOptions& options) {
  EPS_ASSIGN_OR_RETURN(const std::string temporary, MakeTemporaryFolder("calibrate"));
  absl::StatusOr<planner::Hardware> hardware = MeasureHere(options, temporary);
  std::error_code ignored;
  std::filesystem::remove_all(temporary, ignored);
  return hardware;
}

absl::Status RunBenchCalibrate(const std::vector<std::string>& arguments) {
  CalibrateOptions options;
  std::string out;
  EPS_ASSIGN_OR_RETURN(const std::string help, ParseArguments(arguments, &options, &out));
  if (!help.empty()) {
    std::fputs(help.c_str(), stdout);
    return absl::OkStatus();
  }
  EPS_ASSIGN_OR_RETURN(const planner::Hardware hardware, Calibrate(options));
  const std::string yaml = planner::HardwareToYaml(hardware);
  if (!out.empty()) return ReplaceFile(out, yaml);
  std::fputs(yaml.c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace eps
