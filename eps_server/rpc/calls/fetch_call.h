#ifndef EPS_SERVER_RPC_CALLS_FETCH_CALL_H_
#define EPS_SERVER_RPC_CALLS_FETCH_CALL_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "base/executor.h"
#include "base/mutex.h"
#include "eps_server/rpc/calls/stream_call.h"
#include "eps_server/shell/job_host.h"
#include "wire/shm/shm_server.h"
#include "wire/shm/shm_sessions.h"

namespace eps {

// Data.Fetch: receives requests and sends slices. Slices refer to the encoded chunk without copying
// it; if it lies in memory that the worker has mapped, one slice names its place.
class FetchCall final : public BidiCall {
 public:
  // While more bytes than this wait for the transport, no further request is read.
  static constexpr size_t kMaxQueuedBytes = size_t{16} << 20;

  static grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Start(
      grpc::CallbackServerContext* context, JobHost* host, ShmServer* shm_or_null);

  void OnSendChunk(const effect::SendChunk& chunk) override;
  void OnFailFetch(const effect::FailFetch& failure) override;
  void OnClose(const absl::Status& status) override;

 protected:
  bool OnMessage(const grpc::ByteBuffer& message) override;
  void OnHalfClose() override;
  std::string What() const override { return "Fetch"; }
  void OnDrained() override {
    job()->Post(event::FetchDrained{id()});
    ReadNext();
  }

 private:
  FetchCall(Executor* pool, ShmServer* shm_or_null)
      : work_(pool->lane(Lane::kClient), Sequence::kLongTasks), shm_(shm_or_null) {}
  std::shared_ptr<FetchCall> Self() {
    return std::static_pointer_cast<FetchCall>(shared_from_this());
  }
  void WriteSlices(const effect::SendChunk& chunk);
  // Returns the worker's session of shared memory; null if it has none.
  std::shared_ptr<ShmSession> session() EPS_EXCLUDES(mu_);
  bool IsAnswered(const v1::FetchRequest& request) const;
  // Notes that a request with this tag has been answered completely.
  void Answered(uint64_t tag);

  // Computes CRCs, once for each encoded copy, and writes slices in the order of the effects, off
  // the core's sequence.
  Sequence work_;
  ShmServer* const shm_;  // may be null
  Mutex mu_;
  std::shared_ptr<ShmSession> session_ EPS_GUARDED_BY(mu_);  // null: none
  // The tags of requests that are not answered yet. After the client has closed its side, the
  // stream ends with the last answer.
  std::multiset<uint64_t> open_ EPS_GUARDED_BY(mu_);
  bool half_closed_ EPS_GUARDED_BY(mu_) = false;
};

}  // namespace eps

#endif  // EPS_SERVER_RPC_CALLS_FETCH_CALL_H_
