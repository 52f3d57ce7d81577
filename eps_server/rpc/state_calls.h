#ifndef EPS_SERVER_RPC_STATE_CALLS_H_
#define EPS_SERVER_RPC_STATE_CALLS_H_

// The streaming RPCs of Control: state in, state out, step records.

#include <atomic>
#include <map>
#include <memory>
#include <vector>

#include "base/executor.h"
#include "eps_server/rpc/stream_call.h"
#include "eps_server/shell/job_host.h"
#include "eps_server/shell/payload.h"

namespace eps {

// Control.ImportState. The border (step, version, update, lagged_norm) may stand in the first
// message or in a later one: the newest value that is not 0 counts. A chunk is the core's when its
// last slice is in and its CRC is right. Slices of one chunk come in order.
class ImportCall final : public ReadCall {
 public:
  // Chunks that are not complete, and chunks on their way to the backend: the next message is read
  // when there are fewer.
  static constexpr size_t kMaxOpen = 2;
  static constexpr int kMaxInFlight = 4;

  static grpc::ServerReadReactor<grpc::ByteBuffer>* Start(JobHost* host, grpc::ByteBuffer* reply);

  void OnReply(const effect::ReplyMessage& message) override;
  void OnImportTaken() override;

 protected:
  bool OnMessage(const grpc::ByteBuffer& message) override;
  void OnHalfClose() override;

 private:
  ImportCall(JobHost* host, grpc::ByteBuffer* reply)
      : host_(host), reply_(reply), work_(host->environment().pool) {}
  std::shared_ptr<ImportCall> Self() {
    return std::static_pointer_cast<ImportCall>(shared_from_this());
  }
  absl::Status Take(const v1::ImportStateRequest& message, const std::vector<grpc::Slice>& pieces);
  absl::Status TakeSlice(const v1::ImportStateRequest& message,
                         const std::vector<grpc::Slice>& pieces);
  // Checks the CRC on the pool; then the core gets the chunk.
  void Deliver(ChunkId chunk, uint32_t crc32c, Bytes state);
  void DeliverResidual(const v1::ImportStateRequest& message, Bytes residual);
  absl::StatusOr<size_t> SizeOf(const v1::ImportStateRequest& message) const;
  void NoteBorder(const v1::ImportStateRequest& message);
  // Ends an unfinished stream once the errors of its chunks are known.
  void EndIfUnfinished();

  JobHost* const host_;
  grpc::ByteBuffer* const reply_;
  Sequence work_;  // CRCs, and events in the order of the messages

  // Touched by one read at a time.
  v1::ImportStateRequest border_;              // only step, version, update and lagged_norm
  std::map<uint32_t, PayloadAssembler> open_;  // by chunk
  bool finish_sent_ = false;

  std::atomic<int> in_flight_{0};
  std::atomic<bool> unfinished_{false};  // the client closed its side without finish
};

// Control.ExportState.
class ExportCall final : public WriteCall {
 public:
  static grpc::ServerWriteReactor<grpc::ByteBuffer>* Start(JobHost* host,
                                                           const grpc::ByteBuffer& request);
  void OnSendState(const effect::SendState& state) override;
  void OnClose(const absl::Status& status) override;

 protected:
  void OnDrained() override;

 private:
  explicit ExportCall(JobHost* host) : work_(host->environment().pool) {}
  std::shared_ptr<ExportCall> Self() {
    return std::static_pointer_cast<ExportCall>(shared_from_this());
  }
  void WriteSlices(const effect::SendState& state);

  Sequence work_;  // CRC and slices, away from the core's sequence
  std::atomic<bool> sending_{false};
};

// Control.WatchSteps.
class WatchCall final : public WriteCall {
 public:
  static grpc::ServerWriteReactor<grpc::ByteBuffer>* Start(JobHost* host,
                                                           const grpc::ByteBuffer& request);
  void OnReply(const effect::ReplyMessage& message) override;

 private:
  WatchCall() = default;
};

}  // namespace eps

#endif  // EPS_SERVER_RPC_STATE_CALLS_H_
