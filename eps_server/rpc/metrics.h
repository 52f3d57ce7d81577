#ifndef EPS_SERVER_RPC_METRICS_H_
#define EPS_SERVER_RPC_METRICS_H_

// A server's figures for Prometheus: GET /metrics, in its text format (docs/reference/metrics.md).

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "eps/v1/control.pb.h"
#include "prometheus/exposer.h"
#include "prometheus/metric_family.h"

namespace eps {

// What a status says, as metrics: base units, labels that name the job and the shard, none that
// names a stage, a chunk or a step. Every family comes with every status of a job, in the same
// order.
std::vector<prometheus::MetricFamily> MetricsOf(const v1::StatusReply& status);

// Thread-safe.
class MetricsEndpoint {
 public:
  // Hands over the status of now, sooner or later, on any thread.
  using Ask = std::function<void(std::function<void(v1::StatusReply)>)>;

  // Listens on "HOST:PORT", port 0: any free one. A scrape waits for a status, at most two seconds.
  // `ask` is called until the endpoint has ended. Unavailable if the port is taken.
  static absl::StatusOr<std::unique_ptr<MetricsEndpoint>> Start(const std::string& listen, Ask ask);

  // "HOST:PORT" with the port that was taken.
  const std::string& address() const { return address_; }

 private:
  MetricsEndpoint() = default;

  std::string address_;
  std::shared_ptr<prometheus::Collectable> status_;
  std::unique_ptr<prometheus::Exposer> exposer_;  // ends first
};

}  // namespace eps

#endif  // EPS_SERVER_RPC_METRICS_H_
