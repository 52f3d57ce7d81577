#ifndef EPS_STORAGE_CSD_PROCESS_EXCHANGE_H_
#define EPS_STORAGE_CSD_PROCESS_EXCHANGE_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "storage/csd/process/frames.h"
#include "storage/csd/rates/paced_link.h"

namespace eps::csd {

// The host's memory for the data of one command.
struct ExchangeData {
  absl::Span<const uint8_t> send;         // as long as the command's data
  absl::Span<uint8_t> receive;            // for a HostRead: all its bytes
  std::string* result_or_null = nullptr;  // for other commands whose reply has data
  std::vector<Crossing> links{};          // that `send` and `receive` cross
};

// The host's end of one command: sends it with its data over a lane, and takes its replies. Returns
// an error if the lane is of no use any more: Unavailable if the device closed it,
// DeadlineExceeded, or DataLoss for a reply that does not belong to the command. Otherwise sets
// `answer` to what the device says. Blocks.
absl::Status Exchange(int socket, const Command& command, ExchangeData data,
                      std::chrono::steady_clock::time_point deadline, absl::Status* answer);

}  // namespace eps::csd

#endif  // EPS_STORAGE_CSD_PROCESS_EXCHANGE_H_
