#ifndef EPS_CLI_MEASURE_EXCHANGE_SPEED_H_
#define EPS_CLI_MEASURE_EXCHANGE_SPEED_H_

// Measures the processor time that a worker and a server need to exchange weights and gradients,
// without codecs and updates. Runs a real server and a real client in this process, over loopback,
// in steps that compute nothing.

#include "absl/status/statusor.h"
#include "planner/hardware.h"
#include "planner/units.h"

namespace eps {

// Times of one core. Work that worker and server share counts half for each.
struct ExchangeSpeed {
  planner::Seconds chunk;             // to transfer one chunk
  planner::BytesPerSecond transport;  // bytes that one side sends or receives
};

// `server` and `fp32` are one core's rates from machine_speed.h. Takes a few seconds. Returns
// errors of the port, the memory or the job, as a run does.
absl::StatusOr<ExchangeSpeed> MeasureExchange(const planner::ServerKind& server,
                                              const planner::CodecRates& fp32);

}  // namespace eps

#endif  // EPS_CLI_MEASURE_EXCHANGE_SPEED_H_
