#ifndef EPS_WIRE_HELD_SOCKET_H_
#define EPS_WIRE_HELD_SOCKET_H_

#include <cstddef>

namespace eps {

// Holds connected TCP sockets that another owner will read and write, by means of Linux: the kernel
// hides what has arrived, delays what the owner sends, and tells what the owner has done.
// Thread-safe.

// Lets the connections that a listening socket accepts hold about twice `bytes` unread until LetIn.
// Does nothing before Linux 5.14, which could not enlarge that later.
void LimitUnread(int listener, size_t bytes);

// Makes a socket readable only after it has received `bytes` that nobody has read, or is full.
void ReadableAt(int fd, size_t bytes);

// Keeps a socket from being readable before it holds `bytes`, and delays what its owner sends, by
// at most about 200 ms. Returns false if it is readable nevertheless, because the peer has sent too
// much or has closed its end.
bool HoldBack(int fd, size_t bytes);
// Ends HoldBack and LimitUnread.
void LetIn(int fd);

enum class SocketUse {
  kNone,       // neither read nor written
  kWrote,      // written before it was read; also if the socket is broken, or bytes are not counted
  kReadFirst,  // read although it was held back
};
// Returns what the owner did with a socket after the first `greeting` bytes were written to it, of
// whose answer nothing had been read.
SocketUse UseOf(int fd, size_t greeting);

}  // namespace eps

#endif  // EPS_WIRE_HELD_SOCKET_H_
