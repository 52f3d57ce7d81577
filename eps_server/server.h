#ifndef EPS_SERVER_SERVER_H_
#define EPS_SERVER_SERVER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/backends/durable_storage.h"

namespace eps {

struct ServerOptions {
  std::string listen = "127.0.0.1:0";  // HOST:PORT, port 0: any free one
  std::string metrics;                 // HOST:PORT of GET /metrics; empty: none
  int threads = 0;                    // of the pool that reduces, updates and encodes; 0: all cores
  uint64_t memory_limit_bytes = 0;    // 0: what the machine has available now
  bool insecure = false;              // allows to listen beyond this machine without TLS
  uint64_t part_timeout_ms = 60'000;  // a part gone for longer ends an eager job
  std::string trace;                  // folder for what the protocol does; empty: none
  uint32_t jit_depth = 1;             // stages quantized ahead of their first fetch
  std::optional<StorageOptions> storage;  // nullopt: state in memory, nothing is durable
  uint64_t cut_steps = 0;                 // of durable storage, as the next; see CoreLimits
  uint64_t scrub_bytes_per_second = 0;
};

// A parameter server: one process's share of one job behind gRPC, with the health service
// (eps.live, eps.ready and "", which is eps.ready). Thread-safe.
class Server {
 public:
  // Listens when it returns. InvalidArgument for a bad address, PermissionDenied for one beyond
  // this machine without `insecure`, Unavailable if a port is taken; errors name the key.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options);
  // As Shutdown with a short deadline.
  ~Server();

  int port() const;
  // "HOST:PORT" with the port that was taken.
  const std::string& address() const;

  // Not ready from now on; refuses new steps and jobs with UNAVAILABLE. Keeps answering the rest.
  void Drain();
  // Drains, ends all streams, and returns when every call has ended, at the latest shortly after
  // `grace` (calls that are open then are cancelled). May be called twice.
  void Shutdown(std::chrono::milliseconds grace);
  // Waits until Shutdown has ended. False: not within `timeout`.
  bool WaitForTermination(std::chrono::milliseconds timeout);

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Runs a server until SIGTERM or SIGINT, as `eps serve` does. Prints one line
// "eps serve: listening on HOST:PORT" to stdout and then calls `ready` (may be null). SIGTERM
// drains and returns 0; SIGINT does the same and returns 130; a second signal ends the process at
// once. Errors go to stderr; the result is the process's exit code. To be called by main(), before
// there are other threads: signals are blocked in all threads that it starts.
int RunServer(const ServerOptions& options, const std::function<void(const Server&)>& ready);

}  // namespace eps

#endif  // EPS_SERVER_SERVER_H_
