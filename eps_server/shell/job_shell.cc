#include "eps_server/shell/job_shell.h"

#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "optimizer/update_rule.h"

namespace eps {
namespace {

class CoreProtocol final : public Protocol {
 public:
  explicit CoreProtocol(ShardCore::Options options) : core_(std::move(options)) {}
  void Handle(const Event& event, uint64_t now_ms, std::vector<Effect>* out) override {
    core_.Handle(event, now_ms, out);
  }
  void FillStatus(uint64_t now_ms, v1::StatusReply* status) const override {
    core_.FillStatus(now_ms, status);
  }
  v1::JobState state() const override { return core_.state(); }

 private:
  ShardCore core_;
};

std::vector<ChunkId> ChunksOf(const std::vector<ShardId>& placement, ShardId shard) {
  std::vector<ChunkId> owned;
  for (size_t i = 0; i < placement.size(); ++i) {
    if (placement[i] == shard) owned.push_back(ChunkId(static_cast<uint32_t>(i)));
  }
  return owned;
}

// Destroys a shell on the timer thread, or here when the timers have ended: then the pool has too.
void DestroyLater(JobShell* shell);

}  // namespace

ShellEnvironment ShellEnvironment::Default() {
  ShellEnvironment environment;
  environment.abort = [](ExitCode code, const std::string& why) {
    EPS_LOG_ERROR("broken invariant, the server ends: " << why);
    // Other threads are in the middle of things: no destructor may run.
    std::_Exit(static_cast<int>(code));
  };
  environment.new_protocol = [](ShardCore::Options options) -> std::unique_ptr<Protocol> {
    return std::make_unique<CoreProtocol>(std::move(options));
  };
  environment.new_backend = [](const JobSpec& spec, const ChunkMap& chunks,
                               std::vector<ChunkId> owned, const ShardPlace&, Executor* executor,
                               MemoryAccount* account, BackendDoneFn done) {
    return NewDramBackend(spec, chunks, std::move(owned), executor, account, std::move(done));
  };
  return environment;
}

absl::StatusOr<std::shared_ptr<JobShell>> JobShell::Create(JobSpec spec,
                                                           std::vector<std::string> servers,
                                                           ShardId shard, Term term,
                                                           const ShellEnvironment& environment) {
  EPS_CHECK(shard.value() < servers.size());
  std::shared_ptr<JobShell> shell(
      new JobShell(std::move(spec), std::move(servers), shard, environment),
      [](JobShell* raw) { DestroyLater(raw); });
  if (!environment.trace.empty()) {
    EPS_ASSIGN_OR_RETURN(shell->trace_, TraceFile::Open(environment.trace, shard));
  }
  EPS_RETURN_IF_ERROR(shell->Reserve());
  shell->StartProtocol(term);
  if (shell->backend_->caps().durable) shell->Post(event::Opened{});
  return shell;
}

JobShell::JobShell(JobSpec spec, std::vector<std::string> servers, ShardId shard,
                   const ShellEnvironment& environment)
    : environment_(environment),
      spec_(std::move(spec)),
      spec_text_(spec_.ToText()),
      chunks_(ChunkMap::Build(spec_)),
      servers_(std::move(servers)),
      shard_(shard),
      id_(spec_.id()),
      placement_(chunks_.Place(static_cast<uint32_t>(servers_.size()))),
      owned_(ChunksOf(placement_, shard_)),
      sequence_(environment_.pool) {
  for (size_t i = 0; i < servers_.size(); ++i) {
    mailboxes_.push_back(std::make_unique<PeerMailbox>());
  }
}

namespace {

void DestroyLater(JobShell* shell) {
  // Stopped timers drop the function; the owner of the last reference in it destroys the shell.
  std::shared_ptr<JobShell> last(shell, [](JobShell* raw) { delete raw; });
  TimerQueue* timers = shell->timers();
  timers->Schedule(std::chrono::milliseconds(0),
                   [last = std::move(last)]() mutable { last.reset(); });
}

}  // namespace

absl::Status JobShell::Reserve() {
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<UpdateRule> rule, NewUpdateRule(spec_.optimizer));
  state_fields_ = rule->fields().size();
  EPS_ASSIGN_OR_RETURN(CodecTable codecs, CodecTable::Build(spec_, chunks_));
  codecs_.emplace(std::move(codecs));
  ShardPlace place;
  place.shard = shard_;
  place.shards = static_cast<uint32_t>(servers_.size());
  place.residual_bytes = ShardCore::ResidualBudget(spec_, chunks_, owned_, environment_.durable);
  place.log = ShardCore::LogNeeds(spec_, chunks_, owned_, servers_.size());
  const uint64_t budget =
      ShardCore::ContributionBudget(spec_, chunks_, owned_) + place.residual_bytes;
  MemoryAccount* account = environment_.account;
  // The budget is charged while the state is reserved, so that both together fit; contributions
  // are charged one by one later.
  const absl::Status fits = account->TryCharge(MemoryKind::kContribution, budget);
  if (!fits.ok()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "job \"", spec_.name, "\", shard ", shard_.value(), " of ", servers_.size(),
        ": gradients that wait for their update, and what was left out of sparse ones (",
        spec_.training.parts, " parts), do not fit: ", std::string(fits.message()),
        "; raise servers.memory_limit, or lower training.parts"));
  }
  const uint64_t before = account->live_bytes(MemoryKind::kState);
  auto backend = environment_.new_backend(spec_, chunks_, owned_, place, environment_.pool, account,
                                          [weak = weak_from_this()](BackendDone done) {
                                            if (auto self = weak.lock())
                                              self->Post(event::OpDone{std::move(done)});
                                          });
  account->Release(MemoryKind::kContribution, budget);
  if (!backend.ok()) {
    std::string text = absl::StrCat("job \"", spec_.name, "\", shard ", shard_.value(), " of ",
                                    servers_.size(), ": ", std::string(backend.status().message()));
    if (absl::IsResourceExhausted(backend.status())) {
      absl::StrAppend(&text, " (", budget,
                      " bytes are kept for gradients that wait for their "
                      "update; the limit is servers.memory_limit)");
    }
    return absl::Status(backend.status().code(), text);
  }
  backend_ = *std::move(backend);
  reserved_bytes_ = account->live_bytes(MemoryKind::kState) - before + budget;
  return absl::OkStatus();
}

