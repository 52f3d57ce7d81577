#ifndef EPS_SERVER_CORE_SHARD_CORE_IMPL_H_
#define EPS_SERVER_CORE_SHARD_CORE_IMPL_H_

// Private to eps_server/core: the state of ShardCore. Its methods stand in files by concern:
// shard_core.cc (dispatch, steps, updates), shard_core_shards.cc, shard_core_fetch.cc,
// shard_core_push.cc, shard_core_state.cc (import, export), shard_core_cuts.cc (cuts, recovery),
// shard_core_log.cc, shard_core_status.cc.

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compression/codec_table.h"
#include "eps/v1/log.pb.h"
#include "eps_server/core/push/admission.h"
#include "eps_server/core/push/contribution_ledger.h"
#include "eps_server/core/fetch/encoded_copies.h"
#include "eps_server/core/steps/lead.h"
#include "eps_server/core/operations.h"
#include "eps_server/core/replay/output_commit.h"
#include "eps_server/core/cuts/recovery.h"
#include "eps_server/core/push/residuals.h"
#include "eps_server/core/shard_core.h"
#include "eps_server/core/steps/stage_clock.h"

namespace eps {

class ShardCore::Impl {
 public:
  explicit Impl(Options options);

  void Handle(const Event& event, uint64_t now_ms, std::vector<Effect>* out);
  void FillStatus(uint64_t now_ms, v1::StatusReply* status) const;
  v1::JobState state() const { return replay_.has_value() ? v1::JOB_STATE_RECOVERING : state_; }

  // A term's protocol is an object of its own: nothing of an earlier term can be left in it. Once a
  // later term was asked for, its object takes this one's place and has to begin.
  std::unique_ptr<Impl> TakeSuccessor() { return std::move(successor_); }
  void BeginTerm(uint64_t now_ms, std::vector<Effect>* out);
  std::optional<Event> TakeDeferred();  // the next that came too early and can be handled now

