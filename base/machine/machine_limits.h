#ifndef EPS_BASE_MACHINE_MACHINE_LIMITS_H_
#define EPS_BASE_MACHINE_MACHINE_LIMITS_H_

// The processors and the memory that this process may use. A container or a batch system limits
// them with control groups (versions 1 and 2, nested to any depth), so that they are often fewer
// than those of the machine. Thread-safe; reads the files of /proc and /sys at each call.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace eps {

// Returns the number of processors: those on which the calling thread may run, or fewer if a
// control group limits processor time (a limit of 2.5 processors counts as 2). At least 1.
uint32_t UsableProcessors();

// Returns the bytes that this process can still allocate: the machine's available memory, or less
// if a control group has less left. Counts the page cache that a group can give back as free.
// Internal if /proc/meminfo does not report the available memory.
absl::StatusOr<uint64_t> AvailableMemory();

// Returns the bytes of memory of the machine, or the lowest limit of a control group. Internal as
// above.
absl::StatusOr<uint64_t> MemoryCapacity();

// Returns the threads of each of `servers` servers that share `processors` with `workers` workers,
// if servers.threads is 0: each worker keeps one processor, and the servers divide the rest. At
// least 1.
uint32_t ServerThreads(uint32_t processors, uint32_t workers, uint32_t servers);

// The first three functions over the files below `root` instead of "/", for tests. `runnable` is
// the number of processors on which the thread may run.
uint32_t UsableProcessors(const std::string& root, uint32_t runnable);
absl::StatusOr<uint64_t> AvailableMemory(const std::string& root);
absl::StatusOr<uint64_t> MemoryCapacity(const std::string& root);

}  // namespace eps

#endif  // EPS_BASE_MACHINE_MACHINE_LIMITS_H_
