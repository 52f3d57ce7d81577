#ifndef EPS_CLI_MEASURE_EXCHANGE_SPEED_H_
#define EPS_CLI_MEASURE_EXCHANGE_SPEED_H_

// What the exchange of weights and gradients between a worker and a server takes of this machine's
// processors beside what their codecs and updates take: measured with a real server and a real
// client in this process, over loopback, in steps that compute nothing.

#include "absl/status/statusor.h"
#include "planner/hardware.h"
#include "planner/units.h"

namespace eps {

// Of one core; what worker and server do together, half of it each.
struct ExchangeSpeed {
  planner::Seconds chunk;             // of a chunk that goes from one to the other
  planner::BytesPerSecond transport;  // bytes that one side sends or takes in
};

// `server` and `fp32`: one core's rates, as machine_speed.h has them. Takes a few seconds. Errors
// as those of a run: of a port, of memory, of the job.
absl::StatusOr<ExchangeSpeed> MeasureExchange(const planner::ServerKind& server,
                                              const planner::CodecRates& fp32);

}  // namespace eps

#endif  // EPS_CLI_MEASURE_EXCHANGE_SPEED_H_
