#include "eps_server/rpc/calls/state_calls.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/checksum.h"
#include "base/numerics/loss_scale.h"
#include "base/status_macros.h"
#include "eps_server/rpc/calls/caller_scope.h"
#include "wire/payload_message.h"

namespace eps {

// ---------------------------------------------------------------- import

grpc::ServerReadReactor<grpc::ByteBuffer>* ImportCall::Start(JobHost* host, CallerScope caller,
                                                             CallLimit* limit,
                                                             grpc::ByteBuffer* reply) {
  std::shared_ptr<ImportCall> call(new ImportCall(host, std::move(caller), reply));
  const absl::Status status = limit->Take(&call->place_);
  if (!status.ok()) {
    call->AdoptOrEnd(status);
    return call.get();
  }
  call->AdoptOrEnd(host->Find(0, call->caller_));
  call->ReadNext();
  return call.get();
}

bool ImportCall::OnMessage(const grpc::ByteBuffer& message) {
  v1::ImportStateRequest request;
  std::vector<grpc::Slice> pieces;
  absl::Status status = SplitPayload(message, &request, &pieces);
  if (status.ok()) status = Take(request, pieces);
  if (!status.ok()) {
    End(absl::Status(status.code(), absl::StrCat("ImportState: ", std::string(status.message()))));
    return false;
  }
  return in_flight_.load() < kMaxInFlight;
}

void ImportCall::NoteBorder(const v1::ImportStateRequest& message) {
  if (message.step() != 0) border_.set_step(message.step());
  if (message.version() != 0) border_.set_version(message.version());
  if (message.update() != 0) border_.set_update(message.update());
  if (message.lagged_norm() != 0) border_.set_lagged_norm(message.lagged_norm());
  if (message.has_loss_scale()) *border_.mutable_loss_scale() = message.loss_scale();
}

absl::Status ImportCall::Take(const v1::ImportStateRequest& message,
                              const std::vector<grpc::Slice>& pieces) {
  if (message.job_id() != 0 && JobId(message.job_id()) != job()->id()) {
    return host_->Find(message.job_id(), caller_).status();
  }
  if (finish_sent_) return absl::InvalidArgumentError("a message after finish");
  const int32_t scale = message.loss_scale().log2();  // 0 without a loss scale
  if (scale < 0 || scale > kMaxLossScaleLog2) {
    return absl::InvalidArgumentError(
        absl::StrCat("a loss scale of 2^", scale, ", expected 2^0 to 2^", kMaxLossScaleLog2));
  }
  NoteBorder(message);
  lease_ = ToDriverLease(message.lease());
  if (message.initialize()) {
    if (initialize_sent_) return absl::InvalidArgumentError("initialize was sent before");
    initialize_sent_ = true;
    work_.Post([self = Self(), lease = lease_] {
      self->PostUnlessEnding(event::ImportInitialize{self->id(), lease});
    });
  }
  if (message.last() || !pieces.empty()) {
    const absl::Status status = TakeSlice(message, pieces);
    if (!status.ok()) return status;
  }
  if (!message.finish()) return absl::OkStatus();
  if (!open_.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("finish while chunk ", open_.begin()->first, " is not complete"));
  }
  finish_sent_ = true;
  work_.Post([self = Self(), border = border_, lease = lease_] {
    event::ImportFinish finish{self->id(), Step(border.step()), Version(border.version()),
                               border.update(), border.lagged_norm()};
    if (border.has_loss_scale()) finish.loss_scale = ToLossScale(border.loss_scale());
    finish.lease = lease;
    self->PostUnlessEnding(finish);
  });
  return absl::OkStatus();
}

