#ifndef EPS_BENCH_PEERS_TRANSPORT_CLIENT_H_
#define EPS_BENCH_PEERS_TRANSPORT_CLIENT_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/peers/transport_server.h"

namespace eps {

// Fetches the whole load over one transport, repeatedly over the same connection. The bytes end up
// in the caller's memory, wherever the transport received them. Thread-compatible.
class TransportClient {
 public:
  virtual ~TransportClient() = default;
  // Returns DeadlineExceeded if the load does not arrive within a minute. `out` has room for the
  // load.
  virtual absl::Status Fetch(uint8_t* out) = 0;
};

// The product's chunk stream: ByteStream, the stream of the worker's fetches, with at most 8
// requests in flight, one chunk each; slices are split as ShardFetcher splits them.
std::unique_ptr<TransportClient> NewChunkStreamClient(const TransportLoad& load, int port);
// The same slices as protobuf messages: one server stream for all, read by generated code.
std::unique_ptr<TransportClient> NewProtobufStreamClient(const TransportLoad& load, int port,
                                                         Settings settings);
// The same slices as protobuf messages, one call per slice, sequentially.
std::unique_ptr<TransportClient> NewUnaryClient(const TransportLoad& load, int port,
                                                Settings settings);
// A blocking socket. Like the other transports, it copies received bytes to their place; with
// `in_place` it receives them there directly, which no message transport can do.
absl::StatusOr<std::unique_ptr<TransportClient>> NewTcpClient(const TransportLoad& load, int port,
                                                              bool in_place);

}  // namespace eps

#endif  // EPS_BENCH_PEERS_TRANSPORT_CLIENT_H_
