#ifndef EPS_SERVER_SERVER_H_
#define EPS_SERVER_SERVER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "eps_server/rpc/role_guard.h"
#include "storage/backends/durable_storage.h"

namespace eps {

// How to run a server. The keys servers.* and storage.* of docs/reference/config.md set these.
struct ServerOptions {
  std::string listen = "127.0.0.1:0";       // HOST:PORT; port 0 picks a free one
  std::string http;                         // HOST:PORT of probes and metrics; empty disables
  int threads = 0;                          // that reduce, update and encode; 0 uses all cores
  uint64_t memory_limit_bytes = 0;          // 0 uses the memory that is available at the start
  bool insecure = false;                    // allow addresses beyond this machine without TLS
  TokenRules tokens;                        // with TLS only
  uint64_t connection_age_ms = 86'400'000;  // with TLS: its peer then connects again; 0: never
  std::vector<std::string> peers;           // servers to connect to; empty: loopback addresses only
  size_t max_connections = 4096;            // at a time; fewer if the process may open few files
  uint64_t part_timeout_ms = 60'000;        // an eager job ends if a part is gone for longer
  uint64_t push_timeout_ms = 30'000;        // from the credit of a gradient to its last byte
  uint64_t gate_timeout_ms = 30'000;    // a gate that lapses ends so long after its last request
  uint64_t unread_timeout_ms = 60'000;  // a client that reads nothing for longer is disconnected
  // Segments that workers of this machine map: of weights, and for each worker's gradients; if one
  // is 0, nothing is shared. The folder of the socket; empty: DefaultShmFolder.
  uint64_t shm_weights_bytes = 0;
  uint64_t shm_gradients_bytes = 0;
  std::string shm_folder;
  uint64_t worker_lease_ms = 10'000;              // a lease ends so long after the last Beat
  std::optional<uint64_t> worker_close_grace_ms;  // nullopt: see CoreLimits
  uint64_t worker_stuck_ms = 600'000;     // the most time of a stage on a worker; 0 sets no limit
  std::string trace;                      // folder for protocol traces; empty disables
  uint32_t jit_depth = 1;                 // stages quantized ahead of their first fetch
  std::optional<StorageOptions> storage;  // nullopt keeps state in memory only
  uint64_t cut_steps = 0;                 // steps between cuts; see CoreLimits
  uint64_t cut_ms = 0;                    // time between cuts; see CoreLimits
  uint64_t drain_timeout_ms = 25'000;     // the most time of a drain; 0 disables it
  uint64_t scrub_bytes_per_second = 0;    // rate at which cuts are checked; see CoreLimits
  std::function<void()> end_process;      // ends it as SIGTERM does; null: DrainServer is refused
};

// A parameter server: serves this process's shard of one job over gRPC, and the board of jobs,
// which options.storage makes durable. Its health service reports "eps.live" (the process responds)
// and "eps.ready" (it accepts work); "" is "eps.ready". Thread-safe.
//
// Beside memory_limit_bytes, the transports hold at most a quarter of it, between 64 and 512 MiB,
// in received and unsent messages. Above that, gRPC ends calls with RESOURCE_EXHAUSTED.
class Server {
 public:
  // Returns a server that already listens. Returns InvalidArgument for a bad address,
  // PermissionDenied for one beyond this machine without `insecure`, errors of RoleGuard::Create,
  // and Unavailable if the port is taken; these errors name the configuration key. With
  // options.storage, also returns errors from opening the storage or from reopening the job that it
  // served before.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options);
  // Calls Shutdown with no grace period.
  ~Server();

  int port() const;
  // "HOST:PORT" with the actual port.
  const std::string& address() const;

  // Reports "not ready" from now on and refuses new jobs and joins with UNAVAILABLE. Keeps
  // answering other calls. Calls `drained` once, with the reason, when the process loses nothing
  // more by its end (docs/durability.md, "A server that is stopped"); perhaps never, perhaps before
  // Drain returns, and on any thread. Call it once.
  void Drain(std::function<void(const std::string& why)> drained);
  // Returns whether the server has a job that has not reached its last step.
  bool HasUnfinishedJob() const;
  // Logs what the job waits for, soon after it returns.
  void LogWaits();
  // Reports "not ready", ends all streams, and returns once every call has ended. Cancels calls
  // that are still open after `grace`. A second call returns at once, even if the first has not
  // finished.
  void Shutdown(std::chrono::milliseconds grace);
  // Waits until Shutdown has finished. Returns false if `timeout` expires first.
  bool WaitForTermination(std::chrono::milliseconds timeout);

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Runs a server until SIGTERM or SIGINT, as `eps serve` does, and returns the exit code of the
// process: 143 or 130 if its job is unfinished, else 0. Prints the line "eps serve: listening on
// HOST:PORT" to stdout. After SIGTERM it drains for at most options.drain_timeout_ms; a second
// signal ends that. The next one ends the process at once. Errors go to stderr. Call it from main()
// before starting other threads, because it blocks both signals in its own thread and in all
// threads that start from it: a signal would end the process in any other thread. `prepare`, unless
// it is null, is called after that, and may start threads.
int RunServer(ServerOptions options, const std::function<absl::Status()>& prepare);

}  // namespace eps

#endif  // EPS_SERVER_SERVER_H_
