#ifndef EPS_WORKER_CLIENT_FETCHER_H_
#define EPS_WORKER_CLIENT_FETCHER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/executor.h"
#include "base/trace/trace_log.h"
#include "eps/v1/data.pb.h"
#include "grpcpp/support/slice.h"
#include "wire/payload_slices.h"
#include "wire/shm/shm_client.h"
#include "worker/client/client_core.h"
#include "worker/client/stream_link.h"

namespace eps {

// A fetch of one stage, or of a part's residuals of it, shared by its PendingFetch, the fetchers
// and the decoding tasks. The client's lock guards everything except the constants.
struct FetchOp {
  StageId stage;
  Version version;
  bool backward = false;
  std::shared_ptr<StageSink> sink;  // null in a fetch of residuals

  // Only for a fetch of residuals, which decodes nothing: the part that they belong to, those
  // received so far, and the callback for when all have arrived, called with the lock held.
  std::optional<PartId> residuals_of;
  std::map<uint32_t, Bytes> residuals;  // by chunk
  std::function<void(const FetchOp&)> on_done;

  uint32_t missing = 0;  // copies that are still to arrive
  uint32_t writers = 0;  // tasks that are calling `sink`
  bool abandoned = false;
  absl::Status status;
  std::map<uint32_t, int> damaged;  // transfers of a chunk that failed their CRC
};

// One encoded copy of a chunk's weights; `view` is FetchSlice.view.
struct ChunkCopy {
  uint32_t chunk = 0;
  uint32_t view = 0;
  friend bool operator<(ChunkCopy a, ChunkCopy b) {
    return a.chunk != b.chunk ? a.chunk < b.chunk : a.view < b.view;
  }
};

// Returns the PendingFetch of `op`, whose destructor abandons it.
std::unique_ptr<PendingFetch> NewPendingFetch(std::shared_ptr<ClientCore> core,
                                              std::shared_ptr<FetchOp> op);

// Fetches from one server over its single Fetch stream. At most kMaxRequests are in flight; further
// ones wait here. Assembles chunks on the stream's thread and passes them on from `pool`.
class ShardFetcher final : public StreamHandler {
 public:
  static constexpr size_t kMaxRequests = 8;  // the server's limit (data.proto)
  static constexpr int kMaxDamaged = 3;      // transfers of one chunk with a wrong CRC

  // Borrows everything except `core`. `parts` are the parts that the worker hosts.
  ShardFetcher(std::shared_ptr<ClientCore> core, const JobView* job, ShardId shard,
               std::shared_ptr<grpc::Channel> channel, Executor* pool, std::vector<PartId> parts);

  // Requests `chunks` of the op's stage; all of them must lie on this shard.
  void Fetch(std::shared_ptr<FetchOp> op, const std::vector<ChunkId>& chunks)
      EPS_REQUIRES(client_lock);
  StreamLink& link() { return link_; }

  absl::Status OnHello(const v1::HelloReply& reply) override EPS_EXCLUDES(client_lock);
  void OnOpen() override EPS_REQUIRES(client_lock);
  void OnMessage(const grpc::ByteBuffer& message) override EPS_EXCLUDES(client_lock);
  std::string WaitingFor() const override EPS_REQUIRES(client_lock);

 private:
  // One FetchRequest message; sent again on a new stream for the chunks of which a copy is missing.
  struct Request {
    std::shared_ptr<FetchOp> op;
    std::set<ChunkCopy> missing;   // not yet received completely
    std::set<ChunkCopy> expected;  // what the stream will bring: all copies of the chunks asked for
    bool sent = false;
  };
  // How a copy of a chunk is encoded.
  struct Encoding {
    const Codec* codec = nullptr;
    Axis axis = Axis::kRow;
    uint32_t view = 0;
  };
  // A chunk that is being received; only the stream's thread uses it.
  struct Assembly {
    PayloadAssembler payload;     // keeps no bytes if nobody waits for them
    std::optional<Bytes> shared;  // the whole chunk, where the server has it
    Encoding encoding;
  };

