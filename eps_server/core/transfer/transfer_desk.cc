#include "eps_server/core/transfer/transfer_desk.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/numerics/loss_scale.h"

namespace eps {

// ---------------------------------------------------------------- import

// Returns OK while the shard waits for an import, otherwise an error that says what the shard does.
absl::Status TransferDesk::CheckImporting() const {
  if (facts_.state == v1::JOB_STATE_RECOVERING) {
    return absl::FailedPreconditionError(
        absl::StrCat("ImportState: it is not known yet whether the job has its weights; waiting "
                     "for ",
                     queries_.RecoveryWaitsFor()));
  }
  if (facts_.state != v1::JOB_STATE_IMPORTING) {
    return absl::FailedPreconditionError(
        absl::StrCat("ImportState: the job has its weights, it is at step ", facts_.step));
  }
  if (facts_.cuts.base.has_value()) {
    return absl::FailedPreconditionError(
        "ImportState: the weights are here and are being made durable");
  }
  return absl::OkStatus();
}

absl::Status TransferDesk::CheckImport(const DriverLease& lease) const {
  const absl::Status driver = facts_.CheckDriver("ImportState", lease);
  return driver.ok() ? CheckImporting() : driver;
}

void TransferDesk::On(const event::ImportInitialize& e) {
  const absl::Status importing = CheckImport(e.lease);
  if (!importing.ok()) return outbox_->Close(e.stream, importing);
  const bool runs = std::any_of(import_ops_.begin(), import_ops_.end(),
                                [](const auto& op) { return op.second.initializes; });
  if (runs) {
    refused_.insert(e.stream);
    return outbox_->Close(e.stream, absl::UnavailableError(absl::StrCat(
                                        "ImportState: shard ", facts_.job.shard.value(),
                                        " is being initialized; try again when that has ended")));
  }
  Import& job = imports_[e.stream];
  for (const OwnedChunk& chunk : facts_.owned) {
    ++job.ops_left;
    const OpId op = outbox_->StartOp(InitializeRequest{chunk.id});
    import_ops_[op] = {e.stream, chunk.id, Version(0), /*initializes=*/true};
  }
}

void TransferDesk::On(const event::ImportChunk& e) {
  const absl::Status importing = CheckImport(e.lease);
  if (!importing.ok()) return outbox_->Close(e.stream, importing);
  if (facts_.Owned(e.chunk) == nullptr) {
    return outbox_->Close(e.stream, absl::InvalidArgumentError(absl::StrCat(
                                        "ImportState: chunk ", e.chunk.value(),
                                        " is not one of shard ", facts_.job.shard.value())));
  }
  ++imports_[e.stream].ops_left;
  const OpId op = outbox_->StartOp(WriteStateRequest{e.chunk, e.version, e.state});
  import_ops_[op] = {e.stream, e.chunk, e.version, /*initializes=*/false};
}

void TransferDesk::On(const event::ImportResidual& e) {
  const absl::Status importing = CheckImport(e.lease);
  if (!importing.ok()) return outbox_->Close(e.stream, importing);
  outbox_->Raise(internal_event::ResidualImported{{e.chunk, e.use, e.part}, e.residual});
}

void TransferDesk::On(const event::ImportFinish& e) {
  if (refused_.count(e.stream) > 0) return;
  const absl::Status importing = CheckImport(e.lease);
  if (!importing.ok()) return outbox_->Close(e.stream, importing);
  Import& job = imports_[e.stream];
  job.finish = true;
  job.border.set_step(e.step.value());
  job.border.set_version(e.version.value());
  job.border.set_update(e.update);
  job.border.set_lagged_norm(e.lagged_norm);
  if (e.loss_scale.has_value()) SetMessage(*e.loss_scale, job.border.mutable_loss_scale());
  MaybeFinishImport(e.stream);
}

void TransferDesk::OnImportDone(const ImportOp& op, const BackendDone& done) {
  if (facts_.EndsProcess(done.status)) {
    return outbox_->Raise(
        internal_event::OpFailed{absl::StrCat("import of chunk ", op.chunk.value()), done.status});
  }
  if (done.status.ok()) {
    if (CheckImporting().ok()) written_.insert(op.chunk);
    outbox_->Raise(internal_event::ChunkImported{op.chunk, op.version});
  }
  const auto it = imports_.find(op.stream);
  if (it == imports_.end()) return;
  if (!done.status.ok()) {
    imports_.erase(it);
    return outbox_->Close(op.stream, done.status);
  }
  --it->second.ops_left;
  MaybeFinishImport(op.stream);
}

// Returns OK if every chunk of the shard has content.
absl::Status TransferDesk::CheckWhole() const {
  for (const OwnedChunk& chunk : facts_.owned) {
    if (written_.count(chunk.id) > 0) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("ImportState: finish with ", written_.size(), " of the ", facts_.owned.size(),
                     " chunks of shard ", facts_.job.shard.value(), "; chunk ", chunk.id.value(),
                     " is the first that is missing. Send the others, or send initialize"));
  }
  return absl::OkStatus();
}

