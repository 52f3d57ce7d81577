#ifndef EPS_WIRE_HTTP_HTTP_SERVER_H_
#define EPS_WIRE_HTTP_HTTP_SERVER_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

struct MHD_Daemon;

namespace eps {

// A GET or HEAD request.
struct HttpRequest {
  std::string path;                          // decoded; begins with "/"
  std::map<std::string, std::string> query;  // decoded; "a" and "" of "?a"
  std::string host;                          // the header Host; empty without one
};

// The answer to a request. Plain value.
struct HttpAnswer {
  int code = 200;
  std::string body;
  std::string type = "text/plain; charset=utf-8";
  std::vector<std::pair<std::string, std::string>> headers{};  // further ones
};

// An HTTP/1.1 server without TLS that only answers questions: GET and HEAD, no bodies. A thing for
// probes, scrapes and pages, not for data. It parses with GNU libmicrohttpd. Answers may not be
// cached, and browsers take their types literally. Thread-safe.
class HttpServer {
 public:
  // The most connections at a time, each with a thread; later ones wait. A connection ends when its
  // client is silent for kIdleSeconds, and holds 32 KiB of a request.
  static constexpr int kMaxConnections = 32;
  static constexpr int kIdleSeconds = 10;

  // Runs on a thread of the connection, and may block.
  using Handler = std::function<HttpAnswer(const HttpRequest&)>;

  // Listens on "HOST:PORT"; port 0 picks a free one. Unavailable as ListenOn.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& listen,
                                                           Handler handler);
  // Waits until the handler has returned everywhere.
  ~HttpServer();

  // "HOST:PORT" with the actual port.
  const std::string& address() const { return address_; }

 private:
  friend struct HttpCalls;

  explicit HttpServer(Handler handler) : handler_(std::move(handler)) {}

  const Handler handler_;
  std::string address_;
  std::vector<MHD_Daemon*> daemons_;  // one for each socket
};

}  // namespace eps

#endif  // EPS_WIRE_HTTP_HTTP_SERVER_H_
