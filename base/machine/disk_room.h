#ifndef EPS_BASE_MACHINE_DISK_ROOM_H_
#define EPS_BASE_MACHINE_DISK_ROOM_H_

// The room on disks, in bytes. Thread-safe.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace eps {

// Returns the bytes that this process may still write to the file system of `path` or, if that does
// not exist, of the nearest folder above it that does. IoError or PermissionDenied with the path.
absl::StatusOr<uint64_t> FreeBytes(const std::string& path);

// Returns the bytes that the files below `path` occupy on disk; 0 if there is no such folder.
uint64_t OccupiedBytes(const std::string& path);

}  // namespace eps

#endif  // EPS_BASE_MACHINE_DISK_ROOM_H_
