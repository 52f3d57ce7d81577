#include "eps_server/rpc/calls/stream_call.h"

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "grpc/grpc.h"
#include "grpcpp/server_context.h"
#include "wire/grpc_status.h"
#include "wire/payload_message.h"

namespace eps {

absl::Status ParseMessage(const grpc::ByteBuffer& raw, google::protobuf::MessageLite* message) {
  std::vector<grpc::Slice> payload;
  absl::Status status = SplitPayload(raw, message, &payload);
  if (status.ok() && !payload.empty()) {
    return absl::InvalidArgumentError("an unexpected payload in the message");
  }
  return status;
}

void StreamCall::Adopt(std::shared_ptr<JobShell> job) {
  self_ = shared_from_this();
  job_ = std::move(job);
  if (job_ == nullptr) return;
  WatchReader(job_->timers(), job_->unread_timeout());
  id_ = job_->AddStream(self_);
}

void StreamCall::AdoptOrEnd(const absl::StatusOr<std::shared_ptr<JobShell>>& job) {
  Adopt(job.ok() ? *job : nullptr);
  if (!job.ok()) End(job.status());
}

void StreamCall::PostUnlessEnding(Event event) {
  MutexLock lock(&mu_);
  if (!ending_) job_->Post(std::move(event));
}

void StreamCall::ReadNext() {
  MutexLock lock(&mu_);
  ReadNextLocked();
}

void StreamCall::ReadNextLocked() {
  if (handling_) {
    read_wanted_ = true;
    return;
  }
  if (reading_ || read_over_ || ending_) return;
  reading_ = true;
  TransportRead(&incoming_);
}

void StreamCall::Write(grpc::ByteBuffer message) {
  std::vector<grpc::ByteBuffer> messages;
  messages.push_back(std::move(message));
  Write(std::move(messages));
}

void StreamCall::Write(std::vector<grpc::ByteBuffer> messages) {
  MutexLock lock(&mu_);
  if (ending_) return;
  for (grpc::ByteBuffer& message : messages) {
    queued_bytes_ += message.Length();
    queue_.emplace_back();
    queue_.back().Swap(&message);
  }
  WriteNextLocked();
}

size_t StreamCall::queued_bytes() {
  MutexLock lock(&mu_);
  return queued_bytes_;
}

void StreamCall::WriteNextLocked() {
  if (writing_ || queue_.empty()) return;
  outgoing_.Swap(&queue_.front());
  queue_.pop_front();
  writing_ = true;
  if (reader_.timers != nullptr) {
    reader_.since = TimerQueue::Clock::now();
    if (!reader_.timer_runs) StartTimerLocked(reader_.timeout);
  }
  TransportWrite(&outgoing_);
}

void StreamCall::WatchReader(TimerQueue* timers, std::chrono::milliseconds timeout) {
  MutexLock lock(&mu_);
  reader_.timers = timers;
  reader_.timeout = timeout;
}

void StreamCall::StartTimerLocked(std::chrono::milliseconds after) {
  reader_.timer_runs = true;
  reader_.timers->Schedule(after, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->CheckReader();
  });
}

// Runs while messages wait, and once more after the last one. Does not block.
void StreamCall::CheckReader() {
  std::deque<grpc::ByteBuffer> dropped;
  {
    MutexLock lock(&mu_);
    reader_.timer_runs = false;
    if (!writing_) return;
    const auto unread = std::chrono::duration_cast<std::chrono::milliseconds>(
        TimerQueue::Clock::now() - reader_.since);
    if (unread < reader_.timeout) return StartTimerLocked(reader_.timeout - unread);
    const absl::Status status = absl::DeadlineExceededError(absl::StrCat(
        What(), ": the client has read nothing for ", static_cast<double>(unread.count()) / 1e3,
        " s, and ", queued_bytes_, " bytes wait for it (servers.unread_timeout is ",
        static_cast<double>(reader_.timeout.count()) / 1e3, " s)"));
    EPS_LOG_WARN("stream ended: " << status.ToString());
    ending_ = true;
    status_ = ToGrpc(status);
    dropped.swap(queue_);
    queued_bytes_ = outgoing_.Length();
    TransportCancel(status_);
  }
  if (job_ != nullptr) job_->counters().streams_unread.fetch_add(1, std::memory_order_relaxed);
  TellEnded();
}

void StreamCall::TransportCancel(const grpc::Status& status) {
  // TryCancel would not tell the client why.
  grpc_call_cancel_with_status(context_->c_call(),
                               static_cast<grpc_status_code>(status.error_code()),
                               status.error_message().c_str(), nullptr);
}

void StreamCall::End(const absl::Status& status) {
  {
    MutexLock lock(&mu_);
    if (ending_) return;
    ending_ = true;
    status_ = ToGrpc(status);
    FinishIfIdleLocked();
  }
  TellEnded();
}

void StreamCall::FinishIfIdleLocked() {
  if (!ending_ || finished_ || writing_ || !queue_.empty()) return;
  finished_ = true;
  TransportFinish(status_);
}

void StreamCall::ReadDone(bool ok) {
  grpc::ByteBuffer message;
  {
    MutexLock lock(&mu_);
    reading_ = false;
    if (!ok) read_over_ = true;
    if (ending_) {
      incoming_.Clear();
      return;
    }
    message.Swap(&incoming_);
    handling_ = ok;
  }
  if (!ok) return OnHalfClose();
  const bool more = OnMessage(message);
  MutexLock lock(&mu_);
  handling_ = false;
  if (more || read_wanted_) {
    read_wanted_ = false;
    ReadNextLocked();
  }
}

void StreamCall::WriteDone(bool ok) {
  bool drained = false;
  std::deque<grpc::ByteBuffer> dropped;
  {
    MutexLock lock(&mu_);
    queued_bytes_ -= outgoing_.Length();
    outgoing_.Clear();
    writing_ = false;
    if (!ok) {
      // The stream accepts no more writes. OnCancel follows if the client went away.
      dropped.swap(queue_);
      queued_bytes_ = 0;
      if (!ending_) {
        ending_ = true;
        status_ = grpc::Status(grpc::StatusCode::CANCELLED, "the stream is broken");
      }
    }
    WriteNextLocked();
    FinishIfIdleLocked();
    drained = ok && !writing_ && !ending_;
  }
  if (!ok) TellEnded();
  if (drained) OnDrained();
}

void StreamCall::Cancelled() {
  std::deque<grpc::ByteBuffer> dropped;
  {
    MutexLock lock(&mu_);
    dropped.swap(queue_);
    queued_bytes_ = writing_ ? outgoing_.Length() : 0;
    if (!ending_) {
      ending_ = true;
      status_ = grpc::Status(grpc::StatusCode::CANCELLED, "the client went away");
    }
    FinishIfIdleLocked();
  }
  TellEnded();
}

void StreamCall::TellEnded() {
  {
    MutexLock lock(&mu_);
    if (told_ended_) return;
    told_ended_ = true;
  }
  if (job_ != nullptr) {
    job_->RemoveStream(id_);
    job_->Post(event::StreamClosed{id_});
  }
  OnEnded();
}

void StreamCall::Done() {
  TellEnded();
  // May destroy this.
  const std::shared_ptr<StreamCall> self = std::move(self_);
}

}  // namespace eps
