#include "cli/doctor.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/child_process.h"
#include "cli/progress.h"
#include "cli/run_config.h"
#include "cli/siblings.h"
#include "cli/version.h"
#include "google/protobuf/stubs/common.h"
#include "grpcpp/grpcpp.h"
#include "wire/channel.h"

namespace eps {
namespace {

constexpr std::chrono::seconds kSiblingTimeout{60};
constexpr uint64_t kLittleMemory = uint64_t{2} << 30;
constexpr uint64_t kLittleDisk = uint64_t{1} << 30;

enum class Finding { kOk, kWarn, kFail };

class Report {
 public:
  void Add(Finding finding, const std::string& text) {
    static constexpr const char* kWords[] = {"ok  ", "warn", "fail"};
    std::printf("%s  %s\n", kWords[static_cast<int>(finding)], text.c_str());
    std::fflush(stdout);
    failures_ += finding == Finding::kFail ? 1 : 0;
  }
  int failures() const { return failures_; }

 private:
  int failures_ = 0;
};

// The rest of the first line of a file that starts with `prefix`, behind its colon.
std::string ProcLine(const std::string& path, absl::string_view prefix) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (absl::StartsWith(line, prefix)) return line.substr(line.find(':') + 1);
  }
  return "";
}

void CheckCpu(Report* report) {
  const std::string model = ProcLine("/proc/cpuinfo", "model name");
  const unsigned cores = std::thread::hardware_concurrency();
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
    return report->Add(Finding::kWarn, text + "; no avx2: kernels run, but several times slower");
  }
  report->Add(Finding::kOk, absl::StrCat(text, ";", isa));
#else
  report->Add(Finding::kOk, text);
#endif
}

void CheckMemory(Report* report) {
  uint64_t available_kib = 0;
  if (std::sscanf(ProcLine("/proc/meminfo", "MemAvailable").c_str(), "%lu", &available_kib) != 1) {
    return report->Add(Finding::kWarn, "memory: /proc/meminfo does not say what is available");
  }
  const uint64_t bytes = available_kib * 1024;
  report->Add(bytes < kLittleMemory ? Finding::kWarn : Finding::kOk,
              absl::StrCat("memory: ", FormatBytes(static_cast<double>(bytes)),
                           " available; AdamW needs 12 bytes per parameter on the servers: at most "
                           "about ",
                           FormatCount(bytes / 12), " parameters"));
}

void CheckDisk(const Config& config, Report* report) {
  // The nearest folder above checkpoint.dir that exists.
  std::error_code error;
  std::filesystem::path folder =
      std::filesystem::absolute(config.checkpoint.dir.empty() ? "." : config.checkpoint.dir, error);
  while (!std::filesystem::exists(folder, error) && folder.has_relative_path()) {
    folder = folder.parent_path();
  }
  struct statvfs info;
  if (statvfs(folder.c_str(), &info) != 0) {
    return report->Add(Finding::kFail,
                       absl::StrCat("disk: ", folder.string(), ": ", std::strerror(errno)));
  }
  const std::string where =
      config.checkpoint.dir.empty() ? folder.string() : folder.string() + " (for --out)";
  const uint64_t free = uint64_t{info.f_bavail} * info.f_frsize;
  if (access(folder.c_str(), W_OK) != 0) {
    return report->Add(Finding::kFail, absl::StrCat("disk: ", where, " is not writable"));
  }
  report->Add(free < kLittleDisk ? Finding::kWarn : Finding::kOk,
              absl::StrCat("disk: ", FormatBytes(static_cast<double>(free)), " free at ", where,
                           "; a checkpoint is 12 bytes per parameter"));
}

void CheckLoopback(Report* report) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool bound = fd >= 0 &&
                     bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
                     listen(fd, 1) == 0;
  const std::string why = bound ? "" : std::strerror(errno);
  if (fd >= 0) close(fd);
  report->Add(bound ? Finding::kOk : Finding::kFail,
              bound ? "loopback: a server can listen on 127.0.0.1"
                    : absl::StrCat("loopback: cannot listen on 127.0.0.1: ", why));
}

void CheckIoUring(Report* report) {
  // A null parameter block: EFAULT where the call exists and is allowed.
  const int64_t result = syscall(SYS_io_uring_setup, 1, nullptr);
  if (result >= 0) close(static_cast<int>(result));
  const int error = result >= 0 ? 0 : errno;
  if (error == 0 || error == EFAULT || error == EINVAL) {
    return report->Add(Finding::kOk, "io_uring: available");
  }
  report->Add(Finding::kWarn, absl::StrCat("io_uring: not available (", std::strerror(error),
                                           "); only storage on NVMe would use it"));
}

void CheckWorkerProgram(Report* report) {
  const absl::StatusOr<std::string> program = FindSibling("eps-worker");
  if (!program.ok()) {
    return report->Add(Finding::kFail,
                       absl::StrCat("worker: ", std::string(program.status().message())));
  }
  std::string log =
      absl::StrCat(std::filesystem::temp_directory_path().string(), "/eps-doctor-XXXXXX");
  const int fd = mkstemp(&log[0]);
  if (fd >= 0) close(fd);
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
                 : absl::DeadlineExceededError("eps-worker --version does not end");
  }
  const std::string said = absl::StrJoin(absl::StrSplit(LastLines(log, 3), '\n'), "; ");
  std::error_code ignored;
  std::filesystem::remove(log, ignored);
  report->Add(status.ok() ? Finding::kOk : Finding::kFail,
              status.ok() ? absl::StrCat("worker: ", *program, " runs: ", said)
                          : absl::StrCat("worker: ", std::string(status.message())));
}

void CheckVersions(Report* report) {
  utsname kernel = {};
  uname(&kernel);
  const int protobuf = GOOGLE_PROTOBUF_VERSION;
  report->Add(
      Finding::kOk,
      absl::StrCat("versions: eps ", kVersion, ", protocol ", kProtocolVersion, ", gRPC ",
                   grpc::Version(), ", protobuf ", protobuf / 1000000, ".", protobuf / 1000 % 1000,
                   ".", protobuf % 1000, ", ", kernel.sysname, " ", kernel.release));
}

}  // namespace

absl::Status RunDoctor(const Config& config) {
  Report report;
  CheckVersions(&report);
  CheckCpu(&report);
  CheckMemory(&report);
  CheckDisk(config, &report);
  CheckLoopback(&report);
  CheckIoUring(&report);
  CheckWorkerProgram(&report);
  if (report.failures() == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(report.failures(), " checks failed"));
}

}  // namespace eps
