#ifndef EPS_SERVER_RPC_HTTP_STATUS_ENDPOINT_H_
#define EPS_SERVER_RPC_HTTP_STATUS_ENDPOINT_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "eps/v1/control.pb.h"
#include "eps_server/rpc/http/metrics.h"
#include "wire/http/http_server.h"

namespace eps {

// Answers those who look after a server process over HTTP: probes at /healthz (the process
// responds), /startupz (it listens) and /readyz (it accepts work), and Prometheus at /metrics. A
// probe is answered with 200, or with 503 and the reason, and depends neither on jobs nor on other
// servers. Thread-safe.
class StatusEndpoint {
 public:
  enum class Phase { kStarting, kReady, kStopping };
  // Delivers the current status once, possibly later and on any thread.
  using Ask = std::function<void(std::function<void(v1::StatusReply)>)>;

  // Returns the rest of what a scrape tells, at once and on any thread.
  using Facts = std::function<ProcessFacts()>;

  // Listens on "HOST:PORT"; port 0 picks a free one. Calls both for each scrape after kStarting
  // until the endpoint is destroyed; a scrape that receives no status within two seconds is
  // answered with 503. Returns Unavailable if the port is taken.
  static absl::StatusOr<std::unique_ptr<StatusEndpoint>> Start(const std::string& listen, Ask ask,
                                                               Facts facts);

  // Sets the phase, which is kStarting at first.
  void SetPhase(Phase phase) { phase_.store(phase); }
  // "HOST:PORT" with the actual port.
  const std::string& address() const { return http_->address(); }

 private:
  StatusEndpoint(Ask ask, Facts facts) : ask_(std::move(ask)), facts_(std::move(facts)) {}
  HttpAnswer Answer(const HttpRequest& request) const;
  HttpAnswer Scrape() const;

  const Ask ask_;
  const Facts facts_;
  std::atomic<Phase> phase_{Phase::kStarting};
  std::unique_ptr<HttpServer> http_;  // declared last, so destroyed first
};

}  // namespace eps

#endif  // EPS_SERVER_RPC_HTTP_STATUS_ENDPOINT_H_
