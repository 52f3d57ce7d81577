#include "eps_server/core/shard_core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "eps_server/core/replay/log_facts.h"
#include "eps_server/core/shard_core_impl.h"

namespace eps {
namespace {

std::vector<ChunkId> OwnedChunks(const std::vector<ShardId>& placement, ShardId shard) {
  std::vector<ChunkId> owned;
  for (uint32_t c = 0; c < placement.size(); ++c) {
    if (placement[c] == shard) owned.push_back(ChunkId(c));
  }
  return owned;
}

// k of the 2^-k that workers multiply the loss by; a dynamic scale would come with the decision.
constexpr int kLossScaleLog2 = 0;

// What makes the sum over all tokens their mean, and undoes the loss scale.
double MeanScale(int loss_scale_log2, uint64_t tokens) {
  return static_cast<double>(uint64_t{1} << loss_scale_log2) /
         static_cast<double>(std::max<uint64_t>(tokens, 1));
}

// Whoever creates the core has checked the codecs.
CodecTable TableOf(const JobSpec& spec, const ChunkMap& chunks) {
  auto table = CodecTable::Build(spec, chunks);
  EPS_CHECK_MSG(table.ok(), table.status().ToString());
  return *std::move(table);
}

// What the process says to itself, which the replay of a log needs.
bool IsOwn(const Event& event) {
  return std::holds_alternative<event::OpDone>(event) ||
         std::holds_alternative<event::Timer>(event) ||
         std::holds_alternative<event::Opened>(event);
}

// The stream of a worker's request that names a term; none: the event is something else.
std::optional<StreamId> StreamOfRequest(const Event& event) {
  if (const auto* begin = std::get_if<event::BeginStep>(&event)) return begin->stream;
  if (const auto* fetch = std::get_if<event::Fetch>(&event)) return fetch->stream;
  if (const auto* push = std::get_if<event::PushOffered>(&event)) return push->stream;
  return std::nullopt;
}

}  // namespace

ShardCore::ShardCore(Options options) : impl_(new Impl(std::move(options))) {}
ShardCore::~ShardCore() = default;

void ShardCore::Handle(const Event& event, uint64_t now_ms, std::vector<Effect>* out) {
  const auto handle = [&](const Event& next) {
    impl_->Handle(next, now_ms, out);
    while (std::unique_ptr<Impl> successor = impl_->TakeSuccessor()) {
      impl_ = std::move(successor);
      impl_->BeginTerm(now_ms, out);
    }
  };
  handle(event);
  while (const std::optional<Event> deferred = impl_->TakeDeferred()) handle(*deferred);
}
void ShardCore::FillStatus(uint64_t now_ms, v1::StatusReply* status) const {
  impl_->FillStatus(now_ms, status);
}
v1::JobState ShardCore::state() const { return impl_->state(); }

uint64_t ShardCore::ResidualBudget(const JobSpec& spec, const ChunkMap& chunks,
                                   const std::vector<ChunkId>& owned, bool durable) {
  if (spec.codecs.residual_home != ResidualHome::kServer && !durable) return 0;
  const CodecTable codecs = TableOf(spec, chunks);
  const Step after_warmup(spec.codecs.warmup_steps + 1);
  uint64_t bytes = 0;
  for (ChunkId id : owned) {
    const Codec* codec = codecs.residual_or_null(id, after_warmup);
    if (codec == nullptr) continue;
    const Chunk& chunk = chunks.chunk(id);
    bytes += codec->MaxEncodedSize(chunk, Axis::kRow) * chunk.uses.size() * spec.training.parts;
  }
  return bytes;
}

uint64_t ShardCore::ContributionBudget(const JobSpec& spec, const ChunkMap& chunks,
                                       const std::vector<ChunkId>& owned) {
  const Admission::Quota quota =
      Admission::ComputeQuota(spec, chunks, TableOf(spec, chunks), owned);
  uint64_t budget = quota.per_part() * spec.training.parts;
  if (spec.training.mode != Mode::kSealed) return budget;
  for (ChunkId id : owned) budget += chunks.chunk(id).elements * sizeof(float);
  return budget;
}

ShardCore::Impl::Impl(Options options)
    : options_(std::move(options)),
      spec_(*options_.spec),
      chunks_(*options_.chunks),
      placement_(chunks_.Place(static_cast<uint32_t>(options_.servers.size()))),
      job_id_(spec_.id()),
      codecs_(TableOf(spec_, chunks_)),
      local_(chunks_.chunks().size(), -1),
      term_(options_.term),
      ledger_(spec_, chunks_, OwnedChunks(placement_, options_.shard)),
      copies_(options_.limits.jit_depth + 2),
      stage_clock_(spec_.stages.size()),
      admission_(
          Admission::ComputeQuota(spec_, chunks_, codecs_, OwnedChunks(placement_, options_.shard)),
          spec_.training.parts),
      parts_(spec_.training.parts),
      incarnation_(options_.incarnation) {
  for (ChunkId id : OwnedChunks(placement_, options_.shard)) {
    local_[id.value()] = static_cast<int32_t>(owned_.size());
    ChunkState chunk;
    chunk.id = id;
    owned_.push_back(std::move(chunk));
  }
  sum_squares_.assign(owned_.size(), 0.0);
  if (options_.shard == ShardId(0)) {
    lead_ = std::make_unique<Lead>(spec_, static_cast<uint32_t>(chunks_.chunks().size()),
                                   static_cast<uint32_t>(options_.servers.size()),
                                   durable() ? CutPlan(options_.limits.cut_steps) : CutPlan());
    if (durable()) recovery_ = std::make_unique<Recovery>(options_.servers);
  }
  if (durable()) {
    state_ = v1::JOB_STATE_RECOVERING;
    term_ = Term(0);
  }
}

void ShardCore::Impl::Handle(const Event& event, uint64_t now_ms, std::vector<Effect>* out) {
  now_ms_ = now_ms;
  out_ = out;
  if (IsTooEarly(event)) {
    deferred_.push_back(event);
  } else {
    std::visit([this](const auto& e) { On(e); }, event);
  }
  if (replay_.has_value()) PumpReplay();
  out_ = nullptr;
}

// Everything waits while a log is replayed. At a shard that came back and waits for the lead's next
// term, so do requests of workers: refused now, as of a term that is over, they would be made again
// in the same term, for the lead may not know yet that this shard was away.
bool ShardCore::Impl::IsTooEarly(const Event& event) const {
  if (!KnowsItself()) return !IsOwn(event);
  const bool waits_for_term = state_ == v1::JOB_STATE_RECOVERING && term_ == Term(0);
  return waits_for_term && StreamOfRequest(event).has_value();
}

std::optional<Event> ShardCore::Impl::TakeDeferred() {
  const auto it = std::find_if(deferred_.begin(), deferred_.end(),
                               [this](const Event& event) { return !IsTooEarly(event); });
  if (it == deferred_.end()) return std::nullopt;
  Event event = std::move(*it);
  deferred_.erase(it);
  return event;
}

ChunkState* ShardCore::Impl::Owned(ChunkId id) {
  return Owns(id) ? &owned_[local_[id.value()]] : nullptr;
}

bool ShardCore::Impl::WaitsForState() const {
  return state_ == v1::JOB_STATE_IMPORTING || state_ == v1::JOB_STATE_RECOVERING;
}

OpId ShardCore::Impl::StartOp(Op op, BackendCall call) {
  const OpId id(next_op_++);
  ops_.emplace(id, std::move(op));
  Emit(effect::Start{id, std::move(call)});
  return id;
}

void ShardCore::Impl::TraceIt(TraceAction::Kind kind, uint64_t subject, Version version,
                              const CutId& cut) {
  Emit(effect::Trace{TraceAction{kind, term_, Step(step_), subject, version, cut}});
}

void ShardCore::Impl::TouchPart(PartId part) {
  PartState& state = parts_[part.value()];
  state.last_seen_ms = now_ms_;
  if (state.lost_timer.has_value()) {
    Emit(effect::ClearTimer{*state.lost_timer});
    state.lost_timer.reset();
  }
}

// ---------------------------------------------------------------- steps

// Every shard holds the border: the step behind it opens.
void ShardCore::Impl::OpenBorder(const v1::Imported& border) {
  if (!WaitsForState() || !last_imported_.has_value()) return;
  step_ = border.step() + 1;
  base_version_ = border.version();
  if (durable()) KeepFrom(*base_cut_);
  StartLog();
  OpenJob();
  TryAnswerBegins();
  PumpExports();
}

void ShardCore::Impl::OpenJob() {
  state_ = step_ > spec_.training.steps ? v1::JOB_STATE_DONE : v1::JOB_STATE_RUNNING;
  TraceIt(TraceAction::Kind::kStepOpened, 0, Version(base_version_));
  if (durable() && options_.limits.scrub_bytes_per_second > 0 && !scrub_timer_.has_value()) {
    scrub_timer_ = TimerId(0);
    StartOp(ScrubOp(), backend_call::Scrub());
  }
  std::vector<event::Join> joins;
  joins.swap(joins_);
  for (const event::Join& join : joins) On(join);
  // A shard without chunks has nothing to reduce.
  if (sealed() && owned_.empty() && state_ == v1::JOB_STATE_RUNNING) {
    KeepStats(StatsOf(step_));
    SendStats();
  }
}

void ShardCore::Impl::On(const event::Join& e) {
  const v1::JoinRequest& request = e.request;
  if (is_lead() && WaitsForState()) {
    joins_.push_back(e);  // the first step is known when the weights are there
    return;
  }
  if (!is_lead()) {
    return Close(e.stream, absl::FailedPreconditionError(
                               absl::StrCat("Join: this is shard ", options_.shard.value(),
                                            "; join at shard 0, ", options_.servers[0])));
  }
  if (state_ == v1::JOB_STATE_FAILED) return Close(e.stream, FailedStatus());
  if (!request.spec_digest().empty()) {
    const Sha256Digest digest = spec_.Digest();
    if (request.spec_digest() !=
        absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size())) {
      return Close(e.stream, absl::FailedPreconditionError(absl::StrCat(
                                 "Join: another job spec; this job's digest is ", ToHex(digest))));
    }
  }
  if (spec_.training.determinism == Determinism::kStrict) {
    if (compute_profile_.empty()) {
      compute_profile_ = request.compute_profile();
      LogSession();
    }
    if (compute_profile_ != request.compute_profile()) {
      return Close(e.stream, absl::FailedPreconditionError(absl::StrCat(
                                 "Join: training.determinism is strict and this worker computes "
                                 "with \"",
                                 request.compute_profile(), "\", the job with \"", compute_profile_,
                                 "\"; set training.determinism=relaxed to mix")));
    }
  }
  const uint32_t parts = spec_.training.parts;
  std::vector<uint32_t> hosted(request.parts().begin(), request.parts().end());
  if (hosted.empty() && request.worker_count() > 0) {
    if (request.worker_count() > parts || request.worker_rank() >= request.worker_count()) {
      return Close(e.stream, absl::InvalidArgumentError(absl::StrCat(
                                 "Join: worker ", request.worker_rank(), " of ",
                                 request.worker_count(), " in a job of ", parts,
                                 " parts; raise training.parts or start fewer workers")));
    }
    const uint64_t count = request.worker_count();
    const uint64_t rank = request.worker_rank();
    for (uint64_t p = rank * parts / count; p < (rank + 1) * parts / count; ++p) {
      hosted.push_back(static_cast<uint32_t>(p));
    }
  }
  if (hosted.empty()) {
    for (uint32_t p = 0; p < parts; ++p) hosted.push_back(p);
  }
  for (uint32_t p : hosted) {
    if (p >= parts) {
      return Close(e.stream, absl::InvalidArgumentError(
                                 absl::StrCat("Join: part ", p, " of a job of ", parts, " parts")));
    }
  }
  joined_[request.worker_nonce()] = hosted;
  v1::JoinReply reply;
  reply.set_spec_text(spec_.ToText());
  reply.set_term(term_.value());
  for (uint32_t p : hosted) reply.add_parts(p);
  for (const std::string& server : options_.servers) reply.add_servers(server);
  reply.set_step(step_);
  reply.set_state(state_);
  Emit(effect::Reply{e.stream, std::move(reply)});
}

