#ifndef EPS_SERVER_RPC_TESTING_RELAY_PORT_H_
#define EPS_SERVER_RPC_TESTING_RELAY_PORT_H_

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/descriptor.h"
#include "base/mutex.h"

namespace eps {

// A port of loopback that forwards its connections to a server, until the test breaks them. For
// tests only. Thread-safe.
class RelayPort {
 public:
  // `target` is "127.0.0.1:PORT".
  explicit RelayPort(const std::string& target);
  ~RelayPort();

  const std::string& address() const { return address_; }
  // Closes the open connections.
  void Break();
  // Forwards nothing more on the open connections, and neither closes them nor lets the ends see
  // that the other one closed: as if a machine had lost its power. New ones are forwarded.
  void Silence();

 private:
  // A connection of a client, and the one to the server.
  struct Pair {
    Descriptor ends[2];
  };
  void Run();
  void AcceptOne() EPS_REQUIRES(mu_);
  void Wake();

  const int target_port_;
  Descriptor listener_;
  Descriptor wake_;
  std::string address_;
  Mutex mu_;
  std::vector<std::unique_ptr<Pair>> pairs_ EPS_GUARDED_BY(mu_);
  std::vector<std::unique_ptr<Pair>> silent_ EPS_GUARDED_BY(mu_);
  bool stopping_ EPS_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace eps

#endif  // EPS_SERVER_RPC_TESTING_RELAY_PORT_H_
