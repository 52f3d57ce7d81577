// `eps-csd`: one emulated storage device. An EPS server starts one for each device of a job
// (storage/csd/process/device_process.h) and talks to it over sockets.

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/executor.h"
#include "base/exit_code.h"
#include "base/ids.h"
#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"
#include "base/job/plugin_spec.h"
#include "base/memory_account.h"
#include "base/process/fence.h"
#include "base/status_macros.h"
#include "compression/codec.h"
#include "compression/codec_table.h"
#include "optimizer/plugin/updater_plugin.h"
#include "storage/csd/device_core.h"
#include "storage/csd/file_device.h"
#include "storage/csd/kernel_runner.h"
#include "storage/csd/kernels/chunk_kernels.h"
#include "storage/csd/process/device_pace.h"
#include "storage/csd/process/device_server.h"
#include "storage/csd/process/frames.h"
#include "storage/csd/rates/device_rates.h"
#include "storage/disk/disk.h"
#include "storage/disk/state_arena.h"

namespace eps::csd {
namespace {

// The device of a server that was just killed completes its last writes.
constexpr std::chrono::seconds kLockPatience{10};

// The paths of a job's plug-ins; empty for those that it does not have.
struct PluginPaths {
  std::string updater;
  std::string codec;
};

// Loads the plug-in updater of a job that has one, if it is the file that the job names.
absl::Status LoadUpdaterOf(const JobSpec& spec, const std::string& path) {
  const PluginSpec& plugin = spec.optimizer.plugin;
  if (plugin.sha256.empty()) return absl::OkStatus();
  if (path.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "optimizer.plugin: the job's updater ", plugin.name, " with SHA-256 ", plugin.sha256,
        " runs in the storage devices; give eps serve its file as optimizer.plugin"));
  }
  return LoadUpdaterPlugin(path, plugin.sha256).status();
}

// Loads the plug-ins of a job. Their code runs inside a fence from its first instruction on.
absl::Status LoadPluginsOf(const JobSpec& spec, const PluginPaths& paths) {
  if (!paths.updater.empty() || !paths.codec.empty()) EPS_RETURN_IF_ERROR(FenceLoading());
  EPS_RETURN_IF_ERROR(LoadUpdaterOf(spec, paths.updater));
  return LoadPluginCodecs(spec, paths.codec);
}

// Returns the bytes that the kernels of all lanes may hold beside a device's memory: the indexes of
// the gradients that they open.
absl::StatusOr<uint64_t> ScratchBytes(const JobSpec& spec) {
  const ChunkMap chunks = ChunkMap::Build(spec);
  EPS_ASSIGN_OR_RETURN(const CodecTable codecs, CodecTable::Build(spec, chunks));
  const Step last(spec.codecs.warmup_steps + 1);
  uint64_t index = 0;
  for (const Chunk& chunk : chunks.chunks()) {
    index = std::max<uint64_t>(index, codecs.gradient(chunk.id, last).IndexSize(chunk));
  }
  return FenceOptions().scratch_bytes + kLaneCount * index;
}

// The device and what it works with.
struct Parts {
  Parts(const FileDeviceOptions& options, const DeviceRates& rates, PluginPaths plugins)
      : options(options), plugins(std::move(plugins)), pace(rates) {}

  absl::Status Open(const std::string& job) {
    EPS_ASSIGN_OR_RETURN(lock, TakeLockWithin(disk.get(), options.path + ".lock", kLockPatience));
    EPS_ASSIGN_OR_RETURN(core, DeviceCore::Open(options, disk.get(), &pool, &account));
    EPS_ASSIGN_OR_RETURN(buffers, StateArena::New(kLaneCount * kSliceBytes));
    if (job.empty()) return absl::OkStatus();
    // All files are open now: what is loaded next may open none for writing.
    EPS_ASSIGN_OR_RETURN(JobSpec spec, JobSpec::Parse(job));
    EPS_RETURN_IF_ERROR(LoadPluginsOf(spec, plugins));
    EPS_ASSIGN_OR_RETURN(fence.scratch_bytes, ScratchBytes(spec));
    EPS_ASSIGN_OR_RETURN(std::unique_ptr<KernelRunner> kernels,
                         ChunkKernels::New(std::move(spec), &account));
    kernels_or_null = kernels.get();
    core->UseKernels(std::move(kernels));
    return absl::OkStatus();
  }
  absl::Span<uint8_t> buffer(int lane) {
    return absl::MakeSpan(
        reinterpret_cast<uint8_t*>(buffers->floats()) + static_cast<uint64_t>(lane) * kSliceBytes,
        kSliceBytes);
  }

