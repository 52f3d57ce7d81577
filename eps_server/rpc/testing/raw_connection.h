#ifndef EPS_SERVER_RPC_TESTING_RAW_CONNECTION_H_
#define EPS_SERVER_RPC_TESTING_RAW_CONNECTION_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/descriptor.h"

namespace eps {

// A connection to a server on loopback that speaks as much HTTP/2 as a stranger needs to begin
// calls and messages, and reads nothing unless asked. For tests only. Thread-compatible.
class RawConnection {
 public:
  // When it acknowledges the server's settings: after they have arrived, before that, or never.
  enum class Ack { kOnTime, kEarly, kNever };

  // Connects, sends the preface and acknowledges the settings.
  RawConnection(const std::string& address, Ack ack);

  // Begins a call of "/package.Service/Method" and leaves it open. Returns false if the server has
  // closed the connection.
  bool BeginCall(const std::string& method);
  // Begins up to `calls` calls, as many as the kernel takes at once.
  void BeginCalls(int calls, const std::string& method);
  // Begins a call and sends its only request, a serialized message.
  bool BeginCallWith(const std::string& method, const std::string& message);
  // Begins a call whose request has `size` bytes, and sends the first `bytes` of them when the
  // server permits it. Reads the server's frames, and acknowledges its settings. Call it at most
  // once. Returns false if the server ends the call or permits no more for `patience`.
  bool SendPart(const std::string& method, size_t size, size_t bytes,
                std::chrono::milliseconds patience);
  // Returns whether the server closes the connection before `timeout`. Drops what it sends.
  bool IsClosedWithin(std::chrono::milliseconds timeout);

 private:
  bool Send(const std::string& bytes);
  // Returns the frame that begins the next call.
  std::string NextCall(const std::string& method);
  // Reads one frame. Returns false if it ends the call, or none comes in time.
  bool ReadFrame(std::chrono::milliseconds patience);

  Descriptor fd_;
  uint32_t next_stream_ = 1;
  // The bytes that the server permits to send: of the connection, and of its only call.
  int64_t connection_window_ = 65535;
  int64_t call_window_ = 65535;
  int64_t initial_window_ = 65535;
};

}  // namespace eps

#endif  // EPS_SERVER_RPC_TESTING_RAW_CONNECTION_H_
