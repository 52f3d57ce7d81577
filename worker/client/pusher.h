#ifndef EPS_WORKER_CLIENT_PUSHER_H_
#define EPS_WORKER_CLIENT_PUSHER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "base/executor.h"
#include "base/memory_account.h"
#include "eps/v1/data.pb.h"
#include "wire/shm/shm_client.h"
#include "worker/client/client_core.h"
#include "worker/client/residual_keeper.h"
#include "worker/client/stream_link.h"

namespace eps {

// Sends contributions to one server over its single Push stream: the header, the slices after its
// Credit, and then waits for the Ack. Keeps a contribution's encoded bytes until the Ack, so that a
// new stream can repeat it with the same identity.
class ShardPusher final : public StreamHandler {
 public:
  // Calls `on_counted(bytes)` with the lock held when a contribution is finished. Borrows
  // everything except `core`.
  ShardPusher(std::shared_ptr<ClientCore> core, const JobView* job, ShardId shard,
              std::shared_ptr<grpc::Channel> channel, std::function<void(uint64_t)> on_counted);

  // Sends a contribution; `header` has no tag.
  void Push(v1::PushHeader header, Bytes payload) EPS_REQUIRES(client_lock);
  // Returns where payloads are best; null if they travel in messages.
  std::shared_ptr<ShmGradients> shared() const EPS_REQUIRES(client_lock) { return shared_; }
  bool idle() const EPS_REQUIRES(client_lock) { return items_.empty(); }
  StreamLink& link() { return link_; }
  // Offers again the contributions whose pause is over; returns when to call it next.
  TimePoint Tick(TimePoint now) EPS_REQUIRES(client_lock);
  // Drops everything, after the client has failed.
  void Clear() EPS_REQUIRES(client_lock) { items_.clear(); }

  absl::Status OnHello(const v1::HelloReply& reply) override EPS_EXCLUDES(client_lock);
  void OnOpen() override EPS_REQUIRES(client_lock);
  void OnMessage(const grpc::ByteBuffer& message) override EPS_EXCLUDES(client_lock);
  std::string WaitingFor() const override EPS_REQUIRES(client_lock);

 private:
  // A contribution that the server has not counted yet.
  struct Item {
    enum class State { kWaits, kOffered, kSent };  // kWaits: refused until not_before
    v1::PushHeader header;
    Bytes payload;
    State state = State::kOffered;
    TimePoint not_before;
  };
  using Items = std::map<uint64_t, Item>;

  void Offer(Item* item) EPS_REQUIRES(client_lock);
  void SendPayload(Item* item) EPS_REQUIRES(client_lock);
  void OnReply(const v1::PushReply& reply) EPS_REQUIRES(client_lock);
  void OnAck(Items::iterator it, const v1::Ack& ack) EPS_REQUIRES(client_lock);
  void PushBack(Items::iterator it, uint32_t retry_after_ms) EPS_REQUIRES(client_lock);
  // Returns "the gradient of chunk 17 (h.2.attn.c_attn.weight), use by stage 3 (h.2), part 0, step
  // 12".
  std::string Text(const v1::PushHeader& header) const;

  const std::shared_ptr<ClientCore> core_;
  const JobView* const job_;
  const std::string address_;
  const std::function<void(uint64_t)> on_counted_;
  StreamLink link_;

  // Of the stream that is open; null without shared memory.
  std::shared_ptr<ShmGradients> shared_ EPS_GUARDED_BY(client_lock);
  uint64_t next_tag_ EPS_GUARDED_BY(client_lock) = 1;
  Items items_ EPS_GUARDED_BY(client_lock);  // by tag, so the oldest first
};

// Splits gradients of a stage and part into chunks, encodes them on `pool`, oldest first and as far
// as the push window admits, and passes them to the pushers.
class PushQueue {
 public:
  // The gradient of one stage and part, and the chunks of it to send.
  struct Job {
    StageId use;
    PartId part;
    uint64_t tokens = 0;
    Step step;
    int loss_scale_log2 = 0;  // of the gradient, as StepStart; residuals are kept without a scale
    std::shared_ptr<const GradientSource> gradient;
    std::vector<ChunkId> chunks;
    // EncodeOptions::count of chunks for which it is known; used only by the queue.
    std::map<ChunkId, uint64_t> counts;
  };