  const FileDeviceOptions options;
  const PluginPaths plugins;
  ThreadPool pool{1};
  MemoryAccount account;
  // io_uring would carry out calls that the fence forbids.
  std::unique_ptr<Disk> disk = NewRealDisk({.queue_depth = kLaneCount, .allow_io_uring = false});
  std::unique_ptr<Disk::Lock> lock;
  std::unique_ptr<StateArena> buffers;
  std::unique_ptr<DeviceCore> core;
  const KernelRunner* kernels_or_null = nullptr;  // of the core
  FenceOptions fence;
  DevicePace pace;
};

// Writes one line. The log makes calls that are forbidden in a fenced process.
[[noreturn]] void End(const std::string& name, const absl::Status& status) {
  const std::string line = absl::StrCat("eps-csd: device ", name, ": ", status.message(), "\n");
  // If stderr is closed, the exit code still tells what happened.
  if (write(STDERR_FILENO, line.data(), line.size()) < 0) errno = 0;
  std::_Exit(static_cast<int>(ExitCodeOf(status)));
}

// Serves the lanes until the host closes them. Ends the process if it cannot be fenced, and at the
// first error of a lane: a host that sends garbage gets no answer on the other lanes either.
void Serve(Parts* parts, const Start& first) {
  std::promise<void> fenced;
  const std::shared_future<void> begin = fenced.get_future().share();
  std::vector<std::thread> lanes;
  for (int i = 0; i < kLaneCount; ++i) {
    lanes.emplace_back([parts, begin, i] {
      begin.wait();
      const absl::Status end =
          ServeLane(kFirstLane + i, {parts->core.get(), &parts->pace, parts->kernels_or_null},
                    parts->buffer(i));
      if (!end.ok()) End(parts->options.name, end);
    });
  }
  const absl::Status status = FenceProcess(parts->fence);
  const absl::Status sent = AnswerStart(kFirstLane, first, status);
  if (!status.ok()) End(parts->options.name, status);
  if (!sent.ok()) End(parts->options.name, sent);
  fenced.set_value();
  for (std::thread& lane : lanes) lane.join();
}

absl::Status Run(const std::vector<std::string>& arguments) {
  FileDeviceOptions options;
  if (arguments.size() < 4 || arguments.size() > 7 ||
      !absl::SimpleAtoi(arguments[2], &options.media_bytes) ||
      !absl::SimpleAtoi(arguments[3], &options.dram_bytes)) {
    return absl::InvalidArgumentError(
        "usage: eps-csd NAME MEDIUM MEDIUM_BYTES DRAM_BYTES [RATES [UPDATER [CODEC]]], with "
        "sockets to the host as descriptors 3 to 6; EPS servers start it");
  }
  options.name = arguments[0];
  options.path = arguments[1];
  DeviceRates rates;
  if (arguments.size() >= 5) {
    EPS_ASSIGN_OR_RETURN(rates, ParseDeviceRates(arguments[4]));
  }
  EPS_ASSIGN_OR_RETURN(const Start first, ReceiveStart(kFirstLane));
  PluginPaths plugins;
  if (arguments.size() >= 6) plugins.updater = arguments[5];
  if (arguments.size() >= 7) plugins.codec = arguments[6];
  Parts parts(options, rates, std::move(plugins));
  const absl::Status opened = parts.Open(first.job);
  if (!opened.ok()) {
    AnswerStart(kFirstLane, first, opened).IgnoreError();
    return opened;
  }
  Serve(&parts, first);
  return absl::OkStatus();
}

}  // namespace

int Main(int argc, char** argv) {
  PrepareForFence();
  // The host decides when the device ends. A terminal sends Ctrl-C to both.
  for (const int ignored : {SIGPIPE, SIGINT, SIGTERM, SIGHUP}) std::signal(ignored, SIG_IGN);
  const absl::Status status = Run({argv + 1, argv + argc});
  if (!status.ok()) End(argc > 1 ? argv[1] : "?", status);
  return 0;
}

}  // namespace eps::csd

int main(int argc, char** argv) { return eps::csd::Main(argc, argv); }
