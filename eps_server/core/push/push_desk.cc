// ShardCore: gradients on their way in. Header, admission, payload, counted once, acknowledged.

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "eps_server/core/replay/log_facts.h"
#include "eps_server/core/shard_core_impl.h"

namespace eps {
namespace {

// A refused contribution may be offered again after this pause.
constexpr uint32_t kRetryAfterMs = 50;

// Use, first part, parts, chunk.
std::array<uint32_t, 4> FlatKey(const v1::ContributionKey& key) {
  return {key.use_stage(), key.part_first(), key.part_count(), key.chunk()};
}

}  // namespace

void ShardCore::Impl::Ack(StreamId stream, uint64_t tag, v1::Ack::Outcome outcome,
                          const std::string& message) {
  v1::Ack ack;
  ack.set_outcome(outcome);
  ack.set_term(term_.value());
  ack.set_step(step_);
  ack.set_message(message);
  switch (outcome) {
    case v1::Ack::ACCEPTED:
      Count("accepted");
      break;
    case v1::Ack::DUPLICATE:
      Count("duplicate");
      break;
    case v1::Ack::CONFLICT:
      Count("conflict");
      break;
    case v1::Ack::STALE:
      Count("stale");
      break;
    default:
      Count("refused");
      break;
  }
  Emit(effect::SendAck{stream, tag, std::move(ack)});
}

absl::Status ShardCore::Impl::CheckHeader(const v1::PushHeader& header) const {
  const v1::ContributionKey& key = header.key();
  if (JobId(key.job_id()) != job_id_) {
    return absl::NotFoundError(absl::StrCat("job ", absl::Hex(key.job_id()), "; this server runs ",
                                            absl::Hex(job_id_.value())));
  }
  if (!ledger_.IsValid(PlaceOf(key))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "chunk ", key.chunk(), ", use by stage ", key.use_stage(), ", parts ", key.part_first(),
        "+", key.part_count(), ": no such contribution on shard ", options_.shard.value()));
  }
  const ChunkId chunk(key.chunk());
  const Codec& codec = codecs_.gradient(chunk, Step(key.step()));
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
  const uint64_t expected = codec.MaxEncodedSize(chunks_.chunk(chunk), Axis::kRow);
  if (header.bytes() > expected || (codec.traits().fixed_size && header.bytes() != expected)) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk ", key.chunk(), ": ", header.bytes(), " bytes, expected ", expected));
  }
  // Whether a residual is wanted at all is known of the open step only.
  const Codec* residual = codecs_.residual_or_null(chunk, Step(key.step()));
  const bool wanted =
      residual != nullptr && (key.step() == step_ ? PushResiduals() : header.residual_bytes() > 0);
  const uint64_t residual_bytes =
      wanted ? residual->MaxEncodedSize(chunks_.chunk(chunk), Axis::kRow) : 0;
  if (header.residual_bytes() != residual_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("chunk ", key.chunk(), ": a residual of ",
                                                   header.residual_bytes(), " bytes, expected ",
                                                   residual_bytes));
  }
  return absl::OkStatus();
}

// What the contribution holds in memory until its update.
uint64_t ShardCore::Impl::HeldBytes(const v1::PushHeader& header) const {
  const ChunkId chunk(header.key().chunk());
  const Codec& codec = codecs_.gradient(chunk, Step(header.key().step()));
  return header.bytes() + header.residual_bytes() + codec.IndexSize(chunks_.chunk(chunk));
}

void ShardCore::Impl::On(const event::PushOffered& e) {
  const v1::PushHeader& header = e.header;
  if (state_ == v1::JOB_STATE_FAILED) {
    return Ack(e.stream, header.tag(), v1::Ack::REFUSED, std::string(FailedStatus().message()));
  }
  const absl::Status status = CheckHeader(header);
  if (!status.ok()) {
    return Ack(e.stream, header.tag(), v1::Ack::REFUSED,
               absl::StrCat("Push: ", std::string(status.message())));
  }
  for (uint32_t p = 0; p < header.key().part_count(); ++p) {
    const PartId part(header.key().part_first() + p);
    TouchPart(part);
    parts_[part.value()].push_stream = e.stream;
  }
  Offer offer{e.stream, header, now_ms_};
  if (TryOffer(offer) == Decided::kWaits) offers_.push_back(std::move(offer));
}

