#ifndef EPS_WORKER_CLIENT_BYTE_STREAM_H_
#define EPS_WORKER_CLIENT_BYTE_STREAM_H_

#include <functional>
#include <memory>
#include <string>

#include "grpcpp/channel.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/status.h"

namespace eps {

// One bidirectional call of unparsed messages, so that payloads never pass through protobuf.
// Thread-safe. The call keeps itself alive until `on_done`, which comes exactly once, last, and on
// a gRPC thread; messages come one at a time, in order, on gRPC threads. Neither callback may
// block.
class ByteStream {
 public:
  using OnMessage = std::function<void(const grpc::ByteBuffer&)>;
  using OnDone = std::function<void(const grpc::Status&)>;

  // `method` is the full name, "/eps.v1.Data/Fetch".
  static std::shared_ptr<ByteStream> Open(const std::shared_ptr<grpc::Channel>& channel,
                                          const std::string& method, OnMessage on_message,
                                          OnDone on_done);
  virtual ~ByteStream() = default;

  // Queues a message behind those before it; dropped once the call is broken.
  virtual void Write(grpc::ByteBuffer message) = 0;
  // Ends the call; `on_done` still comes.
  virtual void Cancel() = 0;
};

}  // namespace eps

#endif  // EPS_WORKER_CLIENT_BYTE_STREAM_H_
