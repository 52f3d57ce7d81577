#ifndef EPS_SERVER_RPC_FETCH_CALL_H_
#define EPS_SERVER_RPC_FETCH_CALL_H_

#include <map>
#include <memory>

#include "base/executor.h"
#include "eps_server/rpc/stream_call.h"
#include "eps_server/shell/job_host.h"

namespace eps {

// Data.Fetch: requests in, slices out. Slices point at the encoded chunk, nothing is copied.
class FetchCall final : public BidiCall {
 public:
  // More requests are read while no more than this waits for the transport.
  static constexpr size_t kMaxQueuedBytes = size_t{16} << 20;

  static grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Start(JobHost* host);

  void OnSendChunk(const effect::SendChunk& chunk) override;
  void OnFailFetch(const effect::FailFetch& failure) override;
  void OnClose(const absl::Status& status) override;

 protected:
  bool OnMessage(const grpc::ByteBuffer& message) override;
  void OnHalfClose() override;
  void OnDrained() override {
    job()->Post(event::FetchDrained{id()});
    ReadNext();
  }

 private:
  explicit FetchCall(Executor* pool) : work_(pool) {}
  std::shared_ptr<FetchCall> Self() {
    return std::static_pointer_cast<FetchCall>(shared_from_this());
  }
  void WriteSlices(const effect::SendChunk& chunk);
  // One more request has all of its answers.
  void Answered();

  Sequence work_;  // CRC and slices, in the order of the effects, away from the core's sequence
  Mutex mu_;
  // Requests that are not answered yet: when the client has closed its side, the stream ends with
  // the last answer.
  uint32_t open_ EPS_GUARDED_BY(mu_) = 0;
  bool half_closed_ EPS_GUARDED_BY(mu_) = false;
};

}  // namespace eps

#endif  // EPS_SERVER_RPC_FETCH_CALL_H_
