#include "eps_server/core/push/push_desk.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "eps_server/core/push/push_texts.h"
#include "eps_server/core/replay/log_facts.h"

namespace eps {
namespace {

// A refused contribution may be offered again after this pause.
constexpr uint32_t kRetryAfterMs = 50;

std::vector<ChunkId> Ids(const std::vector<OwnedChunk>& owned) {
  std::vector<ChunkId> ids;
  for (const OwnedChunk& chunk : owned) ids.push_back(chunk.id);
  return ids;
}

ContributionLedger::Place PlaceOf(const v1::ContributionKey& key) {
  return {ChunkId(key.chunk()), StageId(key.use_stage()),
          TreeRange{key.part_first(), key.part_count()}};
}

// Returns the counter of the status page.
const char* CounterOf(v1::Ack::Outcome outcome) {
  switch (outcome) {
    case v1::Ack::ACCEPTED:
      return "accepted";
    case v1::Ack::DUPLICATE:
      return "duplicate";
    case v1::Ack::CONFLICT:
      return "conflict";
    case v1::Ack::STALE:
      return "stale";
    case v1::Ack::FENCED:
      return "fenced";
    default:
      return "refused";
  }
}

// Names the process that sent the contribution, and tells two encodings of it apart.
ContributionLedger::Origin OriginOf(const v1::PushHeader& header) {
  return {header.worker_nonce(), header.bytes() << 32 | header.crc32c()};
}

}  // namespace

PushDesk::PushDesk(const ShardFacts* facts, const DeskQueries* queries, Outbox* outbox)
    : facts_(*facts),
      queries_(*queries),
      outbox_(outbox),
      ledger_(facts_.job.spec, facts_.job.chunks, Ids(facts_.owned)),
      admission_(Admission::ComputeQuota(facts_.job.spec, facts_.job.chunks, facts_.job.codecs,
                                         Ids(facts_.owned)),
                 facts_.job.spec.training.parts),
      offers_(facts_.job.spec.training.parts),
      held_(facts_.owned.size()) {}

// ---------------------------------------------------------------- answers

void PushDesk::Ack(StreamId stream, uint64_t tag, v1::Ack::Outcome outcome,
                   const std::string& message, uint32_t retry_after_ms) {
  v1::Ack ack;
  ack.set_outcome(outcome);
  ack.set_term(facts_.term.value());
  ack.set_step(facts_.step);
  ack.set_message(message);
  ack.set_retry_after_ms(retry_after_ms);
  outbox_->Count(CounterOf(outcome));
  outbox_->Emit(effect::SendAck{stream, tag, std::move(ack)});
}

// Refuses with a reason that may pass; with `retry`, the worker offers again after a pause.
void PushDesk::RefuseForNow(StreamId stream, uint64_t tag, const std::string& message, bool retry) {
  Ack(stream, tag, v1::Ack::REFUSED, message, retry ? kRetryAfterMs : 0);
}

// ---------------------------------------------------------------- offers

absl::Status PushDesk::Check(const v1::PushHeader& header) const {
  const v1::ContributionKey& key = header.key();
  if (JobId(key.job_id()) != facts_.job.id) {
    return absl::NotFoundError(absl::StrCat("job ", absl::Hex(key.job_id()), "; this server runs ",
                                            absl::Hex(facts_.job.id.value())));
  }
  if (!ledger_.IsValid(PlaceOf(key))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "chunk ", key.chunk(), ", use by stage ", key.use_stage(), ", parts ", key.part_first(),
        "+", key.part_count(), ": no such contribution on shard ", facts_.job.shard.value()));
  }
  const ChunkId chunk(key.chunk());
  const Codec& codec = facts_.job.codecs.gradient(chunk, Step(key.step()));
  if (header.codec() != static_cast<uint32_t>(codec.traits().id)) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk ", key.chunk(), ": codec ", header.codec(), ", expected ",
                     static_cast<uint32_t>(codec.traits().id), " (", codec.name(), ")"));
  }
  if (key.part_count() > 1 && !codec.traits().exact) {
    return absl::InvalidArgumentError(
        absl::StrCat("merged parts need an exact codec; gradients of "
                     "chunk ",
                     key.chunk(), " come as ", codec.name()));
  }
  if (header.has_nonfinite_element()) return CheckNonfinite(facts_.job, header);
  const uint64_t expected = codec.MaxEncodedSize(facts_.job.chunks.chunk(chunk), Axis::kRow);
  if (header.bytes() > expected || (codec.traits().fixed_size && header.bytes() != expected)) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk ", key.chunk(), ": ", header.bytes(), " bytes, expected ", expected));
  }
  // Only of the open step is it known whether its contributions bring residuals.
  const Codec* residual = facts_.job.codecs.residual_or_null(chunk, Step(key.step()));
  const bool wanted = residual != nullptr &&
                      (key.step() == facts_.step ? facts_.PushResiduals(PartId(key.part_first()))
                                                 : header.residual_bytes() > 0);
  const uint64_t residual_bytes =
      wanted ? residual->MaxEncodedSize(facts_.job.chunks.chunk(chunk), Axis::kRow) : 0;
  if (header.residual_bytes() != residual_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("chunk ", key.chunk(), ": a residual of ",
                                                   header.residual_bytes(), " bytes, expected ",
                                                   residual_bytes));
  }
  return absl::OkStatus();
}