absl::Status ShardCore::Impl::CheckBegin(const v1::BeginStepRequest& request) const {
  if (JobId(request.job_id()) != job_id_) {
    return absl::NotFoundError(absl::StrCat("BeginStep: job ", absl::Hex(request.job_id()),
                                            "; this server runs ", absl::Hex(job_id_.value())));
  }
  if (state_ == v1::JOB_STATE_FAILED) return FailedStatus();
  if (Term(request.term()) != term_) {
    return absl::AbortedError(absl::StrCat("BeginStep: term ", request.term(),
                                           " is over; the job is at term ", term_.value(), " step ",
                                           step_));
  }
  if (request.parts().empty()) return absl::InvalidArgumentError("BeginStep: no parts");
  for (uint32_t part : request.parts()) {
    if (part >= spec_.training.parts) {
      return absl::InvalidArgumentError(
          absl::StrCat("BeginStep: part ", part, " of a job of ", spec_.training.parts, " parts"));
    }
  }
  if (step_ == 0) return absl::OkStatus();  // importing: the border is not known yet
  if (request.step() < step_) {
    return absl::AbortedError(absl::StrCat("BeginStep: step ", request.step(),
                                           " is complete; the job is at term ", term_.value(),
                                           " step ", step_));
  }
  if (request.step() > step_ + 1 || request.step() > spec_.training.steps + 1) {
    return absl::FailedPreconditionError(
        absl::StrCat("BeginStep: step ", request.step(), " while step ", step_, " is open"));
  }
  return absl::OkStatus();
}

