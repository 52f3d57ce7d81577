#ifndef EPS_WIRE_ACCEPTOR_H_
#define EPS_WIRE_ACCEPTOR_H_

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/descriptor.h"
#include "grpcpp/server_builder.h"

namespace eps {

// The sockets that were given away and are still open. Whoever closes one does not report it; so a
// full list checks which numbers are unused by now, or name another file. Thread-compatible.
class OpenSockets {
 public:
  using Clock = std::chrono::steady_clock;
  // The pause between two checks of a full list.
  static constexpr std::chrono::milliseconds kPause{50};

  explicit OpenSockets(size_t most) : most_(most) {}

  // Adds an open socket. Returns false, and does nothing, while `most` others are open, or seem to
  // be because the last check was less than kPause before `now`.
  bool Add(int fd, Clock::time_point now);
  // Returns how many were open at the last check, or were added since.
  size_t size() const { return inodes_.size(); }

 private:
  const size_t most_;
  std::unordered_map<int, ino_t> inodes_;  // by descriptor
  Clock::time_point next_check_;
};

// Listens for a gRPC server and limits its connections: gRPC 1.51 does not limit them, and stops
// listening for good when the process runs out of file descriptors. Thread-compatible; accepts on a
// thread of its own.
class Acceptor {
 public:
  using Connections = grpc::experimental::ExternalConnectionAcceptor;

  // Listens on all addresses of HOST in "HOST:PORT"; port 0 picks a free port. At most `most`
  // connections will be open at a time; the next ones are closed at once. Returns Unavailable, with
  // the system's reason, if it cannot listen.
  static absl::StatusOr<std::unique_ptr<Acceptor>> Listen(const std::string& address, size_t most);
  // Calls Stop.
  ~Acceptor();

  int port() const { return port_; }
  // Gives all connections to `server` from now on, also those that wait. Call once, after the
  // server has started.
  void Start(std::unique_ptr<Connections> server);
  // Accepts no further connection and waits for the thread. May be called again.
  void Stop();

 private:
  Acceptor(size_t most, Descriptor wake) : wake_(std::move(wake)), open_(most) {}
  void Run();
  // Accepts what waits on a socket. Returns false if the process lacks descriptors or memory.
  bool AcceptSome(int listener);
  void Refuse(int fd);

  int port_ = 0;
  std::vector<Descriptor> listeners_;
  const Descriptor wake_;  // readable once Stop was called
  std::unique_ptr<Connections> server_;
  std::thread thread_;

  // Used by the thread.
  OpenSockets open_;
  uint64_t refused_ = 0;
};

}  // namespace eps

#endif  // EPS_WIRE_ACCEPTOR_H_
