#ifndef EPS_SERVER_RPC_TESTING_RAW_CONNECTION_H_
#define EPS_SERVER_RPC_TESTING_RAW_CONNECTION_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "base/descriptor.h"

namespace eps {

// A connection to a server on loopback that speaks as much HTTP/2 as a stranger needs to begin
// calls, and reads nothing unless asked. For tests only. Thread-compatible.
class RawConnection {
 public:
  // When it acknowledges the server's settings: after they have arrived, before that, or never.
  enum class Ack { kOnTime, kEarly, kNever };

  // Connects, sends the preface and acknowledges the settings.
  RawConnection(const std::string& address, Ack ack);

  // Begins a call of "/package.Service/Method" and leaves it open. Returns false if the server has
  // closed the connection.
  bool BeginCall(const std::string& method);
  // Begins a call and sends its only request, a serialized message.
  bool BeginCallWith(const std::string& method, const std::string& message);
  // Returns whether the server closes the connection before `timeout`. Drops what it sends.
  bool IsClosedWithin(std::chrono::milliseconds timeout);

 private:
  bool Send(const std::string& bytes);

  Descriptor fd_;
  uint32_t next_stream_ = 1;
};

}  // namespace eps

#endif  // EPS_SERVER_RPC_TESTING_RAW_CONNECTION_H_
