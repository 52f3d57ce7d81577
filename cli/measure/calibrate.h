#ifndef EPS_CLI_MEASURE_CALIBRATE_H_
#define EPS_CLI_MEASURE_CALIBRATE_H_

// `eps bench calibrate`: measures this machine and writes the description that `eps plan` reads.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner/hardware.h"

namespace eps {

// The disk, the device and the block to measure.
struct CalibrateOptions {
  std::string folder;           // on the disk to measure; empty uses a temporary folder
  std::string device = "auto";  // worker.device
  int threads = 0;              // worker.threads
  // The shape of the block to compute; choose that of the model to train.
  uint32_t width = 256;
  uint32_t heads = 8;
  uint32_t seq_len = 256;
  uint32_t samples = 2;  // per micro-batch
};

// Measures for about a minute and prints its progress on stderr. Other load on the machine makes
// the result, and plans made from it, slower. NotFound if eps-worker is missing; IoError if the
// disk is unusable.
absl::StatusOr<planner::Hardware> Calibrate(const CalibrateOptions& options);

// `arguments` are those after "bench calibrate": --out=FILE (default: stdout) and the options
// above.
absl::Status RunBenchCalibrate(const std::vector<std::string>& arguments);

}  // namespace eps

#endif  // EPS_CLI_MEASURE_CALIBRATE_H_
