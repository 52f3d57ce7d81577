// `eps doctor`: checks that this machine can run EPS.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/descriptor.h"
#include "base/machine/machine_limits.h"
#include "base/text.h"
#include "base/version.h"
#include "cli/commands/doctor_checks.h"
#include "cli/launch/child_process.h"
#include "cli/launch/run_config.h"
#include "cli/launch/siblings.h"
#include "google/protobuf/stubs/common.h"
#include "grpcpp/grpcpp.h"
#include "wire/channel.h"

namespace eps {
namespace {

constexpr std::chrono::seconds kSiblingTimeout{60};
constexpr std::chrono::milliseconds kReachTimeout{3'000};
constexpr uint64_t kLittleDisk = uint64_t{1} << 30;

class Report {
 public:
  void Add(const Finding& finding) {
    static constexpr const char* kWords[] = {"ok  ", "warn", "fail"};
    std::printf("%s  %s\n", kWords[static_cast<int>(finding.level)], finding.text.c_str());
    std::fflush(stdout);
    failures_ += finding.level == Level::kFail ? 1 : 0;
  }
  void Add(Level level, std::string text) { Add(Finding{level, std::move(text)}); }
  int failures() const { return failures_; }

 private:
  int failures_ = 0;
};

// Returns the text after the colon of a file's first line that starts with `prefix`.
std::string ProcLine(const std::string& path, absl::string_view prefix) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (absl::StartsWith(line, prefix)) return line.substr(line.find(':') + 1);
  }
  return "";
}

void CheckCpu(Report* report) {
  const std::string model = ProcLine("/proc/cpuinfo", "model name");
  const uint32_t cores = UsableProcessors();
  const std::string text = absl::StrCat("cpu:", model.empty() ? " unknown model" : model, ", ",
                                        cores, cores == 1 ? " core" : " cores");
#if defined(__x86_64__)
  std::string isa;
  for (const auto& [flag, has] : {std::make_pair("avx2", __builtin_cpu_supports("avx2")),
                                  std::make_pair("fma", __builtin_cpu_supports("fma")),
                                  std::make_pair("avx512f", __builtin_cpu_supports("avx512f"))}) {
    if (has) absl::StrAppend(&isa, " ", flag);
  }
  if (!__builtin_cpu_supports("avx2")) {
    return report->Add(Level::kWarn, text + "; no avx2: kernels run, but several times slower");
  }
  report->Add(Level::kOk, absl::StrCat(text, ";", isa));
#else
  report->Add(Level::kOk, text);
#endif
}

void CheckMemory(const Config& config, Report* report) {
  const absl::StatusOr<uint64_t> available = AvailableMemory();
  if (!available.ok()) {
    return report->Add(Level::kWarn, absl::StrCat("memory: ", available.status().message()));
  }
  report->Add(CheckMemoryLimit(*available, config.servers.memory_limit));
}

void CheckFileLimit(Report* report) {
  rlimit files = {};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) {
    return report->Add(Level::kWarn, absl::StrCat("open files: ", std::strerror(errno)));
  }
  report->Add(CheckOpenFiles(files.rlim_cur, files.rlim_max));
}

// Checks the address on which a server would listen, and the addresses of servers to attach to.
void CheckAddresses(const Config& config, Report* report) {
  report->Add(CheckListen(config.servers.listen));
  uint64_t count = 0;
  if (config.servers.addresses.empty() || absl::SimpleAtoi(config.servers.addresses, &count)) {
    return;  // eps train starts them on free ports
  }
  for (absl::string_view address : absl::StrSplit(config.servers.addresses, ',')) {
    report->Add(CheckReach(std::string(absl::StripAsciiWhitespace(address)), kReachTimeout));
  }
}

void CheckDisk(const Config& config, Report* report) {
  // checkpoint.dir may not exist yet: check its nearest existing parent.
  std::error_code error;
  std::filesystem::path folder =
      std::filesystem::absolute(config.checkpoint.dir.empty() ? "." : config.checkpoint.dir, error);
  while (!std::filesystem::exists(folder, error) && folder.has_relative_path()) {
    folder = folder.parent_path();
  }
  struct statvfs info;
  if (statvfs(folder.c_str(), &info) != 0) {
    return report->Add(Level::kFail,
                       absl::StrCat("disk: ", folder.string(), ": ", std::strerror(errno)));
  }
  const std::string where =
      config.checkpoint.dir.empty() ? folder.string() : folder.string() + " (for --out)";
  const uint64_t free = uint64_t{info.f_bavail} * info.f_frsize;
  if (access(folder.c_str(), W_OK) != 0) {
    return report->Add(Level::kFail, absl::StrCat("disk: ", where, " is not writable"));
  }
  report->Add(free < kLittleDisk ? Level::kWarn : Level::kOk,
              absl::StrCat("disk: ", FormatBytes(static_cast<double>(free)), " free at ", where,
                           "; a checkpoint is 12 bytes per parameter"));
}

