#include "eps_server/core/testing/core_cluster.h"

#include <utility>

#include "base/check.h"
#include "base/checksum.h"
#include "storage/backends/dram_backend.h"

namespace eps {
namespace {

// Op ids of the cluster's own reads (States) are far from those of the cores.
constexpr uint64_t kOwnOps = uint64_t{1} << 60;
constexpr uint64_t kDrainOp = kOwnOps - 1;

}  // namespace

std::vector<float> TellingGradient(const Chunk& chunk, StageId use, uint32_t part, uint64_t step) {
  std::vector<float> g(chunk.elements);
  for (size_t i = 0; i < g.size(); ++i) {
    const auto mixed = static_cast<int>(
        (i * 7 + chunk.id.value() * 31 + use.value() * 131 + part * 1009 + step * 13) % 2003);
    g[i] = (static_cast<float>(mixed) - 1001.0f) * 1.234567e-3f;
  }
  return g;
}

CoreCluster::CoreCluster(JobSpec spec, Options options)
    : options_(std::move(options)),
      spec_(std::move(spec)),
      chunks_(ChunkMap::Build(spec_)),
      placement_(chunks_.Place(options_.shards)),
      codecs_(*CodecTable::Build(spec_, chunks_)),
      rng_(options_.seed),
      shards_(options_.shards) {
  for (uint32_t s = 0; s < options_.shards; ++s) accounts_.emplace_back();
  for (uint32_t s = 0; s < options_.shards; ++s) StartProcess(ShardId(s));
  for (uint32_t s = 1; s < options_.shards; ++s) Send(ShardId(s), event::LinkUp{ShardId(0)});
}

void CoreCluster::StartProcess(ShardId id) {
  shards_[id.value()] = std::make_unique<Shard>();
  Shard* shard = shards_[id.value()].get();
  shard->incarnation = next_.incarnation++;
  std::vector<ChunkId> owned;
  for (const Chunk& chunk : chunks_.chunks()) {
    if (OwnerOf(chunk.id) == id) owned.push_back(chunk.id);
  }
  const BackendDoneFn done = [this, id](const BackendDone& done) {
    if (done.op.value() == kDrainOp) return;
    if (done.op.value() >= kOwnOps) {
      if (done.status.ok()) {
        state_reads_[done.op.value()] = std::get<Bytes>(done.value);
      } else {
        EPS_CHECK_MSG(options_.on_abort != nullptr, done.status.ToString());
        options_.on_abort(id, effect::Abort{ExitCode::kIo, done.status.ToString()});
      }
      return;
    }
    Later(id, id, event::OpDone{done});
  };
  if (options_.new_backend != nullptr) {
    shard->backend =
        options_.new_backend(spec_, chunks_, owned, id, &shard->executor, &account(id), done);
    if (shard->backend == nullptr) {
      shards_[id.value()].reset();
      return;
    }
  } else {
    auto backend = NewDramBackend(spec_, chunks_, owned, &shard->executor, &account(id), done);
    EPS_CHECK_MSG(backend.ok(), backend.status().ToString());
    shard->backend = std::move(*backend);
  }
  ShardCore::Options core;
  core.spec = &spec_;
  core.chunks = &chunks_;
  for (uint32_t s = 0; s < options_.shards; ++s) {
    core.servers.push_back("shard-" + std::to_string(s));
  }
  core.shard = id;
  core.incarnation = shard->incarnation;
  core.caps = shard->backend->caps();
  core.limits = options_.limits;
  shard->core = std::make_unique<ShardCore>(std::move(core));
  Send(id, event::Opened{});
}

void CoreCluster::Drain(Shard* shard) {
  if (shard->backend->caps().durable) shard->backend->Submit(OpId(kDrainOp), QuiesceRequest());
  shard->executor.RunAll();
}

void CoreCluster::Crash(ShardId id) {
  if (options_.on_crash != nullptr) options_.on_crash(id);
  // No shard receives what this process still completes.
  const std::unique_ptr<Shard> dead = std::move(shards_[id.value()]);
  Drain(dead.get());
  dead->core.reset();
  dead->backend.reset();
  for (uint32_t s = 0; s < shards_.size(); ++s) {
    if (IsUp(ShardId(s)) && (id == ShardId(0) || s == 0)) Send(ShardId(s), event::LinkDown{id});
  }
}

void CoreCluster::Restart(ShardId id) {
  StartProcess(id);
  for (uint32_t s = 1; s < shards_.size(); ++s) {
    const bool links = id == ShardId(0) || id == ShardId(s);
    if (links && IsUp(ShardId(0)) && IsUp(ShardId(s))) {
      Send(ShardId(s), event::LinkUp{ShardId(0)});
    }
  }
}

CoreCluster::~CoreCluster() {
  Run();
  for (const auto& shard : shards_) {
    if (shard != nullptr) Drain(shard.get());
  }
}

void CoreCluster::Later(ShardId from, ShardId shard, const Event& event) {
  if (!IsUp(from) || !IsUp(shard)) return;
  const uint64_t sender = shards_[from.value()]->incarnation;
  const uint64_t receiver = shards_[shard.value()]->incarnation;
  bag_.push_back([this, from, shard, sender, receiver, event] {
    if (!IsUp(from) || shards_[from.value()]->incarnation != sender) return;
    if (!IsUp(shard) || shards_[shard.value()]->incarnation != receiver) return;
    Send(shard, event);
  });
}

void CoreCluster::Send(ShardId shard, const Event& event) {
  if (!IsUp(shard)) return;
  std::vector<Effect> effects;
  if (options_.hear != nullptr) options_.hear(shard, event);
  shards_[shard.value()]->core->Handle(event, now_ms, &effects);
  for (Effect& effect : effects) {
    if (options_.watch != nullptr) options_.watch(shard, effect);
    if (!Carry(shard, std::move(effect)) || IsDead(shard)) return Crash(shard);
  }
}

bool CoreCluster::Carry(ShardId shard, Effect effect) {
  Shard* s = shards_[shard.value()].get();
  answers.Note(effect);
  if (auto* e = std::get_if<effect::Credit>(&effect)) {
    const StreamId stream = e->stream;
    const uint64_t tag = e->tag;
    if (!hold_payloads) bag_.push_back([this, stream, tag] { SendPayload(stream, tag); });
  } else if (auto* e = std::get_if<effect::SendAck>(&effect)) {
    payloads_.erase(e->tag);
  } else if (auto* e = std::get_if<effect::SendState>(&effect)) {
    const StreamId stream = e->stream;
    Later(shard, shard, event::ExportDrained{stream});
  } else if (auto* e = std::get_if<effect::Start>(&effect)) {
    s->backend->Submit(e->op, std::move(e->request));
  } else if (auto* e = std::get_if<effect::Recycle>(&effect)) {
    s->backend->Recycle(e->oldest_kept);
  } else if (auto* e = std::get_if<effect::ToShard>(&effect)) {
    Later(shard, e->to, event::FromShard{shard, e->message});
  } else if (auto* e = std::get_if<effect::SetTimer>(&effect)) {
    s->timers[e->id.value()] = now_ms + e->after_ms;
  } else if (auto* e = std::get_if<effect::ClearTimer>(&effect)) {
    s->timers.erase(e->id.value());
  } else if (auto* e = std::get_if<effect::Abort>(&effect)) {
    EPS_CHECK_MSG(options_.on_abort != nullptr, e->why);
    options_.on_abort(shard, *e);
    return false;
  }
  return true;
}

bool CoreCluster::RunOne() {
  size_t under_way = bag_.size();
  for (const auto& shard : shards_) under_way += shard == nullptr ? 0 : shard->executor.size();
  if (under_way == 0) return false;
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
    return true;
  }
  pick -= bag_.size();
  for (uint32_t s = 0; s < shards_.size(); ++s) {
    if (!IsUp(ShardId(s))) continue;
    ManualExecutor* const executor = &shards_[s]->executor;
    if (pick < executor->size()) {
      executor->Run(pick);
      if (IsDead(ShardId(s))) Crash(ShardId(s));
      return true;
    }
    pick -= executor->size();
  }
  return true;
}

