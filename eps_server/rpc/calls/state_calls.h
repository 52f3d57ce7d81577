#ifndef EPS_SERVER_RPC_CALLS_STATE_CALLS_H_
#define EPS_SERVER_RPC_CALLS_STATE_CALLS_H_

// The streaming RPCs of Control: ImportState, ExportState and WatchSteps.

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/job/drivers/job_scope.h"
#include "eps_server/rpc/calls/call_limit.h"
#include "eps_server/rpc/calls/stream_call.h"
#include "eps_server/shell/job_host.h"
#include "eps_server/shell/payload.h"
#include "wire/payload_slices.h"

namespace eps {

// Control.ImportState. Any message may set the fields of the border (step, version, update,
// lagged_norm); the newest value that is not 0 counts. Slices of one chunk must arrive in order.
// The core receives a chunk once its last slice has arrived and its CRC matches.
class ImportCall final : public ReadCall {
 public:
  // The most incomplete chunks; a slice of one more is refused.
  static constexpr size_t kMaxOpen = 2;
  // While this many complete chunks are on their way to the backend, no further message is read.
  static constexpr int kMaxInFlight = 4;

  static grpc::ServerReadReactor<grpc::ByteBuffer>* Start(JobHost* host, CallerScope caller,
                                                          CallLimit* limit,
                                                          grpc::ByteBuffer* reply);

  void OnReply(const effect::ReplyMessage& message) override;
  void OnImportTaken() override;

 protected:
  bool OnMessage(const grpc::ByteBuffer& message) override;
  void OnHalfClose() override;

 private:
  ImportCall(JobHost* host, CallerScope caller, grpc::ByteBuffer* reply)
      : host_(host),
        caller_(std::move(caller)),
        reply_(reply),
        work_(host->environment().pool->lane(Lane::kClient), Sequence::kLongTasks) {}
  std::shared_ptr<ImportCall> Self() {
    return std::static_pointer_cast<ImportCall>(shared_from_this());
  }
  absl::Status Take(const v1::ImportStateRequest& message, const std::vector<grpc::Slice>& pieces);
  absl::Status TakeSlice(const v1::ImportStateRequest& message,
                         const std::vector<grpc::Slice>& pieces);
  // Checks the CRC on the pool, then posts the chunk to the core.
  void Deliver(ChunkId chunk, uint32_t crc32c, Bytes state);
  // Checks the CRC and the encoding on the pool, then posts the residual to the core.
  void DeliverResidual(const v1::ImportStateRequest& message, Bytes residual);
  // Returns the size of the chunk's state, or of its residual, that the message is a slice of.
  absl::StatusOr<size_t> SizeOf(const v1::ImportStateRequest& message) const;
  void NoteBorder(const v1::ImportStateRequest& message);
  // Ends a stream that was closed without finish, once all its chunks have been handled.
  void EndIfUnfinished();

  CallLimit::Place place_;
  JobHost* const host_;
  const CallerScope caller_;
  grpc::ByteBuffer* const reply_;
  Sequence work_;  // checks CRCs and posts events in the order of the messages

  // Used while a message is handled, and messages are handled one at a time.
  v1::ImportStateRequest border_;              // only the fields of the border
  DriverLease lease_;                          // of the newest message
  std::map<uint32_t, PayloadAssembler> open_;  // by chunk
  bool initialize_sent_ = false;
  bool finish_sent_ = false;

  std::atomic<int> in_flight_{0};
  std::atomic<bool> unfinished_{false};  // the client closed its side without finish
};

// Control.ExportState. Asks the core for the next chunk after the transport has accepted one. A
// client that reads nothing holds no update back for longer than servers.unread_timeout: the RPC
// ends, and with it the export.
class ExportCall final : public WriteCall {
 public:
  static grpc::ServerWriteReactor<grpc::ByteBuffer>* Start(grpc::CallbackServerContext* context,
                                                           JobHost* host, CallLimit* limit,
                                                           const grpc::ByteBuffer& request);
  void OnSendState(const effect::SendState& state) override;
  void OnClose(const absl::Status& status) override;

 protected:
  void OnDrained() override;
  std::string What() const override;

 private:
  explicit ExportCall(JobHost* host)
      : work_(host->environment().pool->lane(Lane::kClient), Sequence::kLongTasks) {}
  std::shared_ptr<ExportCall> Self() {
    return std::static_pointer_cast<ExportCall>(shared_from_this());
  }
  void WriteSlices(const effect::SendState& state);

  CallLimit::Place place_;
  Sequence work_;                     // computes CRCs and writes slices off the core's sequence
  std::atomic<bool> sending_{false};  // a chunk was queued and ExportDrained not posted for it
  uint64_t step_ = 0;                 // of the request; set by Start
};

// Control.WatchSteps. Sends step records as the core reports them. Ends with RESOURCE_EXHAUSTED if
// the client reads too slowly; the client continues after the last record that it received.
class WatchCall final : public WriteCall {
 public:
  // The records that may wait for the client: several hundred.
  static constexpr size_t kMaxQueuedBytes = size_t{64} << 10;

  static grpc::ServerWriteReactor<grpc::ByteBuffer>* Start(grpc::CallbackServerContext* context,
                                                           JobHost* host, CallLimit* limit,
                                                           const grpc::ByteBuffer& request);
  void OnReply(const effect::ReplyMessage& message) override;

 protected:
  std::string What() const override { return "WatchSteps"; }

 private:
  WatchCall() = default;

  CallLimit::Place place_;
};

}  // namespace eps

#endif  // EPS_SERVER_RPC_CALLS_STATE_CALLS_H_
