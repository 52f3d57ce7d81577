#include "worker/client/fetcher.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/checksum.h"
#include "base/status_macros.h"
#include "base/trace/span_names.h"
#include "wire/payload_message.h"
#include "worker/client/shared/share_memory.h"

namespace eps {
namespace {

using std::chrono::steady_clock;

constexpr char kFetchMethod[] = "/eps.v1.Data/Fetch";

// Waits for a FetchOp; its destructor waits for writers and abandons the fetch.
class PendingFetchImpl final : public PendingFetch {
 public:
  PendingFetchImpl(std::shared_ptr<ClientCore> core, std::shared_ptr<FetchOp> op)
      : core_(std::move(core)), op_(std::move(op)) {}

  ~PendingFetchImpl() override {
    ClientLock lock(&core_->mu);
    op_->abandoned = true;
    // Tasks that are writing finish within the time of decoding one chunk.
    while (op_->writers > 0) core_->changed.WaitFor(&core_->mu, std::chrono::seconds(1));
  }

  absl::Status Wait() override {
    const TimePoint start = steady_clock::now();
    ClientLock lock(&core_->mu);
    // The links bound this wait: they fail the client when a server no longer answers.
    ++core_->work.waits;
    while (op_->missing > 0 && op_->status.ok() && core_->failure.ok()) {
      core_->changed.WaitFor(&core_->mu, std::chrono::seconds(1));
    }
    --core_->work.waits;
    const std::chrono::duration<double> waited = steady_clock::now() - start;
    core_->stats.fetch_wait_seconds += waited.count();
    if (!op_->status.ok()) return op_->status;
    if (op_->missing > 0) return core_->failure;
    ++core_->work.visits;
    return absl::OkStatus();
  }

