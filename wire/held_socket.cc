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
// The bytes that a socket may receive unread: a start for the kernel's own choice.
constexpr size_t kReceiveBytes = 2 << 20;

}  // namespace

bool SetSocketOption(int fd, int level, int name, int value) {
  return setsockopt(fd, level, name, &value, sizeof(value)) == 0;
}

void LimitUnread(int listener, size_t bytes) {
  // SO_RCVBUF also forbids the kernel to grow the buffer, and limits the window for good.
  const auto permit_growth = [listener] {
    return SetSocketOption(listener, SOL_SOCKET, SO_BUF_LOCK, 0);
  };
  if (!permit_growth()) return;
  SetSocketOption(listener, SOL_SOCKET, SO_RCVBUF, static_cast<int>(bytes));
  permit_growth();
}

void ReadableAt(int fd, size_t bytes) {
  SetSocketOption(fd, SOL_SOCKET, SO_RCVLOWAT, static_cast<int>(bytes));
}

bool Hold(int fd, size_t bytes) {
  SetSocketOption(fd, IPPROTO_TCP, TCP_CORK, 1);
  ReadableAt(fd, bytes);
  pollfd readable = {fd, POLLIN, 0};
  return poll(&readable, 1, 0) == 0;
}

void LetOut(int fd) { SetSocketOption(fd, IPPROTO_TCP, TCP_CORK, 0); }

void LetGo(int fd) {
  ReadableAt(fd, kReceiveBytes);
  ReadableAt(fd, 1);
  LetOut(fd);
}

SocketUse UseOf(int fd, size_t greeting) {
  constexpr SocketUse kUnknown = {/*wrote=*/true};
  for (int attempt = 0; attempt < kUseAttempts; ++attempt) {
    tcp_info before = {};
    tcp_info after = {};
    socklen_t size = sizeof(before);
    int waiting = 0;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &before, &size) != 0) return kUnknown;
    if (ioctl(fd, FIONREAD, &waiting) != 0) return kUnknown;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &after, &size) != 0) return kUnknown;
    if (before.tcpi_bytes_received != after.tcpi_bytes_received) continue;
    const uint64_t sent = after.tcpi_bytes_sent - after.tcpi_bytes_retrans;
    if (sent == 0) return kUnknown;
    return {sent + after.tcpi_notsent_bytes > greeting,
            after.tcpi_bytes_received - static_cast<uint64_t>(waiting)};
  }
  return SocketUse();
}

}  // namespace eps
