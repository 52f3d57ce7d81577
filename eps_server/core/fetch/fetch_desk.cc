#include "eps_server/core/fetch/fetch_desk.h"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/exit_code.h"
#include "base/status_macros.h"

namespace eps {

FetchDesk::FetchDesk(const ShardFacts* facts, Outbox* outbox)
    : facts_(*facts),
      outbox_(outbox),
      chunks_(facts_.owned.size()),
      copies_(facts_.job.limits.jit_depth + 2),
      clock_(facts_.job.spec.stages.size()),
      workers_(facts_.job.spec.training.parts) {}

// ---------------------------------------------------------------- requests

absl::Status FetchDesk::Check(const event::Fetch& e, std::vector<ChunkId>* wanted) const {
  const v1::FetchRequest& request = e.request;
  if (facts_.state == v1::JOB_STATE_FAILED) return facts_.FailedStatus();
  if (JobId(request.job_id()) != facts_.job.id) {
    return absl::NotFoundError(absl::StrCat("Fetch: job ", absl::Hex(request.job_id()),
                                            "; this server runs ",
                                            absl::Hex(facts_.job.id.value())));
  }
  if (Term(request.term()) != facts_.term) {
    return absl::AbortedError(absl::StrCat("Fetch: term ", request.term(),
                                           " is over; the job is at term ", facts_.term.value(),
                                           " step ", facts_.step));
  }
  if (request.stage() >= facts_.job.spec.stages.size()) {
    return absl::InvalidArgumentError(absl::StrCat("Fetch: stage ", request.stage(), " of ",
                                                   facts_.job.spec.stages.size(), " stages"));
  }
  const auto stage_chunks = facts_.job.chunks.ChunksOfStage(StageId(request.stage()));
  if (request.chunks().empty()) {
    for (ChunkId id : stage_chunks) {
      if (facts_.Owned(id) != nullptr) wanted->push_back(id);
    }
  }
  for (const uint32_t id : request.chunks()) {
    if (facts_.Owned(ChunkId(id)) == nullptr ||
        !std::binary_search(stage_chunks.begin(), stage_chunks.end(), ChunkId(id))) {
      return absl::InvalidArgumentError(absl::StrCat("Fetch: chunk ", id, " is not one of stage ",
                                                     request.stage(), " on shard ",
                                                     facts_.job.shard.value()));
    }
  }
  EPS_ASSIGN_OR_RETURN(const std::vector<ChunkId> named,
                       facts_.NamedChunks("Fetch", request.chunks()));
  wanted->insert(wanted->end(), named.begin(), named.end());
  if (request.part() < workers_.parts()) {
    EPS_RETURN_IF_ERROR(
        facts_.CheckGeneration("Fetch", PartId(request.part()), request.generation()));
  }
  const uint32_t in_flight = InFlight(e.stream);
  if (in_flight >= facts_.job.limits.max_fetches_per_stream) {
    return absl::ResourceExhaustedError(absl::StrCat("Fetch: ", in_flight,
                                                     " requests in flight on this stream, at most ",
                                                     facts_.job.limits.max_fetches_per_stream));
  }
  if (open_.count(Tag{e.stream, request.tag()}) > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("Fetch: tag ", request.tag(), " is in use on this stream"));
  }
  return absl::OkStatus();
}