// Returns Aborted if another process holds a part of the contribution. REQUIRES: the key is valid.
absl::Status PushDesk::CheckGenerations(const v1::PushHeader& header) const {
  const uint32_t count = header.key().part_count();
  const auto& named = header.generations();
  if (!named.empty() && static_cast<uint32_t>(named.size()) != count) {
    return absl::InvalidArgumentError(absl::StrCat("Push: ", named.size(), " generations for ",
                                                   count, " parts; send one for each"));
  }
  for (uint32_t p = 0; p < count; ++p) {
    EPS_RETURN_IF_ERROR(facts_.CheckGeneration("Push", PartId(header.key().part_first() + p),
                                               named.empty() ? 0 : named.Get(static_cast<int>(p))));
  }
  return absl::OkStatus();
}

// Returns the bytes that the contribution holds in memory until its update.
uint64_t PushDesk::HeldBytes(const v1::PushHeader& header) const {
  const ChunkId chunk(header.key().chunk());
  const Codec& codec = facts_.job.codecs.gradient(chunk, Step(header.key().step()));
  return header.bytes() + header.residual_bytes() + codec.IndexSize(facts_.job.chunks.chunk(chunk));
}

void PushDesk::On(const event::PushOffered& e) {
  const v1::PushHeader& header = e.header;
  if (facts_.state == v1::JOB_STATE_FAILED) {
    return Ack(e.stream, header.tag(), v1::Ack::REFUSED,
               std::string(facts_.FailedStatus().message()));
  }
  const absl::Status status = Check(header);
  if (!status.ok()) {
    return Ack(e.stream, header.tag(), v1::Ack::REFUSED,
               absl::StrCat("Push: ", std::string(status.message())));
  }
  streams_.insert(e.stream);
  Offer offer{e.stream, header, facts_.now_ms};
  const std::optional<OfferQueue::Wait> wait = TryOffer(offer);
  if (wait.has_value()) offers_.Add(std::move(offer), HeldBytes(header), *wait);
}

// Gives credit or an answer, or returns what the offer waits for.
std::optional<OfferQueue::Wait> PushDesk::TryOffer(const Offer& offer) {
  const v1::PushHeader& header = offer.header;
  const v1::ContributionKey& key = header.key();
  if (Term(key.term()) != facts_.term || key.step() < facts_.step) {
    Ack(offer.stream, header.tag(), v1::Ack::STALE, "");
    return std::nullopt;
  }
  if (const absl::Status status = CheckGenerations(header); !status.ok()) {
    Ack(offer.stream, header.tag(), absl::IsAborted(status) ? v1::Ack::FENCED : v1::Ack::REFUSED,
        std::string(status.message()));
    return std::nullopt;
  }
  if (!header.generations().empty()) {
    internal_event::PartsSeen seen;
    for (uint32_t p = 0; p < key.part_count(); ++p) {
      seen.parts.emplace_back(PartId(key.part_first() + p),
                              header.generations(static_cast<int>(p)));
    }
    outbox_->Raise(seen);
  }
  if (key.step() > facts_.step || facts_.state != v1::JOB_STATE_RUNNING) {
    RefuseForNow(offer.stream, header.tag(),
                 absl::StrCat("Push: step ", key.step(), " is not open, step ", facts_.step, " is"),
                 /*retry=*/true);
    return std::nullopt;
  }
  const ContributionLedger::Place place = PlaceOf(key);
  switch (ledger_.Check(place, OriginOf(header))) {
    case ContributionLedger::Verdict::kDuplicate:
      Ack(offer.stream, header.tag(), v1::Ack::DUPLICATE, "");
      return std::nullopt;
    case ContributionLedger::Verdict::kConflict:
      Ack(offer.stream, header.tag(), v1::Ack::CONFLICT,
          absl::StrCat("chunk ", key.chunk(), ", use ", facts_.job.StageName(place.use), ", part ",
                       key.part_first(), ", step ", key.step(),
                       ": this worker sent other bytes before"));
      return std::nullopt;
    case ContributionLedger::Verdict::kOverlap:
      Ack(offer.stream, header.tag(), v1::Ack::REFUSED,
          absl::StrCat("Push: some of the parts ", key.part_first(), "+", key.part_count(),
                       " of chunk ", key.chunk(), " are counted; send the others alone"));
      return std::nullopt;
    case ContributionLedger::Verdict::kNew:
      break;
  }
  if (damage_.IsFinal(header)) {
    RefuseForNow(offer.stream, header.tag(), DamagedText(header.key()), /*retry=*/false);
    return std::nullopt;
  }
  if (credits_.HasCredit(key)) return OfferQueue::Wait::kSender;
  if (!admission_.Admit(PartId(key.part_first()), place.use, ledger_.OldestIncompleteStage(),
                        facts_.job.IsTied(place.chunk), HeldBytes(header))) {
    return OfferQueue::Wait::kRoom;
  }
  credits_.Give({offer.stream, header.tag()}, header, facts_.now_ms);
  outbox_->Emit(effect::Credit{offer.stream, header.tag()});
  WatchCredits();
  return std::nullopt;
}

