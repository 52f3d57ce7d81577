#ifndef EPS_WORKER_CLIENT_STREAM_LINK_H_
#define EPS_WORKER_CLIENT_STREAM_LINK_H_

#include <memory>
#include <optional>
#include <string>

#include "eps/v1/control.grpc.pb.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "worker/client/byte_stream.h"
#include "worker/client/client_core.h"

namespace eps {

// What travels over a StreamLink.
class StreamHandler {
 public:
  virtual ~StreamHandler() = default;
  // A fresh stream is open: send everything that is not answered. The client's lock is held.
  virtual void OnOpen() = 0;
  // A message, without the lock; one at a time, never while OnOpen runs.
  virtual void OnMessage(const grpc::ByteBuffer& message) = 0;
  // What is not answered yet, for errors; empty if nothing. The client's lock is held.
  virtual std::string WaitingFor() const = 0;
};

// One long stream to one server that opens itself again (Hello first, back-off with jitter) as long
// as its handler waits for something. The client fails when the server was away for rpc_timeout, or
// gave an answer that repeating cannot change. A server that is silent for rpc_timeout while
// something is waited for is asked for its status: waiting goes on as long as it answers, because
// it may wait for other workers itself.
//
// Thread-safe under the client's lock. Outlives its RPCs: the client waits for them after Stop.
class StreamLink {
 public:
  // `core` and `handler` outlive the link.
  StreamLink(std::shared_ptr<ClientCore> core, std::string address,
             std::shared_ptr<grpc::Channel> channel, std::string method, uint64_t job_id,
             StreamHandler* handler);

  // Opens the stream unless it is open or on its way: there is something to send.
  void Ensure() EPS_REQUIRES(client_lock);
  bool is_open() const EPS_REQUIRES(client_lock) { return state_ == State::kOpen; }
  // Dropped unless open: OnOpen sends it then.
  void Write(grpc::ByteBuffer message) EPS_REQUIRES(client_lock);
  // Does what is due and returns when to ask again.
  TimePoint Tick(TimePoint now) EPS_REQUIRES(client_lock);
  void Stop() EPS_REQUIRES(client_lock);

 private:
  // A unary call with its arguments.
  struct Call {
    grpc::ClientContext context;
    v1::HelloRequest hello;
    v1::HelloReply hello_reply;
    v1::StatusRequest status;
    v1::StatusReply status_reply;
  };
  enum class State { kClosed, kHello, kOpen, kBackOff };

  void SayHello() EPS_REQUIRES(client_lock);
  void OnHello(const grpc::Status& status) EPS_REQUIRES(client_lock);
  void OpenStream() EPS_REQUIRES(client_lock);
  void OnStreamDone(const grpc::Status& status) EPS_REQUIRES(client_lock);
  // The server is there.
  void Reached() EPS_REQUIRES(client_lock);
  // The server went away with `status`, at `since` if it was there before.
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
