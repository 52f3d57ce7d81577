#ifndef EPS_CLI_MEASURE_MACHINE_SPEED_H_
#define EPS_CLI_MEASURE_MACHINE_SPEED_H_

// How fast this machine is at what servers and workers do all day. Each figure is the median of
// several rounds; bytes are FP32 bytes of weights (4 per parameter) unless it says otherwise.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/hardware.h"
#include "planner/units.h"

namespace eps {

uint32_t CoreCount();
planner::Bytes MemoryBytes();  // of the machine

// All bytes that all cores together read and write, in one long copy.
planner::BytesPerSecond MeasureMemory();
// Reduction of one FP32 gradient and AdamW, on one core.
planner::BytesPerSecond MeasureUpdate();
// Encoding and decoding by one core. `codec` is a name of compression/codec.h.
absl::StatusOr<planner::CodecRates> MeasureCodec(const std::string& codec);
// Bytes through one TCP connection over loopback, whose reader copies them to where they belong.
absl::StatusOr<planner::BytesPerSecond> MeasureLoopback();
// A message of a few bytes there and back over loopback.
absl::StatusOr<planner::Seconds> MeasureLatency();

struct DiskSpeed {
  planner::BytesPerSecond read;
  planner::BytesPerSecond write;
  planner::Bytes free;
};
// Direct I/O on a file in `folder`, which is removed again.
absl::StatusOr<DiskSpeed> MeasureDisk(const std::string& folder);

}  // namespace eps

#endif  // EPS_CLI_MEASURE_MACHINE_SPEED_H_
