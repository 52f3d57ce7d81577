#ifndef EPS_CLI_COMMANDS_DOCTOR_CHECKS_H_
#define EPS_CLI_COMMANDS_DOCTOR_CHECKS_H_

// The checks of `eps doctor`. Each reports what it found and, if that is a problem, what to do.

#include <chrono>
#include <cstdint>
#include <string>

namespace eps {

enum class Level { kOk, kWarn, kFail };

// The result of one check: a line for the report.
struct Finding {
  Level level = Level::kOk;
  std::string text;
};

// Compares the memory that this process can use with servers.memory_limit, where 0 means all of it.
Finding CheckMemoryLimit(uint64_t available_bytes, uint64_t limit_bytes);

// Checks the soft and hard limits of open files of a process.
Finding CheckOpenFiles(uint64_t soft, uint64_t hard);

// Checks that a server could listen on `address` (servers.listen) by binding it for a moment.
Finding CheckListen(const std::string& address);

// Checks that something accepts connections at `address`, one of servers.addresses.
Finding CheckReach(const std::string& address, std::chrono::milliseconds timeout);

// Checks that the worker can use the GPUs. `devices` is the number of device files of the driver.
// `worker_says` is the text after "cuda: " in the output of eps-worker --version; empty if
// eps-worker did not run.
Finding CheckGpu(int devices, const std::string& worker_says);
// Counts the device files nvidia0, nvidia1, ... in `folder` (/dev).
int CountGpus(const std::string& folder);

}  // namespace eps

#endif  // EPS_CLI_COMMANDS_DOCTOR_CHECKS_H_