// What a worker that took over parts can neither send nor begin with again, now that the process is
// gone that had it; empty if nothing is lost.
std::string ShardCore::Impl::LostWork(const v1::BeginStepRequest& request) const {
  if (Term(request.term()) != term_ || request.first_step() != request.step()) return "";
  if (state_ != v1::JOB_STATE_RUNNING && state_ != v1::JOB_STATE_DONE) return "";
  const uint64_t before = request.step() - 1;
  for (const uint32_t p : request.parts()) {
    const PartId part(p);
    if (step_ == before && !ledger_.Complete(part)) {
      return absl::StrCat("gradients of ", PartName(part), " at step ", before);
    }
    if (durable() && is_lead() && lead_->MissesLoss(before, part)) {
      return absl::StrCat("the loss of ", PartName(part), " at step ", before);
    }
  }
  // It would repeat a step that is open elsewhere, and that all of sealed mode can still finish.
  if (durable() && !sealed() && request.step() < step_) {
    return absl::StrCat("what step ", request.step(), " began with");
  }
  return "";
}

void ShardCore::Impl::On(const event::BeginStep& e) {
  const absl::Status status = CheckBegin(e.request);
  const bool valid = status.ok() || absl::IsAborted(status);
  if (const std::string lost = valid ? LostWork(e.request) : ""; !lost.empty()) {
    if (!durable()) {
      return FailJob(absl::StrCat(lost,
                                  ": lost with the worker that had it, and training.mode "
                                  "eager keeps no older weights to repeat the step"));
    }
    begins_.push_back(ParkedBegin{e.stream, e.request, now_ms_});  // the new term answers it
    return RollBack();
  }
  if (!status.ok()) return Close(e.stream, status);
  for (uint32_t part : e.request.parts()) TouchPart(PartId(part));
  if (is_lead()) {
    if (logging_) {
      const v1::LogFact reports = ReportsFact(e.request, *lead_);
      if (reports.ByteSizeLong() > 0) LogIt(e.request.step(), reports);
    }
    for (const v1::PartLoss& loss : e.request.losses()) lead_->OnLoss(loss);
  }
  begins_.push_back(ParkedBegin{e.stream, e.request, now_ms_});
  TryAnswerBegins();
  PumpLead();
  if (is_lead()) CountEvaluations(e.request);
}

