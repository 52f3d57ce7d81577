// ShardCore: weights on their way to workers.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "eps_server/core/shard_core_impl.h"

namespace eps {

absl::Status ShardCore::Impl::CheckFetch(const event::Fetch& e,
                                         std::vector<ChunkId>* wanted) const {
  const v1::FetchRequest& request = e.request;
  if (state_ == v1::JOB_STATE_FAILED) return FailedStatus();
  if (JobId(request.job_id()) != job_id_) {
    return absl::NotFoundError(absl::StrCat("Fetch: job ", absl::Hex(request.job_id()),
                                            "; this server runs ", absl::Hex(job_id_.value())));
  }
  if (Term(request.term()) != term_) {
    return absl::AbortedError(absl::StrCat("Fetch: term ", request.term(),
                                           " is over; the job is at term ", term_.value(), " step ",
                                           step_));
  }
  if (request.stage() >= spec_.stages.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("Fetch: stage ", request.stage(), " of ", spec_.stages.size(), " stages"));
  }
  const auto stage_chunks = chunks_.ChunksOfStage(StageId(request.stage()));
  if (request.chunks().empty()) {
    for (ChunkId id : stage_chunks) {
      if (Owns(id)) wanted->push_back(id);
    }
  }
  for (uint32_t id : request.chunks()) {
    if (!Owns(ChunkId(id)) ||
        std::find(stage_chunks.begin(), stage_chunks.end(), ChunkId(id)) == stage_chunks.end()) {
      return absl::InvalidArgumentError(absl::StrCat("Fetch: chunk ", id, " is not one of stage ",
                                                     request.stage(), " on shard ",
                                                     options_.shard.value()));
    }
    wanted->push_back(ChunkId(id));
  }
  uint32_t in_flight = 0;
  for (const auto& [tag, fetch] : fetches_) in_flight += tag.stream == e.stream ? 1 : 0;
  if (in_flight >= options_.limits.max_fetches_per_stream) {
    return absl::ResourceExhaustedError(absl::StrCat("Fetch: ", in_flight,
                                                     " requests in flight on this stream, at most ",
                                                     options_.limits.max_fetches_per_stream));
  }
  if (fetches_.count(FetchTag{e.stream, request.tag()}) > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("Fetch: tag ", request.tag(), " is in use on this stream"));
  }
  return absl::OkStatus();
}

void ShardCore::Impl::On(const event::Fetch& e) {
  const FetchTag tag{e.stream, e.request.tag()};
  std::vector<ChunkId> wanted;
  const absl::Status status = CheckFetch(e, &wanted);
  if (!status.ok()) return Emit(effect::FailFetch{tag.stream, tag.tag, status});
  Count("fetches");
  if (e.request.part() < parts_.size()) TouchPart(PartId(e.request.part()));
  if (wanted.empty()) return;
  if (e.request.residuals()) return SendResiduals(tag, e.request, wanted);
  const Version version(e.request.version());
  const bool backward = e.request.pass() == v1::PASS_BACKWARD;
  std::vector<std::pair<ChunkId, ParkedFetch>> copies;
  for (ChunkId id : wanted) {
    const WeightAxes axes = codecs_.axes(StageId(e.request.stage()), id, backward);
    copies.emplace_back(id, ParkedFetch{tag, version, axes.first, /*view=*/0, now_ms_});
    if (!axes.has_second) continue;
    copies.emplace_back(id, ParkedFetch{tag, version, axes.second, /*view=*/1, now_ms_});
  }
  fetches_.emplace(tag, OpenFetch{e.request, static_cast<uint32_t>(copies.size()), now_ms_});
  for (auto& [id, copy] : copies) {
    if (fetches_.count(tag) == 0) return;  // refused by an earlier chunk
    ServeOrPark(Owned(id), std::move(copy));
  }
}