void FetchDesk::On(const event::Fetch& e) {
  const Tag tag{e.stream, e.request.tag()};
  std::vector<ChunkId> wanted;
  const absl::Status status = Check(e, &wanted);
  if (!status.ok()) return outbox_->Emit(effect::FailFetch{tag.stream, tag.tag, status});
  outbox_->Count("fetches");
  const PartId part(e.request.part());
  if (e.request.part() < workers_.parts() && e.request.generation() > 0) {
    outbox_->Raise(internal_event::PartsSeen{{{part, e.request.generation()}}});
  }
  if (wanted.empty()) return;
  if (e.request.residuals()) return SendResiduals(tag, e.request, wanted);
  const Version version(e.request.version());
  const bool backward = e.request.pass() == v1::PASS_BACKWARD;
  const Visit visit{StageId(e.request.stage()), backward};
  clock_.Fetched(e.stream, visit, facts_.now_ms);
  std::vector<std::pair<ChunkId, Wanted>> copies;
  for (ChunkId id : wanted) {
    const WeightAxes axes = facts_.job.codecs.axes(StageId(e.request.stage()), id, backward);
    Wanted copy{tag,          version, visit, axes.first, /*view=*/0, part, e.request.generation(),
                facts_.now_ms};
    copies.emplace_back(id, copy);
    if (!axes.has_second) continue;
    copy.axis = axes.second;
    copy.view = 1;
    copies.emplace_back(id, copy);
  }
  open_[tag].left = static_cast<uint32_t>(copies.size());
  for (auto& [id, copy] : copies) {
    if (open_.count(tag) == 0) return;  // refused by an earlier chunk
    ServeOrPark(id, std::move(copy));
  }
  EncodeAhead(visit, version);
}

// Returns the number of open fetches of a stream, of which there are few (max_fetches_per_stream).
uint32_t FetchDesk::InFlight(StreamId stream) const {
  uint32_t fetches = 0;
  for (auto it = open_.lower_bound(Tag{stream, 0}); it != open_.end() && it->first.stream == stream;
       ++it) {
    ++fetches;
  }
  return fetches;
}

