// `eps-csd`: one emulated storage device. An EPS server starts one for each device of a job
// (storage/csd/process/device_process.h) and talks to it over sockets.

#include <unistd.h>

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
#include "base/job/job_spec.h"
#include "base/job/plugin_spec.h"
#include "base/memory_account.h"
#include "base/process/fence.h"
#include "base/status_macros.h"
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

// Loads the plug-in updater of a job that has one, if it is the file that the job names. Its code
// runs inside a fence from its first instruction on.
absl::Status LoadPluginOf(const JobSpec& spec, const std::string& path) {
  const PluginSpec& plugin = spec.optimizer.plugin;
  if (plugin.sha256.empty()) return absl::OkStatus();
  if (path.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "optimizer.plugin: the job's updater ", plugin.name, " with SHA-256 ", plugin.sha256,
        " runs in the storage devices; give eps serve its file as optimizer.plugin"));
  }
  EPS_RETURN_IF_ERROR(FenceLoading());
  return LoadUpdaterPlugin(path, plugin.sha256).status();
}

// The device and what it works with.
struct Parts {
  Parts(const FileDeviceOptions& options, const DeviceRates& rates, std::string plugin)
      : options(options), plugin(std::move(plugin)), pace(rates) {}

  absl::Status Open(const std::string& job) {
    EPS_ASSIGN_OR_RETURN(lock, TakeLockWithin(disk.get(), options.path + ".lock", kLockPatience));
    EPS_ASSIGN_OR_RETURN(core, DeviceCore::Open(options, disk.get(), &pool, &account));
    EPS_ASSIGN_OR_RETURN(buffers, StateArena::New(kLaneCount * kSliceBytes));
    if (job.empty()) return absl::OkStatus();
    // All files are open now: what is loaded next may open none for writing.
    EPS_ASSIGN_OR_RETURN(JobSpec spec, JobSpec::Parse(job));
    EPS_RETURN_IF_ERROR(LoadPluginOf(spec, plugin));
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
  const std::string plugin;
  ThreadPool pool{1};
  MemoryAccount account;
  // io_uring would carry out calls that the fence forbids.
  std::unique_ptr<Disk> disk = NewRealDisk({.queue_depth = kLaneCount, .allow_io_uring = false});
  std::unique_ptr<Disk::Lock> lock;
  std::unique_ptr<StateArena> buffers;
  std::unique_ptr<DeviceCore> core;
  const KernelRunner* kernels_or_null = nullptr;  // of the core
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
  const absl::Status status = FenceProcess();
  const absl::Status sent = AnswerStart(kFirstLane, first, status);
  if (!status.ok()) End(parts->options.name, status);
  if (!sent.ok()) End(parts->options.name, sent);
  fenced.set_value();
  for (std::thread& lane : lanes) lane.join();
}

absl::Status Run(const std::vector<std::string>& arguments) {
  FileDeviceOptions options;
  if (arguments.size() < 4 || arguments.size() > 6 ||
      !absl::SimpleAtoi(arguments[2], &options.media_bytes) ||
      !absl::SimpleAtoi(arguments[3], &options.dram_bytes)) {
    return absl::InvalidArgumentError(
        "usage: eps-csd NAME MEDIUM MEDIUM_BYTES DRAM_BYTES [RATES [PLUGIN]], with sockets to the "
        "host as "
        "descriptors 3 to 6; EPS servers start it");
  }
  options.name = arguments[0];
  options.path = arguments[1];
  DeviceRates rates;
  if (arguments.size() >= 5) {
    EPS_ASSIGN_OR_RETURN(rates, ParseDeviceRates(arguments[4]));
  }
  EPS_ASSIGN_OR_RETURN(const Start first, ReceiveStart(kFirstLane));
  Parts parts(options, rates, arguments.size() == 6 ? arguments[5] : "");
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