void JobShell::StartProtocol(Term term) {
  ShardCore::Options options;
  options.spec = &spec_;
  options.chunks = &chunks_;
  options.servers = servers_;
  options.shard = shard_;
  options.incarnation = environment_.incarnation;
  options.term = term;
  options.caps = backend_->caps();
  options.limits = environment_.limits;
  protocol_ = environment_.new_protocol(std::move(options));
  state_.store(protocol_->state(), std::memory_order_release);
}

bool JobShell::Owns(ChunkId chunk) const {
  return chunk.value() < placement_.size() && placement_[chunk.value()] == shard_;
}

uint32_t JobShell::OwnedOfStage(StageId stage) const {
  if (stage.value() >= spec_.stages.size()) return 0;
  uint32_t owned = 0;
  for (ChunkId chunk : chunks_.ChunksOfStage(stage)) owned += Owns(chunk) ? 1 : 0;
  return owned;
}

uint64_t JobShell::StateBytes(ChunkId chunk) const {
  return chunks_.chunk(chunk).elements * sizeof(float) * (1 + state_fields_);
}

uint64_t JobShell::NowMs() const {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(TimerQueue::Clock::now() - start_)
          .count());
}

void JobShell::Post(Event event) {
  sequence_.Post([self = shared_from_this(), event = std::move(event)] { self->Handle(event); });
}

void JobShell::Run(std::function<void()> fn) {
  sequence_.Post([self = shared_from_this(), fn = std::move(fn)] { fn(); });
}

StreamId JobShell::AddStream(std::weak_ptr<StreamSink> sink) {
  const StreamId id = streams_.Add(sink);
  absl::Status closed;
  {
    MutexLock lock(&closed_mu_);
    closed = closed_;
  }
  if (!closed.ok()) {
    Run([sink = std::move(sink), closed] {
      if (auto alive = sink.lock()) alive->OnClose(closed);
    });
  }
  return id;
}

void JobShell::CloseStreams(const absl::Status& why) {
  {
    MutexLock lock(&closed_mu_);
    closed_ = why;
  }
  // Who was added before is found by All(), who comes later sees closed_.
  Run([this, why] {
    for (const auto& sink : streams_.All()) sink->OnClose(why);
  });
}

