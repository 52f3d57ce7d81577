#include "wire/acceptor.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "wire/channel.h"

namespace eps {
namespace {

constexpr int kPollMs = 60'000;
// How long connections wait in the kernel when the process can open no further file.
constexpr int kStarvedPauseMs = 100;
// Connections that are accepted before the thread looks whether it has to stop.
constexpr int kAcceptsInARow = 64;

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

// Listens on one address. Connections inherit the options. Writes the port into `*address`.
absl::StatusOr<Descriptor> ListenOn(std::string* address) {
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

}  // namespace

bool OpenSockets::Add(int fd, Clock::time_point now) {
  struct stat info;
  if (inodes_.size() >= most_ && inodes_.count(fd) == 0) {
    if (now < next_check_) return false;
    next_check_ = now + kPause;
    for (auto it = inodes_.begin(); it != inodes_.end();) {
      const bool open = fstat(it->first, &info) == 0 && info.st_ino == it->second;
      it = open ? std::next(it) : inodes_.erase(it);
    }
    if (inodes_.size() >= most_) return false;
  }
  if (fstat(fd, &info) != 0) return false;
  inodes_[fd] = info.st_ino;
  return true;
}

absl::StatusOr<std::unique_ptr<Acceptor>> Acceptor::Listen(const std::string& address,
                                                           size_t most) {
  const auto [host, port] = HostAndPort(address);
  EPS_ASSIGN_OR_RETURN(std::vector<std::string> found, Resolve(host, port));
  Descriptor wake(eventfd(0, EFD_CLOEXEC));
  if (!wake.ok()) return LastError("eventfd");
  std::unique_ptr<Acceptor> acceptor(new Acceptor(most, std::move(wake)));
  absl::Status missing = absl::UnavailableError("the host has no address");
  for (std::string& where : found) {
    // Port 0 means one free port for all addresses.
    if (*PortOf(&where) == 0) *PortOf(&where) = htons(static_cast<uint16_t>(acceptor->port_));
    absl::StatusOr<Descriptor> listener = ListenOn(&where);
    if (absl::IsNotFound(listener.status())) {
      missing = absl::UnavailableError(listener.status().message());
      continue;
    }
    if (!listener.ok()) return listener.status();
    acceptor->listeners_.push_back(*std::move(listener));
    acceptor->port_ = ntohs(*PortOf(&where));
  }
  if (acceptor->listeners_.empty()) return missing;
  return acceptor;
}

Acceptor::~Acceptor() { Stop(); }

void Acceptor::Start(std::unique_ptr<Connections> server) {
  server_ = std::move(server);
  thread_ = std::thread([this] { Run(); });
}

void Acceptor::Stop() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  while (write(wake_.get(), &one, sizeof(one)) < 0 && errno == EINTR) {
  }
  thread_.join();
  listeners_.clear();
}

void Acceptor::Run() {
  std::vector<pollfd> files = {{wake_.get(), POLLIN, 0}};
  for (const Descriptor& listener : listeners_) files.push_back({listener.get(), POLLIN, 0});
  while (true) {
    const int ready = poll(files.data(), files.size(), kPollMs);
    if (ready <= 0) continue;
    if (files[0].revents != 0) return;
    bool starved = false;
    for (size_t i = 1; i < files.size(); ++i) {
      if (files[i].revents != 0 && !AcceptSome(files[i].fd)) starved = true;
    }
    if (starved && poll(files.data(), 1, kStarvedPauseMs) > 0) return;
  }
}

bool Acceptor::AcceptSome(int listener) {
  for (int i = 0; i < kAcceptsInARow; ++i) {
    const int fd = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM;
    if (!open_.Add(fd, OpenSockets::Clock::now())) {
      Refuse(fd);
      continue;
    }
    Connections::NewConnectionParameters connection;
    connection.listener_fd = listener;
    connection.fd = fd;
    server_->HandleNewConnection(&connection);
  }
  return true;
}

void Acceptor::Refuse(int fd) {
  close(fd);
  ++refused_;
  // A storm must not fill the log.
  if ((refused_ & (refused_ - 1)) != 0) return;
  EPS_LOG_WARN("connections refused so far: " << refused_ << "; " << open_.size()
                                              << " are open, the most that may be");
}

}  // namespace eps
