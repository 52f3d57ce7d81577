#ifndef EPS_WORKER_CLIENT_STREAM_LINK_H_
#define EPS_WORKER_CLIENT_STREAM_LINK_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "eps/v1/control.grpc.pb.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/status.h"
#include "worker/client/byte_stream.h"
#include "worker/client/client_core.h"

namespace eps {

// The user of a StreamLink, which sends and receives its messages.
class StreamHandler {
 public:
  virtual ~StreamHandler() = default;
  // The server has answered Hello; the stream opens next, unless an error is returned, which the
  // link treats as the server's answer. Called without the lock; may block for some seconds.
  virtual absl::Status OnHello(const v1::HelloReply&) { return absl::OkStatus(); }
  // A new stream is open: send everything that is unanswered. The client's lock is held.
  virtual void OnOpen() = 0;
  // Receives a message, without the lock; one at a time, never while OnOpen runs.
  virtual void OnMessage(const grpc::ByteBuffer& message) = 0;
  // The stream ended with `status`. Returns whether that was meant to happen: the link then stays
  // closed, and the client does not fail. The client's lock is held.
  virtual bool OnEnd(const grpc::Status&) { return false; }
  // Returns what is still unanswered, for error texts; empty if nothing. The client's lock is held.
  virtual std::string WaitingFor() const = 0;
};

// A long-lived stream to one server that reopens itself (Hello first, back-off with jitter) as long
// as its handler waits for something. Fails the client if the server was away for rpc_timeout, or
// gave an answer that a retry cannot change. If the server is silent for rpc_timeout while the
// handler waits, the link asks for its status and keeps waiting as long as it answers, because the
// server itself may wait for other workers.
//
// Thread-safe under the client's lock. Must outlive its RPCs: after Stop, the client waits for
// them.
class StreamLink {
 public:
  // `core` and `handler` must outlive the link.
  StreamLink(std::shared_ptr<ClientCore> core, std::string address,
             std::shared_ptr<grpc::Channel> channel, std::string method, uint64_t job_id,
             StreamHandler* handler);

  // Opens the stream unless it is open or being opened. Call it when there is something to send.
  void Ensure() EPS_REQUIRES(client_lock);
  bool is_open() const EPS_REQUIRES(client_lock) { return state_ == State::kOpen; }
  // Sends a message if the stream is open; otherwise drops it, and OnOpen has to send it.
  void Write(grpc::ByteBuffer message) EPS_REQUIRES(client_lock);
  // Reconnects or probes if that is due; returns when to call it next.
  TimePoint Tick(TimePoint now) EPS_REQUIRES(client_lock);
  void Stop() EPS_REQUIRES(client_lock);

 private:
  // A unary call and its messages.
  struct Call {
    grpc::ClientContext context;
    v1::HelloRequest hello;
    v1::HelloReply hello_reply;
    v1::StatusRequest status;
    v1::StatusReply status_reply;
  };
  enum class State { kClosed, kHello, kOpen, kBackOff };

  void SayHello() EPS_REQUIRES(client_lock);
  void OnHello(const absl::Status& status) EPS_REQUIRES(client_lock);
  void OpenStream() EPS_REQUIRES(client_lock);
  void OnStreamDone(const grpc::Status& status) EPS_REQUIRES(client_lock);
  // Records that the server answers.
  void Reached() EPS_REQUIRES(client_lock);
  // Records that the server is gone with `status`; `since` counts if it was there until now.
  void Broken(const absl::Status& status, TimePoint since) EPS_REQUIRES(client_lock);
  void Probe() EPS_REQUIRES(client_lock);
  void OnProbe(const Call& call, const grpc::Status& status) EPS_REQUIRES(client_lock);

  const std::shared_ptr<ClientCore> core_;
  const std::string address_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::string method_;
  const uint64_t job_id_;
  const std::unique_ptr<v1::Control::Stub> control_;
  StreamHandler* const handler_;

  State state_ EPS_GUARDED_BY(client_lock) = State::kClosed;
  bool stopped_ EPS_GUARDED_BY(client_lock) = false;
  int attempt_ EPS_GUARDED_BY(client_lock) = 0;
  std::optional<TimePoint> away_since_ EPS_GUARDED_BY(client_lock);
  absl::Status last_error_ EPS_GUARDED_BY(client_lock);
  TimePoint next_attempt_ EPS_GUARDED_BY(client_lock);
  TimePoint hello_at_ EPS_GUARDED_BY(client_lock);
  TimePoint opened_at_ EPS_GUARDED_BY(client_lock);
  TimePoint heard_at_ EPS_GUARDED_BY(client_lock);
  std::shared_ptr<ByteStream> stream_ EPS_GUARDED_BY(client_lock);
  std::shared_ptr<Call> hello_ EPS_GUARDED_BY(client_lock);
  std::shared_ptr<Call> probe_ EPS_GUARDED_BY(client_lock);
};

}  // namespace eps

#endif  // EPS_WORKER_CLIENT_STREAM_LINK_H_