void ShardCore::Impl::SendResiduals(FetchTag tag, const v1::FetchRequest& request,
                                    const std::vector<ChunkId>& wanted) {
  if (state_ != v1::JOB_STATE_RUNNING || request.version() != base_version_ ||
      request.part() >= parts_.size()) {
    return Emit(effect::FailFetch{tag.stream, tag.tag,
                                  absl::FailedPreconditionError(absl::StrCat(
                                      "Fetch: residuals of part ", request.part(), " at version ",
                                      request.version(), "; the open step reads version ",
                                      base_version_, " and has ", parts_.size(), " parts"))});
  }
  std::vector<effect::SendChunk> answers;
  for (ChunkId id : wanted) {
    const Codec* codec = codecs_.residual_or_null(id, Step(step_));
    if (codec == nullptr) continue;
    const Residuals::Residual residual =
        residuals_.Find({id, StageId(request.stage()), PartId(request.part())});
    if (!residual.has_value()) {
      return Emit(effect::FailFetch{
          tag.stream, tag.tag,
          absl::FailedPreconditionError(absl::StrCat(
              "Fetch: what part ", request.part(),
              " left out of its gradients is with the worker "
              "that hosted it (quantization.residual_home=worker); if that is gone, start again "
              "with --resume=latest"))});
    }
    effect::SendChunk answer;
    answer.stream = tag.stream;
    answer.tag = tag.tag;
    answer.chunk = id;
    answer.version = Version(base_version_);
    answer.codec = codec->traits().id;
    answer.residual = true;
    answer.payload = *residual;
    answers.push_back(std::move(answer));
  }
  if (!answers.empty()) answers.back().completes_fetch = true;
  for (effect::SendChunk& answer : answers) Emit(std::move(answer));
}

void ShardCore::Impl::ServeOrPark(ChunkState* chunk, ParkedFetch fetch) {
  const bool importing = state_ == v1::JOB_STATE_IMPORTING;
  if (!importing && !chunk->updating && fetch.version == chunk->version) {
    return StartRead(*chunk, fetch);
  }
  const Version newest = chunk->updating ? chunk->version.Next() : chunk->version;
  if (!importing && fetch.version < newest) {
    return FailFetch(fetch.tag,
                     absl::FailedPreconditionError(absl::StrCat(
                         "Fetch: version ", fetch.version.value(), " of chunk ", chunk->id.value(),
                         " is gone, it is at version ", newest.value(),
                         "; training.mode eager keeps one version, so a step that a worker left "
                         "cannot be repeated: start again with --resume=latest")));
  }
  if (!importing && fetch.version > Version(base_version_ + 1)) {
    return FailFetch(fetch.tag,
                     absl::OutOfRangeError(absl::StrCat(
                         "Fetch: version ", fetch.version.value(),
                         " is beyond the open step, which makes version ", base_version_ + 1)));
  }
  chunk->parked.push_back(std::move(fetch));
}

void ShardCore::Impl::StartRead(const ChunkState& chunk, const ParkedFetch& fetch) {
  // Encoded once for all who ask while the read is in flight.
  for (auto& [id, op] : ops_) {
    auto* read = std::get_if<ReadOp>(&op);
    if (read != nullptr && read->chunk == chunk.id && read->version == fetch.version &&
        read->axis == fetch.axis) {
      read->fetches.push_back(fetch);
      return;
    }
  }
  StartOp(ReadOp{chunk.id, fetch.version, fetch.axis, {fetch}},
          backend_call::Read{chunk.id, fetch.version, &codecs_.weights(chunk.id), fetch.axis});
}

void ShardCore::Impl::ServeParked(ChunkState* chunk) {
  std::vector<ParkedFetch> parked;
  parked.swap(chunk->parked);
  for (ParkedFetch& fetch : parked) {
    if (fetches_.count(fetch.tag) > 0) ServeOrPark(chunk, std::move(fetch));
  }
}

void ShardCore::Impl::OnReadDone(const ReadOp& op, const BackendDone& done) {
  for (const ParkedFetch& fetch : op.fetches) {
    const FetchTag& tag = fetch.tag;
    auto it = fetches_.find(tag);
    if (it == fetches_.end()) continue;
    if (!done.status.ok()) {
      FailFetch(tag, done.status);
      continue;
    }
    const Bytes& payload = std::get<Bytes>(done.value);
    Count("fetched_bytes", payload.size());
    const bool complete = --it->second.chunks_left == 0;
    effect::SendChunk answer;
    answer.stream = tag.stream;
    answer.tag = tag.tag;
    answer.chunk = op.chunk;
    answer.version = op.version;
    answer.codec = codecs_.weights(op.chunk).traits().id;
    answer.view = fetch.view;
    answer.completes_fetch = complete;
    answer.payload = payload;
    Emit(std::move(answer));
    if (complete) fetches_.erase(it);
  }
}

void ShardCore::Impl::FailFetch(FetchTag tag, const absl::Status& status) {
  if (fetches_.erase(tag) == 0) return;
  for (ChunkState& chunk : owned_) {
    auto& parked = chunk.parked;
    parked.erase(std::remove_if(parked.begin(), parked.end(),
                                [&](const ParkedFetch& f) {
                                  return f.tag.stream == tag.stream && f.tag.tag == tag.tag;
                                }),
                 parked.end());
  }
  Count("fetches_refused");
  Emit(effect::FailFetch{tag.stream, tag.tag, status});
}

}  // namespace eps
