#include "eps_server/rpc/testing/relay_port.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <iterator>
#include <utility>

#include "base/check.h"

namespace eps {
namespace {

constexpr int kPollMs = 60'000;
constexpr size_t kBufferBytes = 64 << 10;

sockaddr_in Loopback(int port) {
  sockaddr_in where = {};
  where.sin_family = AF_INET;
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  where.sin_port = htons(static_cast<uint16_t>(port));
  return where;
}

// Forwards what has arrived. Returns false at the end of the stream.
bool Forward(int from, int to) {
  std::string buffer(kBufferBytes, '\0');
  const ssize_t got = recv(from, buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (got <= 0) return false;
  for (ssize_t sent = 0; sent < got;) {
    const ssize_t some =
        send(to, buffer.data() + sent, static_cast<size_t>(got - sent), MSG_NOSIGNAL);
    if (some <= 0) return false;
    sent += some;
  }
  return true;
}

}  // namespace

RelayPort::RelayPort(const std::string& target)
    : target_port_(std::stoi(target.substr(target.rfind(':') + 1))),
      listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  sockaddr_in where = Loopback(0);
  socklen_t size = sizeof(where);
  auto* const address = reinterpret_cast<sockaddr*>(&where);
  EPS_CHECK(bind(listener_.get(), address, size) == 0 && listen(listener_.get(), 64) == 0 &&
            getsockname(listener_.get(), address, &size) == 0);
  address_ = "127.0.0.1:" + std::to_string(ntohs(where.sin_port));
  thread_ = std::thread([this] { Run(); });
}

RelayPort::~RelayPort() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  Wake();
  thread_.join();
}

void RelayPort::Wake() {
  const uint64_t one = 1;
  EPS_CHECK(write(wake_.get(), &one, sizeof(one)) == sizeof(one));
}

void RelayPort::Break() {
  MutexLock lock(&mu_);
  for (const auto& pair : pairs_) {
    for (const Descriptor& end : pair->ends) shutdown(end.get(), SHUT_RDWR);
  }
  Wake();  // with the lock, so that the thread does not use a list that it has not polled
}

void RelayPort::Silence() {
  MutexLock lock(&mu_);
  for (auto& pair : pairs_) silent_.push_back(std::move(pair));
  pairs_.clear();
  Wake();
}

void RelayPort::AcceptOne() {
  auto pair = std::make_unique<Pair>();
  pair->ends[0] = Descriptor(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  pair->ends[1] = Descriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in where = Loopback(target_port_);
  const bool connected =
      connect(pair->ends[1].get(), reinterpret_cast<const sockaddr*>(&where), sizeof(where)) == 0;
  if (connected) pairs_.push_back(std::move(pair));
}

void RelayPort::Run() {
  while (true) {
    std::vector<pollfd> files = {{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    {
      MutexLock lock(&mu_);
      if (stopping_) return;
      for (const auto& pair : pairs_) {
        for (const Descriptor& end : pair->ends) files.push_back({end.get(), POLLIN, 0});
      }
    }
    poll(files.data(), files.size(), kPollMs);
    uint64_t woken = 0;
    MutexLock lock(&mu_);
    // The list of connections may have changed; the next round polls the new one.
    if (read(wake_.get(), &woken, sizeof(woken)) > 0) {
      for (auto it = pairs_.begin(); it != pairs_.end();) {
        const bool broken = recv((*it)->ends[0].get(), &woken, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
        it = broken ? pairs_.erase(it) : std::next(it);
      }
      continue;
    }
    for (size_t i = 0, file = 2; i < pairs_.size(); ++i, file += 2) {
      bool open = true;
      for (int end = 0; end < 2 && open; ++end) {
        if (files[file + static_cast<size_t>(end)].revents == 0) continue;
        open = Forward(pairs_[i]->ends[end].get(), pairs_[i]->ends[1 - end].get());
      }
      if (!open) pairs_[i].reset();
    }
    for (auto it = pairs_.begin(); it != pairs_.end();) {
      it = *it == nullptr ? pairs_.erase(it) : std::next(it);
    }
    if (files[1].revents != 0) AcceptOne();
  }
}

}  // namespace eps