 private:
  const std::shared_ptr<ClientCore> core_;
  const std::shared_ptr<FetchOp> op_;
};

SpanPlace PlaceOf(const FetchOp& op, const Chunk& chunk) {
  return {StepThatReads(op.version.value()), chunk.id.value() + 1};
}

}  // namespace

std::unique_ptr<PendingFetch> NewPendingFetch(std::shared_ptr<ClientCore> core,
                                              std::shared_ptr<FetchOp> op) {
  return std::make_unique<PendingFetchImpl>(std::move(core), std::move(op));
}

ShardFetcher::ShardFetcher(std::shared_ptr<ClientCore> core, const JobView* job, ShardId shard,
                           std::shared_ptr<grpc::Channel> channel, Executor* pool,
                           std::vector<PartId> parts)
    : core_(std::move(core)),
      job_(job),
      address_(job->servers[shard.value()]),
      pool_(pool),
      parts_(std::move(parts)),
      link_(core_, address_, std::move(channel), kFetchMethod, job->id.value(), this) {}

std::set<ChunkCopy> ShardFetcher::CopiesOf(const FetchOp& op, ChunkId chunk) const {
  std::set<ChunkCopy> copies = {{chunk.value(), 0}};
  if (!op.residuals_of.has_value() && job_->codecs->axes(op.stage, chunk, op.backward).has_second) {
    copies.insert({chunk.value(), 1});
  }
  return copies;
}

void ShardFetcher::Fetch(std::shared_ptr<FetchOp> op, const std::vector<ChunkId>& chunks) {
  std::set<ChunkCopy> copies;
  for (const ChunkId id : chunks) {
    for (const ChunkCopy& copy : CopiesOf(*op, id)) {
      if (!UseKept(op, copy)) copies.insert(copy);
    }
  }
  if (!copies.empty()) AddRequest(std::move(op), std::move(copies));
}

bool ShardFetcher::UseKept(const std::shared_ptr<FetchOp>& op, const ChunkCopy& copy) {
  const Chunk& chunk = job_->chunks.chunk(ChunkId(copy.chunk));
  if (!chunk.frozen || op->residuals_of.has_value()) return false;
  const Encoding encoding = EncodingOf(*op, copy);
  std::optional<Bytes> kept = core_->frozen.Find(chunk.id, encoding.axis);
  if (!kept.has_value()) return false;
  pool_->Post([this, op, &chunk, encoding, bytes = *std::move(kept)] {
    std::optional<TraceSpan> span(std::in_place, kDecodeSpan, PlaceOf(*op, chunk));
    GiveToSink(op, chunk, encoding, bytes, &span);
  });
  return true;
}

void ShardFetcher::AddRequest(std::shared_ptr<FetchOp> op, std::set<ChunkCopy> copies) {
  Request request;
  request.op = std::move(op);
  request.missing = std::move(copies);
  requests_.emplace(next_tag_++, std::move(request));
  link_.Ensure();
  SendRequests();
}

absl::Status ShardFetcher::OnHello(const v1::HelloReply& reply) {
  EPS_ASSIGN_OR_RETURN(
      std::shared_ptr<ShmWeights> shared,
      ShareMemory<ShmWeights>(core_->options.transport, "weights", address_, reply));
  ClientLock lock(&core_->mu);
  // The server frees what it sent on the last stream when this process no longer has that session.
  shared_.swap(shared);
  return absl::OkStatus();
}

void ShardFetcher::OnOpen() {
  assemblies_.clear();  // a new stream sends every chunk from its start
  for (auto it = requests_.begin(); it != requests_.end();) {
    it->second.sent = false;
    const bool needed = !it->second.op->abandoned && !it->second.missing.empty();
    it = needed ? std::next(it) : requests_.erase(it);
  }
  SendRequests();
}

void ShardFetcher::SendRequests() {
  if (!link_.is_open()) return;
  size_t in_flight = 0;
  for (const auto& [tag, request] : requests_) in_flight += request.sent ? 1 : 0;
  for (auto it = requests_.begin(); it != requests_.end() && in_flight < kMaxRequests;) {
    Request& request = it->second;
    if (!request.sent && request.op->abandoned) {
      it = requests_.erase(it);
      continue;
    }
    if (!request.sent) {
      Send(it->first, &request);
      ++in_flight;
    }
    ++it;
  }
}

void ShardFetcher::Send(uint64_t tag, Request* request) {
  const FetchOp& op = *request->op;
  v1::FetchRequest message;
  message.set_tag(tag);
  message.set_job_id(job_->id.value());
  message.set_term(job_->term.value());
  message.set_stage(op.stage.value());
  message.set_version(op.version.value());
  message.set_pass(op.backward ? v1::PASS_BACKWARD : v1::PASS_FORWARD);
  // A fetch shows that its part is alive, so name each hosted part in turn.
  const PartId part = op.residuals_of.value_or(parts_[tag % parts_.size()]);
  message.set_part(part.value());
  message.set_generation(job_->GenerationOf(part));
  message.set_residuals(op.residuals_of.has_value());
  message.set_shared_session(shared_ == nullptr ? 0 : shared_->session());
  request->expected.clear();
  uint32_t last = UINT32_MAX;
  for (const ChunkCopy& copy : request->missing) {  // ordered by chunk
    if (copy.chunk == last) continue;
    last = copy.chunk;
    message.add_chunks(copy.chunk);
    request->expected.merge(CopiesOf(op, ChunkId(copy.chunk)));
  }
  link_.Write(JoinPayload(message, Bytes()));
  request->sent = true;
}

void ShardFetcher::OnMessage(const grpc::ByteBuffer& message) {
  v1::FetchSlice slice;
  std::vector<grpc::Slice> pieces;
  absl::Status status = SplitPayload(message, &slice, &pieces);
  if (status.ok()) status = OnSlice(slice, pieces);
  if (status.ok()) return;
  ClientLock lock(&core_->mu);
  core_->Fail(
      absl::Status(status.code(), absl::StrCat("Fetch on ", address_, ": ", status.message())));
}

absl::Status ShardFetcher::OnSlice(const v1::FetchSlice& slice,
                                   const std::vector<grpc::Slice>& pieces) {
  uint64_t size = slice.range().bytes();
  for (const grpc::Slice& piece : pieces) size += piece.size();
  std::shared_ptr<Assembly> assembly;
  {
    ClientLock lock(&core_->mu);
    core_->stats.fetched_bytes += size;
    if (slice.code() != 0) {
      OnRefused(slice);
      return absl::OkStatus();
    }
    EPS_ASSIGN_OR_RETURN(assembly, Locate(slice, size));
    if (slice.has_range()) {
      EPS_ASSIGN_OR_RETURN(assembly->shared, Shared(slice));
    }
  }
  EPS_RETURN_IF_ERROR(assembly->payload.Append(slice.offset(), pieces));
  if (!slice.last()) return absl::OkStatus();
  ClientLock lock(&core_->mu);
  OnComplete(slice, std::move(assembly));
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<ShardFetcher::Assembly>> ShardFetcher::Locate(
    const v1::FetchSlice& slice, uint64_t size) {
  const auto it = requests_.find(slice.tag());
  const ChunkCopy copy{slice.chunk(), slice.view()};
  if (it == requests_.end() || it->second.expected.count(copy) == 0 ||
      slice.residual() != it->second.op->residuals_of.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("a slice of chunk ", slice.chunk(), " for tag ",
                                                   slice.tag(), " was not asked for"));
  }
  const FetchOp& op = *it->second.op;
  const Chunk& chunk = job_->chunks.chunk(ChunkId(slice.chunk()));
  const Encoding encoding = EncodingOf(op, copy);
  const Codec* codec = encoding.codec;
  if (Version(slice.version()) != op.version ||
      slice.codec() != static_cast<uint32_t>(codec->traits().id)) {
    return absl::InvalidArgumentError(
        absl::StrCat(Place(op, chunk.id), ": got version ", slice.version(), " in codec ",
                     slice.codec(), ", expected version ", op.version.value(), " in codec ",
                     static_cast<uint32_t>(codec->traits().id), " (", codec->name(), ")"));
  }
  std::shared_ptr<Assembly>& assembly = assemblies_[{slice.tag(), copy}];
  if (assembly == nullptr) {
    const size_t most = codec->MaxEncodedSize(chunk, encoding.axis);
    if (slice.total_bytes() > most) {
      return absl::InvalidArgumentError(absl::StrCat(Place(op, chunk.id), ": ", slice.total_bytes(),
                                                     " bytes, at most ", most, " in codec ",
                                                     codec->name()));
    }
    assembly = std::make_shared<Assembly>();
    assembly->encoding = encoding;
    const bool wanted = !slice.has_range() && !op.abandoned && it->second.missing.count(copy) > 0;
    assembly->payload =
        wanted ? PayloadAssembler(slice.total_bytes(), MemoryKind::kStage, core_->options.account)
               : PayloadAssembler::Dropping(slice.total_bytes());
  }
  const uint64_t total = assembly->payload.size();
  const uint64_t received = assembly->payload.received();
  const uint64_t left = total - received;
  if (slice.total_bytes() != total || slice.offset() != received || size > left ||
      slice.last() != (size == left)) {
    return absl::InvalidArgumentError(
        absl::StrCat(Place(op, chunk.id), ": a slice of ", size, " bytes at ", slice.offset(),
                     " of ", slice.total_bytes(), slice.last() ? ", the last" : "",
                     "; expected offset ", received, " of ", total));
  }
  return assembly;
}

absl::StatusOr<Bytes> ShardFetcher::Shared(const v1::FetchSlice& slice) {
  if (shared_ == nullptr || slice.range().bytes() != slice.total_bytes()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a slice of chunk ", slice.chunk(), " names ", slice.range().bytes(), " of ",
                     slice.total_bytes(), " bytes in shared memory",
                     shared_ == nullptr ? ", which this stream does not have" : ""));
  }
  return shared_->Read(slice.range());
}

