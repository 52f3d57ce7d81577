#ifndef EPS_SERVER_RPC_CALLS_PUSH_CALL_H_
#define EPS_SERVER_RPC_CALLS_PUSH_CALL_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "base/mutex.h"
#include "eps_server/rpc/calls/stream_call.h"
#include "eps_server/shell/job_host.h"
#include "eps_server/shell/payload.h"
#include "wire/payload_slices.h"
#include "wire/shm/shm_server.h"
#include "wire/shm/shm_sessions.h"

namespace eps {

// Data.Push: receives headers and payloads, sends credits and acknowledgements. Allocates memory
// only for credited contributions, and frees it when the stream ends. If the core takes a credit
// back, the sender learns that by the acknowledgement; the rest of the payload is read and dropped,
// and a payload that is being checked never reaches the core.
class PushCall final : public BidiCall {
 public:
  // The most contributions of one stream that may be unacknowledged.
  static constexpr size_t kMaxOpen = size_t{1} << 16;
  // While more bytes of replies than this wait for the transport, nothing further is read.
  static constexpr size_t kMaxQueuedBytes = size_t{16} << 20;

  static grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Start(
      grpc::CallbackServerContext* context, JobHost* host, ShmServer* shm_or_null);

  void OnCredit(uint64_t tag) override;
  void OnAck(uint64_t tag, const v1::Ack& ack) override;

 protected:
  bool OnMessage(const grpc::ByteBuffer& message) override;
  void OnHalfClose() override;
  void OnDrained() override { ReadNext(); }
  void OnEnded() override;
  std::string What() const override { return "Push"; }

 private:
  enum class State {
    kOffered,    // waits for credit
    kReceiving,  // credited; the payload is arriving
    kChecking,   // the payload is complete, and is being checked
    kDelivered,  // the core has the payload
    kAnswered,   // acknowledged before its payload was complete; the rest is read and dropped
    kDropped,    // acknowledged while its payload was being checked
  };
  // A contribution of this stream, and the part of its payload that has arrived.
  struct Contribution {
    State state = State::kOffered;
    v1::PushHeader header;
    PayloadAssembler payload;
  };

  explicit PushCall(ShmServer* shm_or_null) : shm_(shm_or_null) {}
  std::shared_ptr<PushCall> Self() {
    return std::static_pointer_cast<PushCall>(shared_from_this());
  }
  absl::Status OnHeader(const v1::PushHeader& header) EPS_EXCLUDES(mu_);
  absl::Status OnPayload(const v1::PushFrame& frame, const std::vector<grpc::Slice>& pieces)
      EPS_EXCLUDES(mu_);
  // Add a frame's payload to a contribution. They return whether it is complete, and then set
  // *take, which returns it; InvalidArgument for a frame that breaks the protocol.
  absl::StatusOr<bool> TakeSlice(const v1::PushFrame& frame, const std::vector<grpc::Slice>& pieces,
                                 Contribution* contribution, std::function<Bytes()>* take);
  absl::StatusOr<bool> TakeShared(const v1::PushFrame& frame,
                                  const std::vector<grpc::Slice>& pieces,
                                  Contribution* contribution, std::function<Bytes()>* take);
  // Checks a complete payload on the pool. `take` returns it there.
  void Check(const v1::PushHeader& header, std::function<Bytes()> take);
  // Posts a checked payload, unless its contribution was acknowledged meanwhile.
  void Deliver(uint64_t tag, Event event) EPS_EXCLUDES(mu_);

  ShmServer* const shm_;  // may be null
  Mutex mu_;
  std::map<uint64_t, Contribution> open_ EPS_GUARDED_BY(mu_);  // by tag
  bool half_closed_ EPS_GUARDED_BY(mu_) = false;
  bool ended_ EPS_GUARDED_BY(mu_) = false;
};

}  // namespace eps

#endif  // EPS_SERVER_RPC_CALLS_PUSH_CALL_H_