void ShardCore::Impl::CountEvaluations(const v1::BeginStepRequest& request) {
  // Of the newest border only: a report that comes late would be told out of order.
  if (step_ == 0 || request.step() != step_) return;
  for (const v1::PartLoss& loss : request.evaluations()) {
    if (loss.step() + 1 != step_) continue;
    const std::optional<v1::StepRecord> record = lead_->OnEvaluation(loss, term_, now_ms_);
    if (record.has_value()) AddRecord(*record);
  }
  FinishWatchersIfDone();
}

bool ShardCore::Impl::BeginIsDue(const v1::BeginStepRequest& request) const {
  if (WaitsForState() || request.step() != step_) return false;
  return gate_step_ == 0 || step_ <= gate_step_ || state_ == v1::JOB_STATE_DONE;
}

void ShardCore::Impl::TryAnswerBegins() {
  std::deque<ParkedBegin> parked;
  parked.swap(begins_);
  for (ParkedBegin& begin : parked) {
    if (BeginIsDue(begin.request)) {
      AnswerBegin(begin);
    } else if (const absl::Status status = CheckBegin(begin.request); !status.ok()) {
      Close(begin.stream, status);
    } else {
      begins_.push_back(std::move(begin));
    }
  }
}

void ShardCore::Impl::AnswerBegin(const ParkedBegin& begin) {
  v1::BeginStepReply reply;
  reply.set_term(term_.value());
  reply.set_step(step_);
  reply.set_version(base_version_);
  reply.set_done(state_ == v1::JOB_STATE_DONE);
  std::vector<bool> hosted(spec_.training.parts, false);
  for (uint32_t part : begin.request.parts()) {
    hosted[part] = true;
    parts_[part].begun_step = step_;
    parts_[part].nonce = begin.request.worker_nonce();
  }
  if (!reply.done()) {
    for (const ContributionLedger::Place& place : ledger_.Counted(hosted)) {
      v1::Have* have = reply.add_have();
      have->set_use_stage(place.use.value());
      have->set_part_first(place.parts.first);
      have->set_part_count(place.parts.count);
      have->set_chunk(place.chunk.value());
    }
    for (const ChunkState& chunk : owned_) {
      v1::ChunkCodecs* codecs = reply.add_codecs();
      codecs->set_chunk(chunk.id.value());
      const auto weights = static_cast<uint32_t>(codecs_.weights(chunk.id).traits().id);
      const Codec& gradient = codecs_.gradient(chunk.id, Step(step_));
      codecs->set_forward_weights(weights);
      codecs->set_backward_weights(weights);
      codecs->set_gradient(static_cast<uint32_t>(gradient.traits().id));
    }
    push_residuals_ = PushResiduals();
    reply.set_push_residuals(*push_residuals_);
  }
  Emit(effect::Reply{begin.stream, std::move(reply)});
}

