#ifndef EPS_BASE_DESCRIPTOR_H_
#define EPS_BASE_DESCRIPTOR_H_

#include <unistd.h>

#include <utility>

namespace eps {

// Owns a file descriptor and closes it; a negative one stands for none, as in system calls. Closing
// reports no error: sync first what has to be on disk.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }

  bool ok() const { return fd_ >= 0; }
  int get() const { return fd_; }
  // Gives the descriptor away: the caller closes it.
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

}  // namespace eps

#endif  // EPS_BASE_DESCRIPTOR_H_