// Tries the offers again that what happened since the last call may have released.
void PushDesk::RetryOffers() {
  const std::optional<uint64_t> step = offers_.step();
  if (!step.has_value()) return;
  if (*step != facts_.step || facts_.state != v1::JOB_STATE_RUNNING) offers_.OnOtherStep();
  offers_.Retry(admission_, ledger_.OldestIncompleteStage(),
                [this](const Offer& offer) { return TryOffer(offer); });
}

// Gives back the memory of a contribution whose credit has ended.
void PushDesk::Release(const v1::PushHeader& header) {
  const PartId part(header.key().part_first());
  admission_.Release(part, facts_.job.IsTied(ChunkId(header.key().chunk())), HeldBytes(header));
  offers_.OnFreed(part);
}

// Ends a credit, so that others may send the contribution.
std::optional<v1::PushHeader> PushDesk::EndCredit(StreamId stream, uint64_t tag) {
  std::optional<v1::PushHeader> header = credits_.Take({stream, tag});
  if (header.has_value()) offers_.OnSent(PlaceOf(header->key()));
  return header;
}

// ---------------------------------------------------------------- the end of a credit

// Runs one timer, for the oldest credit.
void PushDesk::WatchCredits() {
  const std::optional<uint64_t> oldest = credits_.oldest_ms();
  if (timer_.has_value() || !oldest.has_value()) return;
  const uint64_t due = *oldest + facts_.job.limits.push_timeout_ms;
  timer_ = outbox_->StartTimer(due - std::min(due, facts_.now_ms));
}

void PushDesk::On(const event::Timer& e) {
  if (timer_ != e.id) return;
  timer_.reset();
  const uint64_t timeout = facts_.job.limits.push_timeout_ms;
  if (facts_.now_ms >= timeout) {
    for (const CreditBook::Tag& tag : credits_.GivenUntil(facts_.now_ms - timeout)) {
      TakeBack(tag.first, tag.second);
    }
  }
  RetryOffers();
  WatchCredits();
}

// Ends a credit whose payload is not complete in time. The rest of it does not count.
void PushDesk::TakeBack(StreamId stream, uint64_t tag) {
  const v1::PushHeader header = *EndCredit(stream, tag);
  Release(header);
  outbox_->Count("credits_taken_back");
  if (!IsNew(header)) return AnswerLate(stream, header);
  RefuseForNow(stream, tag, LatePayloadText(facts_.job, header.key()), /*retry=*/true);
}

// ---------------------------------------------------------------- payloads

void PushDesk::On(const event::PushReceived& e) { Receive(e.stream, e.tag, e.data, e.residual); }

// Whether the contribution belongs to the open step, is not counted, and comes from the processes
// that hold its parts.
bool PushDesk::IsNew(const v1::PushHeader& header) const {
  return facts_.state == v1::JOB_STATE_RUNNING && header.key().step() == facts_.step &&
         CheckGenerations(header).ok() &&
         ledger_.Check(PlaceOf(header.key()), OriginOf(header)) ==
             ContributionLedger::Verdict::kNew;
}