// Residuals that live with the workers come along where the state behind the step is saved: at a
// gate, at the end, and wherever a cut may be.
bool ShardCore::Impl::PushResiduals() const {
  if (push_residuals_.has_value()) return *push_residuals_;
  return durable() || spec_.codecs.residual_home == ResidualHome::kServer || gate_step_ == step_ ||
         step_ == spec_.training.steps;
}

void ShardCore::Impl::MaybeStartUpdate(ChunkState* chunk) {
  if (state_ != v1::JOB_STATE_RUNNING || chunk->updating || chunk->reducing || chunk->nonfinite ||
      chunk->version != Version(base_version_) || !ledger_.Complete(chunk->id)) {
    return;
  }
  if (chunk->reduced == nullptr) {
    const std::optional<uint64_t> tokens = ledger_.Tokens(chunk->id);
    if (!tokens.has_value()) {
      return FailJob(absl::StrCat("step ", step_, ": the uses of chunk ", chunk->id.value(),
                                  " count different numbers of tokens"));
    }
    chunk->tokens = *tokens;
    if (ledger_.Nonfinite(chunk->id)) return DropGradient(chunk);
    if (sealed()) return StartStats(chunk);
  }
  for (const auto& [stream, job] : exports_) {
    if (job.started) return;  // the border is being read
  }
  if (pending_cut_.has_value()) return;  // the border's cut has to begin first
  const auto decision = decisions_.find(step_);
  if (decision != decisions_.end() && !decision->second.skip()) {
    StartUpdate(chunk, decision->second);
  }
}

// The contributions of a complete chunk, and the scale that makes their sum the mean over tokens.
UpdateRequest ShardCore::Impl::NewRequest(ChunkState* chunk, int loss_scale_log2) {
  UpdateRequest request;
  request.chunk = chunk->id;
  request.from = chunk->version;
  request.to = chunk->version.Next();
  request.parts = spec_.training.parts;
  request.norm_scale = static_cast<float>(MeanScale(loss_scale_log2, chunk->tokens));
  if (chunk->reduced != nullptr) {
    request.reduced = std::move(chunk->reduced);
  } else {
    request.inputs = ledger_.Take(chunk->id);
  }
  return request;
}

