#include "cli/launch/reserved_port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace eps {

absl::StatusOr<ReservedPort> ReservedPort::Take() {
  Descriptor fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const address = reinterpret_cast<sockaddr*>(&where);
  socklen_t size = sizeof(where);
  const int on = 1;
  if (!fd.ok() || setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      bind(fd.get(), address, size) != 0 || getsockname(fd.get(), address, &size) != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no port of 127.0.0.1 for a server: ", std::strerror(errno)));
  }
  return ReservedPort(std::move(fd), absl::StrCat("127.0.0.1:", ntohs(where.sin_port)));
}

}  // namespace eps