ShardCore::Impl::Decided ShardCore::Impl::TryOffer(const Offer& offer) {
  const v1::PushHeader& header = offer.header;
  const v1::ContributionKey& key = header.key();
  if (Term(key.term()) != term_ || key.step() < step_) {
    Ack(offer.stream, header.tag(), v1::Ack::STALE, "");
    return Decided::kAnswered;
  }
  if (key.step() > step_ || state_ != v1::JOB_STATE_RUNNING) {
    v1::Ack ack;
    ack.set_outcome(v1::Ack::REFUSED);
    ack.set_term(term_.value());
    ack.set_step(step_);
    ack.set_message(absl::StrCat("Push: step ", key.step(), " is not open, step ", step_, " is"));
    ack.set_retry_after_ms(kRetryAfterMs);
    Count("refused");
    Emit(effect::SendAck{offer.stream, header.tag(), std::move(ack)});
    return Decided::kAnswered;
  }
  const ContributionLedger::Place place = PlaceOf(key);
  switch (ledger_.Check(place, OriginOf(header))) {
    case ContributionLedger::Verdict::kDuplicate:
      Ack(offer.stream, header.tag(), v1::Ack::DUPLICATE, "");
      return Decided::kAnswered;
    case ContributionLedger::Verdict::kConflict:
      Ack(offer.stream, header.tag(), v1::Ack::CONFLICT,
          absl::StrCat("chunk ", key.chunk(), ", use ", StageName(place.use), ", part ",
                       key.part_first(), ", step ", key.step(),
                       ": this worker sent other bytes before"));
      return Decided::kAnswered;
    case ContributionLedger::Verdict::kOverlap:
      Ack(offer.stream, header.tag(), v1::Ack::REFUSED,
          absl::StrCat("Push: some of the parts ", key.part_first(), "+", key.part_count(),
                       " of chunk ", key.chunk(), " are counted; send the others alone"));
      return Decided::kAnswered;
    case ContributionLedger::Verdict::kNew:
      break;
  }
  if (incoming_keys_.count(FlatKey(key)) > 0) return Decided::kWaits;  // somebody is sending it
  if (!admission_.Admit(PartId(key.part_first()), place.use, ledger_.OldestIncompleteStage(),
                        IsTied(place.chunk), HeldBytes(header))) {
    return Decided::kWaits;
  }
  incoming_keys_.insert(FlatKey(key));
  incoming_.emplace(FetchTag{offer.stream, header.tag()}, Incoming{header});
  Emit(effect::Credit{offer.stream, header.tag()});
  return Decided::kCredited;
}

void ShardCore::Impl::RetryOffers() {
  std::deque<Offer> offers;
  offers.swap(offers_);
  for (Offer& offer : offers) {
    if (TryOffer(offer) == Decided::kWaits) offers_.push_back(std::move(offer));
  }
}

void ShardCore::Impl::ReleaseIncoming(const Incoming& incoming) {
  const v1::ContributionKey& key = incoming.header.key();
  incoming_keys_.erase(FlatKey(key));
  admission_.Release(PartId(key.part_first()), IsTied(ChunkId(key.chunk())),
                     HeldBytes(incoming.header));
}

void ShardCore::Impl::On(const event::PushReceived& e) {
  Receive(e.stream, e.tag, e.data, e.residual);
}

// The payload of a credited header is there. `data_or_null` is null if its values are not finite
// and the step is to be skipped for it: it counts, so that repetitions are known and the step can
// be decided, and no memory is held for it.
void ShardCore::Impl::Receive(StreamId stream, uint64_t tag,
                              std::shared_ptr<const EncodedChunk> data_or_null, Bytes residual) {
  auto it = incoming_.find(FetchTag{stream, tag});
  if (it == incoming_.end()) return;
  const Incoming incoming = std::move(it->second);
  incoming_.erase(it);
  const v1::PushHeader& header = incoming.header;
  const v1::ContributionKey& key = header.key();
  const ContributionLedger::Place place = PlaceOf(key);
  const ContributionLedger::Origin origin = OriginOf(header);
  if (state_ != v1::JOB_STATE_RUNNING || key.step() != step_ ||
      ledger_.Check(place, origin) != ContributionLedger::Verdict::kNew) {
    ReleaseIncoming(incoming);
    if (state_ == v1::JOB_STATE_FAILED) {
      Ack(stream, tag, v1::Ack::REFUSED, std::string(FailedStatus().message()));
    } else {
      TryOffer(Offer{stream, header, now_ms_});  // answers: stale, duplicate or conflict
    }
    return RetryOffers();
  }
  if (data_or_null == nullptr) {
    ReleaseIncoming(incoming);
    Count("nonfinite");
  } else {
    incoming_keys_.erase(FlatKey(key));
  }
  if (logging_) {
    LogIt(step_, PushFact(header, data_or_null == nullptr),
          data_or_null == nullptr ? Bytes() : data_or_null->bytes(), residual);
  }
  CountPush(header, std::move(data_or_null), std::move(residual));
  TouchPart(PartId(key.part_first()));
  Ack(stream, tag, v1::Ack::ACCEPTED, "");
  Count("accepted_bytes", header.bytes());
  MaybeStartUpdate(Owned(place.chunk));
  RetryOffers();
}

