#ifndef EPS_WORKER_CLIENT_BYTE_STREAM_H_
#define EPS_WORKER_CLIENT_BYTE_STREAM_H_

#include <functional>
#include <memory>
#include <string>

#include "grpcpp/channel.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/status.h"

namespace eps {

// A bidirectional call of unparsed messages, so that payloads bypass protobuf. Thread-safe. The
// call keeps itself alive until `on_done`, which runs exactly once, after all messages. Messages
// arrive one at a time and in order. Both callbacks run on gRPC threads and must not block.
class ByteStream {
 public:
  using OnMessage = std::function<void(const grpc::ByteBuffer&)>;
  using OnDone = std::function<void(const grpc::Status&)>;

  // `method` is the full name, "/eps.v1.Data/Fetch".
  static std::shared_ptr<ByteStream> Open(const std::shared_ptr<grpc::Channel>& channel,
                                          const std::string& method, OnMessage on_message,
                                          OnDone on_done);
  virtual ~ByteStream() = default;

  // Queues a message after earlier ones; drops it if the call is broken.
  virtual void Write(grpc::ByteBuffer message) = 0;
  // Ends the call; `on_done` still runs.
  virtual void Cancel() = 0;
};

}  // namespace eps

#endif  // EPS_WORKER_CLIENT_BYTE_STREAM_H_