// Takes the payload of a credited header. `data_or_null` is null if its values are not finite and
// the step is skipped for that: the contribution counts, so that repetitions are recognized and the
// step can be decided, and it holds no memory.
void PushDesk::Receive(StreamId stream, uint64_t tag,
                       std::shared_ptr<const EncodedChunk> data_or_null, const Bytes& residual) {
  const std::optional<v1::PushHeader> credited = EndCredit(stream, tag);
  if (!credited.has_value()) return;  // its credit was taken back
  const v1::PushHeader& header = *credited;
  const v1::ContributionKey& key = header.key();
  if (!IsNew(header)) {
    Release(header);
    AnswerLate(stream, header);
    return RetryOffers();
  }
  const bool nonfinite = data_or_null == nullptr;
  if (nonfinite) {
    Release(header);
    outbox_->Count("nonfinite");
  }
  if (facts_.logging()) {
    outbox_->Log(facts_.step, PushFact(header, nonfinite),
                 nonfinite ? Bytes() : data_or_null->bytes(), residual);
  }
  Count(header, std::move(data_or_null), residual);
  Ack(stream, tag, v1::Ack::ACCEPTED, "");
  outbox_->Count("accepted_bytes", header.bytes());
  RaiseIfComplete(ChunkId(key.chunk()));
  RetryOffers();
}

// Answers a contribution that had credit and no longer counts: stale, duplicate or conflict.
void PushDesk::AnswerLate(StreamId stream, const v1::PushHeader& header) {
  if (facts_.state == v1::JOB_STATE_FAILED) {
    return Ack(stream, header.tag(), v1::Ack::REFUSED,
               std::string(facts_.FailedStatus().message()));
  }
  TryOffer(Offer{stream, header, facts_.now_ms});
}

// Counts a new contribution to the open step whose memory is admitted.
void PushDesk::Count(const v1::PushHeader& header, std::shared_ptr<const EncodedChunk> data_or_null,
                     const Bytes& residual) {
  const v1::ContributionKey& key = header.key();
  const ContributionLedger::Place place = PlaceOf(key);
  if (data_or_null != nullptr) {
    held_[facts_.local[key.chunk()]].emplace_back(PartId(key.part_first()), HeldBytes(header));
  }
  if (facts_.job.codecs.residual_or_null(place.chunk, Step(facts_.step)) != nullptr) {
    const Residuals::Place left{place.chunk, place.use, PartId(key.part_first())};
    outbox_->Raise(internal_event::ResidualLeft{
        left, facts_.PushResiduals(left.part) ? Residuals::Residual(residual) : std::nullopt});
  }
  ledger_.Count(place, OriginOf(header), header.tokens(), std::move(data_or_null));
  offers_.OnCounted(place);
  outbox_->Emit(facts_.Traced(TraceAction::Kind::kCounted, key.chunk(), Version(facts_.version)));
}

// Hands over the gradient of a chunk after its last contribution.
void PushDesk::RaiseIfComplete(ChunkId chunk) {
  if (!ledger_.Complete(chunk)) return;
  internal_event::ChunkComplete complete;
  complete.chunk = chunk;
  complete.tokens = ledger_.Tokens(chunk);
  complete.nonfinite = ledger_.Nonfinite(chunk);
  if (complete.nonfinite) {
    ledger_.Drop(chunk);
  } else {
    complete.inputs = ledger_.Take(chunk);
  }
  outbox_->Raise(complete);
}

void PushDesk::On(const internal_event::GradientUsed& e) {
  auto& held = held_[facts_.local[e.chunk.value()]];
  for (const auto& [part, bytes] : held) {
    admission_.Release(part, facts_.job.IsTied(e.chunk), bytes);
    offers_.OnFreed(part);
  }
  held.clear();
}

void PushDesk::On(const internal_event::StepComplete&) {
  ledger_.Reset();
  damage_.Reset();
}

void PushDesk::On(const event::PushInvalid& e) {
  const v1::PushHeader* const credited = credits_.FindOrNull({e.stream, e.tag});
  if (credited == nullptr) return;  // it was taken back
  if (const absl::optional<uint64_t> element = InadmissibleElement(e.status)) {
    // A contribution that would not count ends nothing: it is answered like any other.
    if (IsNew(*credited) && facts_.job.spec.training.nonfinite == Nonfinite::kHalt) {
      outbox_->Raise(internal_event::JobFailed{
          NonfiniteText(facts_.job, credited->key(), *element, e.status)});
    }
    return Receive(e.stream, e.tag, nullptr, Bytes());
  }
  const v1::PushHeader header = *EndCredit(e.stream, e.tag);
  Release(header);
  // A damaged transfer is worth another try, though not for ever; inadmissible values are not.
  const bool damaged = absl::IsDataLoss(e.status);
  if (damaged && IsNew(header)) damage_.Note(header);
  const bool is_final = damage_.IsFinal(header);
  RefuseForNow(e.stream, e.tag,
               is_final ? DamagedText(header.key())
                        : absl::StrCat("Push: chunk ", header.key().chunk(), ": ",
                                       std::string(e.status.message())),
               /*retry=*/damaged && !is_final);
  RetryOffers();
}

