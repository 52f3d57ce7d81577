#include "wire/held_socket.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cstdint>

namespace eps {
namespace {

constexpr int kUseAttempts = 10;
// Values of SO_BUF_LOCK: whether the kernel may enlarge the buffer of what has arrived.
constexpr int kUnlocked = 0;
constexpr int kLocked = SOCK_RCVBUF_LOCK;
// The bytes that a socket may hold unread from LetIn on; the kernel enlarges that as needed.
constexpr size_t kUnreadBytes = 2 << 20;

bool SetOption(int fd, int level, int name, int value) {
  return setsockopt(fd, level, name, &value, sizeof(value)) == 0;
}

}  // namespace

void LimitUnread(int listener, size_t bytes) {
  // SO_RCVBUF forbids the kernel to enlarge the buffer, and limits the window of TCP for good.
  const auto permit_growth = [listener] {
    return SetOption(listener, SOL_SOCKET, SO_BUF_LOCK, kUnlocked);
  };
  if (!permit_growth()) return;
  SetOption(listener, SOL_SOCKET, SO_RCVBUF, static_cast<int>(bytes));
  permit_growth();
}

void ReadableAt(int fd, size_t bytes) {
  SetOption(fd, SOL_SOCKET, SO_RCVLOWAT, static_cast<int>(bytes));
}

bool HoldBack(int fd, size_t bytes) {
  // Otherwise the kernel enlarges the buffer with every read that is too early.
  SetOption(fd, SOL_SOCKET, SO_BUF_LOCK, kLocked);
  // So that the peer does not answer before LetIn, and a read before that is one too early.
  SetOption(fd, IPPROTO_TCP, TCP_CORK, 1);
  ReadableAt(fd, bytes);
  pollfd readable = {fd, POLLIN, 0};
  return poll(&readable, 1, 0) == 0;
}

void LetIn(int fd) {
  SetOption(fd, SOL_SOCKET, SO_BUF_LOCK, kUnlocked);
  ReadableAt(fd, kUnreadBytes);  // makes the buffer twice as large
  ReadableAt(fd, 1);
  SetOption(fd, IPPROTO_TCP, TCP_CORK, 0);
}

SocketUse UseOf(int fd, size_t greeting) {
  for (int attempt = 0; attempt < kUseAttempts; ++attempt) {
    tcp_info before = {};
    tcp_info after = {};
    socklen_t size = sizeof(before);
    int waiting = 0;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &before, &size) != 0) return SocketUse::kWrote;
    if (ioctl(fd, FIONREAD, &waiting) != 0) return SocketUse::kWrote;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &after, &size) != 0) return SocketUse::kWrote;
    const uint64_t sent = after.tcpi_bytes_sent - after.tcpi_bytes_retrans;
    if (sent == 0) return SocketUse::kWrote;
    // More may arrive between the calls, and does while a peer sends as fast as the owner reads.
    if (before.tcpi_bytes_received > static_cast<uint64_t>(waiting)) return SocketUse::kReadFirst;
    if (before.tcpi_bytes_received != after.tcpi_bytes_received) continue;
    return sent + after.tcpi_notsent_bytes > greeting ? SocketUse::kWrote : SocketUse::kNone;
  }
  return SocketUse::kNone;
}

}  // namespace eps
