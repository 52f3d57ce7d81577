#include "worker/client/parameter_client.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/executor.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/trace/span_names.h"
#include "base/trace/trace_log.h"
#include "wire/channel.h"
#include "wire/counts_message.h"
#include "worker/client/begin_step.h"
#include "worker/client/client_core.h"
#include "worker/client/fetcher.h"
#include "worker/client/join_job.h"
#include "worker/client/open_step.h"
#include "worker/client/pusher.h"
#include "worker/client/residual_keeper.h"
#include "worker/client/unary_call.h"
#include "worker/client/worker_session.h"

namespace eps {
namespace {

using std::chrono::steady_clock;

// Encoding and decoding are bound by memory: a few threads keep up with the network, and the
// model's own threads need the cores.
int PoolThreads() {
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 2, 1, 4);
}

constexpr std::chrono::seconds kStandbyLogInterval{30};

// Fills *loss with a loss of the step before `step`.
void SetLoss(const PartLossSum& sum, Step step, v1::PartLoss* loss) {
  loss->set_part(sum.part.value());
  loss->set_loss_sum(sum.loss_sum);
  loss->set_tokens(sum.tokens);
  loss->set_step(step.value() - 1);
  if (sum.counts.has_value()) *loss->mutable_counts() = ToMessage(*sum.counts);
}

// The client over gRPC: a fetcher and a pusher per shard, one pool, one supervising thread.
class GrpcParameterClient final : public ParameterClient {
 public:
  explicit GrpcParameterClient(ClientOptions options)
      : core_(std::make_shared<ClientCore>(std::move(options))),
        first_channel_(NewChannel(core_->options.servers[0])),
        pool_(std::make_unique<ThreadPool>(PoolThreads())) {}
  ~GrpcParameterClient() override;

  absl::Status HelloToFirst() { return SayHello(core_, core_->options.servers[0], first_channel_); }

  absl::StatusOr<JoinedJob> Join(const JoinOptions& options) override;
  absl::StatusOr<StepStart> BeginStep(Step step) override;
  absl::Status ReportLosses(absl::Span<const PartLossSum> losses) override;
  absl::Status ReportEvaluation(absl::Span<const PartLossSum> losses) override;
  std::unique_ptr<PendingFetch> FetchStage(StageId stage, Version version, bool backward,
                                           std::shared_ptr<StageSink> sink) override;
  void PreparePush(StageId stage, Version version) override;
  std::shared_ptr<uint8_t> RoomFor(ChunkId chunk, size_t bytes) override;
  absl::Status Push(StageId use, PartId part, uint64_t tokens,
                    std::shared_ptr<const GradientSource> gradient) override;
  absl::Status Flush() override;
  bool HandOver() override;
  absl::Status Leave() override;
  WorkerWish wish() const override { return core_->wish; }
  ClientStats stats() const override {
    ClientLock lock(&core_->mu);
    return core_->stats;
  }

 private:
  // A server, with one connection for control and weights and another for gradients, so that
  // neither direction waits for the other's bytes.
  struct Shard {
    std::shared_ptr<grpc::Channel> down;
    std::shared_ptr<grpc::Channel> up;
    std::unique_ptr<ShardFetcher> fetcher;
    std::unique_ptr<ShardPusher> pusher;
  };

  // Opens the session with the lead, with the leases of the reply.
  absl::Status OpenSession(const v1::JoinReply& reply);
  // Waits as a standby until this worker holds leases; returns false if the job is done instead.
  absl::StatusOr<bool> WaitForLeases();
  absl::Status ConnectShards();
  // Asks every shard for its open step; returns the step at which this worker begins.
  absl::StatusOr<v1::BeginStepReply> ProbeShards();
  v1::BeginStepRequest NewBeginStep(Step step) const;
  absl::Status Report(v1::BeginStepRequest request);
  void FetchFromShards(const std::shared_ptr<FetchOp>& op, const std::vector<ChunkId>& chunks)
      EPS_REQUIRES(client_lock);
  bool AllCounted() const EPS_REQUIRES(client_lock);
  void Supervise() EPS_EXCLUDES(client_lock);