void CoreCluster::Run() {
  while (RunOne()) {
  }
}

size_t CoreCluster::RunSome(size_t deliveries) {
  size_t done = 0;
  while (done < deliveries && RunOne()) ++done;
  return done;
}

void CoreCluster::InitializeAll() {
  for (uint32_t s = 0; s < shards_.size(); ++s) {
    const StreamId stream = NewStream();
    Send(ShardId(s), event::ImportInitialize{stream});
    Send(ShardId(s), event::ImportFinish{stream, Step(0), Version(0), 0, 0});
  }
  Run();
}

void CoreCluster::Join(uint64_t nonce) {
  v1::JoinRequest request;
  request.set_worker_nonce(nonce);
  Send(ShardId(0), event::Join{NewStream(), request});
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

std::vector<StreamId> CoreCluster::SendBegin(uint64_t step, const std::vector<uint32_t>& parts,
                                             uint64_t nonce,
                                             const std::vector<v1::PartLoss>& losses) {
  v1::BeginStepRequest request;
  request.set_job_id(spec_.id().value());
  request.set_term(term);
  request.set_step(step);
  request.set_worker_nonce(nonce);
  for (uint32_t part : parts) request.add_parts(part);
  request.set_leaving(leaving);
  for (const v1::PartLoss& loss : losses) *request.add_losses() = loss;
  std::vector<StreamId> streams;
  for (uint32_t s = 0; s < shards_.size(); ++s) {
    streams.push_back(NewStream());
    Send(ShardId(s), event::BeginStep{streams.back(), request});
  }
  return streams;
}

bool CoreCluster::Begin(uint64_t step, const std::vector<uint32_t>& parts, uint64_t nonce,
                        const std::vector<v1::PartLoss>& losses) {
  const std::vector<StreamId> streams = SendBegin(step, parts, nonce, losses);
  Run();
  begun.clear();
  for (StreamId stream : streams) {
    auto it = answers.replies.find(stream);
    if (it == answers.replies.end()) return false;
    begun.push_back(std::get<v1::BeginStepReply>(it->second.front()));
  }
  return true;
}

uint64_t CoreCluster::Push(StreamId stream, uint64_t step, StageId use, TreeRange parts,
                           ChunkId chunk, const std::vector<float>& gradient, uint64_t tokens,
                           uint64_t nonce, const Bytes& residual) {
  const uint64_t tag = next_.tag++;
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
  key->set_term(term);
  key->set_step(step);
  key->set_use_stage(use.value());
  key->set_part_first(parts.first);
  key->set_part_count(parts.count);
  key->set_chunk(chunk.value());
  for (uint32_t p = 0; p < parts.count && !generations.empty(); ++p) {
    header.add_generations(generations[parts.first + p]);
  }
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
  const uint64_t tag = next_.tag++;
  v1::FetchRequest request;
  request.set_tag(tag);
  request.set_job_id(spec_.id().value());
  request.set_term(term);
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
  const uint64_t tag = next_.tag++;
  v1::FetchRequest request;
  request.set_tag(tag);
  request.set_job_id(spec_.id().value());
  request.set_term(term);
  request.set_stage(stage.value());
  request.set_version(version);
  request.set_pass(backward ? v1::PASS_BACKWARD : v1::PASS_FORWARD);
  if (!generations.empty()) request.set_generation(generations[0]);
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
    shard->backend->Submit(OpId(op), ReadStateRequest{chunk.id, Version(status.version())});
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

void CoreCluster::FireTimers(uint64_t within_ms) {
  const uint64_t start_ms = now_ms;
  for (uint32_t s = 0; s < shards_.size(); ++s) {
    if (!IsUp(ShardId(s))) continue;
    std::map<uint64_t, uint64_t> timers;
    timers.swap(shards_[s]->timers);
    for (const auto& [id, at] : timers) {
      if (at > start_ms && at - start_ms > within_ms) {
        if (IsUp(ShardId(s))) shards_[s]->timers.emplace(id, at);
        continue;
      }
      now_ms = std::max(now_ms, at);
      Send(ShardId(s), event::Timer{TimerId(id)});
    }
  }
  Run();
}

void CoreCluster::Advance(uint64_t ms) {
  const uint64_t until = now_ms + ms;
  for (;;) {
    uint64_t at = until + 1;
    std::pair<uint32_t, uint64_t> due;  // shard and timer
    for (uint32_t s = 0; s < shards_.size(); ++s) {
      if (!IsUp(ShardId(s))) continue;
      for (const auto& [id, expiry] : shards_[s]->timers) {
        if (expiry >= at) continue;
        at = expiry;
        due = {s, id};
      }
    }
    if (at > until) break;
    now_ms = std::max(now_ms, at);
    shards_[due.first]->timers.erase(due.second);
    Send(ShardId(due.first), event::Timer{TimerId(due.second)});
    Run();
  }
  now_ms = until;
}

}  // namespace eps
