#include "eps_server/core/shard_router.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/exit_code.h"

namespace eps {
namespace {

// Whoever creates the core has checked the codecs.
CodecTable TableOf(const JobSpec& spec, const ChunkMap& chunks) {
  auto table = CodecTable::Build(spec, chunks);
  EPS_CHECK_MSG(table.ok(), table.status().ToString());
  return *std::move(table);
}

ShardFacts FirstFacts(const ShardCore::Options& options) {
  JobFacts job{*options.spec,      *options.chunks, TableOf(*options.spec, *options.chunks),
               options.spec->id(), options.shard,   options.servers,
               options.caps,       options.limits};
  std::vector<ChunkId> owned;
  const auto placement = options.chunks->Place(static_cast<uint32_t>(options.servers.size()));
  for (uint32_t c = 0; c < placement.size(); ++c) {
    if (placement[c] == options.shard) owned.push_back(ChunkId(c));
  }
  ShardFacts facts(std::move(job), owned, options.caps.durable ? Term(0) : options.term);
  facts.incarnation = options.incarnation;
  if (options.caps.durable) facts.state = v1::JOB_STATE_RECOVERING;
  return facts;
}

// Whether the event comes from the process itself. A replay does not delay those.
bool IsOwn(const Event& event) {
  return std::holds_alternative<event::OpDone>(event) ||
         std::holds_alternative<event::Timer>(event) ||
         std::holds_alternative<event::Opened>(event) ||
         std::holds_alternative<event::NewDriver>(event) ||
         std::holds_alternative<event::Drain>(event);
}

// Returns the stream of a worker's request that names a term; nullopt for other events.
std::optional<StreamId> StreamOfRequest(const Event& event) {
  if (const auto* begin = std::get_if<event::BeginStep>(&event)) return begin->stream;
  if (const auto* fetch = std::get_if<event::Fetch>(&event)) return fetch->stream;
  if (const auto* push = std::get_if<event::PushOffered>(&event)) return push->stream;
  return std::nullopt;
}

absl::Status NotTheLead(const JobFacts& job, const char* rpc) {
  return absl::FailedPreconditionError(absl::StrCat(
      rpc, "this is shard ", job.shard.value(), "; ask shard 0, the lead, at ", job.servers[0]));
}

}  // namespace

ShardRouter::ShardRouter(const ShardCore::Options& options, ShardLife* life)
    : life_(life),
      facts_(FirstFacts(options)),
      fetch_(&facts_, this),
      push_(&facts_, this, this),
      steps_(&facts_, this, this),
      trust_(&facts_, this),
      workers_(&facts_, this, this),
      lead_(facts_.job.is_lead()
                ? std::make_unique<LeadDesks>(&facts_, static_cast<const DeskQueries*>(this),
                                              static_cast<Outbox*>(this))
                : nullptr),
      links_(&facts_, this),
      transfer_(&facts_, this, this),
      watch_(&facts_, this),
      cuts_(&facts_, this, this),
      drain_(&facts_, this),
      terms_(&facts_, life->recovery.get(), this),
      replay_(&facts_, this, this, [this](const v1::LogFact& fact, const LogEntry& entry) {
        return Replay(fact, entry);
      }) {}

// ---------------------------------------------------------------- events from outside

void ShardRouter::Handle(const Event& event, uint64_t now_ms, std::vector<Effect>* out) {
  facts_.now_ms = now_ms;
  out_ = out;
  if (IsTooEarly(event)) {
    Defer(event);
  } else {
    std::visit([this](const auto& e) { On(e); }, event);
  }
  if (facts_.replays()) replay_.Pump();
  out_ = nullptr;
}

// Everything waits while a log is replayed: the shard would drop messages of a term that it does
// not know yet to be its own. Requests of workers also wait at a shard that returned and expects
// the lead's next term. If it refused them, because their term is over, workers would repeat them
// in the same term, for the lead may not know yet that this shard was away.
bool ShardRouter::IsTooEarly(const Event& event) const {
  const bool knows_itself = !facts_.job.logs() || (terms_.recovered() && !facts_.replays());
  if (!knows_itself) return !IsOwn(event);
  const bool expects_term = facts_.state == v1::JOB_STATE_RECOVERING && facts_.term == Term(0);
  return expects_term && StreamOfRequest(event).has_value();
}

// Keeps only the newest Beat of a stream, so that a worker that waits takes no more memory.
void ShardRouter::Defer(const Event& event) {
  if (const auto* beat = std::get_if<event::Beat>(&event)) {
    deferred_.erase(std::remove_if(deferred_.begin(), deferred_.end(),
                                   [beat](const Event& d) {
                                     const auto* const before = std::get_if<event::Beat>(&d);
                                     return before != nullptr && before->stream == beat->stream;
                                   }),
                    deferred_.end());
  }
  deferred_.push_back(event);
}

std::optional<Event> ShardRouter::TakeDeferred() {
  const auto it = std::find_if(deferred_.begin(), deferred_.end(),
                               [this](const Event& event) { return !IsTooEarly(event); });
  if (it == deferred_.end()) return std::nullopt;
  Event event = std::move(*it);
  deferred_.erase(it);
  return event;
}

void ShardRouter::On(const event::Join& e) {
  if (lead_ != nullptr) return lead_->leases.On(e);
  Emit(effect::Close{e.stream, NotTheLead(facts_.job, "Join: ")});
}

void ShardRouter::On(const event::Beat& e) {
  if (lead_ != nullptr) return lead_->leases.On(e);
  Emit(effect::Close{e.stream, NotTheLead(facts_.job, "Session: ")});
}

// The caller has compared the boards.
void ShardRouter::On(const event::NewDriver& e) {
  if (e.lease.IsBefore(facts_.driver) || e.lease == facts_.driver) return;
  facts_.driver = e.lease;
  transfer_.EndImports(absl::AbortedError("ImportState: another driver has the job now"));
}

// A new term forgets what all shards have imported, and what is on its way. Without durable state
// there are no terms: the driver writes every chunk again.
void ShardRouter::On(const event::RestartImport& e) {
  if (facts_.state != v1::JOB_STATE_IMPORTING || lead_ == nullptr) return;
  if (facts_.job.durable()) return terms_.On(e);
  transfer_.EndImports(absl::AbortedError("ImportState: the driver begins the import again"));
  lead_->steps.On(e);
}

void ShardRouter::On(const event::Standing& e) {
  if (lead_ != nullptr) {
    lead_->gates.On(e);
    lead_->leases.On(e);
  }
}

void ShardRouter::On(const event::DrainWorker& e) {
  if (lead_ != nullptr) lead_->leases.On(e);
}

void ShardRouter::On(const event::Gate& e) {
  if (lead_ != nullptr) return lead_->gates.On(e);
  Emit(effect::Close{e.stream, NotTheLead(facts_.job, "Gate: ")});
}

void ShardRouter::On(const event::Drain& e) {
  if (facts_.hold.draining_since_ms.has_value()) return;
  facts_.hold.draining_since_ms = facts_.now_ms;
  drain_.On(e);
}

void ShardRouter::On(const event::OpDone& e) {
  // A call that no desk knows belongs to an earlier term.
  static_cast<void>(fetch_.On(e) || steps_.On(e) || trust_.On(e) || transfer_.On(e) ||
                    cuts_.On(e) || terms_.On(e) || replay_.On(e));
}

void ShardRouter::On(const event::Timer& e) {
  cuts_.On(e);
  if (lead_ != nullptr) {
    lead_->leases.On(e);
    lead_->gates.On(e);
  }
  links_.On(e);
  push_.On(e);
  workers_.On(e);
}

void ShardRouter::On(const event::LinkUp& e) {
  links_.On(e);
  if (facts_.job.is_lead()) return;
  if (facts_.job.durable() && !terms_.recovered()) return;  // it registers when it has recovered
  On(internal_event::LeadReached());
}

void ShardRouter::On(const event::LinkDown& e) {
  links_.On(e);
  if (lead_ != nullptr) lead_->gates.On(e);
}

void ShardRouter::On(const event::StreamClosed& e) {
  fetch_.Closed(e.stream);
  workers_.Closed(e.stream);
  if (lead_ != nullptr) {
    lead_->gates.Closed(e.stream);
    lead_->leases.Closed(e.stream);
  }
  watch_.Closed(e.stream);
  deferred_.erase(std::remove_if(deferred_.begin(), deferred_.end(),
                                 [&e](const Event& d) { return StreamOfRequest(d) == e.stream; }),
                  deferred_.end());
  push_.Closed(e.stream);
  transfer_.Closed(e.stream);
}

void ShardRouter::On(const event::FromShard& e) {
  const v1::ShardMessage& m = e.message;
  if (JobId(m.job_id()) != facts_.job.id) return;
  if (facts_.job.durable() && terms_.OnMessage(e)) return;
  if (Term(m.term()) != facts_.term) return;
  switch (m.message_case()) {
    case v1::ShardMessage::kRegister:
      if (lead_ != nullptr) links_.OnRegister(e.from, m.register_());
      return;
    case v1::ShardMessage::kImported:
      if (lead_ != nullptr) lead_->gates.OnImported(e.from);
      if (lead_ != nullptr) return lead_->steps.OnImported(e.from, m);
      return On(internal_event::BorderOpened{m.imported()});
    case v1::ShardMessage::kStats:
      if (lead_ != nullptr) lead_->steps.OnStats(e.from, m.stats());
      return;
    case v1::ShardMessage::kDecision:
      return steps_.OnMessage(m.decision());
    case v1::ShardMessage::kTensorNorms:
      return trust_.OnMessage(m.tensor_norms());
    case v1::ShardMessage::kTrust:
      return trust_.OnMessage(m.trust());
    case v1::ShardMessage::kWatermark:
      if (!facts_.job.durable()) return;
      facts_.cuts.everywhere = ToCutId(m.watermark().cut());
      cuts_.KeepFrom(*facts_.cuts.everywhere);
      drain_.Check();
      return;
    case v1::ShardMessage::kGate:
      return On(internal_event::GateMoved{m.gate()});
    case v1::ShardMessage::kGateSet:
      if (lead_ != nullptr) lead_->gates.OnGateSet(e.from, m.gate_set());
      return;
    case v1::ShardMessage::kDrained:
      return drain_.On(internal_event::MayEnd());
    case v1::ShardMessage::kGranted: {
      const auto& granted = m.granted().generations();
      return On(internal_event::LeasesChanged{{granted.begin(), granted.end()}});
    }
    case v1::ShardMessage::kFailed:
      return On(internal_event::JobFailed{m.failed().reason(),
                                          m.failed().exit_code() == 0
                                              ? ExitCode::kDataInvalid
                                              : static_cast<ExitCode>(m.failed().exit_code())});
    default:
      return;
  }
}

// ---------------------------------------------------------------- terms

std::unique_ptr<ShardRouter> ShardRouter::NextTerm(std::vector<Effect>* out) {
  ShardCore::Options options = life_->options;
  options.term = *next_term_;
  auto next = std::make_unique<ShardRouter>(options, life_);
  next->facts_.now_ms = facts_.now_ms;
  next->facts_.term = *next_term_;
  next->facts_.incarnation = facts_.incarnation;
  next->facts_.driver = facts_.driver;
  next->facts_.hold.draining_since_ms = facts_.hold.draining_since_ms;
  next->deferred_ = std::move(deferred_);
  if (lead_ != nullptr) next->lead_->leases.Continue(&lead_->leases);
  next->watch_.Inherit(watch_);
  next->out_ = out;
  if (lead_ != nullptr) next->lead_->gates.Continue(lead_->gates);
  if (life_->recovery != nullptr) {
    next->On(internal_event::CutLimit{life_->recovery->most_cut_steps()});
  }
  next->terms_.Continue(terms_);
  next->drain_.Check();
  next->out_ = nullptr;
  return next;
}

// ---------------------------------------------------------------- Outbox

void ShardRouter::Emit(Effect effect) {
  // A replay repeats nothing: the process before has told it, or will be asked for it.
  if (facts_.replays() && OutputCommit::Tells(effect)) return;
  output_.Emit(std::move(effect), out_);
}

OpId ShardRouter::StartOp(Request request) {
  life_->last_op = life_->last_op.Next();
  Emit(effect::Start{life_->last_op, std::move(request)});
  return life_->last_op;
}

TimerId ShardRouter::StartTimer(uint64_t after_ms) {
  life_->last_timer = life_->last_timer.Next();
  Emit(effect::SetTimer{life_->last_timer, after_ms});
  return life_->last_timer;
}

void ShardRouter::Raise(const InternalEvent& event) {
  std::visit([this](const auto& e) { On(e); }, event);
}

void ShardRouter::ToLead(v1::ShardMessage message) {
  if (lead_ != nullptr) return On(event::FromShard{facts_.job.shard, std::move(message)});
  Emit(effect::ToShard{ShardId(0), std::move(message)});
}

void ShardRouter::ToOthers(const v1::ShardMessage& message) {
  for (uint32_t s = 1; s < facts_.job.servers.size(); ++s) {
    Emit(effect::ToShard{ShardId(s), message});
  }
}

void ShardRouter::Log(uint64_t step, const v1::LogFact& fact, Bytes payload, Bytes residual) {
  if (facts_.logging()) replay_.Log(step, fact, std::move(payload), std::move(residual));
}

}  // namespace eps
