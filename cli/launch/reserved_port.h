#ifndef EPS_CLI_LAUNCH_RESERVED_PORT_H_
#define EPS_CLI_LAUNCH_RESERVED_PORT_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "base/descriptor.h"

namespace eps {

// A TCP port of 127.0.0.1 that is taken as long as the object lives: nobody is given it who asks
// for any port, be it to listen or as the near end of a connection. Who binds it by its number with
// SO_REUSEADDR, as gRPC's servers do, can listen there. So a server that was killed comes back to
// its address, whatever else the machine connects meanwhile.
//
// It is a bound socket that does not listen: Linux keeps such a port out of every automatic choice
// and lets a second socket listen on it if both have SO_REUSEADDR (socket(7), ip(7)).
// Child processes do not inherit it. Thread-compatible.
class ReservedPort {
 public:
  // ResourceExhausted with the system's reason if there is none.
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
