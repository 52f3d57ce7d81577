#ifndef EPS_CLI_COMMANDS_DOCTOR_CHECKS_H_
#define EPS_CLI_COMMANDS_DOCTOR_CHECKS_H_

// What `eps doctor` looks at beyond what it only prints. Each check says what was found and, unless
// that is fine, what to do.

#include <chrono>
#include <cstdint>
#include <string>

namespace eps {

enum class Level { kOk, kWarn, kFail };

struct Finding {
  Level level = Level::kOk;
  std::string text;
};

// Bytes that the control group of this process still allows, by the files below `root`
// (/sys/fs/cgroup; version 2, or 1 in its memory folder); UINT64_MAX if there is no limit.
uint64_t CgroupRoom(const std::string& root);

// `available`: what the machine and the control group leave. `limit`: servers.memory_limit; 0 means
// all that is available.
Finding CheckMemoryLimit(uint64_t available_bytes, uint64_t limit_bytes);

// Soft and hard limit of open files of a process.
Finding CheckOpenFiles(uint64_t soft, uint64_t hard);

// Whether a server could listen on `address` (servers.listen): binds it for a moment.
Finding CheckListen(const std::string& address);

// Whether something accepts connections at `address`, of servers.addresses.
Finding CheckReach(const std::string& address, std::chrono::milliseconds timeout);

// `devices`: accelerators that the kernel's driver shows. `worker_says`: the line "cuda: ..." of
// eps-worker --version, without that word; empty if it could not be asked.
Finding CheckGpu(int devices, const std::string& worker_says);
// Device files nvidia0, nvidia1, ... in `folder` (/dev).
int CountGpus(const std::string& folder);

}  // namespace eps

#endif  // EPS_CLI_COMMANDS_DOCTOR_CHECKS_H_
