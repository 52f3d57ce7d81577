#ifndef EPS_WIRE_SHM_SHM_SOCKET_H_
#define EPS_WIRE_SHM_SHM_SOCKET_H_

// The Unix sockets over which a server gives its segments to workers of the same machine and user:
// where they are, who the peer is, and packets with descriptors. Names of sockets may be longer
// than an address holds. Thread-safe.

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/descriptor.h"

namespace eps {

// The segments that a worker asks for in the first packet of a connection.
enum class ShmPurpose : uint32_t { kWeights = 1, kGradients = 2 };

// The first packet of a connection, from the worker. Both ends run on one machine, so that numbers
// have its byte order; kMagic changes with the layout of the packets.
struct ShmHello {
  static constexpr uint64_t kMagic = 0x0131'6d68'7373'7065;  // "epsshm1", 1
  uint64_t magic = kMagic;
  uint64_t nonce = 0;  // SharedMemoryOffer.nonce
  ShmPurpose purpose = ShmPurpose::kWeights;
  uint32_t reserved = 0;
};

// The answer. The descriptor of the worker's own segment comes with it, then that of the weights if
// these were asked for.
struct ShmWelcome {
  uint64_t magic = ShmHello::kMagic;
  uint64_t session = 0;  // 0: refused, with `reason`
  uint64_t own_bytes = 0;
  uint64_t weights_bytes = 0;
  char reason[224] = {};
};

// The last packet of a connection, from the worker: it no longer reads or writes the segments.
struct ShmBye {
  uint64_t magic = ShmHello::kMagic;
};

// Returns the machine's boot id; empty if the kernel tells none. Processes with equal ids that
// reach each other's sockets run on one kernel.
std::string BootId();

// Returns the folder for sockets if none is configured: of the user, and of nobody else.
std::string DefaultShmFolder();

// Opens the folder of sockets, which it creates if `creates`. PermissionDenied unless it belongs to
// this user alone (mode 0700); NotFound without it.
absl::StatusOr<Descriptor> OpenShmFolder(const std::string& folder, bool creates);

// Listens on the socket `name` in a folder. Removes the sockets there on which nobody listens.
absl::StatusOr<Descriptor> ListenInFolder(int folder, const std::string& name);

// Connects to a socket and checks that its server belongs to this user. Calls on the result fail
// after `timeout`. NotFound if there is no such socket (or its folder is missing), Unavailable if
// nobody listens on it, PermissionDenied if it is another user's.
absl::StatusOr<Descriptor> ConnectToShmSocket(const std::string& path,
                                              std::chrono::milliseconds timeout);

// Returns the process at the other end of a socket. PermissionDenied, naming both users, unless it
// is of `user`, and if it is of a container whose processes this one does not see.
absl::StatusOr<pid_t> PeerProcess(int socket, uid_t user);

// Sends a packet, with at most two descriptors. Does not wait if the receiver's queue is full.
absl::Status SendPacket(int socket, const void* packet, size_t bytes,
                        const std::vector<int>& descriptors = {});

// Receives a packet into `bytes` bytes and appends the descriptors that came with it. Returns its
// size, cut to `bytes`; 0 at the end of the connection. Unavailable if there is none in time.
absl::StatusOr<size_t> ReceivePacket(int socket, void* packet, size_t bytes,
                                     std::vector<Descriptor>* descriptors);

}  // namespace eps

#endif  // EPS_WIRE_SHM_SHM_SOCKET_H_