void ShardCore::Impl::StartStats(ChunkState* chunk) {
  chunk->reducing = true;
  StatsOp op;
  op.chunk = chunk->id;
  op.held.swap(chunk->held);
  StartOp(std::move(op), backend_call::Stats{NewRequest(chunk, kLossScaleLog2)});
}

// A part of the chunk's gradient is not finite: there is nothing to sum. The lead hears of it and
// every shard skips the step.
void ShardCore::Impl::DropGradient(ChunkState* chunk) {
  ledger_.Drop(chunk->id);
  for (const auto& [part, bytes] : chunk->held) admission_.Release(part, IsTied(chunk->id), bytes);
  chunk->held.clear();
  chunk->nonfinite = true;
  nonfinite_ = true;
  sum_squares_[local_[chunk->id.value()]] = 0;
  if (++reduced_ < owned_.size()) return;
  KeepStats(StatsOf(step_));
  SendStats();
}

void ShardCore::Impl::OnStatsDone(const StatsOp& op, const BackendDone& done) {
  for (const auto& [part, bytes] : op.held) admission_.Release(part, IsTied(op.chunk), bytes);
  if (!done.status.ok()) {
    return FailOperation(absl::StrCat("reduction of chunk ", op.chunk.value(), " at step ", step_),
                         done.status);
  }
  ChunkState* chunk = Owned(op.chunk);
  const UpdateResult& result = std::get<UpdateResult>(done.value);
  chunk->reducing = false;
  chunk->reduced = result.reduced;
  sum_squares_[local_[op.chunk.value()]] = result.sum_squares;
  if (++reduced_ == owned_.size()) {
    KeepStats(StatsOf(step_));
    SendStats();
  }
  // In a replay the decision may be there before what it was made of.
  MaybeStartUpdate(chunk);
  MaybeCompleteStep();
  RetryOffers();
}

void ShardCore::Impl::StartUpdate(ChunkState* chunk, const v1::Decision& decision) {
  UpdateOp op;
  op.chunk = chunk->id;
  op.held.swap(chunk->held);
  op.copies = CopiesForUpdate(*chunk);
  copies_.DropChunk(chunk->id);
  UpdateRequest request = NewRequest(chunk, decision.loss_scale_log2());
  for (const EncodedCopies::Key& copy : op.copies) {
    request.encode.push_back({&codecs_.weights(chunk->id), copy.axis});
  }
  request.step.lr = decision.lr();
  request.step.update = decision.update();
  request.step.bias_correction1 = decision.bias_correction1();
  request.step.bias_correction2 = decision.bias_correction2();
  request.step.grad_scale = static_cast<float>(
      MeanScale(decision.loss_scale_log2(), chunk->tokens) * decision.clip_factor());
  chunk->updating = true;
  ++updates_;
  TraceIt(TraceAction::Kind::kUpdateStarted, chunk->id.value(), chunk->version);
  StartOp(std::move(op), backend_call::Update{std::move(request)});
}

void ShardCore::Impl::StartReadyUpdates() {
  for (ChunkState& chunk : owned_) MaybeStartUpdate(&chunk);
  MaybeCompleteStep();  // a skipped step has no update whose end would complete it
}

void ShardCore::Impl::OnUpdateDone(const UpdateOp& op, const BackendDone& done) {
  for (const auto& [part, bytes] : op.held) admission_.Release(part, IsTied(op.chunk), bytes);
  if (!done.status.ok()) {
    return FailOperation(absl::StrCat("update of chunk ", op.chunk.value(), " at step ", step_),
                         done.status);
  }
  ChunkState* chunk = Owned(op.chunk);
  chunk->updating = false;
  chunk->version = chunk->version.Next();
  if (!sealed()) {
    sum_squares_[local_[op.chunk.value()]] = std::get<UpdateResult>(done.value).sum_squares;
  }
  ++updated_;
  Count("updates");
  TraceIt(TraceAction::Kind::kUpdated, op.chunk.value(), chunk->version);
  ServeUpdated(chunk, op, std::get<UpdateResult>(done.value));
  ServeParked(chunk);
  MaybeCompleteStep();
  RetryOffers();
}