void FetchDesk::SendResiduals(Tag tag, const v1::FetchRequest& request,
                              const std::vector<ChunkId>& wanted) {
  if (facts_.state != v1::JOB_STATE_RUNNING || request.version() != facts_.version ||
      request.part() >= workers_.parts()) {
    return outbox_->Emit(effect::FailFetch{
        tag.stream, tag.tag,
        absl::FailedPreconditionError(absl::StrCat("Fetch: residuals of part ", request.part(),
                                                   " at version ", request.version(),
                                                   "; the open step reads version ", facts_.version,
                                                   " and has ", workers_.parts(), " parts"))});
  }
  std::vector<effect::SendChunk> answers;
  for (ChunkId id : wanted) {
    const Codec* codec = facts_.job.codecs.residual_or_null(id, Step(facts_.step));
    if (codec == nullptr) continue;
    const Residuals::Residual residual =
        facts_.residuals.Find({id, StageId(request.stage()), PartId(request.part())});
    if (!residual.has_value()) {
      return outbox_->Emit(effect::FailFetch{
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
    answer.version = Version(facts_.version);
    answer.codec = codec->traits().id;
    answer.residual = true;
    answer.payload = *residual;
    answer.crc = std::make_shared<SharedCrc>(answer.payload);
    answers.push_back(std::move(answer));
  }
  if (answers.empty()) {
    return outbox_->Emit(effect::FailFetch{
        tag.stream, tag.tag,
        absl::InvalidArgumentError(
            absl::StrCat("Fetch: no codec leaves residuals of the chunks of stage ",
                         request.stage(), " at step ", facts_.step, " (quantization.gradients)"))});
  }
  answers.back().completes_fetch = true;
  for (effect::SendChunk& answer : answers) outbox_->Emit(std::move(answer));
}

void FetchDesk::ServeOrPark(ChunkId id, Wanted fetch) {
  const OwnedChunk& chunk = *facts_.Owned(id);
  const bool waits = facts_.WaitsForState();  // until then no chunk has a version
  // A frozen chunk has its content at every version, also at the one that the open step makes.
  const bool is_frozen = facts_.job.IsFrozen(id) && fetch.version <= Version(facts_.version + 1);
  const bool is_there = is_frozen || (!chunk.updating && fetch.version == chunk.version);
  if (!waits && is_there) return Serve(id, fetch);
  const Version newest = chunk.updating ? chunk.version.Next() : chunk.version;
  if (!waits && fetch.version < newest) return OnGone(id, fetch, newest);
  if (!waits && fetch.version > Version(facts_.version + 1)) {
    return Refuse(fetch.tag,
                  absl::OutOfRangeError(absl::StrCat(
                      "Fetch: version ", fetch.version.value(),
                      " is beyond the open step, which makes version ", facts_.version + 1)));
  }
  Park(id, std::move(fetch));
}

void FetchDesk::Park(ChunkId chunk, Wanted fetch) {
  const uint64_t number = next_parked_++;
  open_.at(fetch.tag).parked.emplace(chunk, number);
  At(chunk).parked.emplace(number, std::move(fetch));
}

FetchDesk::Wanted FetchDesk::Unpark(ChunkId chunk, std::map<uint64_t, Wanted>::iterator* it) {
  ++looked_at_;
  const uint64_t number = (*it)->first;
  Wanted fetch = std::move((*it)->second);
  *it = At(chunk).parked.erase(*it);
  open_.at(fetch.tag).parked.erase({chunk, number});
  return fetch;
}

// The version was replaced. If the holder of the part asks for it, it took over a part whose work
// is lost, in the open step or in the one before, which another shard still has open: only the last
// cut helps, and the new term answers the fetch. Nobody else returns a job to its last cut.
void FetchDesk::OnGone(ChunkId id, const Wanted& fetch, Version newest) {
  const std::string text = absl::StrCat(
      "version ", fetch.version.value(), " of chunk ", id.value(), " is gone, it is at version ",
      newest.value(),
      "; training.mode eager keeps one version, so a step that a worker left cannot be repeated");
  if (fetch.part.value() < workers_.parts()) {  // a parked fetch may have been overtaken
    const absl::Status fenced = facts_.CheckGeneration("Fetch", fetch.part, fetch.generation);
    if (!fenced.ok()) return Refuse(fetch.tag, fenced);
  }
  const bool of_open_step = fetch.version.value() + 1 >= facts_.version;
  const bool holds = fetch.generation > 0 && fetch.part.value() < workers_.parts();
  if (of_open_step && facts_.job.durable() && (holds || !facts_.KnowsLeases())) {
    return outbox_->Raise(internal_event::RollBack());
  }
  if (of_open_step && !facts_.job.durable() && holds) {
    return outbox_->Raise(internal_event::JobFailed{text, ExitCode::kUnavailable});
  }
  Refuse(fetch.tag, absl::FailedPreconditionError(
                        absl::StrCat("Fetch: ", text, ": start again with --resume=latest")));
}

// REQUIRES the chunk has the content of the fetch's version.
void FetchDesk::Serve(ChunkId chunk, const Wanted& fetch) {
  const EncodedCopies::Key key{fetch.visit, chunk, fetch.axis};
  const Version content = ContentOf(chunk, fetch.version);
  if (const EncodedCopy* copy = copies_.Find(key, content)) {
    Answer(chunk, fetch, *copy);
    outbox_->Count("encoded_before");
    return copies_.Served(key, fetch.tag.stream, workers_.count());
  }
  if (Read* read = ReadInFlight(key, content)) {
    read->fetches.push_back(fetch);
    return;
  }
  StartRead(key, content, {fetch});
}

void FetchDesk::Answer(ChunkId chunk, const Wanted& fetch, const EncodedCopy& copy) {
  const auto it = open_.find(fetch.tag);
  if (it == open_.end()) return;
  effect::SendChunk answer;
  answer.stream = fetch.tag.stream;
  answer.tag = fetch.tag.tag;
  answer.chunk = chunk;
  answer.version = fetch.version;
  answer.codec = facts_.job.codecs.weights(chunk).traits().id;
  answer.view = fetch.view;
  answer.completes_fetch = --it->second.left == 0;
  answer.payload = copy.bytes;
  answer.crc = copy.crc;
  if (answer.completes_fetch) open_.erase(it);
  outbox_->Count("fetched_bytes", copy.bytes.size());
  clock_.Sent(fetch.tag.stream, fetch.visit.stage, facts_.now_ms);
  outbox_->Emit(std::move(answer));
}

// Returns the read that encodes this copy, whichever visit it was started for, or null.
FetchDesk::Read* FetchDesk::ReadInFlight(const EncodedCopies::Key& key, Version version) {
  const auto it = reading_.find(ReadKey(key.chunk, version, key.axis));
  return it == reading_.end() ? nullptr : &reads_.at(it->second);
}

void FetchDesk::StartRead(const EncodedCopies::Key& key, Version version,
                          std::vector<Wanted> fetches) {
  outbox_->Count("encodes");
  const OpId op = outbox_->StartOp(
      ReadRequest{key.chunk, version, &facts_.job.codecs.weights(key.chunk), key.axis});
  reads_.emplace(op, Read{key, version, std::move(fetches)});
  reading_.emplace(ReadKey(key.chunk, version, key.axis), op);
}

// Encodes the stages that will be fetched next, so that workers find them ready.
void FetchDesk::EncodeAhead(Visit visit, Version version) {
  if (facts_.state != v1::JOB_STATE_RUNNING) return;
  for (uint32_t ahead = 0; ahead < facts_.job.limits.jit_depth; ++ahead) {
    const std::optional<Visit> next = NextFetch(facts_.job.spec, visit);
    if (!next.has_value()) return;
    visit = *next;
    for (const ChunkId id : facts_.job.chunks.ChunksOfStage(visit.stage)) {
      const OwnedChunk* chunk = facts_.Owned(id);
      if (chunk == nullptr || chunk->updating) continue;
      const Version content = ContentOf(id, version);
      if (ContentOf(id, chunk->version) != content) continue;
      const WeightAxes axes = facts_.job.codecs.axes(visit.stage, id, visit.backward);
      for (uint32_t view = 0; view <= (axes.has_second ? 1 : 0); ++view) {
        const EncodedCopies::Key key{visit, id, view == 0 ? axes.first : axes.second};
        if (copies_.Find(key, content) != nullptr) continue;
        if (ReadInFlight(key, content) == nullptr) StartRead(key, content, {});
      }
    }
  }
}

void FetchDesk::On(const internal_event::PartsBegun& e) {
  for (const PartId part : e.parts) workers_.Begin(part, e.nonce);
}

bool FetchDesk::On(const event::OpDone& e) {
  const auto it = reads_.find(e.done.op);
  if (it == reads_.end()) return false;
  const Read read = std::move(it->second);
  reads_.erase(it);
  reading_.erase(ReadKey(read.copy.chunk, read.version, read.copy.axis));
  const BackendDone& done = e.done;
  clock_.Encoded(read.copy.visit.stage, done.seconds);
  const EncodedCopy encoded(done.status.ok() ? std::get<Bytes>(done.value) : Bytes());
  std::set<StreamId> served;
  for (const Wanted& fetch : read.fetches) {
    if (!done.status.ok()) {
      Refuse(fetch.tag, done.status);
      continue;
    }
    Answer(read.copy.chunk, fetch, encoded);
    if (fetch.visit == read.copy.visit) served.insert(fetch.tag.stream);
  }
  if (facts_.EndsProcess(done.status)) {
    outbox_->Raise(internal_event::OpFailed{absl::StrCat("reading chunk ", read.copy.chunk.value()),
                                            done.status});
    return true;
  }
  const OwnedChunk& chunk = *facts_.Owned(read.copy.chunk);
  const bool is_there = !chunk.updating && ContentOf(chunk.id, chunk.version) == read.version;
  if (!done.status.ok() || !is_there) return true;
  copies_.Put(read.copy, read.version, encoded, std::move(served), workers_.count());
  return true;
}

void FetchDesk::On(const event::FetchDrained& e) { clock_.Drained(e.stream, facts_.now_ms); }

// ---------------------------------------------------------------- updates

// Returns what an update encodes while the chunk is in the cache: what somebody waits for, or else
// what the next step begins with.
std::vector<EncodedCopies::Key> FetchDesk::CopiesForUpdate(ChunkId chunk) const {
  std::vector<EncodedCopies::Key> copies;
  const auto add = [&](Visit visit, Axis axis) {
    for (const EncodedCopies::Key& key : copies) {
      if (key.axis == axis) return;
    }
    copies.push_back({visit, chunk, axis});
  };
  for (const auto& [number, fetch] : At(chunk).parked) {
    if (fetch.version == facts_.Owned(chunk)->version.Next()) add(fetch.visit, fetch.axis);
  }
  const bool first = facts_.job.chunks.chunk(chunk).uses.front() == StageId(0);
  if (copies.empty() && first && facts_.job.limits.jit_depth > 0 &&
      facts_.step < facts_.job.spec.training.steps) {
    add(Visit{StageId(0), false},
        facts_.job.codecs.axes(StageId(0), chunk, /*backward=*/false).first);
  }
  return copies;
}

std::vector<Axis> FetchDesk::AxesForUpdate(ChunkId chunk) const {
  std::vector<Axis> axes;
  for (const EncodedCopies::Key& copy : CopiesForUpdate(chunk)) axes.push_back(copy.axis);
  return axes;
}

void FetchDesk::On(const internal_event::UpdateStarted& e) {
  At(e.chunk).from_update = CopiesForUpdate(e.chunk);
  copies_.DropChunk(e.chunk);
}

void FetchDesk::On(const internal_event::ChunkUpdated& e) {
  Chunk& chunk = At(e.chunk);
  const Version version = facts_.Owned(e.chunk)->version;
  const std::vector<EncodedCopies::Key> keys = std::move(chunk.from_update);
  for (size_t i = 0; i < keys.size() && i < e.encoded.size(); ++i) {
    const EncodedCopy encoded(e.encoded[i]);
    std::set<StreamId> served;
    for (auto it = chunk.parked.begin(); it != chunk.parked.end();) {
      if (it->second.version != version || it->second.axis != keys[i].axis) {
        ++it;
        continue;
      }
      const Wanted fetch = Unpark(e.chunk, &it);
      Answer(e.chunk, fetch, encoded);
      if (fetch.visit == keys[i].visit) served.insert(fetch.tag.stream);
    }
    copies_.Put(keys[i], version, encoded, std::move(served), workers_.count());
    outbox_->Count("encoded_by_updates");
  }
  ServeParked(e.chunk);
}

void FetchDesk::On(const internal_event::BorderOpened&) {
  for (const OwnedChunk& chunk : facts_.owned) ServeParked(chunk.id);
}

// Looks again at the fetches that wait for the chunk.
void FetchDesk::ServeParked(ChunkId chunk) {
  std::vector<Wanted> parked;
  for (auto it = At(chunk).parked.begin(); it != At(chunk).parked.end();) {
    parked.push_back(Unpark(chunk, &it));
  }
  for (Wanted& fetch : parked) {
    if (open_.count(fetch.tag) > 0) ServeOrPark(chunk, std::move(fetch));
  }
}

// ---------------------------------------------------------------- ends

void FetchDesk::Drop(std::map<Tag, Open>::iterator* it) {
  ++looked_at_;
  for (const auto& [chunk, number] : (*it)->second.parked) At(chunk).parked.erase(number);
  *it = open_.erase(*it);
}

void FetchDesk::Refuse(Tag tag, const absl::Status& status) {
  auto it = open_.find(tag);
  if (it == open_.end()) return;
  Drop(&it);
  outbox_->Count("fetches_refused");
  outbox_->Emit(effect::FailFetch{tag.stream, tag.tag, status});
}

void FetchDesk::Closed(StreamId stream) {
  clock_.Closed(stream);
  auto it = open_.lower_bound(Tag{stream, 0});
  while (it != open_.end() && it->first.stream == stream) Drop(&it);
}

void FetchDesk::EndWork(const absl::Status& why) {
  for (const auto& [tag, open] : open_) {
    outbox_->Emit(effect::FailFetch{tag.stream, tag.tag, why});
  }
  open_.clear();
  for (Chunk& chunk : chunks_) chunk.parked.clear();
}

void FetchDesk::Waits(WaitPage* page) const {
  for (size_t i = 0; i < chunks_.size(); ++i) {
    const ChunkId chunk = facts_.owned[i].id;
    for (const auto& [number, fetch] : chunks_[i].parked) {
      page->Add(absl::StrCat("Fetch of chunk ", chunk.value(), " version ", fetch.version.value()),
                page->Update(chunk), fetch.since_ms);
    }
  }
}

void FetchDesk::FillTimes(v1::StatusReply* status) const {
  std::vector<std::string> names;
  for (const StageSpec& stage : facts_.job.spec.stages) names.push_back(stage.name);
  clock_.Fill(names, status);
}

}  // namespace eps