void CheckLoopback(Report* report) {
  const Descriptor fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool bound = fd.ok() &&
                     bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
                     listen(fd.get(), 1) == 0;
  const std::string why = bound ? "" : std::strerror(errno);
  report->Add(bound ? Level::kOk : Level::kFail,
              bound ? "loopback: a server can listen on 127.0.0.1"
                    : absl::StrCat("loopback: cannot listen on 127.0.0.1: ", why));
}

void CheckIoUring(Report* report) {
  // With a null parameter block the call fails with EFAULT if it exists and is allowed.
  const Descriptor ring(static_cast<int>(syscall(SYS_io_uring_setup, 1, nullptr)));
  const int error = ring.ok() ? 0 : errno;
  if (error == 0 || error == EFAULT || error == EINVAL) {
    return report->Add(Level::kOk, "io_uring: available");
  }
  report->Add(Level::kWarn, absl::StrCat("io_uring: not available (", std::strerror(error),
                                         "); the storage uses threads instead"));
}

void CheckWorkerProgram(Report* report) {
  const absl::StatusOr<std::string> program = FindSibling("eps-worker");
  if (!program.ok()) {
    return report->Add(Level::kFail,
                       absl::StrCat("worker: ", std::string(program.status().message())));
  }
  std::string log =
      absl::StrCat(std::filesystem::temp_directory_path().string(), "/eps-doctor-XXXXXX");
  const Descriptor made(mkstemp(&log[0]));
  ChildOptions options;
  options.name = "eps-worker";
  options.argv = {*program, "--version"};
  for (const auto& [name, value] : ProcessEnvironment()) {
    options.environment.push_back(absl::StrCat(name, "=", value));
  }
  options.log_path = log;
  auto child = ChildProcess::Start(std::move(options));
  absl::Status status = child.status();
  if (child.ok()) {
    status = (*child)->WaitExit(std::chrono::steady_clock::now() + kSiblingTimeout)
                 ? (*child)->Failure()
                 : absl::DeadlineExceededError("eps-worker --version hangs");
  }
  std::string said;
  std::string cuda;
  for (absl::string_view line : absl::StrSplit(LastLines(log, 3), '\n', absl::SkipEmpty())) {
    if (absl::ConsumePrefix(&line, "cuda: ")) {
      cuda = std::string(line);
    } else {
      absl::StrAppend(&said, said.empty() ? "" : "; ", line);
    }
  }
  std::error_code ignored;
  std::filesystem::remove(log, ignored);
  report->Add(status.ok() ? Level::kOk : Level::kFail,
              status.ok() ? absl::StrCat("worker: ", *program, " runs: ", said)
                          : absl::StrCat("worker: ", std::string(status.message())));
  report->Add(CheckGpu(CountGpus("/dev"), cuda));
}

// Looks for another program of EPS; `missing` is what its absence means.
void CheckProgram(const char* use, const std::string& name, Level missing, Report* report) {
  const absl::StatusOr<std::string> program = FindSibling(name);
  report->Add(
      program.ok() ? Level::kOk : missing,
      absl::StrCat(use, ": ", program.ok() ? *program : std::string(program.status().message())));
}

void CheckVersions(Report* report) {
  utsname kernel = {};
  uname(&kernel);
  const int protobuf = GOOGLE_PROTOBUF_VERSION;
  report->Add(Level::kOk, absl::StrCat("versions: eps ", kVersion, ", protocol ", kProtocolVersion,
                                       ", gRPC ", grpc::Version(), ", protobuf ",
                                       protobuf / 1000000, ".", protobuf / 1000 % 1000, ".",
                                       protobuf % 1000, ", ", kernel.sysname, " ", kernel.release));
}

}  // namespace

// Returns Unavailable if a check failed.
absl::Status RunDoctor(const RunConfig& run, bool /*json*/) {
  const Config& config = run.config;
  Report report;
  CheckVersions(&report);
  CheckCpu(&report);
  CheckMemory(config, &report);
  CheckDisk(config, &report);
  CheckLoopback(&report);
  CheckAddresses(config, &report);
  CheckFileLimit(&report);
  CheckIoUring(&report);
  CheckWorkerProgram(&report);
  CheckProgram("verify", "eps-verify", Level::kWarn, &report);
  const bool needs_devices = config.storage.kind == "csd";
  CheckProgram("devices", "eps-csd", needs_devices ? Level::kFail : Level::kWarn, &report);
  if (report.failures() == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(report.failures(), " checks failed"));
}

}  // namespace eps
