#include "eps_server/rpc/http/status_endpoint.h"

#include <chrono>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "wire/http/metric_families.h"

namespace eps {
namespace {

constexpr std::chrono::seconds kPatience(2);
constexpr int kUnavailable = 503;
constexpr int kNotFound = 404;

// The status that a scrape waits for. Shared with the callback, which may outlive the scrape.
struct Reply {
  Mutex mu;
  CondVar changed;
  std::optional<v1::StatusReply> status EPS_GUARDED_BY(mu);
};

}  // namespace

absl::StatusOr<std::unique_ptr<StatusEndpoint>> StatusEndpoint::Start(const std::string& listen,
                                                                      Ask ask, Facts facts) {
  std::unique_ptr<StatusEndpoint> endpoint(new StatusEndpoint(std::move(ask), std::move(facts)));
  absl::StatusOr<std::unique_ptr<HttpServer>> http = HttpServer::Start(
      listen,
      [server = endpoint.get()](const HttpRequest& request) { return server->Answer(request); });
  if (!http.ok()) {
    return absl::UnavailableError(absl::StrCat("cannot serve HTTP on ", listen, ": ",
                                               std::string(http.status().message()),
                                               "; change servers.http"));
  }
  endpoint->http_ = *std::move(http);
  return endpoint;
}

HttpAnswer StatusEndpoint::Answer(const HttpRequest& request) const {
  if (request.path == "/healthz") return {200, "ok\n"};
  const bool starting = phase_.load() == Phase::kStarting;
  const bool probe = request.path == "/startupz" || request.path == "/readyz";
  if (!probe && request.path != "/metrics") {
    return {kNotFound, "this server has /metrics, /healthz, /startupz and /readyz\n"};
  }
  if (starting) return {kUnavailable, "the server is starting\n"};
  if (!probe) return Scrape();
  if (request.path == "/readyz" && phase_.load() == Phase::kStopping) {
    return {kUnavailable, "the server is stopping\n"};
  }
  return {200, "ok\n"};
}

HttpAnswer StatusEndpoint::Scrape() const {
  const auto reply = std::make_shared<Reply>();
  ask_([reply](v1::StatusReply status) {
    MutexLock lock(&reply->mu);
    reply->status = std::move(status);
    reply->changed.NotifyAll();
  });
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  MutexLock lock(&reply->mu);
  while (!reply->status.has_value()) {
    if (!reply->changed.WaitUntil(&reply->mu, deadline)) break;
  }
  if (!reply->status.has_value()) return {kUnavailable, "the job does not answer\n"};
  return {200, MetricsText(MetricsOf(*reply->status, facts_())), kMetricsType};
}

}  // namespace eps
