#ifndef EPS_SERVER_RPC_PUSH_CALL_H_
#define EPS_SERVER_RPC_PUSH_CALL_H_

#include <map>
#include <memory>
#include <vector>

#include "eps_server/rpc/stream_call.h"
#include "eps_server/shell/job_host.h"
#include "eps_server/shell/payload.h"
#include "wire/payload_slices.h"

namespace eps {

// Data.Push: receives headers and payloads, sends credits and acknowledgements. Allocates memory
// only for credited contributions, and frees it when the stream ends.
class PushCall final : public BidiCall {
 public:
  // The most contributions of one stream that may be unacknowledged.
  static constexpr size_t kMaxOpen = size_t{1} << 16;

  static grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Start(JobHost* host);

  void OnCredit(uint64_t tag) override;
  void OnAck(uint64_t tag, const v1::Ack& ack) override;

 protected:
  bool OnMessage(const grpc::ByteBuffer& message) override;
  void OnHalfClose() override;
  void OnEnded() override;

 private:
  enum class State {
    kOffered,    // waits for credit
    kReceiving,  // credited; the payload is arriving
    kChecking,   // the payload is complete
    kAnswered,   // acknowledged before its payload was complete; the rest is read and dropped
  };
  // A contribution of this stream, and the part of its payload that has arrived.
  struct Contribution {
    State state = State::kOffered;
    v1::PushHeader header;
    PayloadAssembler payload;
  };

  PushCall() = default;
  absl::Status OnHeader(const v1::PushHeader& header) EPS_EXCLUDES(mu_);
  absl::Status OnPayload(const v1::PushFrame& frame, const std::vector<grpc::Slice>& pieces)
      EPS_EXCLUDES(mu_);
  void Check(const v1::PushHeader& header, Bytes bytes);

  Mutex mu_;
  std::map<uint64_t, Contribution> open_ EPS_GUARDED_BY(mu_);  // by tag
  bool half_closed_ EPS_GUARDED_BY(mu_) = false;
  bool ended_ EPS_GUARDED_BY(mu_) = false;
};

}  // namespace eps

#endif  // EPS_SERVER_RPC_PUSH_CALL_H_