ShardFetcher::Encoding ShardFetcher::EncodingOf(const FetchOp& op, const ChunkCopy& copy) const {
  const ChunkId chunk(copy.chunk);
  if (op.residuals_of.has_value()) {
    const Step after_warmup(job_->spec.codecs.warmup_steps + 1);
    return {job_->codecs->residual_or_null(chunk, after_warmup), Axis::kRow, copy.view};
  }
  const WeightAxes axes = job_->codecs->axes(op.stage, chunk, op.backward);
  const Axis axis = copy.view == 0 ? axes.first : axes.second;
  return {&job_->codecs->weights(chunk), axis, copy.view};
}

void ShardFetcher::OnRefused(const v1::FetchSlice& slice) {
  const auto it = requests_.find(slice.tag());
  if (it == requests_.end()) return;
  const std::shared_ptr<FetchOp> op = it->second.op;
  requests_.erase(it);
  FailOp(op.get(), absl::Status(static_cast<absl::StatusCode>(slice.code()),
                                absl::StrCat("server ", address_, " refuses stage ",
                                             job_->StageText(op->stage), " version ",
                                             op->version.value(), ": ", slice.message())));
  SendRequests();
}

void ShardFetcher::OnComplete(const v1::FetchSlice& slice, std::shared_ptr<Assembly> assembly) {
  const ChunkCopy copy{slice.chunk(), slice.view()};
  assemblies_.erase({slice.tag(), copy});
  const auto it = requests_.find(slice.tag());
  const std::shared_ptr<FetchOp> op = it->second.op;
  const bool wanted = it->second.missing.erase(copy) > 0;
  it->second.expected.erase(copy);
  if (it->second.expected.empty()) {
    requests_.erase(it);
    SendRequests();
  }
  if (op->abandoned || !wanted) return;
  pool_->Post([this, op, assembly, id = ChunkId(slice.chunk()), crc = slice.crc32c()] {
    Receive(op, job_->chunks.chunk(id), crc, assembly.get());
  });
}

