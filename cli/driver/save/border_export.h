#ifndef EPS_CLI_DRIVER_SAVE_BORDER_EXPORT_H_
#define EPS_CLI_DRIVER_SAVE_BORDER_EXPORT_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "checkpoint/checkpoint.h"
#include "wire/control_client.h"

namespace eps {

// Reads the state of all servers at the border of `step` into `writer`, which the caller commits
// with the border that is returned. REQUIRES that a gate of the caller holds the servers there, or
// that the job is done. Errors are those of ControlClient::Export and CheckpointWriter; Internal if
// the servers are at different borders.
absl::StatusOr<Border> ExportBorder(uint64_t step, ControlClient* client, CheckpointWriter* writer);

}  // namespace eps

#endif  // EPS_CLI_DRIVER_SAVE_BORDER_EXPORT_H_
