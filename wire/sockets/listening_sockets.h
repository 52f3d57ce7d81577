#ifndef EPS_WIRE_SOCKETS_LISTENING_SOCKETS_H_
#define EPS_WIRE_SOCKETS_LISTENING_SOCKETS_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/descriptor.h"

namespace eps {

// Sockets that listen on every address of a host, on one port.
struct ListeningSockets {
  std::vector<Descriptor> sockets;  // at least one; they do not block
  int port = 0;
};

// Listens on "HOST:PORT"; port 0 picks a free one. Leaves out addresses of the host that this
// machine lacks. `prepare`, unless it is null, may set options of each socket before it listens;
// connections inherit them. Unavailable if the host has no address here or the port is taken.
absl::StatusOr<ListeningSockets> ListenOn(const std::string& address,
                                          const std::function<void(int fd)>& prepare);

}  // namespace eps

#endif  // EPS_WIRE_SOCKETS_LISTENING_SOCKETS_H_
