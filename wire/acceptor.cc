#include "wire/acceptor.h"

#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
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
// How often the thread looks at arrivals: at their deadlines, or whether gRPC has written.
constexpr int kArrivalPollMs = 1000;
constexpr int kGivenPollMs = 1;

// HTTP/2: the first bytes of a client, the header of a frame, and the settings of the acceptor.
constexpr absl::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr size_t kFrameHeaderBytes = 9;
constexpr uint8_t kSettingsFrame = 4;
constexpr uint8_t kAck = 1;
constexpr uint8_t kMaxConcurrentStreams = 3;
constexpr char kGreeting[] = {
    0, 0, 6, kSettingsFrame,          0, 0, 0, 0, 0, 0, kMaxConcurrentStreams,
    0, 0, 0, kMaxStreamsPerConnection};
// A client sends less than this before the acknowledgement.
constexpr size_t kMaxGreetingBytes = 4096;
// Bytes that the kernel holds back while gRPC has not written; more than a socket receives
// meanwhile.
constexpr int kHeldBytes = 2 << 20;
constexpr int kUseAttempts = 10;

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

// Makes a socket readable when it has received `bytes`.
void ReadableAt(int fd, int bytes) {
  setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof(bytes));
}

// The use that gRPC has made of a socket on which the greeting was sent.
enum class Use { kNothing, kWrote, kReadFirst };

// Returns kWrote as well if the socket is broken, or the system does not count bytes.
Use UseOf(int fd) {
  for (int attempt = 0; attempt < kUseAttempts; ++attempt) {
    tcp_info before = {};
    tcp_info after = {};
    socklen_t size = sizeof(before);
    int waiting = 0;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &before, &size) != 0) return Use::kWrote;
    if (ioctl(fd, FIONREAD, &waiting) != 0) return Use::kWrote;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &after, &size) != 0) return Use::kWrote;
    if (before.tcpi_bytes_received != after.tcpi_bytes_received) continue;
    const uint64_t sent = after.tcpi_bytes_sent - after.tcpi_bytes_retrans;
    const bool was_read = after.tcpi_bytes_received > static_cast<uint64_t>(waiting);
    if (was_read && sent != 0) return Use::kReadFirst;
    return sent == sizeof(kGreeting) ? Use::kNothing : Use::kWrote;
  }
  return Use::kNothing;
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

std::optional<bool> AcknowledgesSettings(absl::string_view bytes) {
  const size_t common = std::min(bytes.size(), kPreface.size());
  if (bytes.substr(0, common) != kPreface.substr(0, common)) return false;
  size_t at = kPreface.size();
  while (at + kFrameHeaderBytes <= bytes.size()) {
    const auto* const head = reinterpret_cast<const uint8_t*>(bytes.data()) + at;
    if (head[3] == kSettingsFrame && (head[4] & kAck) != 0) return true;
    at += kFrameHeaderBytes + (size_t{head[0]} << 16 | size_t{head[1]} << 8 | head[2]);
  }
  if (bytes.size() >= kMaxGreetingBytes) return false;
  return std::nullopt;
}

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

bool OpenSockets::Holds(int fd) const {
  struct stat info;
  const auto it = inodes_.find(fd);
  return it != inodes_.end() && fstat(fd, &info) == 0 && info.st_ino == it->second;
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
  const size_t fixed = files.size();
  while (true) {
    files.resize(fixed);
    for (const Arrival& arrival : arrivals_) {
      files.push_back({arrival.given ? -1 : arrival.fd, POLLIN | POLLRDHUP, 0});
    }
    if (poll(files.data(), files.size(), Patience()) < 0) continue;
    if (files[0].revents != 0) break;
    std::vector<Arrival> remaining;
    for (size_t i = 0; i < arrivals_.size(); ++i) {
      if (!Advance(&arrivals_[i], files[fixed + i].revents)) remaining.push_back(arrivals_[i]);
    }
    arrivals_.swap(remaining);
    bool starved = false;
    for (size_t i = 1; i < fixed; ++i) {
      if (files[i].revents != 0 && !AcceptSome(files[i].fd)) starved = true;
    }
    if (starved && poll(files.data(), 1, kStarvedPauseMs) > 0) break;
  }
  for (const Arrival& arrival : arrivals_) {
    if (!arrival.given) close(arrival.fd);
  }
}

bool Acceptor::AcceptSome(int listener) {
  for (int i = 0; i < kAcceptsInARow; ++i) {
    const int fd = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM;
    const auto now = OpenSockets::Clock::now();
    if (!open_.Add(fd, now)) {
      Refuse(fd);
    } else if (send(fd, kGreeting, sizeof(kGreeting), MSG_NOSIGNAL) != sizeof(kGreeting)) {
      close(fd);
    } else {
      arrivals_.push_back({fd, listener, now});
    }
  }
  return true;
}

bool Acceptor::Advance(Arrival* arrival, int16_t events) {
  const int fd = arrival->fd;
  const bool late = OpenSockets::Clock::now() - arrival->since >= kGreetingTimeout;
  if (arrival->given) {
    if (!open_.Holds(fd)) return true;
    const Use use = UseOf(fd);
    if (use == Use::kNothing && !late) return false;
    if (use == Use::kWrote) {
      ReadableAt(fd, 1);
    } else {
      EPS_LOG_WARN("a connection is closed: the client did not wait for the settings");
      shutdown(fd, SHUT_RDWR);  // the client sent more than the kernel holds, or gRPC is stuck
    }
    return true;
  }
  std::optional<bool> acknowledged;
  if (events != 0) {
    char bytes[kMaxGreetingBytes];
    const ssize_t got = recv(fd, bytes, sizeof(bytes), MSG_PEEK | MSG_DONTWAIT);
    acknowledged = got > 0 ? AcknowledgesSettings({bytes, static_cast<size_t>(got)}) : false;
    const bool over = (events & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
    if (!acknowledged.has_value() && over) acknowledged = false;
    if (!acknowledged.has_value()) ReadableAt(fd, static_cast<int>(got) + 1);
  }
  if (!acknowledged.value_or(!late)) {
    close(fd);
    return true;
  }
  if (!acknowledged.has_value()) return false;
  ReadableAt(fd, kHeldBytes);
  arrival->given = true;
  Connections::NewConnectionParameters connection;
  connection.listener_fd = arrival->listener;
  connection.fd = fd;
  server_->HandleNewConnection(&connection);
  return Advance(arrival, 0);
}

int Acceptor::Patience() const {
  int patience = kPollMs;
  for (const Arrival& arrival : arrivals_) {
    patience = std::min(patience, arrival.given ? kGivenPollMs : kArrivalPollMs);
  }
  return patience;
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
