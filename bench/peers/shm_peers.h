#ifndef EPS_BENCH_PEERS_SHM_PEERS_H_
#define EPS_BENCH_PEERS_SHM_PEERS_H_

// The two processes of shm_bench: they move payloads over the product's streams, in messages or in
// shared memory. The bytes are those of FillPattern.

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/peers/transport_server.h"

namespace eps {

// Serves until the process ends; returns an exit code if it cannot. Writes its HelloReply with its
// port to `out`. `folder` is that of the socket.
int ServeShmPeers(const TransportLoad& load, const std::string& folder, int out);

// Fetches and pushes all payloads, several at a time. For one thread.
class ShmWorker {
 public:
  // Reads what the server writes to `in`, and connects.
  static absl::StatusOr<std::unique_ptr<ShmWorker>> Connect(const TransportLoad& load, int in);
  virtual ~ShmWorker() = default;

  // Fetches all payloads and checks their CRCs, and with `compare` every byte.
  virtual absl::Status Fetch(bool shared, bool compare) = 0;
  // Pushes all payloads with their CRCs, which the server checks; with `compare`, every byte.
  virtual absl::Status Push(bool shared, bool compare) = 0;
};

}  // namespace eps

#endif  // EPS_BENCH_PEERS_SHM_PEERS_H_
