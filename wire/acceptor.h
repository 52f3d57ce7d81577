#ifndef EPS_WIRE_ACCEPTOR_H_
#define EPS_WIRE_ACCEPTOR_H_

#include <sys/types.h>

#include <atomic>
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
#include "base/executor.h"
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
// settings: nullopt if that may still follow, false if the bytes are no HTTP/2, too many, or begin
// more calls before the acknowledgement than a connection may have.
std::optional<bool> AcknowledgesSettings(absl::string_view bytes);

// Listens for a gRPC server and limits its connections and their streams: gRPC 1.51 does not limit
// connections, stops listening for good when the process runs out of file descriptors, and limits
// the streams of a connection only once its client has acknowledged the settings.
// Thread-compatible; works on two threads of its own.
//
// The acceptor therefore sends settings of its own, which permit calls but no messages, and gives
// a connection to gRPC when the acknowledgement waits in the kernel. gRPC takes it for that of its
// own settings if it sends them before it reads. So the kernel hides what the client has sent, and
// delays what gRPC sends, until gRPC has sent something (HoldBack). A client that fills the small
// buffer of the kernel meanwhile makes gRPC read, which would go on and keep the thread busy that
// gave the connection away. Another thread therefore watches, and closes a connection that was
// read too early; gRPC gets the next one when it has freed the calls of that client. Rarely, when
// connections end and begin at the same moment, gRPC reads a socket that is not readable: then an
// honest client has to connect again.
//
// A server with TLS gets each connection at once: the handshake comes before the settings, and only
// peers with a certificate get through it.
class Acceptor {
 public:
  static constexpr std::chrono::seconds kGreetingTimeout{10};
  using Connections = grpc::experimental::ExternalConnectionAcceptor;

  // Listens on all addresses of HOST in "HOST:PORT"; port 0 picks a free port. At most `most`
  // connections will be open at a time; the next ones are closed at once, and so is one that does
  // not acknowledge the settings within kGreetingTimeout, unless the server uses `tls`. Returns
  // Unavailable, with the system's reason, if it cannot listen.
  static absl::StatusOr<std::unique_ptr<Acceptor>> Listen(const std::string& address, size_t most,
                                                          bool tls = false);
  // Calls Stop.
  ~Acceptor();

  int port() const { return port_; }
  // Gives all connections to `server` from now on, also those that wait. Call once, after the
  // server has started. Its settings must include a window for the messages of a call.
  void Start(std::unique_ptr<Connections> server);
  // Accepts no further connection and waits for the thread. May be called again.
  void Stop();

 private:
  Acceptor(size_t most, bool tls, Descriptor wake)
      : tls_(tls), wake_(std::move(wake)), open_(most) {}
  // A connection that gRPC does not read yet.
  struct Arrival {
    int fd = -1;
    int listener = -1;
    OpenSockets::Clock::time_point since;  // when the state began
    enum {
      kGreeted,
      kAcknowledged,
      kGiven,    // gRPC owns the socket, but has not written to it
      kExpelled  // gRPC owns the socket, and has not closed it yet
    } state = kGreeted;
    bool in_use() const { return state >= kGiven; }
  };

  void Run();
  // Accepts what waits on a socket. Returns false if the process lacks descriptors or memory.
  bool AcceptSome(int listener);
  // Take the next step with a connection, after these events of poll or after some time. Return
  // true if nothing remains to be done.
  bool Advance(Arrival* arrival, int16_t events);
  bool ReadGreeting(Arrival* arrival, int16_t events, bool late);
  bool CheckUse(Arrival* arrival, bool late);
  // Gives the next connection to gRPC, unless one is in use.
  void GiveNext();
  // Gives a connection to gRPC, on giver_.
  void Give(int fd, int listener);
  // Ends the wait of the thread.
  void Wake();
  // Closes a connection that gRPC does not own, and counts it.
  void Refuse(int fd, absl::string_view why);
  void CountRefusal(absl::string_view why);
  // Returns the time that poll may wait.
  int Patience() const;

  const bool tls_;
  int port_ = 0;
  std::vector<Descriptor> listeners_;
  const Descriptor wake_;  // readable after Wake
  std::atomic<bool> stops_{false};
  std::unique_ptr<Connections> server_;
  std::unique_ptr<ThreadPool> giver_;  // of one thread
  std::thread thread_;

  // Used by the thread.
  OpenSockets open_;
  std::vector<Arrival> arrivals_;
  uint64_t refused_ = 0;
};

}  // namespace eps

#endif  // EPS_WIRE_ACCEPTOR_H_
