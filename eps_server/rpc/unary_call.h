#ifndef EPS_SERVER_RPC_UNARY_CALL_H_
#define EPS_SERVER_RPC_UNARY_CALL_H_

#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/mutex.h"
#include "eps_server/shell/job_shell.h"
#include "eps_server/shell/stream_sink.h"
#include "grpcpp/support/server_callback.h"
#include "wire/grpc_status.h"

namespace eps {

// What may stand in logs and error texts of a request_id that a peer chose.
std::string CleanRequestId(const std::string& request_id);

// A unary RPC that is answered later, by anybody, once. It may wait as state of a core: then it is
// known there by a StreamId. Thread-safe; owns itself until gRPC is done with it.
template <class ReplyMessage>
class UnaryCall final : public grpc::ServerUnaryReactor, public StreamSink {
 public:
  // `method` and the request's id stand in the log and in error texts.
  static std::shared_ptr<UnaryCall> New(const char* method, const std::string& request_id,
                                        ReplyMessage* reply) {
    std::shared_ptr<UnaryCall> call(new UnaryCall(method, CleanRequestId(request_id), reply));
    call->self_ = call;
    return call;
  }

  // The job's core will answer; it is told when the client goes away. To be called at most once,
  // by the handler.
  StreamId Attach(std::shared_ptr<JobShell> job) {
    job_ = std::move(job);
    id_ = job_->AddStream(self_);
    return id_;
  }

  void Succeed(const ReplyMessage& reply) {
    MutexLock lock(&mu_);
    if (finished_) return;
    finished_ = true;
    *reply_ = reply;
    Finish(grpc::Status::OK);
  }

  void Fail(const absl::Status& status) {
    std::string text(status.message());
    if (!request_id_.empty()) absl::StrAppend(&text, " [request ", request_id_, "]");
    EPS_LOG_INFO(method_ << " refused: " << absl::StatusCodeToString(status.code()) << ": "
                         << text);
    MutexLock lock(&mu_);
    if (finished_) return;
    finished_ = true;
    Finish(ToGrpc(absl::Status(status.code(), text)));
  }

  void OnReply(const effect::ReplyMessage& message) override {
    if constexpr (IsReplyOfCore()) {
      Succeed(std::get<ReplyMessage>(message));
    } else {
      StreamSink::OnReply(message);
    }
  }
  void OnClose(const absl::Status& status) override {
    Fail(status.ok() ? absl::InternalError("closed without a reply") : status);
  }

 private:
  UnaryCall(const char* method, std::string request_id, ReplyMessage* reply)
      : method_(method), request_id_(std::move(request_id)), reply_(reply) {}

  static constexpr bool IsReplyOfCore() {
    return std::is_same_v<ReplyMessage, v1::JoinReply> ||
           std::is_same_v<ReplyMessage, v1::BeginStepReply> ||
           std::is_same_v<ReplyMessage, v1::GateReply>;
  }

  void OnCancel() override {
    {
      MutexLock lock(&mu_);
      if (!finished_) {
        finished_ = true;
        Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the client went away"));
      }
    }
    if (job_ != nullptr) job_->Post(event::StreamClosed{id_});
  }
  void OnDone() override {
    if (job_ != nullptr) job_->RemoveStream(id_);
    // May destroy this.
    const std::shared_ptr<UnaryCall> self = std::move(self_);
  }

  const char* const method_;
  const std::string request_id_;
  std::shared_ptr<UnaryCall> self_;
  std::shared_ptr<JobShell> job_;
  StreamId id_;
  Mutex mu_;
  ReplyMessage* const reply_;  // written before Finish, never after
  bool finished_ EPS_GUARDED_BY(mu_) = false;
};

}  // namespace eps

#endif  // EPS_SERVER_RPC_UNARY_CALL_H_
