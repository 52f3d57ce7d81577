#include "wire/sockets/listening_sockets.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "wire/channel.h"

namespace eps {
namespace {

constexpr int kMorePorts = 10;  // free ones that are tried, if the first one serves not everywhere

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// Returns the error of a system call: NotFound if this machine lacks an address that the host name
// has, else Unavailable.
absl::Status LastError(const char* call) {
  const int error = errno;
  const std::string text = absl::StrCat(call, ": ", std::strerror(error));
  const bool lacks = error == EADDRNOTAVAIL || error == EAFNOSUPPORT;
  return lacks ? absl::NotFoundError(text) : absl::UnavailableError(text);
}

// Splits "HOST:PORT" and drops the brackets of an IPv6 address.
std::pair<std::string, std::string> HostAndPort(const std::string& address) {
  const size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (!host.empty() && host.front() == '[') host = host.substr(1, host.size() - 2);
  return {host, address.substr(colon + 1)};
}

// Returns the addresses of a host name, without repetitions.
absl::StatusOr<std::vector<std::string>> Resolve(const std::string& host, const std::string& port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &list);
  if (error != 0) return absl::UnavailableError(absl::StrCat(host, ": ", gai_strerror(error)));
  const Addresses owner(list, &freeaddrinfo);
  std::vector<std::string> found;
  for (const addrinfo* a = list; a != nullptr; a = a->ai_next) {
    std::string bytes(reinterpret_cast<const char*>(a->ai_addr), a->ai_addrlen);
    bool known = false;
    for (const std::string& other : found) known = known || other == bytes;
    if (!known) found.push_back(std::move(bytes));
  }
  return found;
}

bool SetOption(const Descriptor& fd, int level, int name, int value) {
  return setsockopt(fd.get(), level, name, &value, sizeof(value)) == 0;
}

// Listens on one address, and writes the port into `*address`.
absl::StatusOr<Descriptor> ListenOnOne(std::string* address,
                                       const std::function<void(int fd)>& prepare) {
  auto* const where = reinterpret_cast<sockaddr*>(address->data());
  auto size = static_cast<socklen_t>(address->size());
  Descriptor fd(socket(where->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.ok()) return LastError("socket");
  // A wildcard IPv6 address takes connections over IPv4, too.
  if (where->sa_family == AF_INET6) SetOption(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (!SetOption(fd, SOL_SOCKET, SO_REUSEADDR, 1) || !SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1) ||
      !SetOption(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, kKeepAliveTimeoutMs)) {
    return LastError("setsockopt");
  }
  if (prepare != nullptr) prepare(fd.get());
  if (bind(fd.get(), where, size) != 0) return LastError("bind");
  if (listen(fd.get(), SOMAXCONN) != 0) return LastError("listen");
  if (getsockname(fd.get(), where, &size) != 0) return LastError("getsockname");
  return fd;
}

uint16_t* PortOf(std::string* address) {
  auto* const where = reinterpret_cast<sockaddr*>(address->data());
  return where->sa_family == AF_INET6 ? &reinterpret_cast<sockaddr_in6*>(where)->sin6_port
                                      : &reinterpret_cast<sockaddr_in*>(where)->sin_port;
}

// Listens on all of `found`. Port 0 means one free port for all of them: that of the first one,
// which another one may lack.
absl::StatusOr<ListeningSockets> ListenOnAll(std::vector<std::string> found,
                                             const std::function<void(int fd)>& prepare) {
  ListeningSockets result;
  absl::Status missing = absl::UnavailableError("the host has no address");
  for (std::string& where : found) {
    if (*PortOf(&where) == 0) *PortOf(&where) = htons(static_cast<uint16_t>(result.port));
    absl::StatusOr<Descriptor> listener = ListenOnOne(&where, prepare);
    if (absl::IsNotFound(listener.status())) {
      missing = absl::UnavailableError(listener.status().message());
      continue;
    }
    if (!listener.ok()) return listener.status();
    result.sockets.push_back(*std::move(listener));
    result.port = ntohs(*PortOf(&where));
  }
  if (result.sockets.empty()) return missing;
  return result;
}

}  // namespace

absl::StatusOr<ListeningSockets> ListenOn(const std::string& address,
                                          const std::function<void(int fd)>& prepare) {
  const auto [host, port] = HostAndPort(address);
  EPS_ASSIGN_OR_RETURN(const std::vector<std::string> found, Resolve(host, port));
  absl::StatusOr<ListeningSockets> result = ListenOnAll(found, prepare);
  // Another program may have the first one's port at another address.
  for (int i = 0; i < kMorePorts && !result.ok() && port == "0"; ++i) {
    result = ListenOnAll(found, prepare);
  }
  return result;
}

}  // namespace eps
