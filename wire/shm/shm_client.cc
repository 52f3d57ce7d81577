#include "wire/shm/shm_client.h"

#include <chrono>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "wire/shm/shm_sessions.h"
#include "wire/shm/shm_socket.h"

namespace eps {
namespace {

constexpr std::chrono::milliseconds kTimeout{3000};

// A new session and the descriptors of its segments.
struct Joined {
  std::unique_ptr<ShmConnection> connection;
  std::vector<Descriptor> segments;
  ShmWelcome welcome;
};

absl::StatusOr<Joined> Join(const v1::SharedMemoryOffer& offer, ShmPurpose purpose,
                            size_t segments) {
  const std::string boot = BootId();
  if (boot.empty() || boot != offer.boot_id()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the server is on another machine: its boot id is ", offer.boot_id(), ", here ", boot));
  }
  EPS_ASSIGN_OR_RETURN(Descriptor socket, ConnectToShmSocket(offer.socket(), kTimeout));
  ShmHello hello;
  hello.nonce = offer.nonce();
  hello.purpose = purpose;
  EPS_RETURN_IF_ERROR(SendPacket(socket.get(), &hello, sizeof(hello)));
  Joined joined;
  EPS_ASSIGN_OR_RETURN(const size_t size, ReceivePacket(socket.get(), &joined.welcome,
                                                        sizeof(joined.welcome), &joined.segments));
  const ShmWelcome& welcome = joined.welcome;
  if (size != sizeof(welcome) || welcome.magic != ShmHello::kMagic) {
    return absl::UnavailableError(
        absl::StrCat("socket ", offer.socket(), ": the server sends no welcome"));
  }
  if (welcome.session == 0) {
    const std::string reason(welcome.reason, strnlen(welcome.reason, sizeof(welcome.reason)));
    return absl::ResourceExhaustedError(absl::StrCat("the server refuses: ", reason));
  }
  if (joined.segments.size() != segments) {
    return absl::InvalidArgumentError(absl::StrCat("socket ", offer.socket(), " brings ",
                                                   joined.segments.size(), " segments, expected ",
                                                   segments));
  }
  joined.connection = std::make_unique<ShmConnection>(std::move(socket), welcome.session);
  return joined;
}

// A segment that is listed as long as it is mapped.
struct ListedSegment {
  explicit ListedSegment(std::unique_ptr<SharedSegment> s)
      : segment(std::move(s)),
        listed(SharedRegions::Get().List({segment->data(), segment->size()},
                                         SharedRegions::Access::kWrite)) {}
  const std::unique_ptr<SharedSegment> segment;
  const std::unique_ptr<SharedRegions::Listed> listed;
};

}  // namespace

ShmConnection::~ShmConnection() {
  const ShmBye bye;
  // If the packet is lost, the server waits for the end of this process.
  (void)SendPacket(socket_.get(), &bye, sizeof(bye));
}

absl::StatusOr<std::shared_ptr<ShmWeights>> ShmWeights::Connect(
    const v1::SharedMemoryOffer& offer) {
  EPS_ASSIGN_OR_RETURN(Joined joined, Join(offer, ShmPurpose::kWeights, /*segments=*/2));
  EPS_ASSIGN_OR_RETURN(auto own, SharedSegment::Open(std::move(joined.segments[0]), kShmHoldBytes,
                                                     SegmentWriters::kEveryHolder));
  EPS_ASSIGN_OR_RETURN(
      auto weights, SharedSegment::Open(std::move(joined.segments[1]), joined.welcome.weights_bytes,
                                        SegmentWriters::kCreator));
  return std::shared_ptr<ShmWeights>(
      new ShmWeights(std::move(joined.connection), std::move(own), std::move(weights)));
}

absl::StatusOr<Bytes> ShmWeights::Read(const v1::SharedRange& range) {
  if (range.session() != session()) {
    return absl::InvalidArgumentError(absl::StrCat("a range of shared memory of session ",
                                                   range.session(), ", expected ", session()));
  }
  EPS_ASSIGN_OR_RETURN(const absl::Span<const uint8_t> memory,
                       weights_->At(range.offset(), range.bytes()));
  std::shared_ptr<const void> owner(memory.data(), [self = shared_from_this(), hold = range.hold()](
                                                       const void*) { self->Done(hold); });
  return Bytes::Borrow(memory, std::move(owner));
}

void ShmWeights::Done(uint64_t hold) {
  uint64_t* const words = reinterpret_cast<uint64_t*>(own_->data());
  __atomic_store_n(words + hold % kShmHolds, hold, __ATOMIC_RELEASE);
}

absl::StatusOr<std::shared_ptr<ShmGradients>> ShmGradients::Connect(
    const v1::SharedMemoryOffer& offer) {
  EPS_ASSIGN_OR_RETURN(Joined joined, Join(offer, ShmPurpose::kGradients, /*segments=*/1));
  EPS_ASSIGN_OR_RETURN(auto own,
                       SharedSegment::Open(std::move(joined.segments[0]), joined.welcome.own_bytes,
                                           SegmentWriters::kEveryHolder));
  const auto listed = std::make_shared<ListedSegment>(std::move(own));
  return std::shared_ptr<ShmGradients>(new ShmGradients(
      std::move(joined.connection), std::shared_ptr<SharedSegment>(listed, listed->segment.get())));
}

ShmGradients::ShmGradients(std::unique_ptr<ShmConnection> connection,
                           std::shared_ptr<SharedSegment> own)
    : connection_(std::move(connection)), arena_(std::make_shared<SharedArena>(std::move(own))) {
  account_.SetSource(MemoryKind::kStage, this);
}

Bytes ShmGradients::Encode(const std::function<Bytes(MemoryAccount*)>& encode) {
  // Memory from elsewhere, for lack of room, is charged to the account, which must outlive it.
  const auto kept = std::make_shared<std::pair<std::shared_ptr<ShmGradients>, Bytes>>(
      shared_from_this(), encode(&account_));
  return Bytes::Borrow({kept->second.data(), kept->second.size()}, kept);
}

bool ShmGradients::Find(const Bytes& payload, v1::SharedRange* range) const {
  const absl::optional<uint64_t> offset =
      arena_->segment().OffsetOf({payload.data(), payload.size()});
  if (payload.empty() || !offset.has_value()) return false;
  range->set_session(session());
  range->set_offset(*offset);
  range->set_bytes(payload.size());
  return true;
}

}  // namespace eps
