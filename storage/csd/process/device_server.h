#ifndef EPS_STORAGE_CSD_PROCESS_DEVICE_SERVER_H_
#define EPS_STORAGE_CSD_PROCESS_DEVICE_SERVER_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "storage/csd/device.h"
#include "storage/csd/kernel_runner.h"
#include "storage/csd/process/device_pace.h"
#include "storage/csd/process/frames.h"

namespace eps::csd {

// The first command: the job, whose number the reply needs.
struct Start {
  uint64_t number = 0;
  std::string job;  // the text of its spec; empty for a device without kernels
};

// Waits for the first command. Unavailable if the host is gone, DataLoss for any other command.
absl::StatusOr<Start> ReceiveStart(int socket);
// Replies that the device is ready, or why it cannot start. Unavailable if the host is gone.
absl::Status AnswerStart(int socket, const Start& start, const absl::Status& status);

// The device as its lanes use it. All must outlive the lanes. Plain value.
struct LaneDevice {
  Device* device = nullptr;
  DevicePace* pace = nullptr;
  const KernelRunner* kernels_or_null = nullptr;  // those that `device` runs
};

// Carries out the commands of one lane, one after another, until the host closes the socket: then
// returns OK. Returns DataLoss for a damaged command, after which nothing on the lane can be
// trusted, and Unavailable if the host goes in the middle of one. Blocks; opens and maps nothing.
// `buffer` is for this lane alone and has kSliceBytes bytes, aligned to kDiskBlock. SIGPIPE must be
// ignored.
absl::Status ServeLane(int socket, const LaneDevice& device, absl::Span<uint8_t> buffer);

}  // namespace eps::csd

#endif  // EPS_STORAGE_CSD_PROCESS_DEVICE_SERVER_H_