void TransferDesk::MaybeFinishImport(StreamId stream) {
  const auto it = imports_.find(stream);
  if (!it->second.finish || it->second.ops_left > 0) return;
  const v1::Imported border = it->second.border;
  imports_.erase(it);
  if (const absl::Status whole = CheckWhole(); !whole.ok()) return outbox_->Close(stream, whole);
  for (const OwnedChunk& chunk : facts_.owned) {
    if (chunk.version != Version(border.version())) {
      return outbox_->Close(
          stream, absl::FailedPreconditionError(absl::StrCat(
                      "ImportState: chunk ", chunk.id.value(), " is at version ",
                      chunk.version.value(), ", the border at version ", border.version())));
    }
  }
  if (!facts_.job.durable()) return On(internal_event::ImportDurable{stream, border});
  const absl::Status importing = CheckImporting();
  if (!importing.ok()) return outbox_->Close(stream, importing);
  outbox_->Raise(internal_event::ImportComplete{stream, border});
}

void TransferDesk::On(const internal_event::ImportDurable& e) {
  v1::ImportStateReply reply;
  reply.set_chunks(static_cast<uint32_t>(facts_.owned.size()));
  reply.set_state(facts_.state);
  outbox_->Emit(effect::Reply{e.stream, std::move(reply)});
  outbox_->Raise(internal_event::Imported{e.border});
}

// ---------------------------------------------------------------- export

bool TransferDesk::AtBorder(uint64_t step) const {
  if (facts_.state != v1::JOB_STATE_RUNNING && facts_.state != v1::JOB_STATE_DONE) return false;
  return facts_.open.updates == 0 && (step == 0 || facts_.step == step + 1);
}

void TransferDesk::On(const event::Export& e) {
  if (facts_.state == v1::JOB_STATE_FAILED) return outbox_->Close(e.stream, facts_.FailedStatus());
  if (e.request.step() != 0 && facts_.step > e.request.step() + 1) {
    return outbox_->Close(e.stream, absl::FailedPreconditionError(absl::StrCat(
                                        "ExportState: step ", e.request.step(), " is over, step ",
                                        facts_.step, " is open; gate the step first")));
  }
  // The job may be at another border when it is open again. A driver that waited here could not
  // restart the server that the job waits for.
  if (facts_.state == v1::JOB_STATE_RECOVERING && e.request.step() != 0) {
    return outbox_->Close(
        e.stream, absl::UnavailableError(absl::StrCat(
                      "ExportState: the job returns to a cut and waits for ",
                      queries_.RecoveryWaitsFor(), "; ask for its border when it is open again")));
  }
  Export job;
  job.request = e.request;
  job.since_ms = facts_.now_ms;
  absl::StatusOr<std::vector<ChunkId>> named =
      facts_.NamedChunks("ExportState", e.request.chunks());
  if (!named.ok()) return outbox_->Close(e.stream, named.status());
  job.chunks = *std::move(named);
  if (e.request.chunks().empty()) {
    for (const OwnedChunk& chunk : facts_.owned) job.chunks.push_back(chunk.id);
  }
  exports_.emplace(e.stream, std::move(job));
  PumpExports();
}

void TransferDesk::PumpExports() {
  std::vector<StreamId> ready;
  for (const auto& [stream, job] : exports_) {
    if (!job.started && AtBorder(job.request.step())) ready.push_back(stream);
  }
  for (const StreamId stream : ready) {
    // An export that ends may let the next step begin, so the border may already be over here.
    const auto it = exports_.find(stream);
    if (it == exports_.end() || it->second.started || !AtBorder(it->second.request.step())) {
      continue;
    }
    if (!it->second.request.weights_only() && !facts_.residuals.complete()) {
      exports_.erase(it);
      outbox_->Close(stream,
                     absl::FailedPreconditionError(
                         "ExportState: what sparse gradients left out is with the workers "
                         "(quantization.residual_home=worker); gate a step before it begins"));
      continue;
    }
    it->second.started = true;
    CountReaders();
    SendNext(stream, &it->second);
  }
}

