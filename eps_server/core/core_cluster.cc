#include "eps_server/core/core_cluster.h"

#include <utility>

#include "common/check.h"
#include "common/checksum.h"

namespace eps {
namespace {

// Ops of the cluster's own (States()): far from those of the cores.
constexpr uint64_t kOwnOps = uint64_t{1} << 60;

}  // namespace

CoreCluster::CoreCluster(JobSpec spec, Options options)
    : spec_(std::move(spec)),
      chunks_(ChunkMap::Build(spec_)),
      placement_(chunks_.Place(options.shards)),
      codecs_(*CodecTable::Build(spec_, chunks_)),
      rng_(options.seed) {
  std::vector<std::string> servers;
  for (uint32_t s = 0; s < options.shards; ++s) servers.push_back("shard-" + std::to_string(s));
  for (uint32_t s = 0; s < options.shards; ++s) {
    auto shard = std::make_unique<Shard>();
    std::vector<ChunkId> owned;
    for (const Chunk& chunk : chunks_.chunks()) {
      if (OwnerOf(chunk.id) == ShardId(s)) owned.push_back(chunk.id);
    }
    auto backend =
        NewDramBackend(spec_, chunks_, owned, &shard->executor, &accounts_.emplace_back(),
                       [this, s](BackendDone done) {
                         if (done.op.value() >= kOwnOps) {
                           state_reads_[done.op.value()] = std::get<Bytes>(done.value);
                           return;
                         }
                         bag_.push_back([this, s, done] { Send(ShardId(s), event::OpDone{done}); });
                       });
    EPS_CHECK_MSG(backend.ok(), backend.status().ToString());
    shard->backend = std::move(*backend);
    ShardCore::Options core;
    core.spec = &spec_;
    core.chunks = &chunks_;
    core.servers = servers;
    core.shard = ShardId(s);
    core.incarnation = 100 + s;
    core.caps = shard->backend->caps();
    core.limits = options.limits;
    shard->core = std::make_unique<ShardCore>(std::move(core));
    shards_.push_back(std::move(shard));
  }
  for (uint32_t s = 1; s < options.shards; ++s) Send(ShardId(s), event::LinkUp{ShardId(0)});
}

CoreCluster::~CoreCluster() { Run(); }

void CoreCluster::Send(ShardId shard, const Event& event) {
  std::vector<Effect> effects;
  shards_[shard.value()]->core->Handle(event, now_ms, &effects);
  for (Effect& effect : effects) Carry(shard, std::move(effect));
}

void CoreCluster::Carry(ShardId shard, Effect effect) {
  Shard* s = shards_[shard.value()].get();
  if (auto* e = std::get_if<effect::Reply>(&effect)) {
    replies[e->stream].push_back(e->message);
  } else if (auto* e = std::get_if<effect::Close>(&effect)) {
    closed[e->stream] = e->status;
  } else if (auto* e = std::get_if<effect::SendChunk>(&effect)) {
    if (e->residual) {
      residuals[e->tag][e->chunk.value()] = e->payload;
    } else {
      fetched[e->tag] = e->payload;
    }
  } else if (auto* e = std::get_if<effect::FailFetch>(&effect)) {
    failed_fetches[e->tag] = e->status;
  } else if (auto* e = std::get_if<effect::Credit>(&effect)) {
    ++credits;
    const StreamId stream = e->stream;
    const uint64_t tag = e->tag;
    if (!hold_payloads) bag_.push_back([this, stream, tag] { SendPayload(stream, tag); });
  } else if (auto* e = std::get_if<effect::SendAck>(&effect)) {
    acks[e->tag] = e->ack;
    payloads_.erase(e->tag);
  } else if (auto* e = std::get_if<effect::SendState>(&effect)) {
    exported[e->stream].emplace_back(e->header, e->state);
    const StreamId stream = e->stream;
    bag_.push_back([this, shard, stream] { Send(shard, event::ExportDrained{stream}); });
  } else if (auto* e = std::get_if<effect::Start>(&effect)) {
    Start(s, *e);
  } else if (auto* e = std::get_if<effect::ToShard>(&effect)) {
    const ShardId to = e->to;
    const v1::ShardMessage message = e->message;
    bag_.push_back([this, shard, to, message] { Send(to, event::FromShard{shard, message}); });
  } else if (auto* e = std::get_if<effect::SetTimer>(&effect)) {
    s->timers[e->id.value()] = now_ms + e->after_ms;
  } else if (auto* e = std::get_if<effect::ClearTimer>(&effect)) {
    s->timers.erase(e->id.value());
  } else if (auto* e = std::get_if<effect::Abort>(&effect)) {
    EPS_CHECK_MSG(false, e->why);
  }
}

void CoreCluster::Start(Shard* shard, const effect::Start& start) {
  StateBackend* backend = shard->backend.get();
  if (auto* c = std::get_if<backend_call::Read>(&start.call)) {
    backend->Read(start.op, c->chunk, c->version, c->codec, c->axis);
  } else if (auto* c = std::get_if<backend_call::ReadState>(&start.call)) {
    backend->ReadState(start.op, c->chunk, c->version);
  } else if (auto* c = std::get_if<backend_call::WriteState>(&start.call)) {
    backend->WriteState(start.op, c->chunk, c->version, c->state);
  } else if (auto* c = std::get_if<backend_call::Initialize>(&start.call)) {
    backend->Initialize(start.op, c->chunk);
  } else if (auto* c = std::get_if<backend_call::Stats>(&start.call)) {
    backend->Stats(start.op, c->request);
  } else {
    backend->Update(start.op, std::get<backend_call::Update>(start.call).request);
  }
}

void CoreCluster::Run() {
  for (;;) {
    size_t under_way = bag_.size();
    for (const auto& shard : shards_) under_way += shard->executor.size();
    if (under_way == 0) return;
    size_t pick = 0;
    if (rng_ != 0) {
      rng_ ^= rng_ << 13;
      rng_ ^= rng_ >> 7;
      rng_ ^= rng_ << 17;
      pick = rng_ % under_way;
    }
    if (pick < bag_.size()) {
      std::function<void()> delivery = std::move(bag_[pick]);
      bag_.erase(bag_.begin() + static_cast<ptrdiff_t>(pick));
      delivery();
      continue;
    }
    pick -= bag_.size();
    for (const auto& shard : shards_) {
      if (pick < shard->executor.size()) {
        shard->executor.Run(pick);
        break;
      }
      pick -= shard->executor.size();
    }
  }
}

void CoreCluster::InitializeAll() {
  for (uint32_t s = 0; s < shards_.size(); ++s) {
    const StreamId stream = NewStream();
    Send(ShardId(s), event::ImportInitialize{stream});
    Send(ShardId(s), event::ImportFinish{stream, Step(0), Version(0), 0, 0});
  }
  Run();
}

void CoreCluster::ImportAll(const std::map<uint32_t, Bytes>& states, uint64_t step,
                            double lagged_norm) {
  std::vector<StreamId> streams;
  for (size_t s = 0; s < shards_.size(); ++s) streams.push_back(NewStream());
  for (const auto& [chunk, state] : states) {
    const ShardId owner = OwnerOf(ChunkId(chunk));
    Send(owner, event::ImportChunk{streams[owner.value()], ChunkId(chunk), Version(step), state});
  }
  for (uint32_t s = 0; s < shards_.size(); ++s) {
    Send(ShardId(s), event::ImportFinish{streams[s], Step(step), Version(step), step, lagged_norm});
  }
  Run();
}

bool CoreCluster::Begin(uint64_t step, const std::vector<uint32_t>& parts, uint64_t nonce,
                        const std::vector<v1::PartLoss>& losses) {
  v1::BeginStepRequest request;
  request.set_job_id(spec_.id().value());
  request.set_term(1);
  request.set_step(step);
  request.set_worker_nonce(nonce);
  for (uint32_t part : parts) request.add_parts(part);
  for (const v1::PartLoss& loss : losses) *request.add_losses() = loss;
  std::vector<StreamId> streams;
  for (uint32_t s = 0; s < shards_.size(); ++s) {
    streams.push_back(NewStream());
    Send(ShardId(s), event::BeginStep{streams.back(), request});
  }
  Run();
  begun.clear();
  for (StreamId stream : streams) {
    auto it = replies.find(stream);
    if (it == replies.end()) return false;
    begun.push_back(std::get<v1::BeginStepReply>(it->second.front()));
  }
  return true;
}

uint64_t CoreCluster::Push(StreamId stream, uint64_t step, StageId use, TreeRange parts,
                           ChunkId chunk, const std::vector<float>& gradient, uint64_t tokens,
                           uint64_t nonce, const Bytes& residual) {
  const uint64_t tag = next_tag_++;
  Payload payload;
  payload.shard = OwnerOf(chunk);
  payload.chunk = chunk;
  payload.codec = &codecs_.gradient(chunk, Step(step));
  EncodeOptions options;
  options.kind = MemoryKind::kContribution;
  options.account = &account(payload.shard);
  payload.bytes = EncodeChunk(*payload.codec, chunks_.chunk(chunk), options, gradient.data());
  payload.residual = residual;
  v1::PushHeader header;
  header.set_tag(tag);
  header.set_residual_bytes(residual.size());
  header.set_residual_crc32c(Crc32c(residual.view()));
  header.set_codec(static_cast<uint32_t>(payload.codec->traits().id));
  header.set_bytes(payload.bytes.size());
  header.set_crc32c(Crc32c(payload.bytes.view()));
  header.set_tokens(tokens);
  header.set_worker_nonce(nonce);
  v1::ContributionKey* key = header.mutable_key();
  key->set_job_id(spec_.id().value());
  key->set_term(1);
  key->set_step(step);
  key->set_use_stage(use.value());
  key->set_part_first(parts.first);
  key->set_part_count(parts.count);
  key->set_chunk(chunk.value());
  const ShardId shard = payload.shard;
  payloads_[tag] = std::move(payload);
  Send(shard, event::PushOffered{stream, std::move(header)});
  return tag;
}

void CoreCluster::SendPayload(StreamId stream, uint64_t tag) {
  auto it = payloads_.find(tag);
  if (it == payloads_.end()) return;
  const Payload payload = std::move(it->second);
  payloads_.erase(it);
  auto opened = payload.codec->Open(chunks_.chunk(payload.chunk), Axis::kRow, payload.bytes,
                                    Content::kGradient);
  if (opened.ok()) {
    event::PushReceived received;
    received.stream = stream;
    received.tag = tag;
    received.data = *opened;
    received.residual = payload.residual;
    Send(payload.shard, received);
  } else {
    Send(payload.shard, event::PushInvalid{stream, tag, opened.status()});
  }
}

uint64_t CoreCluster::FetchResidual(StreamId stream, StageId stage, PartId part, ChunkId chunk,
                                    uint64_t version) {
  const uint64_t tag = next_tag_++;
  v1::FetchRequest request;
  request.set_tag(tag);
  request.set_job_id(spec_.id().value());
  request.set_term(1);
  request.set_stage(stage.value());
  request.set_version(version);
  request.set_pass(v1::PASS_BACKWARD);
  request.set_part(part.value());
  request.set_residuals(true);
  request.add_chunks(chunk.value());
  Send(OwnerOf(chunk), event::Fetch{stream, request});
  return tag;
}

uint64_t CoreCluster::Fetch(StreamId stream, StageId stage, ChunkId chunk, uint64_t version,
                            bool backward) {
  const uint64_t tag = next_tag_++;
  v1::FetchRequest request;
  request.set_tag(tag);
  request.set_job_id(spec_.id().value());
  request.set_term(1);
  request.set_stage(stage.value());
  request.set_version(version);
  request.set_pass(backward ? v1::PASS_BACKWARD : v1::PASS_FORWARD);
  request.add_chunks(chunk.value());
  Send(OwnerOf(chunk), event::Fetch{stream, request});
  return tag;
}

std::vector<Bytes> CoreCluster::States() {
  Run();
  std::vector<Bytes> states;
  for (const Chunk& chunk : chunks_.chunks()) {
    Shard* shard = shards_[OwnerOf(chunk.id).value()].get();
    v1::StatusReply status = Status(OwnerOf(chunk.id));
    const uint64_t op = kOwnOps + chunk.id.value();
    shard->backend->ReadState(OpId(op), chunk.id, Version(status.version()));
    Run();
    states.push_back(state_reads_[op]);
  }
  return states;
}

v1::StatusReply CoreCluster::Status(ShardId shard) {
  v1::StatusReply status;
  core(shard).FillStatus(now_ms, &status);
  return status;
}

void CoreCluster::FireTimers() {
  for (uint32_t s = 0; s < shards_.size(); ++s) {
    std::map<uint64_t, uint64_t> timers;
    timers.swap(shards_[s]->timers);
    for (const auto& [id, at] : timers) {
      now_ms = std::max(now_ms, at);
      Send(ShardId(s), event::Timer{TimerId(id)});
    }
  }
  Run();
}

}  // namespace eps
