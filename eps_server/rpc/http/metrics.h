#ifndef EPS_SERVER_RPC_HTTP_METRICS_H_
#define EPS_SERVER_RPC_HTTP_METRICS_H_

// The metrics of a server for Prometheus. They are listed in docs/reference/metrics.md.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "eps/v1/control.pb.h"
#include "eps_server/jobs/job_board.h"
#include "prometheus/metric_family.h"

namespace eps {

// The facts about a server process that its status does not have. Plain value.
struct ProcessFacts {
  bool insecure = false;                   // other machines can connect, and without TLS
  uint64_t denied = 0;                     // calls that the role of the caller did not allow
  std::optional<int64_t> certificate_end;  // in seconds since 1970
  // By folder: storage.path and storage.drives.
  std::map<std::string, uint64_t> disk_free_bytes;
  BoardCounts board;
};

// Converts a status to metrics in base units. Labels name the job and the shard, never a stage, a
// chunk or a step, so that their number is bounded. Every status of a job yields the same families
// in the same order.
std::vector<prometheus::MetricFamily> MetricsOf(const v1::StatusReply& status,
                                                const ProcessFacts& process);

}  // namespace eps

#endif  // EPS_SERVER_RPC_HTTP_METRICS_H_