  // Borrows everything except `core`.
  PushQueue(std::shared_ptr<ClientCore> core, const JobView* job, Executor* pool,
            ResidualKeeper* residuals, std::function<ShardPusher*(ShardId)> pusher);
  ~PushQueue();

  void Add(Job job) EPS_REQUIRES(client_lock);
  // Call when a contribution of `bytes` is counted.
  void OnCounted(uint64_t bytes) EPS_REQUIRES(client_lock);
  // Call when residuals have arrived for which a job may wait.
  void OnResiduals() EPS_REQUIRES(client_lock) { Pump(); }
  // Returns whether everything added is encoded or being encoded, so that the window admits more.
  bool admits() const EPS_REQUIRES(client_lock) { return jobs_.empty(); }
  // Returns whether everything added was counted.
  bool idle() const EPS_REQUIRES(client_lock) { return jobs_.empty() && outstanding_bytes_ == 0; }
  // Drops jobs that are not being encoded and returns them; destroy the result without the lock.
  std::deque<std::shared_ptr<Job>> Clear() EPS_REQUIRES(client_lock);

 private:
  void Pump() EPS_REQUIRES(client_lock);
  // Charge and discharge encoded gradients while they count towards the window. The transport may
  // hold the memory itself a little longer than the client and its account exist.
  void Reserve(uint64_t bytes) EPS_REQUIRES(client_lock);
  void Release(uint64_t bytes) EPS_REQUIRES(client_lock);
  // A contribution that is being encoded. With error feedback, `residual` holds the elements that
  // earlier steps omitted; `residual_codec` encodes those that this one omits, and is null without
  // error feedback.
  struct Encoding {
    const Chunk* chunk = nullptr;
    const Codec* codec = nullptr;
    const Codec* residual_codec = nullptr;
    Bytes residual;
    bool push_residual = false;
    absl::optional<uint64_t> count;  // EncodeOptions::count
    absl::optional<uint64_t> nonfinite_element;
    uint64_t reserved = 0;
  };
  // For a codec that chooses among whole tensors: returns whether the chunk's share of the choice
  // is known. If not, makes sure that Pump is called once it is.
  bool FindCount(const std::shared_ptr<Job>& job, Encoding* encoding) EPS_REQUIRES(client_lock);
  // Chooses among the elements of `chunks`, a whole matrix. `residuals` are as Encoding::residual;
  // empty without error feedback.
  void Count(const std::shared_ptr<Job>& job, absl::Span<const Chunk> chunks,
             const Codec* residual_codec_or_null, const std::vector<Bytes>& residuals)
      EPS_EXCLUDES(client_lock);
  // Returns the first element of the chunk that is NaN or infinite, with
  // training.nonfinite=skip; nullopt if there is none.
  absl::optional<uint64_t> FindNonfinite(const Job& job, const Chunk& chunk) const;
  // Returns the encoded gradient, charged to the account, and replaces `residual` with the elements
  // that it omits.
  Bytes EncodeGradient(const Job& job, Encoding* encoding, MemoryAccount* account_or_null) const;
  void Encode(const Job& job, Encoding encoding) EPS_EXCLUDES(client_lock);

  const std::shared_ptr<ClientCore> core_;
  const JobView* const job_;
  Executor* const pool_;
  ResidualKeeper* const residuals_;
  const std::function<ShardPusher*(ShardId)> pusher_;

  std::deque<std::shared_ptr<Job>> jobs_ EPS_GUARDED_BY(client_lock);
  size_t next_chunk_ EPS_GUARDED_BY(client_lock) = 0;  // of the first job
  bool counting_ EPS_GUARDED_BY(client_lock) = false;  // Count is running
  uint64_t outstanding_bytes_ EPS_GUARDED_BY(client_lock) = 0;
};

}  // namespace eps

#endif  // EPS_WORKER_CLIENT_PUSHER_H_
