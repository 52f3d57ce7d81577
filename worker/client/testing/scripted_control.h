#ifndef EPS_WORKER_CLIENT_TESTING_SCRIPTED_CONTROL_H_
#define EPS_WORKER_CLIENT_TESTING_SCRIPTED_CONTROL_H_

#include "eps/v1/control.grpc.pb.h"
#include "worker/client/testing/scripted_shard.h"

namespace eps {

// Answers Hello, Join, Session and Status as the script says.
class ScriptedShard::ControlService final : public v1::Control::Service {
 public:
  explicit ControlService(ScriptedShard* shard) : s_(shard) {}

  grpc::Status Hello(grpc::ServerContext* context, const v1::HelloRequest* request,
                     v1::HelloReply* reply) override;
  grpc::Status Join(grpc::ServerContext* context, const v1::JoinRequest* request,
                    v1::JoinReply* reply) override;
  grpc::Status Session(grpc::ServerContext* context,
                       grpc::ServerReaderWriter<v1::Notice, v1::Beat>* stream) override;
  grpc::Status Status(grpc::ServerContext* context, const v1::StatusRequest* request,
                      v1::StatusReply* reply) override;

 private:
  using SessionStream = grpc::ServerReaderWriter<v1::Notice, v1::Beat>;

  // Returns the script's leases in order of parts; none for a standby. Holds the shard's lock.
  std::vector<v1::Lease> Leases() const;
  v1::Notice NewNotice() const;
  // Writes a Notice first, and then another one whenever it differs from the last, until `*ended`.
  void WriteNotices(SessionStream* stream, const bool* ended);
  // Records a Beat; returns whether it ends the session, with *end.
  bool OnBeat(const v1::Beat& beat, grpc::Status* end);

  ScriptedShard* const s_;
};

}  // namespace eps

#endif  // EPS_WORKER_CLIENT_TESTING_SCRIPTED_CONTROL_H_
