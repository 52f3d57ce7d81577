#ifndef EPS_CLI_MEASURE_MACHINE_SPEED_H_
#define EPS_CLI_MEASURE_MACHINE_SPEED_H_

// Measures this machine's speed at the work of servers and workers. Each figure is the median of
// several rounds; bytes are FP32 bytes of weights (4 per parameter) unless stated otherwise.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/hardware.h"
#include "planner/units.h"

namespace eps {

// Returns the bytes that all cores together read and write in one long copy.
planner::BytesPerSecond MeasureMemory();
// Measures the reduction of one FP32 gradient and the AdamW update on one core.
planner::BytesPerSecond MeasureUpdate();
// Measures encoding and decoding on one core. `codec` is a name of compression/codec.h.
absl::StatusOr<planner::CodecRates> MeasureCodec(const std::string& codec);
// Measures one TCP connection over loopback whose reader copies the bytes to their destination.
absl::StatusOr<planner::BytesPerSecond> MeasureLoopback();
// Measures the round trip of a message of a few bytes over loopback.
absl::StatusOr<planner::Seconds> MeasureLatency();

// The speed of a disk and its free space.
struct DiskSpeed {
  planner::BytesPerSecond read;
  planner::BytesPerSecond write;
  planner::Bytes free;
};
// Measures direct I/O on a temporary file in `folder`.
absl::StatusOr<DiskSpeed> MeasureDisk(const std::string& folder);

}  // namespace eps

#endif  // EPS_CLI_MEASURE_MACHINE_SPEED_H_
