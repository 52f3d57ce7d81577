#ifndef EPS_WORKER_STASH_ROOM_H_
#define EPS_WORKER_STASH_ROOM_H_

#include <cstdint>
#include <string>

namespace eps {

// Returns the most bytes that a worker may stash in host memory: `configured` (worker.stash_host),
// or, if that is 0, its share among `workers` workers of half of what this process can still
// allocate (base/machine/machine_limits.h, which obeys the limits of containers). Returns 0, which
// sets no limit, if the system does not say what is free. `root` replaces "/" in tests.
uint64_t StashRoom(uint64_t configured, int workers, const std::string& root = "/");

}  // namespace eps

#endif  // EPS_WORKER_STASH_ROOM_H_