// ---------------------------------------------------------------- the contribution log

absl::StatusOr<bool> PushDesk::Replay(const v1::LoggedPush& push, const Bytes& payload,
                                      const Bytes& residual) {
  const v1::PushHeader& header = push.header();
  const v1::ContributionKey& key = header.key();
  if (key.step() < facts_.step) return true;
  if (key.step() > facts_.step) return false;
  const ContributionLedger::Place place = PlaceOf(key);
  if (Term(key.term()) != facts_.term || !ledger_.IsValid(place) ||
      ledger_.Check(place, OriginOf(header)) != ContributionLedger::Verdict::kNew) {
    return absl::DataLossError(
        absl::StrCat("no contribution of this shard, or one that counted "
                     "before: chunk ",
                     key.chunk(), ", part ", key.part_first()));
  }
  std::shared_ptr<const EncodedChunk> data;
  if (!push.nonfinite()) {
    // The process before admitted it, perhaps in another order. Updates that made room then may be
    // in flight; if none is, this contribution does not depend on one.
    const PartId part(key.part_first());
    const bool tied = facts_.job.IsTied(place.chunk);
    if (!admission_.Admit(part, place.use, ledger_.OldestIncompleteStage(), tied,
                          HeldBytes(header))) {
      if (queries_.IsUpdating()) return false;
      admission_.Charge(part, tied, HeldBytes(header));
    }
    auto opened =
        facts_.job.codecs.gradient(place.chunk, Step(key.step()))
            .Open(facts_.job.chunks.chunk(place.chunk), Axis::kRow, payload, Content::kGradient);
    if (!opened.ok()) return absl::DataLossError(opened.status().message());
    data = *std::move(opened);
  }
  Count(header, std::move(data), residual);
  RaiseIfComplete(place.chunk);
  return true;
}

// ---------------------------------------------------------------- status and ends

std::string PushDesk::FirstMissing(ChunkId chunk) const {
  const ContributionLedger::Place place = ledger_.FirstMissing(chunk);
  return absl::StrCat("chunk ", chunk.value(), ": gradient of part ", place.parts.first, ", use ",
                      facts_.job.StageName(place.use));
}

std::vector<v1::Have> PushDesk::Counted(const std::vector<bool>& parts) const {
  std::vector<v1::Have> counted;
  for (const ContributionLedger::Place& place : ledger_.Counted(parts)) {
    v1::Have& have = counted.emplace_back();
    have.set_use_stage(place.use.value());
    have.set_part_first(place.parts.first);
    have.set_part_count(place.parts.count);
    have.set_chunk(place.chunk.value());
  }
  return counted;
}

void PushDesk::Closed(StreamId stream) {
  streams_.erase(stream);
  offers_.Remove(stream);
  for (const CreditBook::Tag& tag : credits_.OfStream(stream)) {
    Release(*EndCredit(tag.first, tag.second));
  }
  RetryOffers();
}

void PushDesk::EndTerm(const absl::Status& why) {
  for (const StreamId stream : streams_) outbox_->Close(stream, why);
}

void PushDesk::RefuseOffers(const absl::Status& why) {
  offers_.ForEach([&](const Offer& offer, OfferQueue::Wait) {
    Ack(offer.stream, offer.header.tag(), v1::Ack::REFUSED, std::string(why.message()));
  });
}

void PushDesk::Waits(WaitPage* page) const {
  offers_.ForEach([&](const Offer& offer, OfferQueue::Wait wait) {
    const v1::ContributionKey& key = offer.header.key();
    page->Add(
        absl::StrCat("Push of chunk ", key.chunk(), " by part ", key.part_first()),
        wait == OfferQueue::Wait::kSender
            ? std::string("the payload of the same contribution, which another stream may send")
            : absl::StrCat("memory of its quota: ", admission_.held_bytes(PartId(key.part_first())),
                           " of ", admission_.quota().total_bytes, " bytes held, oldest stage ",
                           facts_.job.StageName(ledger_.OldestIncompleteStage())),
        offer.since_ms);
  });
}

}  // namespace eps
