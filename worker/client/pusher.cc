#include "worker/client/pusher.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/checksum.h"
#include "base/numerics/flush_denormals.h"
#include "base/status_macros.h"
#include "base/trace/span_names.h"
#include "base/trace/trace_log.h"
#include "wire/payload_message.h"
#include "wire/payload_slices.h"
#include "worker/client/shared/share_memory.h"

namespace eps {
namespace {

using std::chrono::steady_clock;

constexpr char kPushMethod[] = "/eps.v1.Data/Push";
constexpr std::chrono::seconds kIdleTick{10};

// Multiplies by a power of two, which is exact but for denormal results.
void Scale(int log2, uint64_t count, float* values) {
  if (log2 == 0) return;
  const float factor = std::ldexp(1.0f, log2);
  for (uint64_t i = 0; i < count; ++i) values[i] *= factor;
}

// Decodes a residual and gives it the loss scale of a gradient; an empty one is all zeros. REQUIRES
// bytes that were checked on arrival or encoded by this process.
void ReadResidual(const Codec& codec, const Chunk& chunk, const Bytes& residual,
                  int loss_scale_log2, float* out) {
  if (residual.empty()) {
    std::memset(out, 0, chunk.elements * sizeof(float));
    return;
  }
  const auto opened = codec.Open(chunk, Axis::kRow, residual, Content::kWeights);
  EPS_CHECK_MSG(opened.ok(), opened.status());
  DecodeChunk(**opened, chunk, out);
  Scale(-loss_scale_log2, chunk.elements, out);
}

bool IsFinite(float value) {
  constexpr uint32_t kExponent = 0x7f800000;
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return (bits & kExponent) != kExponent;
}

// Returns the parts in a row, in shared memory if that has room.
Bytes Join(absl::Span<const Bytes> parts, ShmGradients* shared_or_null) {
  v1::SharedRange found;
  if (parts.size() == 1 && (shared_or_null == nullptr || shared_or_null->Find(parts[0], &found))) {
    return parts[0];
  }
  size_t size = 0;
  for (const Bytes& part : parts) size += part.size();
  std::shared_ptr<uint8_t> memory;
  if (shared_or_null != nullptr && size > 0) memory = shared_or_null->Allocate(size);
  if (memory == nullptr && parts.size() == 1) return parts[0];
  Buffer own(memory == nullptr ? size : 0);
  uint8_t* const begin = memory == nullptr ? own.data() : memory.get();
  uint8_t* at = begin;
  for (const Bytes& part : parts) at = std::copy_n(part.data(), part.size(), at);
  return memory == nullptr ? std::move(own).Freeze() : Bytes::Borrow({begin, size}, memory);
}

}  // namespace

ShardPusher::ShardPusher(std::shared_ptr<ClientCore> core, const JobView* job, ShardId shard,
                         std::shared_ptr<grpc::Channel> channel,
                         std::function<void(uint64_t)> on_counted)
    : core_(std::move(core)),
      job_(job),
      address_(job->servers[shard.value()]),
      on_counted_(std::move(on_counted)),
      link_(core_, address_, std::move(channel), kPushMethod, job->id.value(), this) {}

void ShardPusher::Push(v1::PushHeader header, Bytes payload) {
  const uint64_t tag = next_tag_++;
  header.set_tag(tag);
  Item& item = items_[tag];
  item.header = std::move(header);
  item.payload = std::move(payload);
  link_.Ensure();
  Offer(&item);
}

absl::Status ShardPusher::OnHello(const v1::HelloReply& reply) {
  EPS_ASSIGN_OR_RETURN(
      std::shared_ptr<ShmGradients> shared,
      ShareMemory<ShmGradients>(core_->options.transport, "gradients", address_, reply));
  ClientLock lock(&core_->mu);
  shared_.swap(shared);
  return absl::OkStatus();
}

void ShardPusher::OnOpen() {
  for (auto& [tag, item] : items_) {
    if (item.state != Item::State::kWaits) Offer(&item);
  }
}

void ShardPusher::Offer(Item* item) {
  item->state = Item::State::kOffered;
  v1::PushFrame frame;
  *frame.mutable_header() = item->header;
  link_.Write(JoinPayload(frame, Bytes()));
}

void ShardPusher::SendPayload(Item* item) {
  item->state = Item::State::kSent;
  const size_t total = item->payload.size();
  core_->stats.pushed_bytes += total;
  v1::PushFrame whole;
  if (shared_ != nullptr && shared_->Find(item->payload, whole.mutable_range())) {
    whole.set_tag(item->header.tag());
    whole.set_last(true);
    return link_.Write(JoinPayload(whole, Bytes()));
  }
  for (const PayloadSlice& slice : SlicesOf(total)) {
    v1::PushFrame frame;
    frame.set_tag(item->header.tag());
    frame.set_offset(slice.offset);
    frame.set_last(slice.last);
    link_.Write(JoinPayload(frame, item->payload.Sub(slice.offset, slice.size)));
  }
}

void ShardPusher::OnMessage(const grpc::ByteBuffer& message) {
  v1::PushReply reply;
  std::vector<grpc::Slice> none;
  const absl::Status status = SplitPayload(message, &reply, &none);
  ClientLock lock(&core_->mu);
  if (!status.ok()) {
    return core_->Fail(
        absl::Status(status.code(), absl::StrCat("Push on ", address_, ": ", status.message())));
  }
  OnReply(reply);
}

void ShardPusher::OnReply(const v1::PushReply& reply) {
  const auto it = items_.find(reply.tag());
  if (it == items_.end()) {
    if (!core_->failure.ok()) return;  // Clear has dropped the contribution
    return core_->Fail(absl::InternalError(absl::StrCat("Push on ", address_, ": a reply for tag ",
                                                        reply.tag(), ", which nothing waits for")));
  }
  if (reply.has_ack()) return OnAck(it, reply.ack());
  if (reply.has_credit() && it->second.state == Item::State::kOffered) {
    return SendPayload(&it->second);
  }
  core_->Fail(absl::InternalError(
      absl::StrCat("Push on ", address_, ": an unexpected reply for ", Text(it->second.header))));
}

void ShardPusher::OnAck(Items::iterator it, const v1::Ack& ack) {
  const v1::PushHeader& header = it->second.header;
  const v1::ContributionKey& key = header.key();
  const std::string context = absl::StrCat("server ", address_, ", ", Text(header));
  switch (ack.outcome()) {
    case v1::Ack::DUPLICATE:
      ++core_->stats.duplicates;
      break;
    case v1::Ack::ACCEPTED:
      break;
    case v1::Ack::STALE:
      if (ack.term() != key.term()) {
        return core_->Fail(absl::AbortedError(
            absl::StrCat(context, ": the job's term moved from ", key.term(), " to ", ack.term(),
                         ", step ", ack.step(), ": its state was rolled back; join again")));
      }
      if (ack.step() > key.step()) break;  // the step is complete: the contribution was counted
      return core_->Fail(absl::FailedPreconditionError(
          absl::StrCat(context, ": the server calls it stale at step ", ack.step())));
    case v1::Ack::CONFLICT:
      return core_->Fail(absl::InternalError(absl::StrCat(
          context,
          ": this worker sent other bytes for the same contribution before: ", ack.message())));
    case v1::Ack::REFUSED:
      if (ack.retry_after_ms() > 0) return PushBack(it, ack.retry_after_ms());
      return core_->Fail(
          absl::FailedPreconditionError(absl::StrCat(context, " is refused: ", ack.message())));
    case v1::Ack::FENCED:
      return core_->Fail(absl::AbortedError(absl::StrCat(
          context, ": another process holds part ", key.part_first(), ", this one had generation ",
          job_->GenerationOf(PartId(key.part_first())), "; join again: ", ack.message())));
    default:
      return core_->Fail(absl::InternalError(
          absl::StrCat(context, ": unknown outcome ", static_cast<int>(ack.outcome()))));
  }
  const uint64_t bytes = it->second.payload.size();
  items_.erase(it);
  on_counted_(bytes);
  core_->changed.NotifyAll();
}

void ShardPusher::PushBack(Items::iterator it, uint32_t retry_after_ms) {
  Item item = std::move(it->second);
  items_.erase(it);
  const uint64_t tag = next_tag_++;  // a stream uses a tag only once
  item.header.set_tag(tag);
  item.state = Item::State::kWaits;
  item.not_before = steady_clock::now() + std::chrono::milliseconds(retry_after_ms);
  items_.emplace(tag, std::move(item));
  core_->timer.NotifyAll();
}

TimePoint ShardPusher::Tick(TimePoint now) {
  TimePoint next = now + kIdleTick;
  for (auto& [tag, item] : items_) {
    if (item.state != Item::State::kWaits) continue;
    if (item.not_before <= now) {
      Offer(&item);
    } else {
      next = std::min(next, item.not_before);
    }
  }
  return next;
}

std::string ShardPusher::Text(const v1::PushHeader& header) const {
  const v1::ContributionKey& key = header.key();
  const Chunk& chunk = job_->chunks.chunk(ChunkId(key.chunk()));
  const TensorId tensor = chunk.segments.front().tensor;
  return absl::StrCat("the gradient of chunk ", key.chunk(), " (",
                      job_->spec.tensors[tensor.value()].name, "), use by stage ",
                      job_->StageText(StageId(key.use_stage())), ", part ", key.part_first(),
                      ", step ", key.step());
}

std::string ShardPusher::WaitingFor() const {
  if (items_.empty()) return "";
  const Item& first = items_.begin()->second;
  std::string text = absl::StrCat(
      first.state == Item::State::kSent ? "the acknowledgement of " : "the credit for ",
      Text(first.header));
  if (items_.size() > 1) absl::StrAppend(&text, " and ", items_.size() - 1, " more");
  return text;
}

PushQueue::PushQueue(std::shared_ptr<ClientCore> core, const JobView* job, Executor* pool,
                     ResidualKeeper* residuals, std::function<ShardPusher*(ShardId)> pusher)
    : core_(std::move(core)),
      job_(job),
      pool_(pool),
      residuals_(residuals),
      pusher_(std::move(pusher)) {}

PushQueue::~PushQueue() {
  ClientLock lock(&core_->mu);
  Release(outstanding_bytes_);
}

void PushQueue::Reserve(uint64_t bytes) {
  outstanding_bytes_ += bytes;
  if (core_->options.account != nullptr) {
    core_->options.account->Charge(MemoryKind::kStage, bytes);
  }
}

void PushQueue::Release(uint64_t bytes) {
  EPS_CHECK_MSG(outstanding_bytes_ >= bytes, outstanding_bytes_ << " " << bytes);
  outstanding_bytes_ -= bytes;
  if (core_->options.account != nullptr) {
    core_->options.account->Release(MemoryKind::kStage, bytes);
  }
}

void PushQueue::Add(Job job) {
  if (job.chunks.empty()) return;
  jobs_.push_back(std::make_shared<Job>(std::move(job)));
  Pump();
}

void PushQueue::OnCounted(uint64_t bytes) {
  Release(bytes);
  Pump();
}

std::deque<std::shared_ptr<PushQueue::Job>> PushQueue::Clear() {
  std::deque<std::shared_ptr<Job>> jobs;
  jobs.swap(jobs_);
  next_chunk_ = 0;
  return jobs;
}

void PushQueue::Pump() {
  while (!jobs_.empty() && core_->failure.ok()) {
    const std::shared_ptr<Job> job = jobs_.front();
    Encoding encoding;
    encoding.chunk = &job_->chunks.chunk(job->chunks[next_chunk_]);
    const ChunkId id = encoding.chunk->id;
    encoding.codec = &job_->codecs->gradient(id, job->step);
    encoding.residual_codec = residuals_->codec_or_null(id);
    encoding.reserved = encoding.codec->MaxEncodedSize(*encoding.chunk, Axis::kRow);
    if (encoding.residual_codec != nullptr) {
      std::optional<Bytes> residual = residuals_->Find({job->use, job->part, id});
      if (!residual.has_value()) return;  // OnResiduals continues
      encoding.residual = *std::move(residual);
      encoding.push_residual = residuals_->PushesTo(job_->placement[id.value()]);
      encoding.reserved += encoding.residual_codec->MaxEncodedSize(*encoding.chunk, Axis::kRow);
    }
    if (!FindCount(job, &encoding)) return;
    // A chunk larger than the whole window is sent alone.
    if (outstanding_bytes_ > 0 &&
        outstanding_bytes_ + encoding.reserved > core_->options.push_window_bytes) {
      return;
    }
    Reserve(encoding.reserved);
    if (++next_chunk_ == job->chunks.size()) {
      jobs_.pop_front();
      next_chunk_ = 0;
      core_->changed.NotifyAll();
    }
    pool_->Post([this, job, encoding = std::move(encoding)] { Encode(*job, encoding); });
  }
}

bool PushQueue::FindCount(const std::shared_ptr<Job>& job, Encoding* encoding) {
  const ChunkId id = encoding->chunk->id;
  const absl::Span<const Chunk> chunks = job_->chunks.ChunksOfTensor(id);
  if (!encoding->codec->traits().whole_tensors || chunks.size() == 1) return true;
  const auto known = job->counts.find(id);
  if (known != job->counts.end()) {
    encoding->count = known->second;
    return true;
  }
  if (counting_) return false;
  std::vector<Bytes> residuals;
  if (encoding->residual_codec != nullptr) {
    for (const Chunk& chunk : chunks) {
      std::optional<Bytes> residual = residuals_->Find({job->use, job->part, chunk.id});
      if (!residual.has_value()) return false;  // OnResiduals continues
      residuals.push_back(*std::move(residual));
    }
  }
  counting_ = true;
  const Codec* const residual_codec = encoding->residual_codec;
  pool_->Post([this, job, chunks, residual_codec, residuals = std::move(residuals)] {
    Count(job, chunks, residual_codec, residuals);
  });
  return false;
}

void PushQueue::Count(const std::shared_ptr<Job>& job, absl::Span<const Chunk> chunks,
                      const Codec* residual_codec_or_null, const std::vector<Bytes>& residuals) {
  Buffer sums;
  const auto elements = [&](size_t i) -> const float* {
    const Chunk& chunk = chunks[i];
    const Segment& segment = chunk.segments.front();
    const float* const tensor = job->gradient->tensor(segment.tensor);
    EPS_CHECK_MSG(tensor != nullptr, "chunk " << chunk.id << " is not all of stage " << job->use);
    const float* const gradient = tensor + segment.tensor_offset;
    if (residual_codec_or_null == nullptr) return gradient;
    if (sums.size() < chunk.elements * sizeof(float)) {
      sums = Buffer(chunk.elements * sizeof(float), MemoryKind::kScratch, core_->options.account);
    }
    ReadResidual(*residual_codec_or_null, chunk, residuals[i], job->loss_scale_log2, sums.floats());
    const ScopedFlushDenormals flush;
    for (uint64_t j = 0; j < chunk.elements; ++j) sums.floats()[j] += gradient[j];
    return sums.floats();
  };
  const Codec& codec = job_->codecs->gradient(chunks.front().id, job->step);
  const std::vector<uint64_t> counts = codec.CountsOf(chunks, elements);
  ClientLock lock(&core_->mu);
  counting_ = false;
  for (size_t i = 0; i < chunks.size(); ++i) job->counts[chunks[i].id] = counts[i];
  Pump();
}

absl::optional<uint64_t> PushQueue::FindNonfinite(const Job& job, const Chunk& chunk) const {
  if (job_->spec.training.nonfinite != Nonfinite::kSkip) return absl::nullopt;
  for (const Segment& segment : chunk.segments) {
    const float* const tensor = job.gradient->tensor(segment.tensor);
    EPS_CHECK_MSG(tensor != nullptr, "chunk " << chunk.id << " is not all of stage " << job.use);
    const float* const values = tensor + segment.tensor_offset;
    bool finite = true;
    for (uint64_t i = 0; i < segment.elements(); ++i) finite &= IsFinite(values[i]);
    if (finite) continue;
    const float* const first = std::find_if_not(values, values + segment.elements(), IsFinite);
    return segment.offset + static_cast<uint64_t>(first - values);
  }
  return absl::nullopt;
}

Bytes PushQueue::EncodeGradient(const Job& job, Encoding* encoding,
                                MemoryAccount* account_or_null) const {
  const Chunk& chunk = *encoding->chunk;
  EncodeOptions options;
  options.rng.seed = job_->spec.training.seed;
  options.rng.step = job.step.value();
  options.rng.micro_batch = job.part.value();
  options.rng.stage = static_cast<uint16_t>(job.use.value());
  options.kind = MemoryKind::kStage;
  options.account = account_or_null;
  options.count = encoding->count;
  Buffer residual;
  if (encoding->residual_codec != nullptr) {
    residual = Buffer(chunk.elements * sizeof(float), MemoryKind::kScratch, core_->options.account);
    ReadResidual(*encoding->residual_codec, chunk, encoding->residual, job.loss_scale_log2,
                 residual.floats());
    options.residual_or_null = residual.floats();
  }
  auto encoder = encoding->codec->NewEncoder(chunk, options);
  ForEachTile(chunk, [&](const Tile& tile) {
    const Segment& segment = chunk.segments[tile.segment];
    const float* tensor = job.gradient->tensor(segment.tensor);
    EPS_CHECK_MSG(tensor != nullptr, "chunk " << chunk.id << " is not all of stage " << job.use);
    encoder->Write(tile, segment.cols,
                   tensor + segment.tensor_offset + uint64_t{tile.row} * segment.cols + tile.col);
  });
  Bytes gradient = encoder->Finish();
  if (encoding->residual_codec != nullptr) {
    Scale(job.loss_scale_log2, chunk.elements, residual.floats());
    EncodeOptions kept;
    kept.kind = MemoryKind::kResidual;
    kept.account = core_->options.account;
    encoding->residual = EncodeChunk(*encoding->residual_codec, chunk, kept, residual.floats());
  }
  return gradient;
}

void PushQueue::Encode(const Job& job, Encoding encoding) {
  const ChunkId chunk = encoding.chunk->id;
  const TraceSpan span(kEncodeGradientSpan,
                       {job.step.value(), chunk.value() + 1, job.part.value() + 1});
  encoding.nonfinite_element = FindNonfinite(job, *encoding.chunk);
  std::shared_ptr<ShmGradients> shared;
  {
    ClientLock lock(&core_->mu);
    shared = pusher_(job_->placement[chunk.value()])->shared();
  }
  EncodedGradient gradient;
  if (encoding.nonfinite_element.has_value()) {
    encoding.push_residual = false;  // the servers skip the step, and keep the residual they have
  } else if (absl::optional<EncodedGradient> encoded = job.gradient->Encoded(*encoding.chunk)) {
    gradient = *std::move(encoded);
  } else {
    if (shared != nullptr && !encoding.push_residual) {  // a residual follows in the payload
      gradient.bytes = shared->Encode(
          [&](MemoryAccount* account) { return EncodeGradient(job, &encoding, account); });
    } else {
      gradient.bytes = EncodeGradient(job, &encoding, nullptr);
    }
    gradient.crc32c = Crc32c(gradient.bytes.view());
  }
  v1::PushHeader header;
  v1::ContributionKey* contribution = header.mutable_key();
  contribution->set_job_id(job_->id.value());
  contribution->set_term(job_->term.value());
  contribution->set_step(job.step.value());
  contribution->set_use_stage(job.use.value());
  contribution->set_part_first(job.part.value());
  contribution->set_part_count(1);
  contribution->set_chunk(chunk.value());
  header.set_codec(static_cast<uint32_t>(encoding.codec->traits().id));
  header.set_bytes(gradient.bytes.size());
  header.set_crc32c(gradient.crc32c);
  header.set_tokens(job.tokens);
  header.set_worker_nonce(core_->nonce);
  if (encoding.nonfinite_element.has_value()) {
    header.set_nonfinite_element(*encoding.nonfinite_element);
  }
  header.add_generations(job_->GenerationOf(job.part));
  std::vector<Bytes> parts = {std::move(gradient.bytes)};
  if (encoding.push_residual) {
    header.set_residual_bytes(encoding.residual.size());
    header.set_residual_crc32c(Crc32c(encoding.residual.view()));
    parts.push_back(encoding.residual);
  }
  Bytes payload = Join(parts, shared.get());

  ClientLock lock(&core_->mu);
  Release(encoding.reserved - payload.size());
  if (!core_->failure.ok()) return;
  if (encoding.residual_codec != nullptr) {
    residuals_->Put({job.use, job.part, chunk}, std::move(encoding.residual));
  }
  pusher_(job_->placement[chunk.value()])->Push(std::move(header), std::move(payload));
}

}  // namespace eps
