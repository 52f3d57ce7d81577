#ifndef EPS_SERVER_RPC_STREAM_CALL_H_
#define EPS_SERVER_RPC_STREAM_CALL_H_

#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/check.h"
#include "base/mutex.h"
#include "eps_server/shell/job_shell.h"
#include "eps_server/shell/stream_sink.h"
#include "google/protobuf/message_lite.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"

namespace eps {

// A message without payload out of a raw one. InvalidArgument for hostile or oversize bytes.
absl::Status ParseMessage(const grpc::ByteBuffer& raw, google::protobuf::MessageLite* message);

// The state machine of a streaming RPC: at most one read and one write in flight, a queue of
// messages to write, finished exactly once. Withholding the next read is the back-pressure. gRPC's
// reactors differ by direction only: the adapters below connect them.
//
// Thread-safe. Reactions never block: there are as few as two callback threads for all RPCs of the
// process. An RPC owns itself until gRPC is done with it.
class StreamCall : public StreamSink, public std::enable_shared_from_this<StreamCall> {
 public:
  ~StreamCall() override = default;

  // Queues messages, all or none; dropped once the RPC is ending.
  void Write(grpc::ByteBuffer message);
  void Write(std::vector<grpc::ByteBuffer> messages);
  // Ends the RPC after what is queued; the first call wins.
  void End(const absl::Status& status);
  // Bytes that wait for the transport.
  size_t queued_bytes();

  void OnClose(const absl::Status& status) override { End(status); }

 protected:
  // Makes the RPC known to its job, and owned by itself until it is done. To be called once, by
  // the handler, on an object that a shared_ptr holds; `job` may be null.
  void Adopt(std::shared_ptr<JobShell> job);
  // The same, or ends the RPC with the error.
  void AdoptOrEnd(const absl::StatusOr<std::shared_ptr<JobShell>>& job);
  // Asks for the next message unless one is on its way or the RPC is ending. Messages are handled
  // one at a time: within OnMessage, or while it runs elsewhere, this waits for its end.
  void ReadNext();

  // Null before Adopt.
  const std::shared_ptr<JobShell>& job() const { return job_; }
  StreamId id() const { return id_; }

  // Reactions, without locks held. A message came: whether to read the next one at once.
  virtual bool OnMessage(const grpc::ByteBuffer& /*message*/) { return true; }
  // The client will send no more.
  virtual void OnHalfClose() {}
  // All that was queued is with the transport.
  virtual void OnDrained() {}
  // Once: the client went away, or the RPC ends. The job was told.
  virtual void OnEnded() {}

  // The transport, by the adapters. Called with the lock held.
  virtual void TransportRead(grpc::ByteBuffer* message) = 0;
  virtual void TransportWrite(const grpc::ByteBuffer* message) = 0;
  virtual void TransportFinish(const grpc::Status& status) = 0;
  // What the transport says.
  void ReadDone(bool ok);
  void WriteDone(bool ok);
  void Cancelled();
  void Done();

 private:
  void ReadNextLocked() EPS_REQUIRES(mu_);
  void WriteNextLocked() EPS_REQUIRES(mu_);
  void FinishIfIdleLocked() EPS_REQUIRES(mu_);
  void TellEnded();

  std::shared_ptr<StreamCall> self_;
  std::shared_ptr<JobShell> job_;
  StreamId id_;

  Mutex mu_;
  std::deque<grpc::ByteBuffer> queue_ EPS_GUARDED_BY(mu_);
  size_t queued_bytes_ EPS_GUARDED_BY(mu_) = 0;
  bool reading_ EPS_GUARDED_BY(mu_) = false;
  bool handling_ EPS_GUARDED_BY(mu_) = false;     // OnMessage runs
  bool read_wanted_ EPS_GUARDED_BY(mu_) = false;  // ReadNext was called meanwhile
  bool read_over_ EPS_GUARDED_BY(mu_) = false;
  bool writing_ EPS_GUARDED_BY(mu_) = false;
  bool ending_ EPS_GUARDED_BY(mu_) = false;
  bool finished_ EPS_GUARDED_BY(mu_) = false;
  bool told_ended_ EPS_GUARDED_BY(mu_) = false;
  grpc::Status status_ EPS_GUARDED_BY(mu_);
  grpc::ByteBuffer incoming_;  // the transport's while reading_, then ReadDone's
  grpc::ByteBuffer outgoing_;  // the transport's while writing_
};

// A stream in both directions.
class BidiCall : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                 public StreamCall {
 protected:
  void TransportRead(grpc::ByteBuffer* message) override { StartRead(message); }
  void TransportWrite(const grpc::ByteBuffer* message) override { StartWrite(message); }
  void TransportFinish(const grpc::Status& status) override { Finish(status); }

 private:
  void OnReadDone(bool ok) override { ReadDone(ok); }
  void OnWriteDone(bool ok) override { WriteDone(ok); }
  void OnCancel() override { Cancelled(); }
  void OnDone() override { Done(); }
};

// A stream from the client with one reply, which is to be set before End(OK).
class ReadCall : public grpc::ServerReadReactor<grpc::ByteBuffer>, public StreamCall {
 protected:
  void TransportRead(grpc::ByteBuffer* message) override { StartRead(message); }
  void TransportWrite(const grpc::ByteBuffer*) override { EPS_CHECK(false); }
  void TransportFinish(const grpc::Status& status) override { Finish(status); }

 private:
  void OnReadDone(bool ok) override { ReadDone(ok); }
  void OnCancel() override { Cancelled(); }
  void OnDone() override { Done(); }
};

// A stream of replies.
class WriteCall : public grpc::ServerWriteReactor<grpc::ByteBuffer>, public StreamCall {
 protected:
  void TransportRead(grpc::ByteBuffer*) override { EPS_CHECK(false); }
  void TransportWrite(const grpc::ByteBuffer* message) override { StartWrite(message); }
  void TransportFinish(const grpc::Status& status) override { Finish(status); }

 private:
  void OnWriteDone(bool ok) override { WriteDone(ok); }
  void OnCancel() override { Cancelled(); }
  void OnDone() override { Done(); }
};

}  // namespace eps

#endif  // EPS_SERVER_RPC_STREAM_CALL_H_
