#include "eps_server/rpc/calls/push_call.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/trace/span_names.h"
#include "base/trace/trace_log.h"
#include "eps_server/rpc/calls/caller_scope.h"
#include "wire/payload_message.h"

namespace eps {

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* PushCall::Start(
    grpc::CallbackServerContext* context, JobHost* host, ShmServer* shm_or_null) {
  std::shared_ptr<PushCall> call(new PushCall(shm_or_null));
  call->set_context(context);
  call->AdoptOrEnd(host->Find(0, ScopeOf(*context)));
  call->ReadNext();
  return call.get();
}

bool PushCall::OnMessage(const grpc::ByteBuffer& message) {
  v1::PushFrame frame;
  std::vector<grpc::Slice> pieces;
  absl::Status status = SplitPayload(message, &frame, &pieces);
  if (status.ok() && frame.has_header()) {
    status = pieces.empty() ? OnHeader(frame.header())
                            : absl::InvalidArgumentError("a frame has both header and payload");
  } else if (status.ok()) {
    status = OnPayload(frame, pieces);
  }
  if (status.ok()) return queued_bytes() <= kMaxQueuedBytes;
  job()->counters().streams_refused.fetch_add(1, std::memory_order_relaxed);
  status = absl::Status(status.code(), absl::StrCat("Push: ", std::string(status.message())));
  EPS_LOG_WARN("stream closed: " << status.ToString());
  End(status);
  return false;
}

absl::Status PushCall::OnHeader(const v1::PushHeader& header) {
  {
    MutexLock lock(&mu_);
    if (ended_) return absl::OkStatus();
    const auto it = open_.find(header.tag());
    if (it != open_.end() && it->second.state != State::kAnswered) {
      return absl::InvalidArgumentError(
          absl::StrCat("tag ", header.tag(), " is in use on this stream"));
    }
    if (open_.size() >= kMaxOpen) {
      return absl::ResourceExhaustedError(
          absl::StrCat(open_.size(), " contributions are not acknowledged on this stream; at most ",
                       kMaxOpen, " may be"));
    }
    Contribution contribution;
    contribution.header = header;
    open_.insert_or_assign(header.tag(), std::move(contribution));
  }
  job()->Post(event::PushOffered{id(), header});
  return absl::OkStatus();
}

absl::Status PushCall::OnPayload(const v1::PushFrame& frame,
                                 const std::vector<grpc::Slice>& pieces) {
  const uint64_t tag = frame.tag();
  v1::PushHeader header;
  std::function<Bytes()> take;
  {
    MutexLock lock(&mu_);
    if (ended_) return absl::OkStatus();
    const auto it = open_.find(tag);
    if (it != open_.end() && it->second.state == State::kAnswered) {
      if (frame.last()) open_.erase(it);
      return absl::OkStatus();
    }
    if (it == open_.end() || it->second.state != State::kReceiving) {
      return absl::InvalidArgumentError(absl::StrCat("payload without credit, tag ", tag,
                                                     "; send the header and wait for its Credit"));
    }
    Contribution& contribution = it->second;
    const absl::StatusOr<bool> complete = frame.has_range()
                                              ? TakeShared(frame, pieces, &contribution, &take)
                                              : TakeSlice(frame, pieces, &contribution, &take);
    if (!complete.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("tag ", tag, ": ", std::string(complete.status().message())));
    }
    if (!*complete) return absl::OkStatus();
    contribution.state = State::kChecking;
    header = contribution.header;
  }
  Check(header, std::move(take));
  return absl::OkStatus();
}

absl::StatusOr<bool> PushCall::TakeSlice(const v1::PushFrame& frame,
                                         const std::vector<grpc::Slice>& pieces,
                                         Contribution* contribution, std::function<Bytes()>* take) {
  PayloadAssembler& payload = contribution->payload;
  EPS_RETURN_IF_ERROR(payload.Append(frame.offset(), pieces));
  if (!frame.last()) return false;
  if (payload.received() != payload.size()) {
    return absl::InvalidArgumentError(absl::StrCat("the payload ends after ", payload.received(),
                                                   " of ", payload.size(), " bytes"));
  }
  *take = [bytes = payload.Take()] { return bytes; };
  return true;
}