absl::Status ImportCall::TakeSlice(const v1::ImportStateRequest& message,
                                   const std::vector<grpc::Slice>& pieces) {
  const ChunkId chunk(message.chunk());
  if (!job()->Owns(chunk)) {
    return absl::InvalidArgumentError(absl::StrCat("chunk ", chunk.value(), " is not one of shard ",
                                                   job()->shard().value(), " of ",
                                                   job()->servers().size()));
  }
  EPS_ASSIGN_OR_RETURN(const size_t bytes, SizeOf(message));
  auto it = open_.find(chunk.value());
  if (it == open_.end() || message.offset() == 0) {
    // A slice at offset 0 starts the chunk over.
    if (it != open_.end()) open_.erase(it);
    if (open_.size() >= kMaxOpen) {
      return absl::InvalidArgumentError(absl::StrCat("slices of more than ", kMaxOpen,
                                                     " chunks interleave; complete chunk ",
                                                     open_.begin()->first, " first"));
    }
    it = open_
             .emplace(chunk.value(), PayloadAssembler(bytes,
                                                      message.has_residual() ? MemoryKind::kResidual
                                                                             : MemoryKind::kImport,
                                                      job()->account()))
             .first;
  }
  const absl::Status status = it->second.Append(message.offset(), pieces);
  if (!status.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk ", chunk.value(), ": ", std::string(status.message())));
  }
  if (!message.last()) return absl::OkStatus();
  Bytes state = it->second.Take();
  open_.erase(it);
  if (message.has_residual()) {
    DeliverResidual(message, std::move(state));
  } else {
    Deliver(chunk, message.crc32c(), std::move(state));
  }
  return absl::OkStatus();
}

absl::StatusOr<size_t> ImportCall::SizeOf(const v1::ImportStateRequest& message) const {
  const ChunkId chunk(message.chunk());
  if (!message.has_residual()) return job()->StateBytes(chunk);
  const std::vector<StageId>& uses = job()->chunks().chunk(chunk).uses;
  const StageId use(message.residual().use_stage());
  const Step after_warmup(job()->spec().codecs.warmup_steps + 1);
  const Codec* codec = job()->codecs().residual_or_null(chunk, after_warmup);
  if (codec == nullptr || std::find(uses.begin(), uses.end(), use) == uses.end() ||
      message.residual().part() >= job()->spec().training.parts) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk ", chunk.value(), ": the job keeps no residual of part ",
                     message.residual().part(), " for its use by stage ", use.value()));
  }
  return codec->MaxEncodedSize(job()->chunks().chunk(chunk), Axis::kRow);
}

void ImportCall::DeliverResidual(const v1::ImportStateRequest& message, Bytes residual) {
  in_flight_.fetch_add(1);
  work_.Post([self = Self(), header = message, residual = std::move(residual)] {
    const ChunkId id(header.chunk());
    absl::Status status = CheckCrc(residual, header.crc32c());
    if (status.ok() && !residual.empty()) {
      const Codec* codec = self->job()->codecs().residual_or_null(
          id, Step(self->job()->spec().codecs.warmup_steps + 1));
      const Chunk& chunk = self->job()->chunks().chunk(id);
      status = codec->Open(chunk, Axis::kRow, residual, Content::kGradient).status();
    }
    if (!status.ok()) {
      return self->End(absl::InvalidArgumentError(absl::StrCat(
          "ImportState: residual of chunk ", id.value(), ": ", std::string(status.message()))));
    }
    self->job()->Post(event::ImportResidual{self->id(), id, StageId(header.residual().use_stage()),
                                            PartId(header.residual().part()), residual,
                                            ToDriverLease(header.lease())});
  });
}

void ImportCall::Deliver(ChunkId chunk, uint32_t crc32c, Bytes state) {
  in_flight_.fetch_add(1);
  work_.Post([self = Self(), chunk, crc32c, version = Version(border_.version()), lease = lease_,
              state = std::move(state)] {
    const absl::Status status = CheckCrc(state, crc32c);
    if (!status.ok()) {
      return self->End(absl::InvalidArgumentError(
          absl::StrCat("ImportState: chunk ", chunk.value(), ": ", std::string(status.message()))));
    }
    self->job()->Post(event::ImportChunk{self->id(), chunk, version, state, lease});
  });
}

void ImportCall::OnImportTaken() {
  in_flight_.fetch_sub(1);
  EndIfUnfinished();
  ReadNext();
}