  void AddRequest(std::shared_ptr<FetchOp> op, std::set<ChunkCopy> copies)
      EPS_REQUIRES(client_lock);
  void SendRequests() EPS_REQUIRES(client_lock);
  void Send(uint64_t tag, Request* request) EPS_REQUIRES(client_lock);
  // Returns the copies of a chunk with which the server answers a fetch.
  std::set<ChunkCopy> CopiesOf(const FetchOp& op, ChunkId chunk) const;
  // Finds the request of the slice and returns its assembly, which it creates if necessary. Returns
  // InvalidArgument if the slice was not asked for or contradicts earlier ones.
  absl::StatusOr<std::shared_ptr<Assembly>> Locate(const v1::FetchSlice& slice, uint64_t size)
      EPS_REQUIRES(client_lock);
  absl::Status OnSlice(const v1::FetchSlice& slice, const std::vector<grpc::Slice>& pieces);
  void OnRefused(const v1::FetchSlice& slice) EPS_REQUIRES(client_lock);
  // Handles the last slice of a chunk.
  void OnComplete(const v1::FetchSlice& slice, std::shared_ptr<Assembly> assembly)
      EPS_REQUIRES(client_lock);
  // Returns the bytes of a slice in shared memory. InvalidArgument if they are not there.
  absl::StatusOr<Bytes> Shared(const v1::FetchSlice& slice) EPS_REQUIRES(client_lock);
  // Returns the encoding of the answer for a copy.
  Encoding EncodingOf(const FetchOp& op, const ChunkCopy& copy) const;
  // Passes the copy on if it is kept (FrozenCache). Returns whether it is.
  bool UseKept(const std::shared_ptr<FetchOp>& op, const ChunkCopy& copy) EPS_REQUIRES(client_lock);
  // Checks the bytes of a copy that has arrived, and passes them on.
  void Receive(const std::shared_ptr<FetchOp>& op, const Chunk& chunk, uint32_t crc,
               Assembly* assembly) EPS_EXCLUDES(client_lock);
  // Gives weights to the sink, and ends the span before it wakes whoever waits for them.
  void GiveToSink(const std::shared_ptr<FetchOp>& op, const Chunk& chunk, const Encoding& encoding,
                  Bytes bytes, std::optional<TraceSpan>* span) EPS_EXCLUDES(client_lock);
  // Checks the residual of a chunk; no bytes are an empty one.
  void TakeResidual(const std::shared_ptr<FetchOp>& op, const Chunk& chunk,
                    const Encoding& encoding, Bytes bytes) EPS_EXCLUDES(client_lock);
  void OnResidual(const std::shared_ptr<FetchOp>& op, ChunkId chunk, Bytes bytes)
      EPS_REQUIRES(client_lock);
  void OnDamaged(const std::shared_ptr<FetchOp>& op, const ChunkCopy& copy, uint32_t expected,
                 uint32_t found) EPS_REQUIRES(client_lock);
  void FailOp(FetchOp* op, absl::Status status) EPS_REQUIRES(client_lock);
  void RefuseChunk(FetchOp* op, const Chunk& chunk, const absl::Status& why)
      EPS_REQUIRES(client_lock);
  std::string Place(const FetchOp& op, ChunkId chunk) const;

  const std::shared_ptr<ClientCore> core_;
  const JobView* const job_;
  const std::string address_;
  Executor* const pool_;
  const std::vector<PartId> parts_;
  StreamLink link_;

  // Of the stream that is open; null if weights travel in messages.
  std::shared_ptr<ShmWeights> shared_ EPS_GUARDED_BY(client_lock);
  uint64_t next_tag_ EPS_GUARDED_BY(client_lock) = 1;
  std::map<uint64_t, Request> requests_ EPS_GUARDED_BY(client_lock);
  std::map<std::pair<uint64_t, ChunkCopy>, std::shared_ptr<Assembly>> assemblies_
      EPS_GUARDED_BY(client_lock);
};

}  // namespace eps

#endif  // EPS_WORKER_CLIENT_FETCHER_H_
