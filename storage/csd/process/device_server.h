#ifndef EPS_STORAGE_CSD_PROCESS_DEVICE_SERVER_H_
#define EPS_STORAGE_CSD_PROCESS_DEVICE_SERVER_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "storage/csd/device.h"
#include "storage/csd/process/frames.h"

namespace eps::csd {

// Sends the reply of number 0, which says that the device is ready or why it cannot start. Returns
// Unavailable if the host is gone.
absl::Status SendReady(int socket, const absl::Status& status);

// Carries out the commands of one lane, one after another, until the host closes the socket: then
// returns OK. Returns DataLoss for a damaged command, after which nothing on the lane can be
// trusted, and Unavailable if the host goes in the middle of one. Blocks; opens and maps nothing.
// `buffer` is for this lane alone and has kSliceBytes bytes, aligned to kDiskBlock. SIGPIPE must be
// ignored.
absl::Status ServeLane(int socket, Device* device, absl::Span<uint8_t> buffer);

}  // namespace eps::csd

#endif  // EPS_STORAGE_CSD_PROCESS_DEVICE_SERVER_H_
