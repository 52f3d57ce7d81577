#ifndef EPS_WORKER_CLIENT_WORKER_SESSION_H_
#define EPS_WORKER_CLIENT_WORKER_SESSION_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "eps/v1/control.pb.h"
#include "grpcpp/channel.h"
#include "worker/client/client_core.h"
#include "worker/client/stream_link.h"

namespace eps {

// Reads leases of a job of `parts` parts. Internal if one names another part or no generation.
absl::StatusOr<Leases> ReadLeases(const google::protobuf::RepeatedPtrField<v1::Lease>& leases,
                                  uint32_t parts);

// A worker's session on the lead (Control.Session): it sends a Beat when the stream opens and then
// every fifth of the lease's length, and learns from Notices which leases the worker holds. A
// stream that breaks is opened again with the same nonce. Fails the client with Aborted if a lease
// or the term is over, with FailedPrecondition if the job has failed, and as StreamLink does.
// Thread-safe under the client's lock.
class WorkerSession final : public StreamHandler {
 public:
  // `leases` and `lease` are those of the reply to Join; without leases the worker is a standby.
  // `channel` leads to the lead. Borrows `job`.
  WorkerSession(std::shared_ptr<ClientCore> core, const JobView* job,
                std::shared_ptr<grpc::Channel> channel, Leases leases,
                std::chrono::milliseconds lease);

  // The leases that the worker holds; a standby has none until a Notice brings them.
  const Leases& leases() const EPS_REQUIRES(client_lock) { return leases_; }
  // Whether the lead has said that the job is done.
  bool done() const EPS_REQUIRES(client_lock) { return done_; }

  // Gives back all leases: the last Beat is on its way, and the session ends. With `job_over`, a
  // server that has ended the stream or is gone needs no Beat.
  void Leave(bool job_over) EPS_REQUIRES(client_lock);
  // Whether the lead has ended the session after Leave.
  bool left() const EPS_REQUIRES(client_lock) { return left_; }

  StreamLink& link() { return link_; }
  // Sends a Beat if it is due; returns when to call it next.
  TimePoint Tick(TimePoint now) EPS_REQUIRES(client_lock);

  void OnOpen() override EPS_REQUIRES(client_lock);
  void OnMessage(const grpc::ByteBuffer& message) override EPS_EXCLUDES(client_lock);
  bool OnEnd(const grpc::Status& status) override EPS_REQUIRES(client_lock);
  std::string WaitingFor() const override EPS_REQUIRES(client_lock);

 private:
  void SendBeat() EPS_REQUIRES(client_lock);
  void OnNotice(const v1::Notice& notice) EPS_REQUIRES(client_lock);

  const std::shared_ptr<ClientCore> core_;
  const JobView* const job_;
  const std::string address_;
  StreamLink link_;

  Leases leases_ EPS_GUARDED_BY(client_lock);
  std::chrono::milliseconds lease_ EPS_GUARDED_BY(client_lock);  // the length of a lease
  TimePoint next_beat_ EPS_GUARDED_BY(client_lock);
  bool done_ EPS_GUARDED_BY(client_lock) = false;
  bool leaving_ EPS_GUARDED_BY(client_lock) = false;
  bool job_over_ EPS_GUARDED_BY(client_lock) = false;  // as given to Leave
  bool left_ EPS_GUARDED_BY(client_lock) = false;
};

}  // namespace eps

#endif  // EPS_WORKER_CLIENT_WORKER_SESSION_H_
