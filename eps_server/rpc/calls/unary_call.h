#ifndef EPS_SERVER_RPC_CALLS_UNARY_CALL_H_
#define EPS_SERVER_RPC_CALLS_UNARY_CALL_H_

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
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

// Returns the part of a peer's request_id that is safe in logs and error texts: 64 printable
// characters at most.
std::string CleanRequestId(const std::string& request_id);

// A unary RPC that any thread may answer later; the first answer counts. A core can hold it as a
// wait, by its StreamId. Thread-safe; owns itself until gRPC is done with it.
template <class ReplyMessage>
class UnaryCall final : public grpc::ServerUnaryReactor, public StreamSink {
 public:
  // `method` appears in the log, the request's id in the log and in error texts.
  static std::shared_ptr<UnaryCall> New(const char* method, const std::string& request_id,
                                        ReplyMessage* reply) {
    std::shared_ptr<UnaryCall> call(new UnaryCall(method, CleanRequestId(request_id), reply));
    call->self_ = call;
    return call;
  }

  // Lets the job's core answer, and posts StreamClosed to it when the client goes away. The handler
  // may call this once.
  StreamId Attach(std::shared_ptr<JobShell> job) {
    job_ = std::move(job);
    id_ = job_->AddStream(self_);
    return id_;
  }

  // Sets a function that completes the reply. The handler may call this once, before the RPC is
  // answered.
  void BeforeReply(std::function<void(ReplyMessage*)> complete) { complete_ = std::move(complete); }

  // Sends the reply unless the RPC was answered before.
  void Succeed(const ReplyMessage& reply) {
    MutexLock lock(&mu_);
    if (finished_) return;
    finished_ = true;
    *reply_ = reply;
    if (complete_) complete_(reply_);
    Finish(grpc::Status::OK);
  }

  // Logs the error unless it is NotFound, for which drivers and workers that wait for a job ask
  // again and again. Sends it, with the request's id, unless the RPC was answered before.
  void Fail(const absl::Status& status) {
    std::string text(status.message());
    if (!request_id_.empty()) absl::StrAppend(&text, " [request ", request_id_, "]");
    if (!absl::IsNotFound(status)) {
      EPS_LOG_INFO(method_ << " refused: " << absl::StatusCodeToString(status.code()) << ": "
                           << text);
    }
    MutexLock lock(&mu_);
    if (finished_) return;
    finished_ = true;
    Finish(ToGrpc(absl::Status(status.code(), text)));
  }

  void OnReply(const effect::ReplyMessage& message) override {
    if constexpr (std::is_constructible_v<effect::ReplyMessage, ReplyMessage>) {
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
    // Destroys this object at the end of the scope, unless others hold it.
    const std::shared_ptr<UnaryCall> self = std::move(self_);
  }

  const char* const method_;
  const std::string request_id_;
  std::shared_ptr<UnaryCall> self_;
  std::shared_ptr<JobShell> job_;
  StreamId id_;
  std::function<void(ReplyMessage*)> complete_;
  Mutex mu_;
  ReplyMessage* const reply_;  // written before Finish, never after
  bool finished_ EPS_GUARDED_BY(mu_) = false;
};

}  // namespace eps

#endif  // EPS_SERVER_RPC_CALLS_UNARY_CALL_H_
