#ifndef EPS_CLI_LAUNCH_RESERVED_PORT_H_
#define EPS_CLI_LAUNCH_RESERVED_PORT_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "base/descriptor.h"

namespace eps {

// A TCP port of 127.0.0.1 that the kernel assigns to no other socket while the object lives:
// neither to a listener nor to the local end of a connection. A process that binds this port with
// SO_REUSEADDR, as gRPC's servers do, can listen on it, so a killed server can restart at its
// address no matter which connections the machine opens meanwhile.
//
// It holds a bound socket that does not listen. Linux never chooses such a port automatically, and
// lets a second socket listen on it if both have SO_REUSEADDR (socket(7), ip(7)).
// Child processes do not inherit it. Thread-compatible.
class ReservedPort {
 public:
  // Reserves a free port. ResourceExhausted, with the system's reason, if there is none.
  static absl::StatusOr<ReservedPort> Take();

  const std::string& address() const { return address_; }  // 127.0.0.1:PORT

 private:
  ReservedPort(Descriptor socket, std::string address)
      : socket_(std::move(socket)), address_(std::move(address)) {}

  Descriptor socket_;
  std::string address_;
};

}  // namespace eps

#endif  // EPS_CLI_LAUNCH_RESERVED_PORT_H_
