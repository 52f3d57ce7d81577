#ifndef EPS_WORKER_HTTP_WORKER_METRICS_H_
#define EPS_WORKER_HTTP_WORKER_METRICS_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/ids.h"
#include "base/memory_account.h"
#include "base/mutex.h"
#include "prometheus/metric_family.h"
#include "wire/http/http_server.h"
#include "worker/client/parameter_client.h"
#include "worker/relay/relay.h"
#include "worker/relay/stage_program.h"

namespace eps {

// The figures of a worker for Prometheus (docs/reference/metrics.md). Counters run from the start
// of the process, over all jobs and all times that it joins. Thread-safe.
class WorkerMetrics {
 public:
  // The worker has joined a job, with a new client.
  void OnJoined(size_t parts) EPS_EXCLUDES(mu_);
  // It computes for no job any more.
  void OnLeft() EPS_EXCLUDES(mu_);
  // A step is complete. `stats` are those of the client since it joined.
  void OnStep(Step step, const LossSum& loss, const StepTiming& timing, const ClientStats& stats,
              const DeviceMemory& device, const MemoryAccount& host) EPS_EXCLUDES(mu_);

  bool joined() const EPS_EXCLUDES(mu_);
  std::vector<prometheus::MetricFamily> Collect() const EPS_EXCLUDES(mu_);

 private:
  // The sums over steps. Plain value.
  struct Sums {
    double steps = 0;
    double tokens = 0;
    StepTiming timing;
  };

  mutable Mutex mu_;
  bool joined_ EPS_GUARDED_BY(mu_) = false;
  size_t parts_ EPS_GUARDED_BY(mu_) = 0;
  Step last_step_ EPS_GUARDED_BY(mu_){0};
  Sums sums_ EPS_GUARDED_BY(mu_);
  ClientStats former_ EPS_GUARDED_BY(mu_);   // sums of the clients before this one
  ClientStats present_ EPS_GUARDED_BY(mu_);  // of this client
  DeviceMemory device_ EPS_GUARDED_BY(mu_);
  uint64_t host_peak_bytes_ EPS_GUARDED_BY(mu_) = 0;
  uint64_t stash_peak_bytes_ EPS_GUARDED_BY(mu_) = 0;
};

// Answers GET /healthz (the process responds), /readyz (it has joined a job) and /metrics at
// "HOST:PORT". `metrics` must outlive the server. InvalidArgument and Unavailable name worker.http.
absl::StatusOr<std::unique_ptr<HttpServer>> ServeWorkerMetrics(const std::string& listen,
                                                               const WorkerMetrics* metrics);

}  // namespace eps

#endif  // EPS_WORKER_HTTP_WORKER_METRICS_H_
