#ifndef EPS_WIRE_SHM_SHM_CLIENT_H_
#define EPS_WIRE_SHM_SHM_CLIENT_H_

// A worker's side of a server's shared memory: one connection for each of its streams. Both classes
// are thread-safe. Bytes keep their connection open, so the server learns that the worker reads no
// more when the last of them are gone.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "base/bytes.h"
#include "base/descriptor.h"
#include "base/machine/shared_regions.h"
#include "base/memory_account.h"
#include "eps/v1/control.pb.h"
#include "eps/v1/data.pb.h"
#include "wire/shm/shared_arena.h"
#include "wire/shm/shared_segment.h"

namespace eps {

// The open connection of a session. Its end tells the server that this process no longer uses the
// segments.
class ShmConnection {
 public:
  ShmConnection(Descriptor socket, uint64_t session)
      : socket_(std::move(socket)), session_(session) {}
  ~ShmConnection();
  ShmConnection(const ShmConnection&) = delete;
  ShmConnection& operator=(const ShmConnection&) = delete;

  uint64_t session() const { return session_; }

 private:
  const Descriptor socket_;
  const uint64_t session_;
};

// The weights of a server.
class ShmWeights : public std::enable_shared_from_this<ShmWeights> {
 public:
  // Connects; blocks for at most a few seconds. FailedPrecondition if the offer is of another
  // machine, NotFound without the socket, PermissionDenied if the server is another user's,
  // Unavailable if it does not answer, and ResourceExhausted with its reason if it refuses.
  static absl::StatusOr<std::shared_ptr<ShmWeights>> Connect(const v1::SharedMemoryOffer& offer);

  uint64_t session() const { return connection_->session(); }
  // Returns the bytes of a range, which stay as they are until the last copy is gone.
  // InvalidArgument if the range is of another session, or is not in the segment.
  absl::StatusOr<Bytes> Read(const v1::SharedRange& range);

 private:
  ShmWeights(std::unique_ptr<ShmConnection> connection, std::unique_ptr<SharedSegment> own,
             std::unique_ptr<SharedSegment> weights)
      : connection_(std::move(connection)),
        own_(std::move(own)),
        weights_(std::move(weights)),
        listed_(SharedRegions::Get().List({weights_->data(), weights_->size()},
                                          SharedRegions::Access::kRead)) {}
  void Done(uint64_t hold);

  const std::unique_ptr<ShmConnection> connection_;
  const std::unique_ptr<SharedSegment> own_;
  const std::unique_ptr<SharedSegment> weights_;
  const std::unique_ptr<SharedRegions::Listed> listed_;  // for devices that read it
};

// This worker's gradients.
class ShmGradients final : public MemorySource, public std::enable_shared_from_this<ShmGradients> {
 public:
  // Connects, as ShmWeights::Connect does.
  static absl::StatusOr<std::shared_ptr<ShmGradients>> Connect(const v1::SharedMemoryOffer& offer);

  uint64_t session() const { return connection_->session(); }
  // Returns memory of the segment, to which devices may copy, or null if there is no room.
  std::shared_ptr<uint8_t> Allocate(size_t size) override { return arena_->Allocate(size); }
  // Calls `encode` once and returns its result. Buffers of MemoryKind::kStage that it charges to
  // the account lie in the segment as far as there is room.
  Bytes Encode(const std::function<Bytes(MemoryAccount*)>& encode);
  // Fills *range with the place of a payload. Returns false if it does not lie in the segment.
  bool Find(const Bytes& payload, v1::SharedRange* range) const;

 private:
  ShmGradients(std::unique_ptr<ShmConnection> connection, std::shared_ptr<SharedSegment> own);

  const std::unique_ptr<ShmConnection> connection_;
  const std::shared_ptr<SharedArena> arena_;
  MemoryAccount account_;  // the argument of Encode's function
};

}  // namespace eps

#endif  // EPS_WIRE_SHM_SHM_CLIENT_H_
