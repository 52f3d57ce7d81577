#include "wire/http/http_server.h"

#include <microhttpd.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/descriptor.h"
#include "base/status_macros.h"
#include "wire/sockets/listening_sockets.h"

namespace eps {
namespace {

constexpr size_t kMaxRequestBytes = 32 << 10;
constexpr unsigned kMode = MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION |
                           MHD_USE_POLL | MHD_USE_ITC;  // ITC: a stop wakes the thread

MHD_Result AddToQuery(void* query, MHD_ValueKind, const char* key, const char* value_or_null) {
  (*static_cast<std::map<std::string, std::string>*>(query))[key] =
      value_or_null == nullptr ? "" : value_or_null;
  return MHD_YES;
}

MHD_Result Send(MHD_Connection* connection, const HttpAnswer& answer) {
  MHD_Response* const response = MHD_create_response_from_buffer(
      answer.body.size(), const_cast<char*>(answer.body.data()), MHD_RESPMEM_MUST_COPY);
  if (response == nullptr) return MHD_NO;  // no memory: the connection ends
  MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, answer.type.c_str());
  MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
  MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
  for (const auto& [name, value] : answer.headers) {
    MHD_add_response_header(response, name.c_str(), value.c_str());
  }
  const MHD_Result sent = MHD_queue_response(connection, answer.code, response);
  MHD_destroy_response(response);
  return sent;
}

}  // namespace

// The function that libmicrohttpd calls.
struct HttpCalls {
  // Called when the header of a request has arrived, then for each piece of its body, then at its
  // end. `seen` is null at first.
  static MHD_Result Answer(void* server, MHD_Connection* connection, const char* path,
                           const char* method_text, const char*, const char*, size_t* body_bytes,
                           void** seen) {
    static char marker;
    const std::string method = method_text;
    if (method != MHD_HTTP_METHOD_GET && method != MHD_HTTP_METHOD_HEAD) {
      return Send(connection, {MHD_HTTP_METHOD_NOT_ALLOWED,
                               "GET and HEAD only\n",
                               HttpAnswer().type,
                               {{MHD_HTTP_HEADER_ALLOW, "GET, HEAD"}}});
    }
    if (*seen == nullptr) {
      *seen = &marker;
      return MHD_YES;
    }
    if (*body_bytes != 0) return MHD_NO;  // ends the connection
    HttpRequest request;
    request.path = path;
    MHD_get_connection_values(connection, MHD_GET_ARGUMENT_KIND, &AddToQuery, &request.query);
    const char* const host =
        MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_HOST);
    if (host != nullptr) request.host = host;
    return Send(connection, static_cast<HttpServer*>(server)->handler_(request));
  }
};

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& listen,
                                                              Handler handler) {
  EPS_ASSIGN_OR_RETURN(ListeningSockets listening, ListenOn(listen, /*prepare=*/nullptr));
  std::unique_ptr<HttpServer> server(new HttpServer(std::move(handler)));
  server->address_ = absl::StrCat(listen.substr(0, listen.rfind(':')), ":", listening.port);
  for (Descriptor& socket : listening.sockets) {
    MHD_Daemon* const daemon =
        MHD_start_daemon(kMode, /*port=*/0, nullptr, nullptr, &HttpCalls::Answer, server.get(),
                         MHD_OPTION_LISTEN_SOCKET, socket.get(), MHD_OPTION_CONNECTION_LIMIT,
                         unsigned{kMaxConnections}, MHD_OPTION_CONNECTION_TIMEOUT,
                         unsigned{kIdleSeconds}, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                         kMaxRequestBytes, MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_END);
    if (daemon == nullptr) return absl::UnavailableError("the HTTP server could not start");
    socket.Release();  // the daemon closes it
    server->daemons_.push_back(daemon);
  }
  return server;
}

HttpServer::~HttpServer() {
  for (MHD_Daemon* daemon : daemons_) MHD_stop_daemon(daemon);
}

}  // namespace eps