void ShardCore::Impl::MaybeCompleteStep() {
  if (state_ != v1::JOB_STATE_RUNNING) return;
  // A shard without chunks completes a step as soon as it is decided.
  const auto decision = decisions_.find(step_);
  if (decision == decisions_.end()) return;
  const bool skip = decision->second.skip();
  if (skip ? reduced_ < owned_.size() : updated_ < owned_.size()) return;
  for (const auto& [stream, job] : exports_) {
    if (job.started) return;  // the border is being read
  }
  if (skip) {
    // The weights stay at the version that the step read; what was held for their update goes.
    for (ChunkState& chunk : owned_) {
      chunk.reduced.reset();
      chunk.nonfinite = false;
    }
    Count("skipped_steps");
  } else {
    ++base_version_;
  }
  residuals_.Close(skip);
  push_residuals_.reset();
  TraceIt(TraceAction::Kind::kStepComplete, 0, Version(base_version_));
  if (decision->second.cut()) pending_cut_ = Border(decision->second.update());
  decisions_.erase(decisions_.begin(), decisions_.upper_bound(step_));
  ledger_.Reset();
  updates_ = updated_ = reduced_ = 0;
  nonfinite_ = false;
  ++step_;
  if (!sealed()) KeepStats(StatsOf(step_ - 1));
  if (pending_cut_.has_value()) LogSession();  // before the cut, which it is not in
  TryStartCut();
  OpenJob();
  if (!sealed()) SendStats();
  TryAnswerBegins();
  PumpExports();
  PumpLead();
  MaybeCompleteStep();
}

// The squared norms of all chunks in `step`.
v1::Stats ShardCore::Impl::StatsOf(uint64_t step) const {
  v1::Stats stats;
  stats.set_step(step);
  stats.set_nonfinite(nonfinite_);
  for (size_t i = 0; i < owned_.size(); ++i) {
    stats.add_chunks(owned_[i].id.value());
    stats.add_sum_squares(sum_squares_[i]);
  }
  return stats;
}

void ShardCore::Impl::KeepStats(v1::Stats stats) {
  last_stats_.push_back(std::move(stats));
  if (last_stats_.size() > kStatsKept) last_stats_.pop_front();
}

// Those that were kept last. The lead may decide on them at once, so the state of this shard must
// be complete before.
void ShardCore::Impl::SendStats() {
  v1::ShardMessage message = NewMessage();
  *message.mutable_stats() = last_stats_.back();
  SendToLead(std::move(message));
}

// ---------------------------------------------------------------- failure

absl::Status ShardCore::Impl::FailedStatus() const {
  return absl::FailedPreconditionError(
      absl::StrCat("the job cannot go on: ", failure_,
                   "; start it again with --resume=latest to go on from the last checkpoint"));
}

void ShardCore::Impl::FailJob(const std::string& reason) {
  if (state_ == v1::JOB_STATE_FAILED) return;
  state_ = v1::JOB_STATE_FAILED;
  failure_ = reason;
  TraceIt(TraceAction::Kind::kFailed, 0, Version(base_version_));
  const absl::Status status = FailedStatus();
  for (const event::Join& join : joins_) Close(join.stream, status);
  joins_.clear();
  for (const auto& [stream, watcher] : watchers_) Close(stream, status);
  watchers_.clear();
  for (const Offer& offer : offers_) {
    Ack(offer.stream, offer.header.tag(), v1::Ack::REFUSED, std::string(status.message()));
  }
  EndWork(status);
  v1::ShardMessage message = NewMessage();
  message.mutable_failed()->set_reason(reason);
  if (is_lead()) {
    Broadcast(message);
  } else {
    SendToLead(std::move(message));
  }
}

// What a disk holds behind an error is not known any more: only a new process may look.
bool ShardCore::Impl::EndsProcess(const absl::Status& status) const {
  return durable() && (absl::IsInternal(status) || absl::IsDataLoss(status));
}

void ShardCore::Impl::FailOperation(const std::string& what, const absl::Status& status) {
  const std::string text = absl::StrCat(what, ": ", std::string(status.message()));
  if (!EndsProcess(status)) return FailJob(text);
  Emit(effect::Abort{absl::IsDataLoss(status) ? ExitCode::kDataInvalid : ExitCode::kIo, text});
}

