#include "cli/launch/serve.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/exit_code.h"
#include "base/status_macros.h"
#include "cli/launch/planned_run.h"
#include "cli/launch/security/security_flags.h"
#include "cli/launch/siblings.h"
#include "cli/launch/state/state_home.h"
#include "compression/plugin/codec_plugin.h"
#include "eps_server/server.h"
#include "optimizer/plugin/updater_plugin.h"
#include "planner/hardware.h"
#include "planner/units.h"
#include "storage/cuts/cut.h"

namespace eps {
namespace {

// The cut interval for storage.cut_steps=auto with a log. With more steps between cuts the log soon
// outgrows the state.
constexpr uint64_t kLoggedCutSteps = 8;
constexpr uint64_t kLongestCutSeconds = 1'000'000'000;

absl::StatusOr<uint64_t> CutSteps(const StorageConfig& storage) {
  uint64_t steps = 0;
  if (storage.cut_steps == "auto") return kAutoCutSteps;
  if (absl::SimpleAtoi(storage.cut_steps, &steps)) return steps;
  return absl::InvalidArgumentError(absl::StrCat(
      "storage.cut_steps: expected auto or a number of steps, found \"", storage.cut_steps, "\""));
}

absl::StatusOr<TokenRules> RulesOf(const SecurityConfig& security) {
  if (security.tokens != "optional" && security.tokens != "required") {
    return absl::InvalidArgumentError(absl::StrCat(
        "security.tokens: expected optional or required, found \"", security.tokens, "\""));
  }
  return TokenRules{security.token_keys, security.tokens == "required"};
}

// Returns the steps that a log must hold between two cuts; 0 if no log is kept.
absl::StatusOr<uint64_t> LogSteps(const StorageConfig& storage, uint64_t cut_steps) {
  if (storage.log == "none") return 0;
  if (storage.log != "contributions") {
    return absl::InvalidArgumentError(
        absl::StrCat("storage.log: expected none or contributions, found \"", storage.log, "\""));
  }
  if (!storage.durable() || cut_steps == 0) {
    return absl::InvalidArgumentError(
        "storage.log=contributions logs the contributions after a cut: it needs cuts "
        "(storage.kind=nvme, csd or a storage.path, and storage.cut_steps other than 0)");
  }
  return cut_steps == kAutoCutSteps ? kLoggedCutSteps : cut_steps;
}

// Gives the devices the rates of the storage that a description of machines has.
absl::Status SetRates(const DevicesConfig& config, DeviceSettings* devices) {
  if (config.rates.empty()) return absl::OkStatus();
  if (config.driver != CsdDriver::kEmulated) {
    return absl::InvalidArgumentError(
        absl::StrCat("storage.csd.rates=", config.rates, " slows emulated devices down, and those ",
                     "of storage.csd.driver=", NameOf(config.driver),
                     " are as fast as they are: leave storage.csd.rates out"));
  }
  EPS_ASSIGN_OR_RETURN(const planner::StorageDevices storage, ReadUpdatingStorage(config.rates));
  const auto scaled = [&](planner::BytesPerSecond rate) {
    return std::isfinite(rate.value()) ? rate.value() / config.rate_scale : 0;
  };
  devices->rates.host_read = devices->rates.device_read = scaled(storage.read);
  devices->rates.host_write = devices->rates.device_write = scaled(storage.write);
  devices->rates.update = devices->rates.decompress_update = scaled(storage.update);
  devices->host_rates = {scaled(storage.link), scaled(storage.link), 0};
  return absl::OkStatus();
}

absl::StatusOr<DeviceSettings> DevicesOf(const Config& all) {
  const DevicesConfig& config = all.storage.csd;
  DeviceSettings devices;
  if (config.driver == CsdDriver::kEmulated) {
    EPS_ASSIGN_OR_RETURN(devices.program, FindSibling("eps-csd"));
  } else {
    devices.driver = DeviceDriver::kOpenCl;
  }
  devices.updater_plugin = all.optimizer.plugin;
  devices.codec_plugin = all.quantization.plugin;
  devices.count = config.count;
  devices.dram_bytes = config.dram;
  const bool pipelined = config.handler == TransferHandler::kPipelined;
  devices.use.sets = pipelined ? config.sets : 1;
  devices.use.hands_buffers_over = config.handler == TransferHandler::kHandover;
  devices.use.gradients_in_memory = config.gradients == GradientsIn::kDram;
  devices.use.encodes_weights = config.weights_up == WeightsUp::kEncoded;
  devices.use.reads_weights_back = !pipelined && !devices.use.encodes_weights;
  EPS_RETURN_IF_ERROR(SetRates(config, &devices));
  devices.command_timeout = std::chrono::milliseconds(config.command_timeout_ms);
  // Without its device this process is of no use. Its end is that of a killed server: whoever
  // restarts it returns to a cut.
  devices.lost = [](const absl::Status& status) {
    std::fprintf(stderr, "eps serve: %s\n", std::string(status.message()).c_str());
    std::fflush(stderr);
    std::_Exit(static_cast<int>(ExitCodeOf(status)));
  };
  return devices;
}

// Loads the plug-ins into this process.
absl::Status LoadPlugins(const Config& config) {
  if (!config.optimizer.plugin.empty()) {
    EPS_RETURN_IF_ERROR(LoadUpdaterPlugin(config.optimizer.plugin).status());
  }
  if (config.quantization.plugin.empty()) return absl::OkStatus();
  return LoadCodecPlugin(config.quantization.plugin).status();
}

}  // namespace

absl::Status RunServe(const Config& config) {
  ServerOptions options;
  options.listen = config.servers.listen;
  options.http = config.servers.http;
  options.trace = config.servers.trace;
  options.threads = config.servers.threads;
  options.memory_limit_bytes = config.servers.memory_limit;
  options.insecure = config.servers.insecure;
  EPS_ASSIGN_OR_RETURN(options.tokens, RulesOf(config.security));
  options.connection_age_ms = static_cast<uint64_t>(config.security.connection_age_ms);
  options.peers = config.servers.peers;
  options.part_timeout_ms = static_cast<uint64_t>(config.servers.worker_timeout_ms);
  options.push_timeout_ms = static_cast<uint64_t>(config.servers.push_timeout_ms);
  options.gate_timeout_ms = static_cast<uint64_t>(config.servers.gate_timeout_ms);
  options.unread_timeout_ms = static_cast<uint64_t>(config.servers.unread_timeout_ms);
  options.shm_weights_bytes = config.servers.shm_weights;
  options.shm_gradients_bytes = config.servers.shm_gradients;
  options.shm_folder = config.servers.shm_folder;
  options.worker_lease_ms = static_cast<uint64_t>(config.servers.worker_lease_ms);
  if (const std::optional<int64_t> grace = config.servers.worker_close_grace_ms) {
    options.worker_close_grace_ms = static_cast<uint64_t>(*grace);
  }
  options.worker_stuck_ms = static_cast<uint64_t>(config.servers.worker_stuck_timeout_ms);
  options.jit_depth = static_cast<uint32_t>(config.servers.jit_depth);
  EPS_ASSIGN_OR_RETURN(options.cut_steps, CutSteps(config.storage));
  options.cut_ms = std::min(config.storage.cut_seconds, kLongestCutSeconds) * 1000;
  EPS_ASSIGN_OR_RETURN(const uint64_t log_steps, LogSteps(config.storage, options.cut_steps));
  EPS_RETURN_IF_ERROR(CheckPlace(config.storage));
  if (config.storage.durable()) {
    options.storage = StorageOptions{config.storage.tier(), config.storage.path,
                                     config.storage.staging, config.storage.reopen, log_steps};
    options.storage->drives = config.storage.drives;
    options.storage->memory_bytes = config.storage.dram;
    if (config.storage.kind == "csd") {
      EPS_ASSIGN_OR_RETURN(options.storage->devices, DevicesOf(config));
    }
  }
  if (config.servers.trust_plugins) EPS_RETURN_IF_ERROR(LoadPlugins(config));
  options.drain_timeout_ms = static_cast<uint64_t>(config.servers.drain_timeout_ms);
  options.scrub_bytes_per_second = config.storage.scrub;
  // Certificates are read again by a thread.
  const int code = RunServer(options, [&] { return UseSecurity(config.security); });
  if (code == 0) return absl::OkStatus();
  return WithExitCode(absl::InternalError(""), static_cast<ExitCode>(code));
}

}  // namespace eps
