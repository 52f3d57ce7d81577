#include "eps_server/rpc/calls/fetch_call.h"

#include <utility>
#include <vector>

#include "base/checksum.h"
#include "base/trace/span_names.h"
#include "base/trace/trace_log.h"
#include "eps_server/rpc/calls/caller_scope.h"
#include "wire/grpc_status.h"
#include "wire/payload_message.h"
#include "wire/payload_slices.h"

namespace eps {

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* FetchCall::Start(
    grpc::CallbackServerContext* context, JobHost* host, ShmServer* shm_or_null) {
  std::shared_ptr<FetchCall> call(new FetchCall(host->environment().pool, shm_or_null));
  call->set_context(context);
  call->AdoptOrEnd(host->Find(0, ScopeOf(*context)));
  call->ReadNext();
  return call.get();
}

bool FetchCall::OnMessage(const grpc::ByteBuffer& message) {
  v1::FetchRequest request;
  const absl::Status status = ParseMessage(message, &request);
  if (!status.ok()) {
    End(status);
    return false;
  }
  {
    MutexLock lock(&mu_);
    if (IsAnswered(request)) open_.insert(request.tag());
    const uint64_t before = session_ == nullptr ? 0 : session_->id();
    if (shm_ != nullptr && request.shared_session() != before) {
      session_ = shm_->Find(request.shared_session());
    }
  }
  job()->Post(event::Fetch{id(), std::move(request)});
  return queued_bytes() <= kMaxQueuedBytes;
}

// The core sends nothing for a stage of which this shard holds no chunk. It refuses one that the
// job does not have.
bool FetchCall::IsAnswered(const v1::FetchRequest& request) const {
  const StageId stage(request.stage());
  return !request.chunks().empty() || !job()->HasStage(stage) || job()->OwnsSomeOf(stage);
}

// The core may still refuse a request that it would not answer, so it comes first.
void FetchCall::OnHalfClose() {
  job()->Run([self = Self()] {
    self->work_.Post([self] {
      bool over = false;
      {
        MutexLock lock(&self->mu_);
        self->half_closed_ = true;
        over = self->open_.empty();
      }
      if (over) self->End(absl::OkStatus());
    });
  });
}

void FetchCall::OnSendChunk(const effect::SendChunk& chunk) {
  work_.Post([self = Self(), chunk] { self->WriteSlices(chunk); });
}

void FetchCall::OnFailFetch(const effect::FailFetch& failure) {
  work_.Post([self = Self(), failure] {
    const grpc::Status status = ToGrpc(failure.status);
    v1::FetchSlice slice;
    slice.set_tag(failure.tag);
    slice.set_code(static_cast<uint32_t>(status.error_code()));
    slice.set_message(status.error_message());
    self->Write(JoinPayload(slice, Bytes()));
    self->Answered(failure.tag);
  });
}

void FetchCall::OnClose(const absl::Status& status) {
  work_.Post([self = Self(), status] { self->End(status); });
}

void FetchCall::WriteSlices(const effect::SendChunk& chunk) {
  const TraceSpan span(kSendSpan, {StepThatReads(chunk.version.value()), chunk.chunk.value() + 1});
  const Bytes& payload = chunk.payload;
  v1::FetchSlice slice;
  slice.set_tag(chunk.tag);
  slice.set_chunk(chunk.chunk.value());
  slice.set_version(chunk.version.value());
  slice.set_codec(static_cast<uint32_t>(chunk.codec));
  slice.set_view(chunk.view);
  slice.set_residual(chunk.residual);
  slice.set_total_bytes(payload.size());
  const uint32_t crc = chunk.crc->Get(&job()->counters().fetch_crcs);
  std::vector<grpc::ByteBuffer> messages;
  const std::shared_ptr<ShmSession> shared = session();
  v1::SharedRange range;
  std::vector<PayloadSlice> parts;
  if (shared != nullptr && shared->Hold(payload, &range)) {
    slice.set_last(true);
    slice.set_crc32c(crc);
    *slice.mutable_range() = range;
    messages.push_back(JoinPayload(slice, Bytes()));
  } else {
    parts = SlicesOf(payload.size());
  }
  for (const PayloadSlice& part : parts) {
    slice.set_offset(part.offset);
    if (part.last) {
      slice.set_last(true);
      slice.set_crc32c(crc);
    }
    messages.push_back(JoinPayload(slice, payload.Sub(part.offset, part.size)));
  }
  Write(std::move(messages));
  if (chunk.completes_fetch) Answered(chunk.tag);
}

std::shared_ptr<ShmSession> FetchCall::session() {
  MutexLock lock(&mu_);
  return session_;
}

void FetchCall::Answered(uint64_t tag) {
  bool over = false;
  {
    MutexLock lock(&mu_);
    const auto it = open_.find(tag);
    if (it == open_.end()) return;  // refused, where no answer was expected
    open_.erase(it);
    over = half_closed_ && open_.empty();
  }
  if (over) End(absl::OkStatus());
}

}  // namespace eps