absl::StatusOr<bool> PushCall::TakeShared(const v1::PushFrame& frame,
                                          const std::vector<grpc::Slice>& pieces,
                                          Contribution* contribution,
                                          std::function<Bytes()>* take) {
  const v1::SharedRange& range = frame.range();
  PayloadAssembler& payload = contribution->payload;
  if (!pieces.empty() || frame.offset() != 0 || !frame.last() || payload.received() != 0 ||
      range.bytes() != payload.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a frame of shared memory with ", range.bytes(), " bytes at ", frame.offset(), " after ",
        payload.received(), "; expected all ", payload.size(), " bytes in one frame without data"));
  }
  const std::shared_ptr<ShmSession> session =
      shm_ == nullptr ? nullptr : shm_->Find(range.session());
  if (session == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no session ", range.session(), " of shared memory"));
  }
  EPS_ASSIGN_OR_RETURN(const absl::Span<const uint8_t> bytes, session->Gradients(range));
  // The worker may change its segment at any time, so only the copy is looked at.
  const auto copy = std::make_shared<PayloadAssembler>(std::move(payload));
  *take = [session, bytes, copy] {
    EPS_CHECK(copy->Append(0, bytes).ok());
    return copy->Take();
  };
  return true;
}

void PushCall::Check(const v1::PushHeader& header, std::function<Bytes()> take) {
  // The core credited this header, so its chunk exists.
  const v1::ContributionKey& key = header.key();
  const Chunk* chunk = &job()->chunks().chunk(ChunkId(key.chunk()));
  const CodecTable* codecs = &job()->codecs();
  job()
      ->pool()
      ->lane(Lane::kClient)
      ->Post([self = Self(), header, chunk, codecs, take = std::move(take)] {
        const TraceSpan span(kCheckSpan, {header.key().step(), header.key().chunk() + 1,
                                          header.key().part_first() + 1});
        JobShell& job = *self->job();
        Event event = CheckPush(self->id(), header, *chunk, *codecs, take(), job.account());
        if (std::holds_alternative<event::PushInvalid>(event)) {
          job.counters().payloads_refused.fetch_add(1, std::memory_order_relaxed);
        }
        self->Deliver(header.tag(), std::move(event));
      });
}

void PushCall::Deliver(uint64_t tag, Event event) {
  bool over = false;
  {
    MutexLock lock(&mu_);
    const auto it = open_.find(tag);
    if (ended_ || it == open_.end()) return;
    if (it->second.state == State::kChecking) {
      it->second.state = State::kDelivered;
      // Under the lock: after an acknowledgement no event of this payload may follow, because the
      // client may then use the tag for another contribution.
      return job()->Post(std::move(event));
    }
    open_.erase(it);
    over = half_closed_ && open_.empty();
  }
  if (over) End(absl::OkStatus());
}

void PushCall::OnCredit(uint64_t tag) {
  bool over = false;
  {
    MutexLock lock(&mu_);
    const auto it = open_.find(tag);
    if (ended_ || it == open_.end() || it->second.state != State::kOffered) return;
    if (half_closed_) {
      open_.erase(it);  // the client can no longer send the payload
      over = open_.empty();
    } else {
      it->second.payload =
          PayloadAssembler(it->second.header.bytes() + it->second.header.residual_bytes(),
                           MemoryKind::kContribution, job()->account());
      it->second.state = State::kReceiving;
    }
  }
  if (over) return End(absl::OkStatus());
  v1::PushReply reply;
  reply.set_tag(tag);
  reply.mutable_credit();
  Write(JoinPayload(reply, Bytes()));
}

void PushCall::OnAck(uint64_t tag, const v1::Ack& ack) {
  v1::PushReply reply;
  reply.set_tag(tag);
  *reply.mutable_ack() = ack;
  bool over = false;
  {
    MutexLock lock(&mu_);
    const auto it = open_.find(tag);
    if (it != open_.end() && it->second.state == State::kReceiving) {
      it->second.payload = PayloadAssembler();
      it->second.state = State::kAnswered;
    } else if (it != open_.end() && it->second.state == State::kChecking) {
      it->second.state = State::kDropped;
    } else if (it != open_.end()) {
      open_.erase(it);
    }
    over = half_closed_ && open_.empty();
  }
  Write(JoinPayload(reply, Bytes()));
  if (over) End(absl::OkStatus());
}

void PushCall::OnHalfClose() {
  bool over = false;
  {
    MutexLock lock(&mu_);
    half_closed_ = true;
    // Drops contributions whose payload can no longer arrive. The core may still answer the others.
    for (auto it = open_.begin(); it != open_.end();) {
      const State state = it->second.state;
      const bool answer_comes =
          state == State::kChecking || state == State::kDelivered || state == State::kOffered;
      it = answer_comes ? std::next(it) : open_.erase(it);
    }
    over = open_.empty();
  }
  if (over) End(absl::OkStatus());
}

void PushCall::OnEnded() {
  std::map<uint64_t, Contribution> dropped;
  MutexLock lock(&mu_);
  ended_ = true;
  dropped.swap(open_);
}

}  // namespace eps
