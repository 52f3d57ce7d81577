#ifndef EPS_WIRE_HELD_SOCKET_H_
#define EPS_WIRE_HELD_SOCKET_H_

// Makes the kernel hold back what both ends of a TCP connection send, while a server that was given
// the socket begins to use it. Functions on open sockets, which they do not own; thread-safe.

#include <cstddef>
#include <cstdint>

namespace eps {

bool SetSocketOption(int fd, int level, int name, int value);

// Limits what the connections that `listener` will accept receive unread, to about `bytes`, and
// twice as much at most. It does nothing before Linux 5.14, where the kernel could not grow them
// later.
void LimitUnread(int listener, size_t bytes);

// Makes a socket readable when it has received `bytes`, and lets it receive that many. It is also
// readable if it can receive no more.
void ReadableAt(int fd, size_t bytes);

// Makes a socket readable only when it has received more than the client may send now, `bytes`, and
// keeps what will be written to it, for at most 200 ms. Returns false if it is readable.
bool Hold(int fd, size_t bytes);
// Sends what was kept.
void LetOut(int fd);
// Ends Hold, and lets the kernel choose again how much the socket receives.
void LetGo(int fd);

// The use that a server has made of a socket.
struct SocketUse {
  bool wrote = false;
  uint64_t bytes_read = 0;
};

// Returns the use of a socket to which `greeting` bytes were written before. A socket counts as
// written if it is broken or the system does not count bytes.
SocketUse UseOf(int fd, size_t greeting);

}  // namespace eps

#endif  // EPS_WIRE_HELD_SOCKET_H_