// Of the open step, counted for the first time; what it holds in memory is admitted.
void ShardCore::Impl::CountPush(const v1::PushHeader& header,
                                std::shared_ptr<const EncodedChunk> data_or_null, Bytes residual) {
  const v1::ContributionKey& key = header.key();
  const ContributionLedger::Place place = PlaceOf(key);
  if (data_or_null != nullptr) {
    Owned(place.chunk)->held.emplace_back(PartId(key.part_first()), HeldBytes(header));
  }
  if (codecs_.residual_or_null(place.chunk, Step(step_)) != nullptr) {
    const Residuals::Place left{place.chunk, place.use, PartId(key.part_first())};
    residuals_.Put(left, PushResiduals() ? Residuals::Residual(std::move(residual)) : std::nullopt);
  }
  ledger_.Count(place, OriginOf(header), header.tokens(), std::move(data_or_null));
  TraceIt(TraceAction::Kind::kCounted, key.chunk(), Version(base_version_));
}

std::string ShardCore::Impl::NonfiniteText(const v1::ContributionKey& key, uint64_t element,
                                           const absl::Status& status) const {
  std::string tensor = "a tensor";
  for (const Segment& s : chunks_.chunk(ChunkId(key.chunk())).segments) {
    if (element >= s.offset && element < s.offset + s.elements()) {
      tensor = spec_.tensors[s.tensor.value()].name;
    }
  }
  return absl::StrCat("step ", key.step(), ": the gradient of ", tensor, " (stage ",
                      StageName(StageId(key.use_stage())), ", part ", key.part_first(),
                      ") is not finite: ", std::string(status.message()),
                      "; lower optimizer.lr, raise lr_scheduler.warmup_steps, or look at the data; "
                      "training.nonfinite=skip with training.mode=sealed leaves such steps out");
}

void ShardCore::Impl::On(const event::PushInvalid& e) {
  auto it = incoming_.find(FetchTag{e.stream, e.tag});
  if (it == incoming_.end()) return;
  if (const absl::optional<uint64_t> element = InadmissibleElement(e.status)) {
    const v1::PushHeader& header = it->second.header;
    const v1::ContributionKey& key = header.key();
    // What would not count ends nothing: it is answered as any other.
    const bool would_count =
        state_ == v1::JOB_STATE_RUNNING && key.step() == step_ &&
        ledger_.Check(PlaceOf(key), OriginOf(header)) == ContributionLedger::Verdict::kNew;
    if (would_count && spec_.training.nonfinite == Nonfinite::kHalt) {
      FailJob(NonfiniteText(key, *element, e.status));
    }
    return Receive(e.stream, e.tag, nullptr, Bytes());
  }
  ReleaseIncoming(it->second);
  const uint32_t chunk = it->second.header.key().chunk();
  incoming_.erase(it);
  v1::Ack ack;
  ack.set_outcome(v1::Ack::REFUSED);
  ack.set_term(term_.value());
  ack.set_step(step_);
  ack.set_message(absl::StrCat("Push: chunk ", chunk, ": ", std::string(e.status.message())));
  // A damaged transfer is worth another try; inadmissible values are not.
  if (absl::IsDataLoss(e.status)) ack.set_retry_after_ms(kRetryAfterMs);
  Count("refused");
  Emit(effect::SendAck{e.stream, e.tag, std::move(ack)});
  RetryOffers();
}

}  // namespace eps