// Sends the next residual, or reads the next chunk; ends the export after the last.
void TransferDesk::SendNext(StreamId stream, Export* job) {
  if (!job->residuals.empty()) {
    const Residuals::Place place = job->residuals.back();
    job->residuals.pop_back();
    v1::ExportStateReply header = ExportHeader(place.chunk);
    header.mutable_residual()->set_use_stage(place.use.value());
    header.mutable_residual()->set_part(place.part.value());
    return outbox_->Emit(
        effect::SendState{stream, std::move(header), *facts_.residuals.Find(place)});
  }
  if (job->next < job->chunks.size()) {
    const ChunkId id = job->chunks[job->next++];
    if (!job->request.weights_only()) {
      job->residuals = facts_.residuals.PlacesOf(id);
      std::reverse(job->residuals.begin(), job->residuals.end());
    }
    const OpId op = outbox_->StartOp(ReadStateRequest{id, facts_.Owned(id)->version});
    export_ops_[op] = {stream, id};
    return;
  }
  EndExport(stream, absl::OkStatus());
}

void TransferDesk::EndExport(StreamId stream, const absl::Status& status) {
  exports_.erase(stream);
  CountReaders();
  outbox_->Close(stream, status);
  outbox_->Raise(internal_event::ExportEnded{});
}

void TransferDesk::CountReaders() {
  uint32_t readers = 0;
  for (const auto& [stream, job] : exports_) readers += job.started ? 1 : 0;
  outbox_->Raise(internal_event::BorderReaders{readers});
}

void TransferDesk::OnExportDone(const ExportOp& op, const BackendDone& done) {
  if (facts_.EndsProcess(done.status)) {
    return outbox_->Raise(
        internal_event::OpFailed{absl::StrCat("export of chunk ", op.chunk.value()), done.status});
  }
  const auto it = exports_.find(op.stream);
  if (it == exports_.end()) return;
  if (!done.status.ok()) return EndExport(op.stream, done.status);
  Bytes state = std::get<Bytes>(done.value);
  if (it->second.request.weights_only()) {
    state = state.Sub(0, facts_.job.chunks.chunk(op.chunk).elements * sizeof(float));
  }
  outbox_->Emit(effect::SendState{op.stream, ExportHeader(op.chunk), std::move(state)});
}

v1::ExportStateReply TransferDesk::ExportHeader(ChunkId chunk) const {
  v1::ExportStateReply header;
  header.set_chunk(chunk.value());
  header.set_step(facts_.step - 1);
  header.set_version(facts_.version);
  header.set_update(facts_.version);
  header.set_term(facts_.term.value());
  header.set_lagged_norm(queries_.NormOf(facts_.step - 1));
  if (facts_.open.loss_scale.has_value()) {
    SetMessage(*facts_.open.loss_scale, header.mutable_loss_scale());
  }
  return header;
}

void TransferDesk::On(const event::ExportDrained& e) {
  const auto it = exports_.find(e.stream);
  if (it != exports_.end() && it->second.started) SendNext(e.stream, &it->second);
}

// ---------------------------------------------------------------- operations and ends

bool TransferDesk::On(const event::OpDone& e) {
  if (const auto it = import_ops_.find(e.done.op); it != import_ops_.end()) {
    const ImportOp op = it->second;
    import_ops_.erase(it);
    OnImportDone(op, e.done);
    return true;
  }
  if (const auto it = export_ops_.find(e.done.op); it != export_ops_.end()) {
    const ExportOp op = it->second;
    export_ops_.erase(it);
    OnExportDone(op, e.done);
    return true;
  }
  return false;
}

void TransferDesk::Closed(StreamId stream) {
  imports_.erase(stream);
  refused_.erase(stream);
  if (exports_.erase(stream) == 0) return;
  CountReaders();
  outbox_->Raise(internal_event::ExportEnded{});
}

void TransferDesk::EndImports(const absl::Status& why) {
  for (const auto& [stream, job] : imports_) outbox_->Close(stream, why);
  imports_.clear();
  written_.clear();
}

void TransferDesk::EndWork(const absl::Status& why) {
  EndImports(why);
  for (const auto& [stream, job] : exports_) outbox_->Close(stream, why);
  exports_.clear();
  CountReaders();
}

void TransferDesk::Waits(WaitPage* page) const {
  for (const auto& [stream, job] : exports_) {
    if (job.started) continue;
    page->Add(absl::StrCat("ExportState of step ", job.request.step()), page->step(), job.since_ms);
  }
}

}  // namespace eps
