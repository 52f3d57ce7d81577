#ifndef EPS_WIRE_ACCEPTOR_H_
#define EPS_WIRE_ACCEPTOR_H_

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
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
  // Returns whether the socket was added and is still open.
  bool Holds(int fd) const;
  // Returns how many were open at the last check, or were added since.
  size_t size() const { return inodes_.size(); }

 private:
  const size_t most_;
  std::unordered_map<int, ino_t> inodes_;  // by descriptor
  Clock::time_point next_check_;
};

// Returns whether a client whose connection begins with `bytes` has acknowledged the server's
// settings: nullopt if that may still follow, false if the bytes are no HTTP/2, or too many.
std::optional<bool> AcknowledgesSettings(absl::string_view bytes);

// Listens for a gRPC server and limits its connections and their streams: gRPC 1.51 does not limit
// connections, stops listening for good when the process runs out of file descriptors, and limits
// the streams of a connection only once its client has acknowledged the settings.
// Thread-compatible; works on a thread of its own.
//
// The acceptor therefore sends settings itself, and gives a connection to gRPC when the
// acknowledgement waits in the kernel. It makes the kernel hold back all bytes of the client until
// gRPC has sent its own settings, so that gRPC takes the acknowledgement as that of its own.
class Acceptor {
 public:
  static constexpr std::chrono::seconds kGreetingTimeout{10};
  using Connections = grpc::experimental::ExternalConnectionAcceptor;

  // Listens on all addresses of HOST in "HOST:PORT"; port 0 picks a free port. At most `most`
  // connections will be open at a time; the next ones are closed at once, and so is one that does
  // not acknowledge the settings within kGreetingTimeout. Returns Unavailable, with the system's
  // reason, if it cannot listen.
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
  // A connection that gRPC does not read yet.
  struct Arrival {
    int fd = -1;
    int listener = -1;
    OpenSockets::Clock::time_point since;
    bool given = false;  // gRPC owns the socket, but has not written to it
  };

  void Run();
  // Accepts what waits on a socket. Returns false if the process lacks descriptors or memory.
  bool AcceptSome(int listener);
  void Refuse(int fd);
  // Takes the next step with a connection after these events of poll. Returns true if nothing
  // remains to be done.
  bool Advance(Arrival* arrival, int16_t events);
  // Returns the time that poll may wait.
  int Patience() const;

  int port_ = 0;
  std::vector<Descriptor> listeners_;
  const Descriptor wake_;  // readable once Stop was called
  std::unique_ptr<Connections> server_;
  std::thread thread_;

  // Used by the thread.
  OpenSockets open_;
  std::vector<Arrival> arrivals_;
  uint64_t refused_ = 0;
};

}  // namespace eps

#endif  // EPS_WIRE_ACCEPTOR_H_
