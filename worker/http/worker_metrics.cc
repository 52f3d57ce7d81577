#include "worker/http/worker_metrics.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "wire/channel.h"
#include "wire/http/metric_families.h"

namespace eps {
namespace {

constexpr int kUnavailable = 503;
constexpr int kNotFound = 404;

}  // namespace

void WorkerMetrics::OnJoined(size_t parts) {
  MutexLock lock(&mu_);
  joined_ = true;
  parts_ = parts;
  former_.fetched_bytes += present_.fetched_bytes;
  former_.pushed_bytes += present_.pushed_bytes;
  former_.reconnects += present_.reconnects;
  present_ = ClientStats();
}

void WorkerMetrics::OnLeft() {
  MutexLock lock(&mu_);
  joined_ = false;
  parts_ = 0;
}

void WorkerMetrics::OnStep(Step step, const LossSum& loss, const StepTiming& timing,
                           const ClientStats& stats, const DeviceMemory& device,
                           const MemoryAccount& host) {
  MutexLock lock(&mu_);
  last_step_ = step;
  sums_.steps += 1;
  sums_.tokens += static_cast<double>(loss.tokens);
  sums_.timing.begin_wait_seconds += timing.begin_wait_seconds;
  sums_.timing.forward_seconds += timing.forward_seconds;
  sums_.timing.backward_seconds += timing.backward_seconds;
  sums_.timing.fetch_wait_seconds += timing.fetch_wait_seconds;
  sums_.timing.push_wait_seconds += timing.push_wait_seconds;
  present_ = stats;
  device_ = device;
  host_peak_bytes_ = host.peak_bytes();
  stash_peak_bytes_ = host.peak_bytes(MemoryKind::kStash);
}

bool WorkerMetrics::joined() const {
  MutexLock lock(&mu_);
  return joined_;
}

std::vector<prometheus::MetricFamily> WorkerMetrics::Collect() const {
  MutexLock lock(&mu_);
  MetricFamilies all({});
  all.Gauge("eps_worker_joined", "1 while the worker computes for a job.", joined_ ? 1 : 0);
  all.Gauge("eps_worker_parts", "Parts that it holds.", static_cast<double>(parts_));
  all.Gauge("eps_worker_step", "Step that it completed last.",
            static_cast<double>(last_step_.value()));
  all.Counter("eps_worker_steps_total", "Steps completed.", sums_.steps);
  all.Counter("eps_worker_tokens_total", "Tokens that counted in the loss.", sums_.tokens);
  all.Add("eps_worker_seconds_total", "Time of these steps, by phase.",
          prometheus::MetricType::Counter);
  all.Value(sums_.timing.begin_wait_seconds, "phase", "begin_wait");
  all.Value(sums_.timing.forward_seconds, "phase", "forward");
  all.Value(sums_.timing.backward_seconds, "phase", "backward");
  all.Value(sums_.timing.fetch_wait_seconds, "phase", "fetch_wait");
  all.Value(sums_.timing.push_wait_seconds, "phase", "push_wait");
  all.Counter("eps_worker_fetched_bytes_total", "Bytes of encoded weights received.",
              static_cast<double>(former_.fetched_bytes + present_.fetched_bytes));
  all.Counter("eps_worker_pushed_bytes_total", "Bytes of encoded gradients sent.",
              static_cast<double>(former_.pushed_bytes + present_.pushed_bytes));
  all.Counter("eps_worker_reconnects_total", "Connections opened again.",
              static_cast<double>(former_.reconnects + present_.reconnects));
  all.Gauge("eps_worker_device_bytes", "Device memory in use after the last step.",
            static_cast<double>(device_.live_bytes));
  all.Gauge("eps_worker_device_peak_bytes", "Peak of the device memory.",
            static_cast<double>(device_.peak_bytes));
  all.Gauge("eps_worker_host_peak_bytes", "Peak of the charged host memory.",
            static_cast<double>(host_peak_bytes_));
  all.Gauge("eps_worker_stash_peak_bytes", "Peak of the stage inputs among it.",
            static_cast<double>(stash_peak_bytes_));
  return all.Take();
}

absl::StatusOr<std::unique_ptr<HttpServer>> ServeWorkerMetrics(const std::string& listen,
                                                               const WorkerMetrics* metrics) {
  const absl::Status valid = CheckAddress(listen, /*allow_any_port=*/true);
  if (!valid.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("worker.http: ", std::string(valid.message())));
  }
  auto http = HttpServer::Start(listen, [metrics](const HttpRequest& request) -> HttpAnswer {
    if (request.path == "/healthz") return {200, "ok\n"};
    if (request.path == "/metrics") return {200, MetricsText(metrics->Collect()), kMetricsType};
    if (request.path != "/readyz") {
      return {kNotFound, "this worker has /metrics, /healthz and /readyz\n"};
    }
    if (metrics->joined()) return {200, "ok\n"};
    return {kUnavailable, "the worker computes for no job\n"};
  });
  if (http.ok()) return http;
  return absl::UnavailableError(absl::StrCat(
      "worker.http: cannot serve HTTP on ", listen, ": ", std::string(http.status().message()),
      "; choose another address, or port 0 for several workers of one machine"));
}

}  // namespace eps
