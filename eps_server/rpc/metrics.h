#ifndef EPS_SERVER_RPC_METRICS_H_
#define EPS_SERVER_RPC_METRICS_H_

// Serves the metrics of a server at GET /metrics in Prometheus' text format. They are listed in
// docs/reference/metrics.md.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "eps/v1/control.pb.h"
#include "prometheus/exposer.h"
#include "prometheus/metric_family.h"

namespace eps {

// Converts a status to metrics in base units. Labels name the job and the shard, never a stage, a
// chunk or a step, so that their number is bounded. Every status of a job yields the same families
// in the same order.
std::vector<prometheus::MetricFamily> MetricsOf(const v1::StatusReply& status);

// An HTTP server for scrapes, on threads of its own. Thread-safe.
class MetricsEndpoint {
 public:
  // Delivers the current status once, possibly later and on any thread.
  using Ask = std::function<void(std::function<void(v1::StatusReply)>)>;

  // Listens on "HOST:PORT"; port 0 picks a free one. Calls `ask` for each scrape until the endpoint
  // is destroyed; a scrape that receives no status within two seconds reports no metrics of ours.
  // Returns Unavailable if the port is taken.
  static absl::StatusOr<std::unique_ptr<MetricsEndpoint>> Start(const std::string& listen, Ask ask);

  // "HOST:PORT" with the actual port.
  const std::string& address() const { return address_; }

 private:
  MetricsEndpoint() = default;

  std::string address_;
  std::shared_ptr<prometheus::Collectable> status_;
  std::unique_ptr<prometheus::Exposer> exposer_;  // declared last, so destroyed first
};

}  // namespace eps

#endif  // EPS_SERVER_RPC_METRICS_H_