 private:
  // ---- dispatch, by event
  void On(const event::Opened& e);
  void On(const event::StreamClosed& e);
  void On(const event::Join& e);
  void On(const event::BeginStep& e);
  void On(const event::Fetch& e);
  void On(const event::FetchDrained& e);
  void On(const event::PushOffered& e);
  void On(const event::PushReceived& e);
  void On(const event::PushInvalid& e);
  void On(const event::ImportInitialize& e);
  void On(const event::ImportChunk& e);
  void On(const event::ImportResidual& e);
  void On(const event::ImportFinish& e);
  void On(const event::Export& e);
  void On(const event::ExportDrained& e);
  void On(const event::Watch& e);
  void On(const event::Gate& e);
  void On(const event::OpDone& e);
  void On(const event::FromShard& e);
  void On(const event::LinkUp& e);
  void On(const event::LinkDown& e);
  void On(const event::Timer& e);
  // ---- steps (shard_core.cc)
  void OpenBorder(const v1::Imported& border);
  void OpenJob();
  void TryAnswerBegins();
  bool BeginIsDue(const v1::BeginStepRequest& request) const;
  void AnswerBegin(const ParkedBegin& begin);
  bool PushResiduals() const;
  absl::Status CheckBegin(const v1::BeginStepRequest& request) const;
  std::string LostWork(const v1::BeginStepRequest& request) const;
  bool sealed() const { return spec_.training.mode == Mode::kSealed; }
  void MaybeStartUpdate(ChunkState* chunk);
  UpdateRequest NewRequest(ChunkState* chunk, int loss_scale_log2);
  void StartStats(ChunkState* chunk);
  void DropGradient(ChunkState* chunk);
  void StartUpdate(ChunkState* chunk, const v1::Decision& decision);
  void OnStatsDone(const StatsOp& op, const BackendDone& done);
  v1::Stats StatsOf(uint64_t step) const;
  void KeepStats(v1::Stats stats);
  void SendStats();
  void StartReadyUpdates();
  void OnUpdateDone(const UpdateOp& op, const BackendDone& done);
  void MaybeCompleteStep();
  void PumpLead();
  void SendToLead(v1::ShardMessage message);
  void Broadcast(const v1::ShardMessage& message);
  void OnDecision(const v1::Decision& decision);
  void AddRecord(const v1::StepRecord& record);
  void CountEvaluations(const v1::BeginStepRequest& request);
  void FinishWatchersIfDone();
  void FailJob(const std::string& reason);
  void FailOperation(const std::string& what, const absl::Status& status);
  bool EndsProcess(const absl::Status& status) const;
  void EndWork(const absl::Status& why);
  absl::Status FailedStatus() const;
  v1::ShardMessage NewMessage() const;
  void TouchPart(PartId part);
  // ---- fetch
  absl::Status CheckFetch(const event::Fetch& e, std::vector<ChunkId>* wanted) const;
  void ServeOrPark(ChunkState* chunk, ParkedFetch fetch);
  void Serve(const ChunkState& chunk, const ParkedFetch& fetch);
  void Answer(ChunkId chunk, const ParkedFetch& fetch, const Bytes& payload);
  ReadOp* ReadInFlight(const EncodedCopies::Key& key, Version version);
  void StartRead(const EncodedCopies::Key& key, Version version, std::vector<ParkedFetch> fetches);
  void EncodeAhead(Visit visit, Version version);
  std::optional<Visit> NextVisit(Visit visit) const;
  std::vector<EncodedCopies::Key> CopiesForUpdate(const ChunkState& chunk) const;
  void ServeUpdated(ChunkState* chunk, const UpdateOp& op, const UpdateResult& result);
  size_t WorkersOfStep() const;
  void SendResiduals(FetchTag tag, const v1::FetchRequest& request,
                     const std::vector<ChunkId>& wanted);
  void ServeParked(ChunkState* chunk);
  void OnReadDone(const ReadOp& op, const BackendDone& done);
  void FailFetch(FetchTag tag, const absl::Status& status);
  // ---- push
  enum class Decided { kCredited, kAnswered, kWaits };
  absl::Status CheckHeader(const v1::PushHeader& header) const;
  uint64_t HeldBytes(const v1::PushHeader& header) const;
  Decided TryOffer(const Offer& offer);
  void RetryOffers();
  void Ack(StreamId stream, uint64_t tag, v1::Ack::Outcome outcome, const std::string& message);
  void ReleaseIncoming(const Incoming& incoming);
  void Receive(StreamId stream, uint64_t tag, std::shared_ptr<const EncodedChunk> data_or_null,
               Bytes residual);
  void CountPush(const v1::PushHeader& header, std::shared_ptr<const EncodedChunk> data_or_null,
                 Bytes residual);
  std::string NonfiniteText(const v1::ContributionKey& key, uint64_t element,
                            const absl::Status& status) const;
  bool IsTied(ChunkId chunk) const { return chunks_.chunk(chunk).uses.size() > 1; }
  // ---- state in and out
  absl::Status CheckImporting() const;
  void OnImportDone(const ImportOp& op, const BackendDone& done);
  void MaybeFinishImport(ImportJob* job);
  void PumpExports();
  void StartExportRead(StreamId stream, ExportJob* job);
  v1::ExportStateReply ExportHeader(ChunkId chunk) const;
  void OnExportDone(const ExportOp& op, const BackendDone& done);
  bool AtBorder(uint64_t step) const;
  void FinishImport(StreamId stream, const v1::Imported& border);
  void TellImported(const v1::Imported& border);
  // ---- cuts and recovery; of durable shards only
  bool durable() const { return options_.caps.durable; }
  bool WaitsForState() const;
  void Register();
  void TellLeadAgain();
  void TellOpenState(ShardId shard);
  bool OnRecoveryMessage(const event::FromShard& e);
  void OnRegister(ShardId shard, Term term, const v1::Register& message);
  void StartTerm();
  void OnNewTerm(Term term);
  void OnPromised(ShardId shard, const v1::Promised& message);
  void OnRestore(const v1::Restore& message);
  void OnRecoveryStep(const Op& op, const BackendDone& done);
  void OnRecoverDone(const RecoverOp& op, const RecoveredState& found);
  void OnRestoreDone(const RestoreOp& op, const CutContent& content);
  void RollBack();
  std::string RecoveryWaitsFor() const;
  CutBorder Border(uint64_t update) const;
  void StartImportCut(StreamId stream, const v1::Imported& border);
  void TryStartCut();
  void StartCut(CutBorder border, std::optional<StreamId> import);
  void OnCutDone(const CutOp& op, const BackendDone& done);
  void OnDurable(ShardId shard, const CutId& cut);
  void KeepFrom(const CutId& cut);
  void OnScrubDone(const BackendDone& done);
  // ---- the contribution log, and status
  bool logs() const { return options_.caps.log_steps > 0; }
  void StartLog();
  void LogIt(uint64_t step, const v1::LogFact& fact, Bytes payload = {}, Bytes residual = {});
  void LogSession();
  void OnLogged(OpId op, const BackendDone& done);
  void BeginReplay(const FoundLog& log);
  void OpenReplay(const CutBorder& border);
  void OnLogRead(const BackendDone& done);
  void PumpReplay();
  absl::StatusOr<bool> Replay(const LogEntry& entry);
  absl::StatusOr<bool> ReplayPush(const v1::LoggedPush& push, const LogEntry& entry);
  absl::StatusOr<bool> ReplayReports(const v1::LoggedReports& reports);
  void ReplaySession(const v1::LoggedSession& session);
  void EndReplay();
  bool KnowsItself() const;
  bool IsTooEarly(const Event& event) const;
  void FillWaits(uint64_t now_ms, v1::StatusReply* status) const;

