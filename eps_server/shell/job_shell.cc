#include "eps_server/shell/job_shell.h"

#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/job/layout/server_count.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "storage/backends/dram_backend.h"
#include "storage/cuts/residual_budget.h"

namespace eps {
namespace {

// Adapts ShardCore to the interface that tests replace.
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

// Destroys a shell on the timer thread, or on this thread if the timers have stopped.
void DestroyLater(JobShell* shell);

}  // namespace

ShellEnvironment ShellEnvironment::Default() {
  ShellEnvironment environment;
  environment.abort = [](ExitCode code, const std::string& why) {
    EPS_LOG_ERROR("broken invariant, ending the process: " << why);
    // Other threads are still running, so no destructor may run.
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
  const uint64_t description_bytes = DescriptionBytes(spec);
  const absl::Status fits = environment.account->TryCharge(MemoryKind::kScratch, description_bytes);
  if (!fits.ok()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("job \"", spec.name, "\", shard ", shard.value(), " of ", servers.size(),
                     ": the description of its chunks does not fit: ", std::string(fits.message()),
                     "; raise training.chunk_elements, or servers.memory_limit"));
  }
  std::shared_ptr<JobShell> shell(
      new JobShell(std::move(spec), std::move(servers), shard, description_bytes, environment),
      [](JobShell* raw) { DestroyLater(raw); });
  if (!environment.trace.empty()) {
    EPS_ASSIGN_OR_RETURN(shell->traces_.file_or_null, TraceFile::Open(environment.trace, shard));
  }
  EPS_RETURN_IF_ERROR(shell->Reserve());
  shell->StartProtocol(term);
  if (shell->backend_->caps().durable) shell->Post(event::Opened{});
  return shell;
}

JobShell::JobShell(JobSpec spec, std::vector<std::string> servers, ShardId shard,
                   uint64_t description_bytes, const ShellEnvironment& environment)
    : environment_(environment),
      description_bytes_(description_bytes),
      part_(std::move(spec), std::move(servers), shard),
      traces_{TraceDesk(part_.spec().training.steps), nullptr},
      sequence_(environment_.pool->lane(Lane::kCore)) {
  for (size_t i = 0; i < part_.servers().size(); ++i) {
    mailboxes_.push_back(std::make_unique<PeerMailbox>());
  }
}

JobShell::~JobShell() { environment_.account->Release(MemoryKind::kScratch, description_bytes_); }

namespace {

void DestroyLater(JobShell* shell) {
  // If the timers have stopped, Schedule drops the function and with it the last reference.
  std::shared_ptr<JobShell> last(shell, [](JobShell* raw) { delete raw; });
  TimerQueue* timers = shell->timers();
  timers->Schedule(std::chrono::milliseconds(0),
                   [last = std::move(last)]() mutable { last.reset(); });
}

}  // namespace

absl::Status JobShell::Reserve() {
  EPS_RETURN_IF_ERROR(part_.FindCodecs());
  const JobSpec& spec = part_.spec();
  const ChunkMap& chunks = part_.chunks();
  const size_t servers = part_.servers().size();
  EPS_RETURN_IF_ERROR(CheckServerCount(spec, chunks, static_cast<uint32_t>(servers)));
  ShardPlace place;
  place.shard = part_.shard();
  place.shards = static_cast<uint32_t>(servers);
  place.residual_bytes = ResidualBudget(spec, chunks, part_.owned(), environment_.durable);
  place.log = ShardCore::LogNeeds(spec, chunks, part_.owned(), servers);
  const uint64_t budget =
      ShardCore::ContributionBudget(spec, chunks, part_.owned(), environment_.gradients_in_memory) +
      place.residual_bytes;
  MemoryAccount* account = environment_.account;
  // Charges the budget while the state is reserved to check that both fit together, then releases
  // it: contributions are charged one by one as they arrive.
  const absl::Status fits = account->TryCharge(MemoryKind::kContribution, budget);
  if (!fits.ok()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("job \"", spec.name, "\", shard ", part_.shard().value(), " of ", servers,
                     ": gradients that wait for their update, and residuals (", spec.training.parts,
                     " parts), do not fit: ", std::string(fits.message()),
                     "; raise servers.memory_limit, or lower training.parts"));
  }
  auto backend = environment_.new_backend(spec, chunks, part_.owned(), place, environment_.pool,
                                          account, [weak = weak_from_this()](BackendDone done) {
                                            if (auto self = weak.lock())
                                              self->Post(event::OpDone{std::move(done)});
                                          });
  account->Release(MemoryKind::kContribution, budget);
  if (!backend.ok()) {
    std::string text = absl::StrCat("job \"", spec.name, "\", shard ", part_.shard().value(),
                                    " of ", servers, ": ", std::string(backend.status().message()));
    if (absl::IsResourceExhausted(backend.status())) {
      absl::StrAppend(&text, " (", budget,
                      " bytes are reserved for gradients that wait for their "
                      "update; the limit is servers.memory_limit)");
    }
    return absl::Status(backend.status().code(), text);
  }
  backend_ = *std::move(backend);
  needs_.reserved = description_bytes_ + backend_->caps().state_bytes + budget;
  needs_.gradients = ShardCore::GradientBudget(spec, chunks, part_.owned());
  needs_.weights =
      ShardCore::FetchBudget(spec, chunks, part_.owned(), environment_.limits.jit_depth);
  return absl::OkStatus();
}

