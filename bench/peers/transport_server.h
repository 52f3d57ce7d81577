#ifndef EPS_BENCH_PEERS_TRANSPORT_SERVER_H_
#define EPS_BENCH_PEERS_TRANSPORT_SERVER_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

namespace eps {

// What is sent: `total_bytes` in chunks of `chunk_bytes`, each in slices of kMaxSliceBytes
// (wire/payload_message.h). Both sides know it.
struct TransportLoad {
  size_t total_bytes = 0;
  size_t chunk_bytes = 0;

  uint32_t chunks() const {
    return static_cast<uint32_t>((total_bytes + chunk_bytes - 1) / chunk_bytes);
  }
};

// The bytes that every transport has to deliver: any shift, swap or repetition of 8 bytes shows.
void FillPattern(uint8_t* data, size_t bytes);
// Offset of the first of `bytes` that is not the pattern's; `bytes` if all are.
size_t FirstDifference(const uint8_t* data, size_t bytes);

// Whose settings a process runs with: the product's for channels, servers and malloc, or those that
// a program has which sets nothing.
enum class Settings { kProduct, kPlain };

// Sends the pattern from memory over protobuf messages and generated code; with the product's
// settings also over the product's chunk stream (StreamCall, the stream state machine of
// eps-server) and over a TCP socket. Listens on free loopback ports until destroyed.
class TransportServer {
 public:
  static absl::StatusOr<std::unique_ptr<TransportServer>> Start(const TransportLoad& load,
                                                                Settings settings);
  virtual ~TransportServer() = default;

  // 0: not there.
  struct Ports {
    int protobuf = 0;
    int chunks = 0;
    int tcp = 0;
  };
  virtual Ports ports() const = 0;
};

}  // namespace eps

#endif  // EPS_BENCH_PEERS_TRANSPORT_SERVER_H_
