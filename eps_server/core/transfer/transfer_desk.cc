// ShardCore: state in (import) and out (export), both at a border.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "eps_server/core/shard_core_impl.h"

namespace eps {

absl::Status ShardCore::Impl::CheckImporting() const {
  if (state_ == v1::JOB_STATE_RECOVERING) {
    return absl::FailedPreconditionError(
        absl::StrCat("ImportState: it is not known yet whether the job has its weights; waiting "
                     "for ",
                     RecoveryWaitsFor()));
  }
  if (state_ != v1::JOB_STATE_IMPORTING) {
    return absl::FailedPreconditionError(
        absl::StrCat("ImportState: the job has its weights, it is at step ", step_));
  }
  if (base_cut_.has_value()) {
    return absl::FailedPreconditionError(
        "ImportState: the weights are here and are being made durable");
  }
  return absl::OkStatus();
}

void ShardCore::Impl::On(const event::ImportInitialize& e) {
  const absl::Status importing = CheckImporting();
  if (!importing.ok()) return Close(e.stream, importing);
  ImportJob& job = imports_[e.stream];
  job.stream = e.stream;
  for (const ChunkState& chunk : owned_) {
    ++job.ops_left;
    StartOp(ImportOp{e.stream, chunk.id, Version(0)}, backend_call::Initialize{chunk.id});
  }
}

void ShardCore::Impl::On(const event::ImportChunk& e) {
  const absl::Status importing = CheckImporting();
  if (!importing.ok()) return Close(e.stream, importing);
  if (!Owns(e.chunk)) {
    return Close(e.stream, absl::InvalidArgumentError(
                               absl::StrCat("ImportState: chunk ", e.chunk.value(),
                                            " is not one of shard ", options_.shard.value())));
  }
  ImportJob& job = imports_[e.stream];
  job.stream = e.stream;
  ++job.ops_left;
  StartOp(ImportOp{e.stream, e.chunk, e.version},
          backend_call::WriteState{e.chunk, e.version, e.state});
}

void ShardCore::Impl::On(const event::ImportResidual& e) {
  const absl::Status importing = CheckImporting();
  if (!importing.ok()) return Close(e.stream, importing);
  residuals_.Import({e.chunk, e.use, e.part}, e.residual);
}

void ShardCore::Impl::On(const event::ImportFinish& e) {
  const absl::Status importing = CheckImporting();
  if (!importing.ok()) return Close(e.stream, importing);
  ImportJob& job = imports_[e.stream];
  job.stream = e.stream;
  job.finish = true;
  job.border.set_step(e.step.value());
  job.border.set_version(e.version.value());
  job.border.set_update(e.update);
  job.border.set_lagged_norm(e.lagged_norm);
  MaybeFinishImport(&job);
}

void ShardCore::Impl::OnImportDone(const ImportOp& op, const BackendDone& done) {
  if (EndsProcess(done.status)) {
    return FailOperation(absl::StrCat("import of chunk ", op.chunk.value()), done.status);
  }
  if (done.status.ok()) Owned(op.chunk)->version = op.version;
  auto it = imports_.find(op.stream);
  if (it == imports_.end()) return;
  if (!done.status.ok()) {
    imports_.erase(it);
    return Close(op.stream, done.status);
  }
  --it->second.ops_left;
  MaybeFinishImport(&it->second);
}

void ShardCore::Impl::MaybeFinishImport(ImportJob* job) {
  if (!job->finish || job->ops_left > 0) return;
  const StreamId stream = job->stream;
  const v1::Imported border = job->border;
  imports_.erase(stream);
  for (const ChunkState& chunk : owned_) {
    if (chunk.version != Version(border.version())) {
      return Close(stream, absl::FailedPreconditionError(absl::StrCat(
                               "ImportState: chunk ", chunk.id.value(), " is at version ",
                               chunk.version.value(), ", the border at version ", border.version(),
                               "; not all chunks were sent")));
    }
  }
  if (durable()) return StartImportCut(stream, border);
  FinishImport(stream, border);
}

void ShardCore::Impl::FinishImport(StreamId stream, const v1::Imported& border) {
  v1::ImportStateReply reply;
  reply.set_chunks(static_cast<uint32_t>(owned_.size()));
  reply.set_state(state_);
  Emit(effect::Reply{stream, std::move(reply)});
  TellImported(border);
}

void ShardCore::Impl::TellImported(const v1::Imported& border) {
  last_imported_ = border;
  v1::ShardMessage message = NewMessage();
  *message.mutable_imported() = border;
  SendToLead(std::move(message));
}

bool ShardCore::Impl::AtBorder(uint64_t step) const {
  if (state_ != v1::JOB_STATE_RUNNING && state_ != v1::JOB_STATE_DONE) return false;
  return updates_ == 0 && (step == 0 || step_ == step + 1);
}

void ShardCore::Impl::On(const event::Export& e) {
  if (state_ == v1::JOB_STATE_FAILED) return Close(e.stream, FailedStatus());
  if (e.request.step() != 0 && step_ > e.request.step() + 1) {
    return Close(e.stream, absl::FailedPreconditionError(absl::StrCat(
                               "ExportState: step ", e.request.step(), " is over, step ", step_,
                               " is open; gate the step first")));
  }
  ExportJob job;
  job.request = e.request;
  job.since_ms = now_ms_;
  for (uint32_t id : e.request.chunks()) {
    if (!Owns(ChunkId(id))) {
      return Close(e.stream, absl::InvalidArgumentError(absl::StrCat("ExportState: chunk ", id,
                                                                     " is not one of shard ",
                                                                     options_.shard.value())));
    }
    job.chunks.push_back(ChunkId(id));
  }
  if (e.request.chunks().empty()) {
    for (const ChunkState& chunk : owned_) job.chunks.push_back(chunk.id);
  }
  exports_.emplace(e.stream, std::move(job));
  PumpExports();
}

void ShardCore::Impl::PumpExports() {
  std::vector<StreamId> ready;
  for (auto& [stream, job] : exports_) {
    if (!job.started && AtBorder(job.request.step())) ready.push_back(stream);
  }
  for (StreamId stream : ready) {
    // An export that ends may let the step go on, and so may have been the last of the border.
    const auto it = exports_.find(stream);
    if (it == exports_.end() || it->second.started || !AtBorder(it->second.request.step()))
      continue;
    if (!it->second.request.weights_only() && !residuals_.complete()) {
      exports_.erase(it);
      Close(stream, absl::FailedPreconditionError(
                        "ExportState: what sparse gradients left out is with the workers "
                        "(quantization.residual_home=worker); gate a step before it begins"));
      continue;
    }
    it->second.started = true;
    StartExportRead(stream, &it->second);
  }
}

void ShardCore::Impl::StartExportRead(StreamId stream, ExportJob* job) {
  if (!job->residuals.empty()) {
    const Residuals::Place place = job->residuals.back();
    job->residuals.pop_back();
    v1::ExportStateReply header = ExportHeader(place.chunk);
    header.mutable_residual()->set_use_stage(place.use.value());
    header.mutable_residual()->set_part(place.part.value());
    return Emit(effect::SendState{stream, std::move(header), *residuals_.Find(place)});
  }
  if (job->next < job->chunks.size()) {
    const ChunkId id = job->chunks[job->next++];
    if (!job->request.weights_only()) {
      job->residuals = residuals_.PlacesOf(id);
      std::reverse(job->residuals.begin(), job->residuals.end());
    }
    StartOp(ExportOp{stream, id}, backend_call::ReadState{id, Owned(id)->version});
    return;
  }
  exports_.erase(stream);
  Close(stream, absl::OkStatus());
  StartReadyUpdates();
}

void ShardCore::Impl::OnExportDone(const ExportOp& op, const BackendDone& done) {
  if (EndsProcess(done.status)) {
    return FailOperation(absl::StrCat("export of chunk ", op.chunk.value()), done.status);
  }
  auto it = exports_.find(op.stream);
  if (it == exports_.end()) return;
  if (!done.status.ok()) {
    exports_.erase(it);
    Close(op.stream, done.status);
    return StartReadyUpdates();
  }
  Bytes state = std::get<Bytes>(done.value);
  if (it->second.request.weights_only()) {
    state = state.Sub(0, chunks_.chunk(op.chunk).elements * sizeof(float));
  }
  Emit(effect::SendState{op.stream, ExportHeader(op.chunk), std::move(state)});
}

v1::ExportStateReply ShardCore::Impl::ExportHeader(ChunkId chunk) const {
  v1::ExportStateReply header;
  header.set_chunk(chunk.value());
  header.set_step(step_ - 1);
  header.set_version(base_version_);
  header.set_update(base_version_);
  header.set_term(term_.value());
  header.set_lagged_norm(is_lead() ? lead_->NormOf(step_ - 1) : 0.0);
  return header;
}

void ShardCore::Impl::On(const event::ExportDrained& e) {
  auto it = exports_.find(e.stream);
  if (it != exports_.end() && it->second.started) StartExportRead(e.stream, &it->second);
}

}  // namespace eps
