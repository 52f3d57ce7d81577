#ifndef EPS_BENCH_PEERS_TRANSPORT_SERVER_H_
#define EPS_BENCH_PEERS_TRANSPORT_SERVER_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

namespace eps {

// The load that is sent: `total_bytes` in chunks of `chunk_bytes`, each in slices of kMaxSliceBytes
// (wire/payload_message.h). Both sides know it.
struct TransportLoad {
  size_t total_bytes = 0;
  size_t chunk_bytes = 0;

  uint32_t chunks() const {
    return static_cast<uint32_t>((total_bytes + chunk_bytes - 1) / chunk_bytes);
  }
};

// Writes the bytes that every transport must deliver: any shift, swap or repetition of 8 bytes
// shows.
void FillPattern(uint8_t* data, size_t bytes);
// Returns the offset of the first byte that differs from the pattern, or `bytes` if none does.
size_t FirstDifference(const uint8_t* data, size_t bytes);

// The settings of a process for channels, servers and malloc: the product's, or the defaults.
enum class Settings { kProduct, kPlain };

// Sends the pattern from memory over protobuf messages and generated code. With the product's
// settings it also serves the product's chunk stream (StreamCall, the stream state machine of
// eps-server) and a TCP socket. Listens on free loopback ports until destroyed.
class TransportServer {
 public:
  static absl::StatusOr<std::unique_ptr<TransportServer>> Start(const TransportLoad& load,
                                                                Settings settings);
  virtual ~TransportServer() = default;

  // A port of 0 is not served.
  struct Ports {
    int protobuf = 0;
    int chunks = 0;
    int tcp = 0;
  };
  virtual Ports ports() const = 0;
};

}  // namespace eps

#endif  // EPS_BENCH_PEERS_TRANSPORT_SERVER_H_