void ShardFetcher::Receive(const std::shared_ptr<FetchOp>& op, const Chunk& chunk, uint32_t crc,
                           Assembly* assembly) {
  std::optional<TraceSpan> span(std::in_place, kDecodeSpan, PlaceOf(*op, chunk));
  Bytes bytes =
      assembly->shared.has_value() ? *std::move(assembly->shared) : assembly->payload.Take();
  const uint32_t found = Crc32c(bytes.view());
  if (found != crc) {
    ClientLock lock(&core_->mu);
    return OnDamaged(op, {chunk.id.value(), assembly->encoding.view}, crc, found);
  }
  if (chunk.frozen && assembly->shared.has_value() && core_->options.frozen_cache_bytes > 0) {
    // A kept copy must not fill the server's segment.
    Buffer kept(bytes.size(), MemoryKind::kStage, core_->options.account);
    std::memcpy(kept.data(), bytes.data(), bytes.size());
    bytes = std::move(kept).Freeze();
  }
  if (op->residuals_of.has_value()) {
    TakeResidual(op, chunk, assembly->encoding, std::move(bytes));
  } else {
    GiveToSink(op, chunk, assembly->encoding, std::move(bytes), &span);
  }
}

void ShardFetcher::TakeResidual(const std::shared_ptr<FetchOp>& op, const Chunk& chunk,
                                const Encoding& encoding, Bytes bytes) {
  absl::Status checked;
  if (!bytes.empty()) {
    checked = encoding.codec->Open(chunk, encoding.axis, bytes, Content::kGradient).status();
  }
  ClientLock lock(&core_->mu);
  if (!checked.ok()) return RefuseChunk(op.get(), chunk, checked);
  if (op->abandoned || !core_->failure.ok()) return;
  OnResidual(op, chunk.id, std::move(bytes));
}

void ShardFetcher::GiveToSink(const std::shared_ptr<FetchOp>& op, const Chunk& chunk,
                              const Encoding& encoding, Bytes bytes,
                              std::optional<TraceSpan>* span) {
  {
    ClientLock lock(&core_->mu);
    if (op->abandoned || !core_->failure.ok()) return;
    ++op->writers;
  }
  Bytes kept;
  if (chunk.frozen) kept = bytes;
  const absl::Status taken =
      op->sink->Take({&chunk, encoding.codec, encoding.axis, encoding.view, std::move(bytes)});
  span->reset();
  ClientLock lock(&core_->mu);
  --op->writers;
  core_->changed.NotifyAll();
  if (!taken.ok()) return RefuseChunk(op.get(), chunk, taken);
  if (chunk.frozen) core_->frozen.Keep(chunk.id, encoding.axis, kept);
  kept = Bytes();  // discharged before the fetch counts as done
  --op->missing;
}

void ShardFetcher::OnDamaged(const std::shared_ptr<FetchOp>& op, const ChunkCopy& copy,
                             uint32_t expected, uint32_t found) {
  if (op->abandoned || !core_->failure.ok()) return;
  if (++op->damaged[copy.chunk] >= kMaxDamaged) {
    return FailOp(op.get(),
                  absl::DataLossError(absl::StrFormat(
                      "server %s, %s: the CRC32C is %08x, expected %08x, %d times in a row",
                      address_, Place(*op, ChunkId(copy.chunk)), found, expected, kMaxDamaged)));
  }
  AddRequest(op, {copy});
}

void ShardFetcher::OnResidual(const std::shared_ptr<FetchOp>& op, ChunkId chunk, Bytes bytes) {
  op->residuals[chunk.value()] = std::move(bytes);
  if (--op->missing == 0) op->on_done(*op);
  core_->changed.NotifyAll();
}

void ShardFetcher::FailOp(FetchOp* op, absl::Status status) {
  if (op->residuals_of.has_value()) core_->Fail(status);  // no caller waits for this op
  if (op->status.ok()) op->status = std::move(status);
  core_->changed.NotifyAll();
}

void ShardFetcher::RefuseChunk(FetchOp* op, const Chunk& chunk, const absl::Status& why) {
  FailOp(op, absl::Status(why.code(), absl::StrCat("server ", address_, ", ", Place(*op, chunk.id),
                                                   ": ", why.message())));
}

std::string ShardFetcher::Place(const FetchOp& op, ChunkId chunk) const {
  const TensorId tensor = job_->chunks.chunk(chunk).segments.front().tensor;
  return absl::StrCat("chunk ", chunk.value(), " (", job_->spec.tensors[tensor.value()].name,
                      ") of stage ", job_->StageText(op.stage));
}

std::string ShardFetcher::WaitingFor() const {
  size_t others = 0;
  const Request* first = nullptr;
  for (const auto& [tag, request] : requests_) {
    if (request.op->abandoned || request.missing.empty()) continue;
    if (first == nullptr) {
      first = &request;
    } else {
      ++others;
    }
  }
  if (first == nullptr) return "";
  std::string text =
      absl::StrCat("the weights of stage ", job_->StageText(first->op->stage), " at version ",
                   first->op->version.value(), ", ", first->missing.size(), " copies of chunks");
  if (others > 0) absl::StrAppend(&text, " and ", others, " more requests");
  return text;
}

}  // namespace eps