  const std::shared_ptr<ClientCore> core_;
  std::shared_ptr<grpc::Channel> first_channel_;  // until Join
  std::shared_ptr<grpc::Channel> lead_channel_;   // from Join on; the down channel of shard 0
  JobView job_;
  std::vector<PartId> parts_;
  std::unique_ptr<WorkerSession> session_;  // from Join on
  // Join sets these with the lock, because the supervisor looks at them.
  std::vector<Shard> shards_;
  std::unique_ptr<ResidualKeeper> residuals_;
  std::unique_ptr<PushQueue> queue_;
  std::unique_ptr<OpenStep> open_step_;
  std::unique_ptr<ThreadPool> pool_;
  std::thread supervisor_;
  StepTrace trace_ EPS_GUARDED_BY(client_lock);
  bool job_over_ = false;    // the servers said so in BeginStep
  bool hands_over_ = false;  // contributions bring the residuals that live here
  bool stopping_ EPS_GUARDED_BY(client_lock) = false;
};

GrpcParameterClient::~GrpcParameterClient() {
  {
    ClientLock lock(&core_->mu);
    core_->Fail(absl::CancelledError("the client is closed"));
    stopping_ = true;
    core_->timer.NotifyAll();
  }
  if (supervisor_.joinable()) supervisor_.join();
  {
    ClientLock lock(&core_->mu);
    if (session_ != nullptr) session_->link().Stop();
    for (Shard& shard : shards_) {
      shard.fetcher->link().Stop();
      shard.pusher->link().Stop();
    }
    while (core_->active_rpcs > 0) core_->changed.WaitFor(&core_->mu, std::chrono::seconds(1));
  }
  pool_.reset();  // queued tasks see the failure and do not touch tensors
}

absl::StatusOr<JoinedJob> GrpcParameterClient::Join(const JoinOptions& options) {
  if (session_ != nullptr) return absl::FailedPreconditionError("Join: this client has joined");
  const std::string& first = core_->options.servers[0];
  EPS_ASSIGN_OR_RETURN(const v1::JoinReply reply, JoinWhenReady(core_, first_channel_, options));
  EPS_RETURN_IF_ERROR(TakeJob(first, reply, options.codec_plugin, &job_));
  JoinedJob joined;
  joined.spec = job_.spec;
  joined.term = job_.term;
  joined.next_step = Step(reply.step());
  joined.done = reply.state() == v1::JOB_STATE_DONE;
  if (joined.done) return joined;
  EPS_RETURN_IF_ERROR(OpenSession(reply));
  EPS_ASSIGN_OR_RETURN(const bool leased, WaitForLeases());
  joined.done = !leased;
  if (joined.done) return joined;
  EPS_RETURN_IF_ERROR(ConnectShards());
  EPS_ASSIGN_OR_RETURN(const v1::BeginStepReply lowest, ProbeShards());
  first_channel_.reset();
  joined.parts = parts_;
  joined.next_step = Step(lowest.step());
  joined.done = lowest.done();
  return joined;
}

absl::Status GrpcParameterClient::OpenSession(const v1::JoinReply& reply) {
  const std::string context = absl::StrCat("Join on ", core_->options.servers[0], ": ");
  absl::StatusOr<Leases> leases = ReadLeases(reply.leases(), job_.spec.training.parts);
  if (!leases.ok()) {
    return absl::InternalError(absl::StrCat(context, leases.status().message()));
  }
  if (reply.lease_ms() == 0) {
    return absl::InternalError(absl::StrCat(context, "the reply names no length of a lease"));
  }
  lead_channel_ = NewChannel(job_.servers[0]);
  session_ = std::make_unique<WorkerSession>(core_, &job_, lead_channel_, *std::move(leases),
                                             std::chrono::milliseconds(reply.lease_ms()));
  {
    ClientLock lock(&core_->mu);
    session_->link().Ensure();
  }
  supervisor_ = std::thread([this] { Supervise(); });
  return absl::OkStatus();
}

absl::StatusOr<bool> GrpcParameterClient::WaitForLeases() {
  ClientLock lock(&core_->mu);
  ++core_->work.waits;
  TimePoint next_log = steady_clock::now();
  while (core_->failure.ok() && session_->leases().empty() && !session_->done() &&
         core_->wish != WorkerWish::kEnd && !core_->Interrupted()) {
    if (steady_clock::now() >= next_log) {
      EPS_LOG_INFO(
          "standby: other workers hold all parts that this one wants; eps status shows "
          "them");
      next_log += kStandbyLogInterval;
    }
    core_->changed.WaitFor(&core_->mu, kInterruptPoll);
  }
  --core_->work.waits;
  if (!core_->failure.ok()) return core_->failure;
  if (session_->done()) return false;
  if (session_->leases().empty()) return absl::CancelledError("interrupted as a standby");
  job_.leases = session_->leases();
  for (const auto& [part, generation] : job_.leases) parts_.push_back(part);
  return true;
}

absl::Status GrpcParameterClient::ConnectShards() {
  std::vector<Shard> shards(job_.servers.size());
  for (size_t i = 0; i < shards.size(); ++i) {
    shards[i].down = i == 0 ? lead_channel_ : NewChannel(job_.servers[i]);
    shards[i].up = NewChannel(job_.servers[i]);
    EPS_RETURN_IF_ERROR(SayHello(core_, job_.servers[i], shards[i].down));
  }
  ClientLock lock(&core_->mu);  // the supervisor runs already
  residuals_ = std::make_unique<ResidualKeeper>(
      &job_, parts_,
      [this](const std::shared_ptr<FetchOp>& op, const std::vector<ChunkId>& chunks)
          EPS_REQUIRES(client_lock) { FetchFromShards(op, chunks); },
      [this]() EPS_REQUIRES(client_lock) { queue_->OnResiduals(); });
  queue_ = std::make_unique<PushQueue>(
      core_, &job_, pool_.get(), residuals_.get(),
      [this](ShardId shard) { return shards_[shard.value()].pusher.get(); });
  for (size_t i = 0; i < shards.size(); ++i) {
    const ShardId id(static_cast<uint32_t>(i));
    shards[i].fetcher =
        std::make_unique<ShardFetcher>(core_, &job_, id, shards[i].down, pool_.get(), parts_);
    shards[i].pusher = std::make_unique<ShardPusher>(
        core_, &job_, id, shards[i].up,
        [this](uint64_t bytes) EPS_REQUIRES(client_lock) { queue_->OnCounted(bytes); });
  }
  shards_ = std::move(shards);
  open_step_ = std::make_unique<OpenStep>(&job_, parts_);
  return absl::OkStatus();
}

v1::BeginStepRequest GrpcParameterClient::NewBeginStep(Step step) const {
  v1::BeginStepRequest request;
  request.set_job_id(job_.id.value());
  request.set_term(job_.term.value());
  request.set_step(step.value());
  for (const auto& [part, generation] : job_.leases) {
    request.add_parts(part.value());
    request.add_generations(generation);
  }
  request.set_worker_nonce(core_->nonce);
  return request;
}

absl::StatusOr<v1::BeginStepReply> GrpcParameterClient::ProbeShards() {
  v1::BeginStepRequest request = NewBeginStep(Step(0));
  request.set_probe(true);
  std::vector<BeginTarget> targets;
  for (size_t i = 0; i < shards_.size(); ++i)
    targets.push_back({job_.servers[i], shards_[i].down, nullptr});
  EPS_ASSIGN_OR_RETURN(const std::vector<v1::BeginStepReply> replies,
                       BeginStepOnAll(core_, job_, targets, request));
  return open_step_->TakeProbes(replies);
}

absl::StatusOr<StepStart> GrpcParameterClient::BeginStep(Step step) {
  EPS_CHECK_MSG(open_step_ != nullptr && step.value() >= 1, "BeginStep " << step << " before Join");
  const std::vector<size_t> asked = open_step_->ShardsToAsk(step);
  std::vector<BeginTarget> targets;
  for (const size_t i : asked) {
    targets.push_back({job_.servers[i], shards_[i].down, i == 0 ? &trace_ : nullptr});
  }
  v1::BeginStepRequest request = NewBeginStep(step);
  request.set_leaving(hands_over_);
  const auto& awaits_driver = core_->options.awaits_driver;
  request.set_awaits_driver(awaits_driver != nullptr && awaits_driver(step));
  auto begun = BeginStepOnAll(core_, job_, targets, request);
  if (absl::IsCancelled(begun.status()) && !hands_over_ && HandOver()) {  // interrupted
    request.set_leaving(true);
    begun = BeginStepOnAll(core_, job_, targets, request);
  }
  EPS_ASSIGN_OR_RETURN(const std::vector<v1::BeginStepReply> replies, std::move(begun));
  EPS_ASSIGN_OR_RETURN(const StepStart start, open_step_->TakeReplies(step, asked, replies));
  std::vector<bool> push_residuals(shards_.size(), false);
  for (size_t i = 0; i < replies.size(); ++i) {
    push_residuals[asked[i]] = replies[i].push_residuals();
  }
  job_over_ = start.done;
  SetOpenStep(step.value(), start.version.value());
  ClientLock lock(&core_->mu);
  core_->work.step = step;
  residuals_->Begin(step, start.version, std::move(push_residuals));
  return start;
}

absl::Status GrpcParameterClient::Report(v1::BeginStepRequest request) {
  request.set_report_only(true);
  return BeginStepOnAll(core_, job_, {{job_.servers[0], shards_[0].down, nullptr}}, request)
      .status();
}

absl::Status GrpcParameterClient::ReportLosses(absl::Span<const PartLossSum> losses) {
  EPS_CHECK_MSG(open_step_ != nullptr && open_step_->step().value() >= 1,
                "ReportLosses before BeginStep");
  v1::BeginStepRequest request = NewBeginStep(open_step_->step().Next());
  for (const PartLossSum& sum : losses)
    SetLoss(sum, open_step_->step().Next(), request.add_losses());
  return Report(std::move(request));
}

absl::Status GrpcParameterClient::ReportEvaluation(absl::Span<const PartLossSum> losses) {
  EPS_CHECK_MSG(open_step_ != nullptr && open_step_->step().value() >= 1,
                "ReportEvaluation before BeginStep");
  v1::BeginStepRequest request = NewBeginStep(open_step_->step());
  for (const PartLossSum& sum : losses) SetLoss(sum, open_step_->step(), request.add_evaluations());
  return Report(std::move(request));
}

std::unique_ptr<PendingFetch> GrpcParameterClient::FetchStage(StageId stage, Version version,
                                                              bool backward,
                                                              std::shared_ptr<StageSink> sink) {
  EPS_CHECK_MSG(!shards_.empty() && stage.value() < job_.spec.stages.size(), "stage " << stage);
  auto op = std::make_shared<FetchOp>();
  op->stage = stage;
  op->version = version;
  op->backward = backward;
  op->sink = std::move(sink);
  const absl::Span<const ChunkId> chunks = job_.chunks.ChunksOfStage(stage);
  for (const ChunkId chunk : chunks) {
    op->missing += job_.codecs->axes(stage, chunk, backward).has_second ? 2 : 1;
  }
  ClientLock lock(&core_->mu);
  FetchFromShards(op, {chunks.begin(), chunks.end()});
  if (backward) residuals_->WantAt(version, stage);
  return NewPendingFetch(core_, std::move(op));
}

void GrpcParameterClient::PreparePush(StageId stage, Version version) {
  EPS_CHECK_MSG(!shards_.empty() && stage.value() < job_.spec.stages.size(), "stage " << stage);
  ClientLock lock(&core_->mu);
  residuals_->WantAt(version, stage);
}

std::shared_ptr<uint8_t> GrpcParameterClient::RoomFor(ChunkId chunk, size_t bytes) {
  std::shared_ptr<ShmGradients> shared;
  {
    ClientLock lock(&core_->mu);
    shared = shards_[job_.placement[chunk.value()].value()].pusher->shared();
  }
  return shared == nullptr ? nullptr : shared->Allocate(bytes);
}

void GrpcParameterClient::FetchFromShards(const std::shared_ptr<FetchOp>& op,
                                          const std::vector<ChunkId>& chunks) {
  std::vector<std::vector<ChunkId>> by_shard(shards_.size());
  for (const ChunkId chunk : chunks) {
    by_shard[job_.placement[chunk.value()].value()].push_back(chunk);
  }
  for (size_t i = 0; i < shards_.size(); ++i) {
    if (!by_shard[i].empty()) shards_[i].fetcher->Fetch(op, by_shard[i]);
  }
}

absl::Status GrpcParameterClient::Push(StageId use, PartId part, uint64_t tokens,
                                       std::shared_ptr<const GradientSource> gradient) {
  EPS_CHECK_MSG(!shards_.empty() && use.value() < job_.spec.stages.size(), "stage " << use);
  PushQueue::Job job;  // declared before the lock, so the gradient is dropped without the lock
  job.use = use;
  job.part = part;
  job.tokens = tokens;
  job.step = open_step_->step();
  job.loss_scale_log2 = open_step_->loss_scale_log2();
  job.gradient = std::move(gradient);
  for (const ChunkId chunk : job_.chunks.ChunksOfStage(use)) {
    if (job_.chunks.chunk(chunk).frozen) continue;
    if (!open_step_->IsCounted(use, part, chunk)) job.chunks.push_back(chunk);
  }
  if (job.chunks.empty()) return absl::OkStatus();
  const TimePoint start = steady_clock::now();
  ClientLock lock(&core_->mu);
  ++core_->work.waits;
  {
    const TraceSpan span(kWaitForWindowSpan, {job.step.value(), use.value() + 1, part.value() + 1});
    while (core_->failure.ok() && !queue_->admits()) {
      core_->changed.WaitFor(&core_->mu, std::chrono::seconds(1));
    }
  }
  --core_->work.waits;
  const std::chrono::duration<double> waited = steady_clock::now() - start;
  core_->stats.push_wait_seconds += waited.count();
  if (!core_->failure.ok()) return core_->failure;
  residuals_->Want(use);  // usually already requested with the weights of the backward pass
  queue_->Add(std::move(job));
  ++core_->work.visits;
  return absl::OkStatus();
}

bool GrpcParameterClient::AllCounted() const {
  if (!queue_->idle()) return false;
  for (const Shard& shard : shards_) {
    if (!shard.pusher->idle()) return false;
  }
  return true;
}

absl::Status GrpcParameterClient::Flush() {
  EPS_CHECK_MSG(!shards_.empty(), "Flush before Join");
  const TimePoint start = steady_clock::now();
  const TraceSpan span(kFlushSpan, {open_step_->step().value()});
  ClientLock lock(&core_->mu);
  // The links bound this wait: they fail the client when a server no longer answers.
  ++core_->work.waits;
  while (core_->failure.ok() && !AllCounted()) {
    core_->changed.WaitFor(&core_->mu, std::chrono::seconds(1));
  }
  --core_->work.waits;
  const std::chrono::duration<double> waited = steady_clock::now() - start;
  core_->stats.push_wait_seconds += waited.count();
  return core_->failure;
}

bool GrpcParameterClient::HandOver() {
  ClientLock lock(&core_->mu);
  if (residuals_ == nullptr || !residuals_->OnlyHere()) return false;
  hands_over_ = true;
  return true;
}

absl::Status GrpcParameterClient::Leave() {
  EPS_RETURN_IF_ERROR(Flush());
  const TimePoint start = steady_clock::now();
  const TimePoint give_up = start + core_->options.rpc_timeout;
  ClientLock lock(&core_->mu);
  if (!core_->failure.ok()) return core_->failure;
  session_->Leave(job_over_);
  while (core_->failure.ok() && !session_->left() && steady_clock::now() < give_up) {
    core_->changed.WaitUntil(&core_->mu, give_up);
  }
  absl::Status status = session_->left() ? absl::OkStatus() : core_->failure;
  if (!session_->left() && status.ok()) {
    status = core_->Away(job_.servers[0], start, session_->WaitingFor(),
                         absl::DeadlineExceededError("the session did not end"));
  }
  core_->Fail(absl::CancelledError("the client has left the job"));
  return status;
}

// Does the timed work: beats, connects again, offers gradients again, probes silent servers. Once
// the client has failed, drops everything queued.
void GrpcParameterClient::Supervise() {
  for (;;) {
    std::deque<std::shared_ptr<PushQueue::Job>> dropped;  // destroyed without the lock
    ClientLock lock(&core_->mu);
    if (stopping_) return;
    const TimePoint now = steady_clock::now();
    TimePoint next = now + std::chrono::seconds(10);
    if (core_->failure.ok()) {
      next = std::min(next, session_->Tick(now));
    } else {
      session_->link().Stop();
    }
    for (Shard& shard : shards_) {
      if (!core_->failure.ok()) {
        shard.fetcher->link().Stop();
        shard.pusher->link().Stop();
        shard.pusher->Clear();
        continue;
      }
      next = std::min({next, shard.fetcher->link().Tick(now), shard.pusher->link().Tick(now),
                       shard.pusher->Tick(now)});
    }
    if (!core_->failure.ok() && queue_ != nullptr) dropped = queue_->Clear();
    if (!dropped.empty()) continue;
    core_->timer.WaitUntil(&core_->mu, next);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<ParameterClient>> ParameterClient::Connect(ClientOptions options) {
  if (options.servers.empty()) {
    return absl::InvalidArgumentError("no server address given; set servers.addresses");
  }
  for (const std::string& address : options.servers) {
    EPS_RETURN_IF_ERROR(CheckAddress(address, /*allow_any_port=*/false));
  }
  if (options.rpc_timeout.count() <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("worker.rpc_timeout is ",
                                                   options.rpc_timeout.count(),
                                                   " ms, expected a positive duration"));
  }
  KeepGrpcInitialised();
  auto client = std::make_unique<GrpcParameterClient>(std::move(options));
  EPS_RETURN_IF_ERROR(client->HelloToFirst());
  return std::unique_ptr<ParameterClient>(std::move(client));
}

}  // namespace eps
