#include "wire/acceptor.h"

#include <poll.h>
#include <sys/eventfd.h>
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
#include "wire/held_socket.h"
#include "wire/sockets/listening_sockets.h"

namespace eps {
namespace {

constexpr int kPollMs = 60'000;
// How long connections wait in the kernel when the process can open no further file.
constexpr int kStarvedPauseMs = 100;
// Connections that are accepted before the thread looks whether it has to stop.
constexpr int kAcceptsInARow = 64;
// How often the thread looks at arrivals: at those that wait for their client, and at the others.
constexpr int kArrivalPollMs = 1000;
constexpr int kShortPollMs = 1;

// HTTP/2: the first bytes of a client, the header of a frame, and the settings of the acceptor.
constexpr absl::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr size_t kFrameHeaderBytes = 9;
constexpr uint8_t kHeadersFrame = 1;
constexpr uint8_t kSettingsFrame = 4;
constexpr uint8_t kAck = 1;
constexpr uint8_t kMaxConcurrentStreams = 3;
constexpr uint8_t kInitialWindowSize = 4;
// clang-format off
constexpr uint8_t kGreeting[] = {
    0, 0, 12, kSettingsFrame, 0, 0, 0, 0, 0,
    0, kMaxConcurrentStreams, 0, 0, 0, kMaxStreamsPerConnection,
    0, kInitialWindowSize, 0, 0, 0, 0};
// clang-format on
// A client sends less than this before the acknowledgement.
constexpr size_t kMaxGreetingBytes = 4096;
// A client may send this much before gRPC has sent its settings: also the headers of calls, about
// 200 bytes each. The kernel takes about twice as much.
constexpr size_t kMaxEarlyBytes = 16 << 10;

constexpr char kTooMuch[] = "its client sent too much before the server's settings";

}  // namespace

std::optional<bool> AcknowledgesSettings(absl::string_view bytes) {
  const size_t common = std::min(bytes.size(), kPreface.size());
  if (bytes.substr(0, common) != kPreface.substr(0, common)) return false;
  size_t at = kPreface.size();
  int calls = 0;
  while (at + kFrameHeaderBytes <= bytes.size()) {
    const auto* const head = reinterpret_cast<const uint8_t*>(bytes.data()) + at;
    if (head[3] == kSettingsFrame && (head[4] & kAck) != 0) return true;
    if (head[3] == kHeadersFrame && ++calls > kMaxStreamsPerConnection) return false;
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

absl::StatusOr<std::unique_ptr<Acceptor>> Acceptor::Listen(const std::string& address, size_t most,
                                                           bool tls) {
  EPS_ASSIGN_OR_RETURN(ListeningSockets listening, ListenOn(address, [tls](int fd) {
                         if (!tls) LimitUnread(fd, kMaxEarlyBytes);
                       }));
  Descriptor wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.ok()) return absl::UnavailableError(absl::StrCat("eventfd: ", std::strerror(errno)));
  std::unique_ptr<Acceptor> acceptor(new Acceptor(most, tls, std::move(wake)));
  acceptor->listeners_ = std::move(listening.sockets);
  acceptor->port_ = listening.port;
  return acceptor;
}

Acceptor::~Acceptor() { Stop(); }

void Acceptor::Start(std::unique_ptr<Connections> server) {
  server_ = std::move(server);
  giver_ = std::make_unique<ThreadPool>(1);
  thread_ = std::thread([this] { Run(); });
}

void Acceptor::Stop() {
  if (!thread_.joinable()) return;
  stops_.store(true);
  Wake();
  thread_.join();
  giver_.reset();
  listeners_.clear();
}

void Acceptor::Wake() {
  const uint64_t one = 1;
  while (write(wake_.get(), &one, sizeof(one)) < 0 && errno == EINTR) {
  }
}

void Acceptor::Run() {
  std::vector<pollfd> files = {{wake_.get(), POLLIN, 0}};
  for (const Descriptor& listener : listeners_) files.push_back({listener.get(), POLLIN, 0});
  const size_t fixed = files.size();
  while (!stops_.load()) {
    files.resize(fixed);
    for (const Arrival& arrival : arrivals_) {
      const bool reads = arrival.state == Arrival::kGreeted;
      files.push_back({reads ? arrival.fd : -1, POLLIN | POLLRDHUP, 0});
    }
    if (poll(files.data(), files.size(), Patience()) < 0) continue;
    uint64_t woken = 0;
    if (files[0].revents != 0 && read(wake_.get(), &woken, sizeof(woken)) < 0) continue;
    std::vector<Arrival> remaining;
    for (size_t i = 0; i < arrivals_.size(); ++i) {
      if (!Advance(&arrivals_[i], files[fixed + i].revents)) remaining.push_back(arrivals_[i]);
    }
    arrivals_.swap(remaining);
    GiveNext();
    bool starved = false;
    for (size_t i = 1; i < fixed; ++i) {
      if (files[i].revents != 0 && !AcceptSome(files[i].fd)) starved = true;
    }
    if (starved) poll(files.data(), 1, kStarvedPauseMs);
  }
  for (Arrival& arrival : arrivals_) {
    if (!arrival.in_use()) {
      close(arrival.fd);
    } else if (arrival.state == Arrival::kGiven) {
      CheckUse(&arrival, /*late=*/true);
    }
  }
}

bool Acceptor::AcceptSome(int listener) {
  for (int i = 0; i < kAcceptsInARow; ++i) {
    const int fd = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM;
    const auto now = OpenSockets::Clock::now();
    if (!open_.Add(fd, now)) {
      Refuse(fd, "as many as may be are open");
    } else if (tls_) {
      Give(fd, listener);
    } else if (send(fd, kGreeting, sizeof(kGreeting), MSG_NOSIGNAL) != sizeof(kGreeting)) {
      close(fd);
    } else {
      arrivals_.push_back({fd, listener, now});
    }
  }
  return true;
}

bool Acceptor::Advance(Arrival* arrival, int16_t events) {
  const bool late = OpenSockets::Clock::now() - arrival->since >= kGreetingTimeout;
  switch (arrival->state) {
    case Arrival::kGreeted:
      return ReadGreeting(arrival, events, late);
    case Arrival::kAcknowledged:
      return false;
    case Arrival::kGiven:
      return CheckUse(arrival, late);
    case Arrival::kExpelled:
      return late || !open_.Holds(arrival->fd);
  }
  return true;
}

bool Acceptor::ReadGreeting(Arrival* arrival, int16_t events, bool late) {
  const int fd = arrival->fd;
  std::optional<bool> acknowledged;
  if (events != 0) {
    char bytes[kMaxGreetingBytes];
    const ssize_t got = recv(fd, bytes, sizeof(bytes), MSG_PEEK | MSG_DONTWAIT);
    acknowledged = got > 0 ? AcknowledgesSettings({bytes, static_cast<size_t>(got)}) : false;
    const bool over = (events & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
    if (!acknowledged.has_value() && over) acknowledged = false;
    if (!acknowledged.has_value()) ReadableAt(fd, static_cast<size_t>(got) + 1);
  }
  if (acknowledged == true) arrival->state = Arrival::kAcknowledged;
  if (acknowledged.value_or(!late)) return false;
  close(fd);
  return true;
}

void Acceptor::GiveNext() {
  for (const Arrival& arrival : arrivals_) {
    if (arrival.in_use()) return;
  }
  for (auto next = arrivals_.begin(); next != arrivals_.end();) {
    if (next->state != Arrival::kAcknowledged) {
      ++next;
    } else if (!HoldBack(next->fd, kMaxEarlyBytes)) {
      Refuse(next->fd, kTooMuch);
      next = arrivals_.erase(next);
    } else {
      next->state = Arrival::kGiven;
      next->since = OpenSockets::Clock::now();
      return Give(next->fd, next->listener);
    }
  }
}

void Acceptor::Give(int fd, int listener) {
  giver_->Post([this, fd, listener] {
    Connections::NewConnectionParameters connection;
    connection.listener_fd = listener;
    connection.fd = fd;
    server_->HandleNewConnection(&connection);
    Wake();
  });
}

bool Acceptor::CheckUse(Arrival* arrival, bool late) {
  if (!open_.Holds(arrival->fd)) return true;
  const SocketUse use = UseOf(arrival->fd, sizeof(kGreeting));
  if (use == SocketUse::kNone && !late) return false;
  if (use == SocketUse::kWrote) {
    LetIn(arrival->fd);
    return true;
  }
  shutdown(arrival->fd, SHUT_RDWR);
  CountRefusal(use == SocketUse::kNone ? "the server did not take it in time" : kTooMuch);
  arrival->state = Arrival::kExpelled;
  arrival->since = OpenSockets::Clock::now();
  return false;
}

int Acceptor::Patience() const {
  int patience = kPollMs;
  for (const Arrival& arrival : arrivals_) {
    const bool waits_for_client = arrival.state == Arrival::kGreeted;
    patience = std::min(patience, waits_for_client ? kArrivalPollMs : kShortPollMs);
  }
  return patience;
}

void Acceptor::Refuse(int fd, absl::string_view why) {
  close(fd);
  CountRefusal(why);
}

void Acceptor::CountRefusal(absl::string_view why) {
  ++refused_;
  // A storm must not fill the log.
  if ((refused_ & (refused_ - 1)) != 0) return;
  EPS_LOG_WARN("connections refused so far: " << refused_ << "; the last one: " << why << "; "
                                              << open_.size() << " are open");
}

}  // namespace eps
