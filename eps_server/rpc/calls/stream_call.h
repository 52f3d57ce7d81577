#ifndef EPS_SERVER_RPC_CALLS_STREAM_CALL_H_
#define EPS_SERVER_RPC_CALLS_STREAM_CALL_H_

#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/check.h"
#include "base/mutex.h"
#include "eps_server/shell/job_shell.h"
#include "eps_server/shell/stream_sink.h"
#include "eps_server/shell/timer_queue.h"
#include "google/protobuf/message_lite.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"

namespace eps {

// Parses a message that must not carry a payload. Returns InvalidArgument for malformed or oversize
// bytes.
absl::Status ParseMessage(const grpc::ByteBuffer& raw, google::protobuf::MessageLite* message);

// The state machine of a streaming RPC: at most one read and one write in flight, a queue of
// messages to write, and exactly one finish. Withholding the next read exerts back-pressure. If the
// client reads nothing for JobShell::unread_timeout while messages wait for it, the RPC ends with
// DEADLINE_EXCEEDED, and the messages are dropped. The adapters below connect it to gRPC's
// reactors, which differ by direction only.
//
// Thread-safe. Overrides must not block: the process may have as few as two callback threads for
// all its RPCs. An RPC owns itself until gRPC is done with it.
class StreamCall : public StreamSink, public std::enable_shared_from_this<StreamCall> {
 public:
  ~StreamCall() override = default;

  // Queues all messages, without others in between, or none if the RPC is ending.
  void Write(grpc::ByteBuffer message);
  void Write(std::vector<grpc::ByteBuffer> messages);
  // Ends the RPC after the queued messages. The first call determines the status.
  void End(const absl::Status& status);
  // Returns the bytes that wait for the transport.
  size_t queued_bytes();

  void OnClose(const absl::Status& status) override { End(status); }

 protected:
  // Registers the RPC with its job, if `job` is not null, and makes it own itself until it is done.
  // The handler calls this once, on an object that a shared_ptr holds.
  void Adopt(std::shared_ptr<JobShell> job);
  // Adopts `job`, or null and ends the RPC with the error.
  void AdoptOrEnd(const absl::StatusOr<std::shared_ptr<JobShell>>& job);
  // Requests the next message unless a read is in flight or the RPC is ending. Messages are handled
  // one at a time: a request during OnMessage takes effect when that returns. Does not block.
  void ReadNext();
  // The handler calls this before Adopt, with the context of the RPC.
  void set_context(grpc::CallbackServerContext* context) { context_ = context; }
  // Watches whether the client reads. Adopt calls it if the RPC has a job; tests call it directly.
  void WatchReader(TimerQueue* timers, std::chrono::milliseconds timeout) EPS_EXCLUDES(mu_);

  // Null before Adopt, and if the RPC has no job.
  const std::shared_ptr<JobShell>& job() const { return job_; }
  StreamId id() const { return id_; }
  // Posts an event to the job unless the RPC is ending. So no event follows its StreamClosed.
  void PostUnlessEnding(Event event);

  // These are called without locks held. OnMessage handles a message and returns whether to read
  // the next one at once.
  virtual bool OnMessage(const grpc::ByteBuffer& /*message*/) { return true; }
  // The client will send no more messages.
  virtual void OnHalfClose() {}
  // The transport has accepted all queued messages.
  virtual void OnDrained() {}
  // The client went away or the RPC is ending. Called once, after StreamClosed was posted to the
  // job.
  virtual void OnEnded() {}
  // Names the RPC, and what it sends, in errors.
  virtual std::string What() const { return "the stream"; }

  // The adapters implement these operations of the transport. They are called with the lock held.
  virtual void TransportRead(grpc::ByteBuffer* message) = 0;
  virtual void TransportWrite(const grpc::ByteBuffer* message) = 0;
  virtual void TransportFinish(const grpc::Status& status) = 0;
  // Ends the RPC at once: the write in flight fails, and the client gets the status.
  virtual void TransportCancel(const grpc::Status& status);
  // The adapters call these when the transport reports a completion.
  void ReadDone(bool ok);
  void WriteDone(bool ok);
  void Cancelled();
  void Done();

 private:
  void ReadNextLocked() EPS_REQUIRES(mu_);
  void WriteNextLocked() EPS_REQUIRES(mu_);
  void FinishIfIdleLocked() EPS_REQUIRES(mu_);
  void TellEnded();
  void StartTimerLocked(std::chrono::milliseconds after) EPS_REQUIRES(mu_);
  void CheckReader();

  // Whether the client reads. Without timers it is not watched.
  struct Reader {
    TimerQueue* timers = nullptr;
    std::chrono::milliseconds timeout{0};
    bool timer_runs = false;
    TimerQueue::Clock::time_point since;  // when the write in flight began
  };

  std::shared_ptr<StreamCall> self_;
  std::shared_ptr<JobShell> job_;
  StreamId id_;
  grpc::CallbackServerContext* context_ = nullptr;  // of the RPC; valid until it has finished

  Mutex mu_;
  Reader reader_ EPS_GUARDED_BY(mu_);
  std::deque<grpc::ByteBuffer> queue_ EPS_GUARDED_BY(mu_);
  size_t queued_bytes_ EPS_GUARDED_BY(mu_) = 0;
  bool reading_ EPS_GUARDED_BY(mu_) = false;
  bool handling_ EPS_GUARDED_BY(mu_) = false;     // OnMessage is running
  bool read_wanted_ EPS_GUARDED_BY(mu_) = false;  // ReadNext was called meanwhile
  bool read_over_ EPS_GUARDED_BY(mu_) = false;    // the client sends no more
  bool writing_ EPS_GUARDED_BY(mu_) = false;
  bool ending_ EPS_GUARDED_BY(mu_) = false;
  bool finished_ EPS_GUARDED_BY(mu_) = false;
  bool told_ended_ EPS_GUARDED_BY(mu_) = false;
  grpc::Status status_ EPS_GUARDED_BY(mu_);
  grpc::ByteBuffer incoming_;  // belongs to the transport while reading_, then to ReadDone
  grpc::ByteBuffer outgoing_;  // belongs to the transport while writing_
};

// A stream of messages in both directions.
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

// A stream of messages from the client with one reply. Set the reply before End(OK).
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

// One request with a stream of replies.
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

#endif  // EPS_SERVER_RPC_CALLS_STREAM_CALL_H_
