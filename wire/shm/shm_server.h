#ifndef EPS_WIRE_SHM_SHM_SERVER_H_
#define EPS_WIRE_SHM_SHM_SERVER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/descriptor.h"
#include "base/memory_account.h"
#include "base/mutex.h"
#include "eps/v1/control.pb.h"
#include "wire/shm/shared_arena.h"
#include "wire/shm/shm_sessions.h"
#include "wire/shm/shm_socket.h"

namespace eps {

// The needs of the job on this server, in bytes.
struct ShmNeeds {
  uint64_t reserved = 0;   // of the account, whether the job has charged it or not
  uint64_t weights = 0;    // encoded weights on their way to workers
  uint64_t gradients = 0;  // gradients on their way from one worker
};

// How a server shares memory.
struct ShmOptions {
  std::string folder;                // of the socket; empty: DefaultShmFolder
  uint64_t weights_bytes = 0;        // of the segment of weights, at most
  uint64_t gradients_bytes = 0;      // of each worker's segment, at most
  uint64_t incarnation = 0;          // names the socket
  MemoryAccount* account = nullptr;  // charged with the segments; must outlive them
  // Returns what the job needs now; segments are no larger. Called on the server's thread.
  std::function<ShmNeeds()> needs;
};

// Gives segments of memory to the workers of this machine and user, over a Unix socket. The segment
// of weights exists while a worker is connected; encoded weights that are made meanwhile lie in it
// as far as there is room, because this is the source of the account's MemoryKind::kFetch. A
// worker's room returns when it says so, or when its process is gone; never because it is silent.
// All segments are charged to the account; a worker for whose segments there is no room is told so,
// and uses messages. Thread-safe.
class ShmServer final : public MemorySource {
 public:
  // The most connections at a time.
  static constexpr size_t kMaxPeers = 256;

  // Listens. Errors name the folder.
  static absl::StatusOr<std::unique_ptr<ShmServer>> Start(ShmOptions options);
  // Calls Stop.
  ~ShmServer() override;

  const v1::SharedMemoryOffer& offer() const { return offer_; }
  // Returns a session; null if there is none with this number (any more).
  std::shared_ptr<ShmSession> Find(uint64_t session) EPS_EXCLUDES(mu_);
  std::shared_ptr<uint8_t> Allocate(size_t size) override EPS_EXCLUDES(mu_);
  // Removes the socket and ends all sessions.
  void Stop() EPS_EXCLUDES(mu_);

 private:
  // A connection. After the end of `socket` without a ShmBye, only the process counts.
  struct Peer {
    Descriptor socket;
    Descriptor process;  // a pidfd
    uint64_t session = 0;
  };

  explicit ShmServer(ShmOptions options) : options_(std::move(options)) {}
  absl::Status Listen();
  void Serve();
  void Accept();
  // Handles a packet or the end of the connection. Returns whether the peer stays.
  bool OnReadable(Peer* peer);
  // Answers a worker's first packet. Returns whether it has a session now.
  bool Welcome(const ShmHello& hello, Peer* peer);
  absl::StatusOr<std::shared_ptr<ShmSession>> NewSession(ShmPurpose purpose) EPS_EXCLUDES(mu_);
  // Creates a segment and charges it while it exists, unless that could take memory from the job.
  absl::StatusOr<std::shared_ptr<SharedSegment>> NewSegment(MemoryKind kind, uint64_t bytes,
                                                            SegmentWriters writers,
                                                            uint64_t reserved_bytes);
  absl::StatusOr<std::shared_ptr<SharedArena>> Weights(const ShmNeeds& needs) EPS_REQUIRES(mu_);
  void EndSession(uint64_t session) EPS_EXCLUDES(mu_);

  const ShmOptions options_;
  v1::SharedMemoryOffer offer_;
  Descriptor folder_;
  Descriptor listener_;
  Descriptor stop_;  // an eventfd
  std::thread thread_;
  std::list<Peer> peers_;  // used by the thread
  // Bytes of all segments, which may outlive this object.
  const std::shared_ptr<std::atomic<uint64_t>> segment_bytes_ =
      std::make_shared<std::atomic<uint64_t>>(0);

  Mutex mu_;
  std::map<uint64_t, std::shared_ptr<ShmSession>> sessions_ EPS_GUARDED_BY(mu_);
  std::shared_ptr<SharedArena> weights_ EPS_GUARDED_BY(mu_);  // null without sessions
};

}  // namespace eps

#endif  // EPS_WIRE_SHM_SHM_SERVER_H_