void JobShell::GetStatus(std::function<void(v1::StatusReply)> done) {
  Run([this, done = std::move(done)] {
    v1::StatusReply status;
    protocol_->FillStatus(NowMs(), &status);
    auto& counters = *status.mutable_counters();
    counters["payloads_refused"] = counters_.payloads_refused.load(std::memory_order_relaxed);
    counters["streams_refused"] = counters_.streams_refused.load(std::memory_order_relaxed);
    counters["streams_open"] = streams_.size();
    done(std::move(status));
  });
}

void JobShell::Handle(const Event& event) {
  if (const auto* timer = std::get_if<event::Timer>(&event)) timers_.erase(timer->id);
  const auto* chunk = std::get_if<event::ImportChunk>(&event);
  const StreamId import_stream = chunk != nullptr ? chunk->stream : StreamId();
  importing_ = chunk != nullptr ? &import_stream : nullptr;
  protocol_->Handle(event, NowMs(), &effects_);
  state_.store(protocol_->state(), std::memory_order_release);
  for (const Effect& effect : effects_) {
    std::visit([this](const auto& e) { Execute(e); }, effect);
  }
  effects_.clear();
  // No operation was started for the chunk: it was refused.
  if (importing_ != nullptr) ImportTaken(import_stream);
  importing_ = nullptr;
  if (const auto* residual = std::get_if<event::ImportResidual>(&event)) {
    ImportTaken(residual->stream);
  }
  if (const auto* done = std::get_if<event::OpDone>(&event)) {
    const auto it = import_ops_.find(done->done.op);
    if (it == import_ops_.end()) return;
    const StreamId stream = it->second;
    import_ops_.erase(it);
    ImportTaken(stream);
  }
}

void JobShell::ImportTaken(StreamId stream) {
  if (auto sink = streams_.Find(stream)) sink->OnImportTaken();
}

void JobShell::Execute(const effect::Reply& e) {
  if (auto sink = streams_.Find(e.stream)) sink->OnReply(e.message);
}

void JobShell::Execute(const effect::Close& e) {
  if (auto sink = streams_.Find(e.stream)) sink->OnClose(e.status);
}

void JobShell::Execute(const effect::SendChunk& e) {
  if (auto sink = streams_.Find(e.stream)) sink->OnSendChunk(e);
}

void JobShell::Execute(const effect::FailFetch& e) {
  if (auto sink = streams_.Find(e.stream)) sink->OnFailFetch(e);
}

void JobShell::Execute(const effect::Credit& e) {
  if (auto sink = streams_.Find(e.stream)) sink->OnCredit(e.tag);
}

void JobShell::Execute(const effect::SendAck& e) {
  if (auto sink = streams_.Find(e.stream)) sink->OnAck(e.tag, e.ack);
}

void JobShell::Execute(const effect::SendState& e) {
  if (auto sink = streams_.Find(e.stream)) sink->OnSendState(e);
}

void JobShell::Execute(const effect::Start& e) {
  // Looking at what is durable, promising a term, and dropping imports that were never finished,
  // leaves the state as it is.
  const auto* const restore = std::get_if<backend_call::Restore>(&e.call);
  const bool looks = (restore != nullptr && !restore->base.has_value()) ||
                     std::holds_alternative<backend_call::Recover>(e.call) ||
                     std::holds_alternative<backend_call::Promise>(e.call) ||
                     std::holds_alternative<backend_call::Quiesce>(e.call);
  if (!looks) touched_.store(true, std::memory_order_release);
  if (std::holds_alternative<backend_call::WriteState>(e.call)) {
    if (importing_ != nullptr) import_ops_.emplace(e.op, *importing_);
    importing_ = nullptr;
  }
  Call(backend_.get(), e.op, e.call);
}

void JobShell::Execute(const effect::ToShard& e) {
  if (e.to == shard_) {
    Post(event::FromShard{shard_, e.message});
  } else {
    mailbox(e.to).Send(e.message);
  }
}

void JobShell::Execute(const effect::SetTimer& e) {
  Execute(effect::ClearTimer{e.id});
  timers_[e.id] = environment_.timers->Schedule(std::chrono::milliseconds(e.after_ms),
                                                [weak = weak_from_this(), id = e.id] {
                                                  if (auto self = weak.lock())
                                                    self->Post(event::Timer{id});
                                                });
}

void JobShell::Execute(const effect::ClearTimer& e) {
  const auto it = timers_.find(e.id);
  if (it == timers_.end()) return;
  environment_.timers->Cancel(it->second);
  timers_.erase(it);
}

void JobShell::Execute(const effect::Abort& e) { environment_.abort(e.code, e.why); }

}  // namespace eps
