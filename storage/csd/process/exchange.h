#ifndef EPS_STORAGE_CSD_PROCESS_EXCHANGE_H_
#define EPS_STORAGE_CSD_PROCESS_EXCHANGE_H_

#include <chrono>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "storage/csd/process/frames.h"

namespace eps::csd {

// The host's end of one command: sends it with its data over a lane, and takes its replies until
// all of `receive` has come. Returns an error if the lane is of no use any more: Unavailable if the
// device closed it, DeadlineExceeded, or DataLoss for a reply that does not belong to the command.
// Otherwise sets `answer` to what the device says. Blocks.
absl::Status Exchange(int socket, const Command& command, absl::Span<const uint8_t> send,
                      absl::Span<uint8_t> receive, std::chrono::steady_clock::time_point deadline,
                      absl::Status* answer);

// Waits for the device's first reply. Errors and `answer` as above.
absl::Status AwaitReady(int socket, std::chrono::steady_clock::time_point deadline,
                        absl::Status* answer);

}  // namespace eps::csd

#endif  // EPS_STORAGE_CSD_PROCESS_EXCHANGE_H_
