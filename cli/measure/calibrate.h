#ifndef EPS_CLI_MEASURE_CALIBRATE_H_
#define EPS_CLI_MEASURE_CALIBRATE_H_

// `eps bench calibrate`: measures this machine and writes the description that `eps plan` reads.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner/hardware.h"

namespace eps {

struct CalibrateOptions {
  std::string folder;           // on the disk to measure; empty: a temporary one
  std::string device = "auto";  // worker.device
  int threads = 0;              // worker.threads
  uint32_t width = 256;  // of the block that is computed, as the model that will train has them
  uint32_t heads = 8;
  uint32_t seq_len = 256;
  uint32_t samples = 2;  // of a micro-batch
};

// Takes about a minute, and says what it is at on stderr. Other work on the machine slows it, and
// the plan with it. NotFound if eps-worker is not there; IoError if the disk is not usable.
absl::StatusOr<planner::Hardware> Calibrate(const CalibrateOptions& options);

// `arguments` come after "bench calibrate": --out=FILE (default: stdout) and the options above.
absl::Status RunBenchCalibrate(const std::vector<std::string>& arguments);

}  // namespace eps

#endif  // EPS_CLI_MEASURE_CALIBRATE_H_
