// ShardCore: weights on their way to workers.

#include <algorithm>
#include <set>
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
  const Visit visit{StageId(e.request.stage()), backward};
  stage_clock_.Fetched(e.stream, visit, now_ms_);
  std::vector<std::pair<ChunkId, ParkedFetch>> copies;
  for (ChunkId id : wanted) {
    const WeightAxes axes = codecs_.axes(StageId(e.request.stage()), id, backward);
    copies.emplace_back(id, ParkedFetch{tag, version, visit, axes.first, /*view=*/0, now_ms_});
    if (!axes.has_second) continue;
    copies.emplace_back(id, ParkedFetch{tag, version, visit, axes.second, /*view=*/1, now_ms_});
  }
  fetches_.emplace(tag, OpenFetch{e.request, static_cast<uint32_t>(copies.size()), now_ms_});
  for (auto& [id, copy] : copies) {
    if (fetches_.count(tag) == 0) return;  // refused by an earlier chunk
    ServeOrPark(Owned(id), std::move(copy));
  }
  EncodeAhead(visit, version);
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
    return Serve(*chunk, fetch);
  }
  const Version newest = chunk->updating ? chunk->version.Next() : chunk->version;
  if (!importing && fetch.version < newest) {
    // Somebody took over a part whose work of this step is lost: it is answered by the new term.
    if (durable() && fetch.version == Version(base_version_)) return RollBack();
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

void ShardCore::Impl::Serve(const ChunkState& chunk, const ParkedFetch& fetch) {
  const EncodedCopies::Key key{fetch.visit, chunk.id, fetch.axis};
  if (const Bytes* copy = copies_.Find(key, fetch.version)) {
    Answer(chunk.id, fetch, *copy);
    Count("encoded_before");
    return copies_.Served(key, fetch.tag.stream, WorkersOfStep());
  }
  if (ReadOp* read = ReadInFlight(key, fetch.version)) {
    read->fetches.push_back(fetch);
    return;
  }
  StartRead(key, fetch.version, {fetch});
}

void ShardCore::Impl::Answer(ChunkId chunk, const ParkedFetch& fetch, const Bytes& payload) {
  const auto it = fetches_.find(fetch.tag);
  if (it == fetches_.end()) return;
  effect::SendChunk answer;
  answer.stream = fetch.tag.stream;
  answer.tag = fetch.tag.tag;
  answer.chunk = chunk;
  answer.version = fetch.version;
  answer.codec = codecs_.weights(chunk).traits().id;
  answer.view = fetch.view;
  answer.completes_fetch = --it->second.chunks_left == 0;
  answer.payload = payload;
  if (answer.completes_fetch) fetches_.erase(it);
  Count("fetched_bytes", payload.size());
  stage_clock_.Sent(fetch.tag.stream, fetch.visit.stage, now_ms_);
  Emit(std::move(answer));
}

// The read that encodes this copy, if one is under way; whose visit it was begun for is the same.
ReadOp* ShardCore::Impl::ReadInFlight(const EncodedCopies::Key& key, Version version) {
  for (auto& [id, op] : ops_) {
    auto* read = std::get_if<ReadOp>(&op);
    if (read != nullptr && read->copy.chunk == key.chunk && read->version == version &&
        read->copy.axis == key.axis) {
      return read;
    }
  }
  return nullptr;
}

void ShardCore::Impl::StartRead(const EncodedCopies::Key& key, Version version,
                                std::vector<ParkedFetch> fetches) {
  Count("encodes");
  StartOp(ReadOp{key, version, std::move(fetches)},
          backend_call::Read{key.chunk, version, &codecs_.weights(key.chunk), key.axis});
}

// What follows `visit` in a step: up, the last stage once, and down.
std::optional<Visit> ShardCore::Impl::NextVisit(Visit visit) const {
  const size_t stages = spec_.stages.size();
  if (!visit.backward && visit.stage.value() + 1 < stages) {
    return Visit{StageId(visit.stage.value() + 1), false};
  }
  if (visit.stage == StageId(0)) return std::nullopt;
  return Visit{StageId(visit.stage.value() - 1), true};
}

// Quantizes the stages that will be fetched next, so that a worker finds them ready.
void ShardCore::Impl::EncodeAhead(Visit visit, Version version) {
  if (state_ != v1::JOB_STATE_RUNNING) return;
  for (uint32_t ahead = 0; ahead < options_.limits.jit_depth; ++ahead) {
    const std::optional<Visit> next = NextVisit(visit);
    if (!next.has_value()) return;
    visit = *next;
    for (const ChunkId id : chunks_.ChunksOfStage(visit.stage)) {
      const ChunkState* chunk = Owned(id);
      if (chunk == nullptr || chunk->updating || chunk->version != version) continue;
      const WeightAxes axes = codecs_.axes(visit.stage, id, visit.backward);
      for (uint32_t view = 0; view <= (axes.has_second ? 1 : 0); ++view) {
        const EncodedCopies::Key key{visit, id, view == 0 ? axes.first : axes.second};
        if (copies_.Find(key, version) != nullptr) continue;
        if (ReadInFlight(key, version) == nullptr) StartRead(key, version, {});
      }
    }
  }
}

// Workers that fetch in the open step; a part of which nothing was heard yet counts as one.
size_t ShardCore::Impl::WorkersOfStep() const {
  std::set<uint64_t> nonces;
  size_t unknown = 0;
  for (const PartState& part : parts_) {
    if (part.nonce == 0) {
      ++unknown;
    } else {
      nonces.insert(part.nonce);
    }
  }
  return std::max<size_t>(1, nonces.size() + unknown);
}

// What an update encodes while it has the chunk in cache: what somebody waits for, and what the
// next step begins with.
std::vector<EncodedCopies::Key> ShardCore::Impl::CopiesForUpdate(const ChunkState& chunk) const {
  std::vector<EncodedCopies::Key> copies;
  const auto add = [&](Visit visit, Axis axis) {
    for (const EncodedCopies::Key& key : copies) {
      if (key.axis == axis) return;
    }
    copies.push_back({visit, chunk.id, axis});
  };
  for (const ParkedFetch& fetch : chunk.parked) {
    if (fetch.version == chunk.version.Next()) add(fetch.visit, fetch.axis);
  }
  const bool first = chunks_.chunk(chunk.id).uses.front() == StageId(0);
  if (copies.empty() && first && options_.limits.jit_depth > 0 && step_ < spec_.training.steps) {
    add(Visit{StageId(0), false}, codecs_.axes(StageId(0), chunk.id, /*backward=*/false).first);
  }
  return copies;
}

// Hands out what the update encoded.
void ShardCore::Impl::ServeUpdated(ChunkState* chunk, const UpdateOp& op,
                                   const UpdateResult& result) {
  for (size_t i = 0; i < op.copies.size() && i < result.encoded.size(); ++i) {
    const EncodedCopies::Key& key = op.copies[i];
    std::set<StreamId> served;
    std::vector<ParkedFetch> others;
    for (ParkedFetch& fetch : chunk->parked) {
      if (fetch.version == chunk->version && fetch.axis == key.axis) {
        Answer(chunk->id, fetch, result.encoded[i]);
        if (fetch.visit == key.visit) served.insert(fetch.tag.stream);
      } else {
        others.push_back(std::move(fetch));
      }
    }
    chunk->parked = std::move(others);
    copies_.Put(key, chunk->version, result.encoded[i], std::move(served), WorkersOfStep());
    Count("encoded_by_updates");
  }
}

void ShardCore::Impl::ServeParked(ChunkState* chunk) {
  std::vector<ParkedFetch> parked;
  parked.swap(chunk->parked);
  for (ParkedFetch& fetch : parked) {
    if (fetches_.count(fetch.tag) > 0) ServeOrPark(chunk, std::move(fetch));
  }
}

void ShardCore::Impl::OnReadDone(const ReadOp& op, const BackendDone& done) {
  stage_clock_.Encoded(op.copy.visit.stage, done.seconds);
  std::set<StreamId> served;
  for (const ParkedFetch& fetch : op.fetches) {
    if (!done.status.ok()) {
      FailFetch(fetch.tag, done.status);
      continue;
    }
    Answer(op.copy.chunk, fetch, std::get<Bytes>(done.value));
    if (fetch.visit == op.copy.visit) served.insert(fetch.tag.stream);
  }
  const ChunkState* chunk = Owned(op.copy.chunk);
  if (EndsProcess(done.status)) {
    return FailOperation(absl::StrCat("reading chunk ", op.copy.chunk.value()), done.status);
  }
  if (!done.status.ok() || chunk->updating || chunk->version != op.version) return;
  copies_.Put(op.copy, op.version, std::get<Bytes>(done.value), std::move(served), WorkersOfStep());
}

void ShardCore::Impl::On(const event::FetchDrained& e) { stage_clock_.Drained(e.stream, now_ms_); }

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
