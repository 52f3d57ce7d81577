#ifndef EPS_SERVER_RPC_HTTP_METRICS_H_
#define EPS_SERVER_RPC_HTTP_METRICS_H_

// The metrics of a server for Prometheus. They are listed in docs/reference/metrics.md.

#include <string>
#include <vector>

#include "eps/v1/control.pb.h"
#include "prometheus/metric_family.h"

namespace eps {

// Converts a status to metrics in base units. Labels name the job and the shard, never a stage, a
// chunk or a step, so that their number is bounded. Every status of a job yields the same families
// in the same order.
std::vector<prometheus::MetricFamily> MetricsOf(const v1::StatusReply& status);

// Writes them in Prometheus' text format 0.0.4.
std::string MetricsText(const std::vector<prometheus::MetricFamily>& families);

}  // namespace eps

#endif  // EPS_SERVER_RPC_HTTP_METRICS_H_