void ShardCore::Impl::EndWork(const absl::Status& why) {
  for (const ParkedBegin& begin : begins_) Close(begin.stream, why);
  begins_.clear();
  for (const auto& [tag, fetch] : fetches_) Emit(effect::FailFetch{tag.stream, tag.tag, why});
  fetches_.clear();
  for (ChunkState& chunk : owned_) chunk.parked.clear();
  offers_.clear();
  for (const auto& [stream, job] : imports_) Close(stream, why);
  imports_.clear();
  for (const auto& [stream, job] : exports_) Close(stream, why);
  exports_.clear();
}

// ---------------------------------------------------------------- operations and streams

void ShardCore::Impl::On(const event::OpDone& e) {
  auto it = ops_.find(e.done.op);
  if (it == ops_.end()) return;
  const Op op = std::move(it->second);
  ops_.erase(it);
  if (const auto* read = std::get_if<ReadOp>(&op)) return OnReadDone(*read, e.done);
  if (const auto* stats = std::get_if<StatsOp>(&op)) return OnStatsDone(*stats, e.done);
  if (const auto* update = std::get_if<UpdateOp>(&op)) return OnUpdateDone(*update, e.done);
  if (const auto* import = std::get_if<ImportOp>(&op)) return OnImportDone(*import, e.done);
  if (const auto* exported = std::get_if<ExportOp>(&op)) return OnExportDone(*exported, e.done);
  if (const auto* cut = std::get_if<CutOp>(&op)) return OnCutDone(*cut, e.done);
  if (std::holds_alternative<ScrubOp>(op)) return OnScrubDone(e.done);
  if (std::holds_alternative<LogOp>(op)) return OnLogged(e.done.op, e.done);
  if (std::holds_alternative<ReadLogOp>(op)) return OnLogRead(e.done);
  OnRecoveryStep(op, e.done);
}

void ShardCore::Impl::On(const event::Gate& e) {
  const bool changes = gate_step_ != e.step;
  gate_step_ = e.step;
  if (is_lead()) lead_->Gate(e.step);
  if (changes) LogSession();
  v1::GateReply reply;
  reply.set_step(push_residuals_.value_or(true) ? step_ : step_ + 1);
  Emit(effect::Reply{e.stream, std::move(reply)});
  TryAnswerBegins();
}

void ShardCore::Impl::On(const event::StreamClosed& e) {
  const StreamId s = e.stream;
  stage_clock_.Closed(s);
  begins_.erase(std::remove_if(begins_.begin(), begins_.end(),
                               [s](const ParkedBegin& b) { return b.stream == s; }),
                begins_.end());
  joins_.erase(std::remove_if(joins_.begin(), joins_.end(),
                              [s](const event::Join& j) { return j.stream == s; }),
               joins_.end());
  watchers_.erase(s);
  deferred_.erase(std::remove_if(deferred_.begin(), deferred_.end(),
                                 [s](const Event& d) { return StreamOfRequest(d) == s; }),
                  deferred_.end());
  for (auto it = fetches_.begin(); it != fetches_.end();) {
    it = it->first.stream == s ? fetches_.erase(it) : std::next(it);
  }
  for (ChunkState& chunk : owned_) {
    auto& parked = chunk.parked;
    parked.erase(std::remove_if(parked.begin(), parked.end(),
                                [s](const ParkedFetch& f) { return f.tag.stream == s; }),
                 parked.end());
  }
  offers_.erase(
      std::remove_if(offers_.begin(), offers_.end(), [s](const Offer& o) { return o.stream == s; }),
      offers_.end());
  for (auto it = incoming_.begin(); it != incoming_.end();) {
    if (it->first.stream == s) {
      ReleaseIncoming(it->second);
      it = incoming_.erase(it);
    } else {
      ++it;
    }
  }
  imports_.erase(s);
  const bool exported = exports_.erase(s) > 0;
  for (uint32_t p = 0; p < parts_.size(); ++p) {
    PartState& part = parts_[p];
    if (part.push_stream != s) continue;
    part.push_stream.reset();
    if (state_ != v1::JOB_STATE_RUNNING || part.lost_timer.has_value()) continue;
    part.lost_timer = TimerId(next_timer_++);
    Emit(effect::SetTimer{*part.lost_timer, options_.limits.part_timeout_ms});
  }
  RetryOffers();
  if (exported) StartReadyUpdates();
}

}  // namespace eps
