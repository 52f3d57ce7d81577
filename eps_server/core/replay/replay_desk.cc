// ShardCore: the contribution log. What counts is logged before anybody is told that it did, so a
// shard that dies comes back to where it stood, in the same term, and nobody rolls back
// (PROTOCOL.md 5). Replaying applies the facts in their order, as fast as the state follows.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "eps_server/core/replay/log_facts.h"
#include "eps_server/core/shard_core_impl.h"

namespace eps {
namespace {

constexpr uint64_t kFactBytes = 512;  // of one of fixed size

}  // namespace

LogRoom ShardCore::LogNeeds(const JobSpec& spec, const ChunkMap& chunks,
                            const std::vector<ChunkId>& owned, uint64_t shards) {
  const auto codecs = CodecTable::Build(spec, chunks);
  LogRoom room;
  const Step after_warmup(spec.codecs.warmup_steps + 1);
  const uint64_t parts = spec.training.parts;
  for (const ChunkId id : owned) {
    const Chunk& chunk = chunks.chunk(id);
    uint64_t bytes = 0;
    for (const Step step : {Step(1), after_warmup}) {
      const Codec* const residual = codecs->residual_or_null(id, step);
      uint64_t wanted = codecs->gradient(id, step).MaxEncodedSize(chunk, Axis::kRow);
      if (residual != nullptr) wanted += residual->MaxEncodedSize(chunk, Axis::kRow);
      bytes = std::max(bytes, wanted);
    }
    room.AddEntries(chunk.uses.size() * parts, kFactBytes + bytes);
  }
  // What shards and workers report, decisions, and a session, which repeats some of them.
  const uint64_t stats_bytes = kFactBytes + 24 * chunks.chunks().size();
  const uint64_t small_bytes = kFactBytes + 64 * (parts + shards);
  room.AddEntries(shards, stats_bytes);
  room.AddEntries(8 + 2 * parts, small_bytes);
  room.AddEntries(1, kStatsKept * stats_bytes + 8 * small_bytes);
  return room;
}

void ShardCore::Impl::Emit(Effect effect) {
  // What a replay would tell was told, or will be asked for.
  if (replay_.has_value() && OutputCommit::Tells(effect)) return;
  output_.Emit(std::move(effect), out_);
}

// ---------------------------------------------------------------- logging

void ShardCore::Impl::StartLog() {
  if (!logs()) return;
  logging_ = true;
  const FoundLog log{LogId{term_, incarnation_}, *base_cut_, *base_cut_};
  output_.OnLogged(StartOp(LogOp{}, backend_call::StartLog{log}));
  LogSession();
  // Told before the border was opened here.
  for (const auto& [step, decision] : decisions_) LogIt(step, DecisionFact(decision));
}

// REQUIRES logging_.
void ShardCore::Impl::LogIt(uint64_t step, const v1::LogFact& fact, Bytes payload, Bytes residual) {
  LogEntry entry;
  entry.step = Step(step);
  entry.text = fact.SerializeAsString();
  entry.payload = std::move(payload);
  entry.residual = std::move(residual);
  output_.OnLogged(StartOp(LogOp{}, backend_call::Log{std::move(entry)}));
}

void ShardCore::Impl::LogSession() {
  if (replay_.has_value()) replay_->owes_session = true;
  if (!logging_) return;
  v1::LogFact fact;
  v1::LoggedSession* const session = fact.mutable_session();
  session->set_gate_step(gate_step_);
  session->set_compute_profile(compute_profile_);
  if (is_lead()) {
    for (uint64_t incarnation : recovery_->Incarnations()) session->add_incarnations(incarnation);
    for (v1::Decision& d : lead_->LastDecisions()) *session->add_decisions() = std::move(d);
  }
  for (const v1::Stats& stats : last_stats_) *session->add_stats() = stats;
  LogIt(step_, fact);
}

void ShardCore::Impl::OnLogged(OpId op, const BackendDone& done) {
  if (!done.status.ok()) return FailOperation("the contribution log", done.status);
  output_.OnDurable(op, out_);
}

// ---------------------------------------------------------------- replaying

void ShardCore::Impl::BeginReplay(const FoundLog& log) {
  replay_.emplace();
  replay_->log = log;
  term_ = log.id.term;
  incarnation_ = log.id.incarnation;
  base_cut_ = log.opened;
  last_durable_ = log.base;
  StartOp(RestoreOp{log.base}, backend_call::Restore{log.base, term_});
}

// The base of the log is restored.
void ShardCore::Impl::OpenReplay(const CutBorder& border) {
  TraceIt(TraceAction::Kind::kResumed, 0, border.version, border.id);
  const v1::Imported imported = ToImported(border);
  if (is_lead()) {
    recovery_->OnRegister(options_.shard, incarnation_, promised_);
    recovery_->OnOpened(replay_->log.opened);
    recovery_->OnLimit(options_.shard, options_.caps.log_steps);
    lead_->cuts().Limit(recovery_->most_cut_steps());
    lead_->Open(imported, now_ms_);
    opened_border_ = imported;
  }
  step_ = imported.step() + 1;
  base_version_ = imported.version();
  KeepFrom(replay_->log.opened);
  OpenJob();
  StartOp(ReadLogOp{}, backend_call::ReadLog{});
}

void ShardCore::Impl::OnLogRead(const BackendDone& done) {
  if (!done.status.ok()) return FailOperation("the contribution log", done.status);
  const auto& entries = *std::get<std::shared_ptr<const std::vector<LogEntry>>>(done.value);
  replay_->ended = entries.empty();
  for (const LogEntry& entry : entries) replay_->entries.push_back(entry);
}

void ShardCore::Impl::PumpReplay() {
  if (step_ == 0) return;  // its base is being restored
  if (state_ == v1::JOB_STATE_FAILED) return EndReplay();
  std::deque<LogEntry>& entries = replay_->entries;
  for (; !entries.empty(); entries.pop_front()) {
    absl::StatusOr<bool> applied = Replay(entries.front());
    if (applied.ok() && !*applied && ops_.size() == (HasOp<ScrubOp>(ops_) ? 1 : 0)) {
      applied = absl::DataLossError("it waits for what no entry before it said");
    }
    if (!applied.ok()) {
      return FailOperation(
          absl::StrCat("the contribution log, an entry of step ", entries.front().step.value(),
                       ", while step ", step_, " is open"),
          applied.status());
    }
    if (!*applied) return;
  }
  if (replay_->ended) return EndReplay();
  if (!HasOp<ReadLogOp>(ops_)) StartOp(ReadLogOp{}, backend_call::ReadLog{});
}

// False: the state has to follow first.
absl::StatusOr<bool> ShardCore::Impl::Replay(const LogEntry& entry) {
  v1::LogFact fact;
  if (!fact.ParseFromString(entry.text)) return absl::DataLossError("it cannot be read");
  switch (fact.fact_case()) {
    case v1::LogFact::kPush:
      return ReplayPush(fact.push(), entry);
    case v1::LogFact::kDecision:
      if (fact.decision().step() < step_) return true;
      if (is_lead()) lead_->Adopt(fact.decision());
      OnDecision(fact.decision());
      return true;
    case v1::LogFact::kStats:
      if (is_lead()) lead_->OnStats(ShardId(fact.stats().shard()), fact.stats().stats());
      PumpLead();
      return true;
    case v1::LogFact::kReports:
      return ReplayReports(fact.reports());
    case v1::LogFact::kSession:
      ReplaySession(fact.session());
      return true;
    case v1::LogFact::FACT_NOT_SET:
      return absl::DataLossError("it says nothing that this release knows");
  }
  return true;
}

absl::StatusOr<bool> ShardCore::Impl::ReplayPush(const v1::LoggedPush& push,
                                                 const LogEntry& entry) {
  const v1::PushHeader& header = push.header();
  const v1::ContributionKey& key = header.key();
  if (key.step() < step_) return true;
  if (key.step() > step_) return false;
  const ContributionLedger::Place place = PlaceOf(key);
  if (Term(key.term()) != term_ || !ledger_.IsValid(place) ||
      ledger_.Check(place, OriginOf(header)) != ContributionLedger::Verdict::kNew) {
    return absl::DataLossError(
        absl::StrCat("no contribution of this shard, or one that counted "
                     "before: chunk ",
                     key.chunk(), ", part ", key.part_first()));
  }
  std::shared_ptr<const EncodedChunk> data;
  if (!push.nonfinite()) {
    // It was admitted before, perhaps in another order. Updates that made room then may be under
    // way; if none is, it does not depend on one.
    const PartId part(key.part_first());
    if (!admission_.Admit(part, place.use, ledger_.OldestIncompleteStage(), IsTied(place.chunk),
                          HeldBytes(header))) {
      if (HasOp<UpdateOp>(ops_) || HasOp<StatsOp>(ops_)) return false;
      admission_.Charge(part, IsTied(place.chunk), HeldBytes(header));
    }
    auto opened =
        codecs_.gradient(place.chunk, Step(key.step()))
            .Open(chunks_.chunk(place.chunk), Axis::kRow, entry.payload, Content::kGradient);
    if (!opened.ok()) return absl::DataLossError(opened.status().message());
    data = *std::move(opened);
  }
  CountPush(header, std::move(data), entry.residual);
  MaybeStartUpdate(Owned(place.chunk));
  MaybeCompleteStep();  // one that is skipped may end without an update
  return true;
}

absl::StatusOr<bool> ShardCore::Impl::ReplayReports(const v1::LoggedReports& reports) {
  if (!is_lead()) return true;
  for (const v1::PartLoss& loss : reports.losses()) lead_->OnLoss(loss);
  PumpLead();
  if (reports.evaluations().empty() || reports.step() < step_) return true;
  if (reports.step() > step_) return false;
  v1::BeginStepRequest request;
  request.set_step(reports.step());
  *request.mutable_evaluations() = reports.evaluations();
  CountEvaluations(request);
  return true;
}

void ShardCore::Impl::ReplaySession(const v1::LoggedSession& session) {
  gate_step_ = session.gate_step();
  compute_profile_ = session.compute_profile();
  for (const v1::Stats& stats : session.stats()) {
    if (stats.step() >= step_) continue;  // they will follow from the rest
    if (last_stats_.empty() || last_stats_.back().step() < stats.step()) KeepStats(stats);
  }
  if (!is_lead()) return;
  lead_->Gate(gate_step_);
  for (int s = 0; s < session.incarnations_size(); ++s) {
    recovery_->OnRegister(ShardId(static_cast<uint32_t>(s)), session.incarnations(s), term_);
  }
  for (const v1::Decision& decision : session.decisions()) lead_->Remember(decision);
}

// The shard stands where it stood: what came meanwhile is handled now.
void ShardCore::Impl::EndReplay() {
  const bool owes_session = replay_->owes_session;
  replay_.reset();
  logging_ = true;
  if (owes_session) LogSession();
  Count("replays");
  TraceIt(TraceAction::Kind::kReplayed, 0, Version(base_version_));
  for (PartState& part : parts_) {
    if (state_ != v1::JOB_STATE_RUNNING) break;
    part.lost_timer = TimerId(next_timer_++);  // nobody is there until he says so
    Emit(effect::SetTimer{*part.lost_timer, options_.limits.part_timeout_ms});
  }
  if (!is_lead()) return TellLeadAgain();
  if (last_durable_.has_value()) OnDurable(options_.shard, *last_durable_);
  PumpLead();
}

// Before, it would drop what is said to it in a term of which it does not know yet that it is its
// own.
bool ShardCore::Impl::KnowsItself() const {
  return !logs() || (recovered_ && !replay_.has_value());
}

}  // namespace eps