void ImportCall::OnHalfClose() {
  if (finish_sent_) return;
  unfinished_.store(true);
  EndIfUnfinished();
}

void ImportCall::EndIfUnfinished() {
  if (!unfinished_.load() || in_flight_.load() > 0) return;
  End(
      absl::InvalidArgumentError("ImportState: the stream ended without finish; complete chunks "
                                 "are kept, send the others and finish"));
}

void ImportCall::OnReply(const effect::ReplyMessage& message) {
  *reply_ = JoinPayload(std::get<v1::ImportStateReply>(message), Bytes());
  End(absl::OkStatus());
}

// ---------------------------------------------------------------- export

grpc::ServerWriteReactor<grpc::ByteBuffer>* ExportCall::Start(grpc::CallbackServerContext* context,
                                                              JobHost* host, CallLimit* limit,
                                                              const grpc::ByteBuffer& raw) {
  std::shared_ptr<ExportCall> call(new ExportCall(host));
  call->set_context(context);
  v1::ExportStateRequest request;
  absl::Status status = ParseMessage(raw, &request);
  if (status.ok()) status = limit->Take(&call->place_);
  if (!status.ok()) {
    call->AdoptOrEnd(status);
    return call.get();
  }
  call->step_ = request.step();
  call->AdoptOrEnd(host->Find(request.job_id(), ScopeOf(*context)));
  if (call->job() != nullptr) {
    call->job()->Post(event::Export{call->id(), std::move(request)});
  }
  return call.get();
}

void ExportCall::OnSendState(const effect::SendState& state) {
  work_.Post([self = Self(), state] { self->WriteSlices(state); });
}

void ExportCall::OnClose(const absl::Status& status) {
  work_.Post([self = Self(), status] { self->End(status); });
}

void ExportCall::WriteSlices(const effect::SendState& state) {
  v1::ExportStateReply header = state.header;
  const uint32_t crc = Crc32c(state.state.view());
  std::vector<grpc::ByteBuffer> messages;
  for (const PayloadSlice& slice : SlicesOf(state.state.size())) {
    header.set_offset(slice.offset);
    if (slice.last) {
      header.set_last(true);
      header.set_crc32c(crc);
    }
    messages.push_back(JoinPayload(header, state.state.Sub(slice.offset, slice.size)));
  }
  sending_.store(true, std::memory_order_release);
  Write(std::move(messages));
}

std::string ExportCall::What() const {
  return step_ == 0 ? "ExportState" : absl::StrCat("ExportState of step ", step_);
}

void ExportCall::OnDrained() {
  if (sending_.exchange(false)) job()->Post(event::ExportDrained{id()});
}

// ---------------------------------------------------------------- watch

grpc::ServerWriteReactor<grpc::ByteBuffer>* WatchCall::Start(grpc::CallbackServerContext* context,
                                                             JobHost* host, CallLimit* limit,
                                                             const grpc::ByteBuffer& raw) {
  std::shared_ptr<WatchCall> call(new WatchCall());
  call->set_context(context);
  v1::WatchStepsRequest request;
  absl::Status status = ParseMessage(raw, &request);
  if (status.ok()) status = limit->Take(&call->place_);
  if (!status.ok()) {
    call->AdoptOrEnd(status);
    return call.get();
  }
  call->AdoptOrEnd(host->Find(request.job_id(), ScopeOf(*context)));
  if (call->job() != nullptr) {
    call->job()->Post(event::Watch{call->id(), request.after_step(), request.after_evaluation(),
                                   request.until_evaluation()});
  }
  return call.get();
}

void WatchCall::OnReply(const effect::ReplyMessage& message) {
  if (queued_bytes() > kMaxQueuedBytes) {
    return End(absl::ResourceExhaustedError(absl::StrCat(
        "WatchSteps: more than ", kMaxQueuedBytes,
        " bytes of records wait for this client; watch again after the last one that arrived")));
  }
  Write(JoinPayload(*std::get<effect::SharedRecord>(message), Bytes()));
}

}  // namespace eps