  ChunkState* Owned(ChunkId id);
  bool Owns(ChunkId id) const { return id.value() < local_.size() && local_[id.value()] >= 0; }
  OpId StartOp(Op op, BackendCall call);
  void Emit(Effect effect);
  void Close(StreamId stream, const absl::Status& status) { Emit(effect::Close{stream, status}); }
  void TraceIt(TraceAction::Kind kind, uint64_t subject, Version version,
               const CutId& cut = CutId());
  bool is_lead() const { return lead_ != nullptr; }
  std::string PartName(PartId part) const;
  std::string StageName(StageId stage) const { return spec_.stages[stage.value()].name; }
  void Count(const char* name, uint64_t n = 1) { counters_[name] += n; }

  const Options options_;
  const JobSpec& spec_;
  const ChunkMap& chunks_;
  const std::vector<ShardId> placement_;
  const JobId job_id_;
  const CodecTable codecs_;
  std::vector<ChunkState> owned_;  // ascending
  std::vector<int32_t> local_;     // chunk id -> index in owned_, or -1

  v1::JobState state_ = v1::JOB_STATE_IMPORTING;
  std::string failure_;
  Term term_;
  uint64_t step_ = 0;                // the open step; 0 while importing; steps + 1 when done
  uint64_t base_version_ = 0;        // the version that the open step reads
  uint64_t updates_ = 0;             // chunks updated, or being updated, in the open step
  uint64_t updated_ = 0;             // chunks updated in the open step
  uint64_t reduced_ = 0;             // sealed: chunks whose gradient is reduced, or dropped
  bool nonfinite_ = false;           // a gradient of the open step was dropped
  std::vector<double> sum_squares_;  // by owned chunk, of the open step
  std::map<uint64_t, v1::Decision> decisions_;
  std::deque<v1::Stats> last_stats_;  // that the lead may not have: kStatsKept at most
  v1::Imported last_import_;          // that a cut is being made of
  std::optional<v1::Imported> last_imported_;
  std::optional<v1::Imported> opened_border_;  // the lead's: every shard holds it
  uint64_t gate_step_ = 0;                     // 0: no gate

  ContributionLedger ledger_;
  Residuals residuals_;
  EncodedCopies copies_;
  StageClock stage_clock_;
  // Whether contributions of the open step bring their residuals; decided by its first BeginStep.
  std::optional<bool> push_residuals_;
  Admission admission_;
  std::unique_ptr<Lead> lead_;  // null on other shards
  std::vector<v1::StepRecord> records_;

  std::vector<PartState> parts_;
  std::string compute_profile_;
  std::map<uint64_t, std::vector<uint32_t>> joined_;  // worker nonce -> parts
  std::vector<event::Join> joins_;                    // parked until the job opens
  std::deque<ParkedBegin> begins_;
  std::map<FetchTag, OpenFetch> fetches_;
  std::deque<Offer> offers_;
  std::map<FetchTag, Incoming> incoming_;
  std::set<std::array<uint32_t, 4>> incoming_keys_;  // FlatKey
  std::map<StreamId, ImportJob> imports_;
  std::map<StreamId, ExportJob> exports_;
  std::map<StreamId, Watcher> watchers_;
  std::unordered_map<OpId, Op> ops_;
  std::map<ShardId, uint64_t> incarnations_;  // of shards that registered with the lead
  std::map<ShardId, TimerId> link_timers_;
  uint64_t next_op_ = 1;
  uint64_t next_timer_ = 1;
  std::map<std::string, uint64_t> counters_;

  // Of a durable shard.
  bool recovered_ = false;              // it knows what it has, and has registered
  Term promised_;                       // durably
  std::vector<CutBorder> cuts_;         // that it has; as of its promise
  std::optional<v1::Promised> answer_;  // to NewTerm
  std::optional<v1::Restore> chosen_;   // the lead's
  bool restoring_ = false;
  uint64_t recovering_since_ms_ = 0;
  std::optional<CutId> base_cut_;         // behind which the term goes on
  std::optional<CutBorder> pending_cut_;  // to be begun before an update
  std::optional<CutId> last_durable_;
  uint64_t cut_begun_ms_ = 0;
  size_t durable_records_ = 0;          // of records_, in a cut
  bool rolls_back_ = false;             // the lead was asked for a new term
  std::optional<TimerId> scrub_timer_;  // 0: a chunk is being read; nullopt: nothing is scrubbed
  std::unique_ptr<Recovery> recovery_;  // null on other shards than the lead
  std::unique_ptr<Impl> successor_;

  // Of one with a contribution log.
  uint64_t incarnation_;
  bool logging_ = false;
  OutputCommit output_;
  std::optional<LogReplay> replay_;
  std::deque<Event> deferred_;  // that came too early
  uint64_t now_ms_ = 0;
  std::vector<Effect>* out_ = nullptr;  // valid within Handle
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_SHARD_CORE_IMPL_H_