void JobShell::StartProtocol(Term term) {
  ShardCore::Options options;
  options.spec = &part_.spec();
  options.chunks = &part_.chunks();
  options.servers = part_.servers();
  options.shard = part_.shard();
  options.incarnation = environment_.incarnation;
  options.term = term;
  options.caps = backend_->caps();
  options.limits = environment_.limits;
  protocol_ = environment_.new_protocol(std::move(options));
  state_.store(protocol_->state(), std::memory_order_release);
}

uint64_t JobShell::NowMs() const {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(TimerQueue::Clock::now() - start_)
          .count());
}

void JobShell::Post(Event event) {
  sequence_.Post([self = shared_from_this(), event = std::move(event)] { self->Handle(event); });
}

void JobShell::Drain(std::function<void(const std::string& why)> drained) {
  Run([this, drained = std::move(drained)] {
    drained_ = drained;
    Handle(event::Drain{});
  });
}

void JobShell::Run(std::function<void()> fn) {
  sequence_.Post([self = shared_from_this(), fn = std::move(fn)] { fn(); });
}

StreamId JobShell::AddStream(std::weak_ptr<StreamSink> sink) {
  const StreamId id = streams_.Add(sink);
  const absl::Status closed = streams_.closed();
  if (!closed.ok()) {
    Run([sink = std::move(sink), closed] {
      if (auto alive = sink.lock()) alive->OnClose(closed);
    });
  }
  return id;
}

void JobShell::CloseStreams(const absl::Status& why) {
  streams_.Close(why);
  // All() finds the streams that were added before; AddStream closes later ones.
  Run([this, why] {
    for (const auto& sink : streams_.All()) sink->OnClose(why);
  });
}

void JobShell::GetStatus(std::function<void(v1::StatusReply)> done) {
  {
    MutexLock lock(&status_waiters_.mu);
    status_waiters_.waiting.push_back(std::move(done));
    if (status_waiters_.waiting.size() > 1) return;  // the status that is queued answers it
  }
  Run([this] {
    std::vector<std::function<void(v1::StatusReply)>> waiting;
    {
      MutexLock lock(&status_waiters_.mu);
      waiting.swap(status_waiters_.waiting);
    }
    v1::StatusReply status;
    protocol_->FillStatus(NowMs(), &status);
    auto& counters = *status.mutable_counters();
    counters["payloads_refused"] = counters_.payloads_refused.load(std::memory_order_relaxed);
    counters["streams_refused"] = counters_.streams_refused.load(std::memory_order_relaxed);
    counters["streams_unread"] = counters_.streams_unread.load(std::memory_order_relaxed);
    counters["fetch_crcs"] = counters_.fetch_crcs.load(std::memory_order_relaxed);
    counters["streams_open"] = streams_.size();
    environment_.pool->lane(Lane::kClient)
        ->Post([waiting = std::move(waiting), status = std::move(status)] {
          for (const auto& done : waiting) done(status);
        });
  });
}

void JobShell::Handle(const Event& event) {
  if (const auto* timer = std::get_if<event::Timer>(&event)) timers_.erase(timer->id);
  const auto* chunk = std::get_if<event::ImportChunk>(&event);
  const StreamId import_stream = chunk != nullptr ? chunk->stream : StreamId();
  importing_ = chunk != nullptr ? &import_stream : nullptr;
  protocol_->Handle(event, NowMs(), &effects_);
  state_.store(protocol_->state(), std::memory_order_release);
  for (Effect& effect : effects_) {
    std::visit([this](auto& e) { Execute(std::move(e)); }, effect);
  }
  effects_.clear();
  // The core started no operation for the chunk, so it refused the chunk.
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

void JobShell::Execute(effect::Start&& e) {
  // These operations read what is durable, promise a term or drop unfinished imports. They leave
  // the state as it is.
  const auto* const restore = RequestAs<RestoreRequest>(e.request);
  const bool looks = (restore != nullptr && !restore->base.has_value()) ||
                     RequestAs<RecoverRequest>(e.request) != nullptr ||
                     RequestAs<PromiseRequest>(e.request) != nullptr ||
                     RequestAs<QuiesceRequest>(e.request) != nullptr;
  if (!looks) touched_.store(true, std::memory_order_release);
  if (RequestAs<WriteStateRequest>(e.request) != nullptr) {
    if (importing_ != nullptr) import_ops_.emplace(e.op, *importing_);
    importing_ = nullptr;
  }
  backend_->Submit(e.op, std::move(e.request));
}

void JobShell::Execute(const effect::Recycle& e) {
  touched_.store(true, std::memory_order_release);
  backend_->Recycle(e.oldest_kept);
}

void JobShell::Execute(const effect::ToShard& e) {
  if (e.to == part_.shard()) {
    Post(event::FromShard{part_.shard(), e.message});
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

void JobShell::Execute(const effect::Drained& e) {
  if (const auto drained = std::exchange(drained_, nullptr)) drained(e.why);
}

void JobShell::Execute(const effect::Abort& e) { environment_.abort(e.code, e.why); }

}  // namespace eps
