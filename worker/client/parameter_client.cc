#include "worker/client/parameter_client.h"

#include <algorithm>
#include <functional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/executor.h"
#include "base/job/layout/codec_table.h"
#include "base/status_macros.h"
#include "compression/codec.h"
#include "eps/v1/control.grpc.pb.h"
#include "grpcpp/client_context.h"
#include "wire/channel.h"
#include "wire/grpc_status.h"
#include "worker/client/begin_step.h"
#include "worker/client/client_core.h"
#include "worker/client/fetcher.h"
#include "worker/client/open_step.h"
#include "worker/client/pusher.h"
#include "worker/client/residual_keeper.h"

namespace eps {
namespace {

using std::chrono::steady_clock;

// Encoding and decoding are bound by memory: a few threads keep up with the network, and the
// model's own threads need the cores.
int PoolThreads() {
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 2, 1, 4);
}

using UnaryCall = std::function<grpc::Status(grpc::ClientContext*, const std::string& request_id)>;

// Waits until `deadline` or a failure of the client.
void Pause(ClientCore* core, TimePoint deadline) EPS_REQUIRES(core->mu, client_lock) {
  while (core->failure.ok() && steady_clock::now() < deadline) {
    core->changed.WaitUntil(&core->mu, deadline);
  }
}

// Retries a unary call on the calling thread until it is answered or the server has been away for
// rpc_timeout.
absl::Status CallWithRetry(ClientCore* core, const std::string& address, grpc::Channel* channel,
                           absl::string_view what, const UnaryCall& call) {
  const TimePoint start = steady_clock::now();
  const TimePoint give_up = start + core->options.rpc_timeout;
  absl::Status last_error;
  for (int attempt = 0;; ++attempt) {
    std::string request_id;
    {
      ClientLock lock(&core->mu);
      request_id = core->NextRequestId();
    }
    const auto left = std::max<steady_clock::duration>(give_up - steady_clock::now(),
                                                       std::chrono::milliseconds(1));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::duration_cast<std::chrono::microseconds>(left));
    const absl::Status status =
        FromGrpc(call(&context, request_id), absl::StrCat(what, " on ", address));
    if (status.ok() || !MayRepeat(status.code())) return status;
    // The last attempt may have been cut short by the remaining time; its error explains nothing.
    if (last_error.ok() || !absl::IsDeadlineExceeded(status)) last_error = status;
    ClientLock lock(&core->mu);
    const TimePoint next = steady_clock::now() + core->BackOff(attempt);
    if (next >= give_up) return core->Away(address, start, what, last_error);
    Pause(core, next);
    grpc::experimental::ChannelResetConnectionBackoff(channel);
  }
}

// Fills *loss with a loss of the step before `step`.
void SetLoss(const PartLossSum& sum, Step step, v1::PartLoss* loss) {
  loss->set_part(sum.part.value());
  loss->set_loss_sum(sum.loss_sum);
  loss->set_tokens(sum.tokens);
  loss->set_step(step.value() - 1);
}

// The client over gRPC: a fetcher and a pusher per shard, one pool, one supervising thread.
class GrpcParameterClient final : public ParameterClient {
 public:
  explicit GrpcParameterClient(ClientOptions options)
      : core_(std::make_shared<ClientCore>(std::move(options))),
        first_channel_(NewChannel(core_->options.servers[0])),
        pool_(std::make_unique<ThreadPool>(PoolThreads())) {}
  ~GrpcParameterClient() override;

  absl::Status HelloToFirst() { return SayHello(core_->options.servers[0], first_channel_); }

  absl::StatusOr<JoinedJob> Join(const JoinOptions& options) override;
  absl::StatusOr<StepStart> BeginStep(Step step) override;
  absl::Status ReportLosses(absl::Span<const PartLossSum> losses) override;
  absl::Status ReportEvaluation(absl::Span<const PartLossSum> losses) override;
  std::unique_ptr<PendingFetch> FetchStage(StageId stage, Version version, bool backward,
                                           TensorPointers out) override;
  absl::Status Push(StageId use, PartId part, uint64_t tokens, TensorPointers gradient,
                    std::shared_ptr<void> keep_alive) override;
  absl::Status Flush() override;
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

  absl::Status SayHello(const std::string& address, const std::shared_ptr<grpc::Channel>& channel);
  absl::StatusOr<v1::JoinReply> JoinWhenReady(const JoinOptions& options);
  // Returns whether the server answers and its job still waits for its weights.
  bool IsImporting(v1::Control::Stub* stub);
  absl::Status TakeJob(const v1::JoinReply& reply);
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
  JobView job_;
  std::vector<PartId> parts_;
  std::vector<Shard> shards_;
  std::unique_ptr<ResidualKeeper> residuals_;
  std::unique_ptr<PushQueue> queue_;
  std::unique_ptr<OpenStep> open_step_;  // from Join on
  std::unique_ptr<ThreadPool> pool_;
  std::thread supervisor_;
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
    for (Shard& shard : shards_) {
      shard.fetcher->link().Stop();
      shard.pusher->link().Stop();
    }
    while (core_->active_rpcs > 0) core_->changed.WaitFor(&core_->mu, std::chrono::seconds(1));
  }
  pool_.reset();  // queued tasks see the failure and do not touch tensors
}

absl::Status GrpcParameterClient::SayHello(const std::string& address,
                                           const std::shared_ptr<grpc::Channel>& channel) {
  const auto stub = v1::Control::NewStub(channel);
  v1::HelloRequest request;
  request.set_min_protocol(kProtocolVersion);
  request.set_max_protocol(kProtocolVersion);
  request.set_client(core_->options.client_name);
  v1::HelloReply reply;
  EPS_RETURN_IF_ERROR(
      CallWithRetry(core_.get(), address, channel.get(), "Hello",
                    [&](grpc::ClientContext* context, const std::string& request_id) {
                      request.set_request_id(request_id);
                      return stub->Hello(context, request, &reply);
                    }));
  if (reply.protocol() == kProtocolVersion) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("server ", address, " speaks protocol ",
                                                    reply.protocol(), ", this worker ",
                                                    kProtocolVersion));
}

// Waits for the job's initial weights, which another client imports, as long as the server answers
// that it waits for them too.
absl::StatusOr<v1::JoinReply> GrpcParameterClient::JoinWhenReady(const JoinOptions& options) {
  const std::string& address = core_->options.servers[0];
  const auto stub = v1::Control::NewStub(first_channel_);
  v1::JoinRequest request;
  request.set_worker_nonce(core_->nonce);
  request.set_worker_rank(options.rank);
  request.set_worker_count(options.count);
  request.set_compute_profile(options.compute_profile);
  for (int attempt = 0;; ++attempt) {
    v1::JoinReply reply;
    const absl::Status status =
        CallWithRetry(core_.get(), address, first_channel_.get(), "Join",
                      [&](grpc::ClientContext* context, const std::string& request_id) {
                        request.set_request_id(request_id);
                        return stub->Join(context, request, &reply);
                      });
    if (status.ok() && reply.state() != v1::JOB_STATE_IMPORTING) return reply;
    if (!status.ok() && (!absl::IsUnavailable(status) || !IsImporting(stub.get()))) return status;
    ClientLock lock(&core_->mu);
    Pause(core_.get(), steady_clock::now() + core_->BackOff(attempt));
  }
}

bool GrpcParameterClient::IsImporting(v1::Control::Stub* stub) {
  v1::StatusRequest request;
  v1::StatusReply reply;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + core_->options.rpc_timeout);
  return stub->Status(&context, request, &reply).ok() &&
         (reply.state() == v1::JOB_STATE_IMPORTING || reply.state() == v1::JOB_STATE_RECOVERING);
}

absl::StatusOr<JoinedJob> GrpcParameterClient::Join(const JoinOptions& options) {
  if (!shards_.empty()) return absl::FailedPreconditionError("Join: this client has joined");
  EPS_ASSIGN_OR_RETURN(const v1::JoinReply reply, JoinWhenReady(options));
  if (reply.state() == v1::JOB_STATE_FAILED) {
    return absl::FailedPreconditionError(
        absl::StrCat("Join on ", core_->options.servers[0],
                     ": the job cannot continue; `eps status` shows the reason"));
  }
  EPS_RETURN_IF_ERROR(TakeJob(reply));
  EPS_RETURN_IF_ERROR(ConnectShards());
  EPS_ASSIGN_OR_RETURN(const v1::BeginStepReply lowest, ProbeShards());
  first_channel_.reset();
  supervisor_ = std::thread([this] { Supervise(); });
  JoinedJob joined;
  joined.spec = job_.spec;
  joined.parts = parts_;
  joined.term = job_.term;
  joined.next_step = Step(lowest.step());
  joined.done = lowest.done();
  return joined;
}

absl::Status GrpcParameterClient::TakeJob(const v1::JoinReply& reply) {
  const std::string context = absl::StrCat("Join on ", core_->options.servers[0], ": ");
  absl::StatusOr<JobSpec> spec = JobSpec::Parse(reply.spec_text());
  if (!spec.ok()) {
    return absl::Status(spec.status().code(), absl::StrCat(context, spec.status().message()));
  }
  for (const uint32_t part : reply.parts()) {
    if (part >= spec->training.parts) {
      return absl::InternalError(
          absl::StrCat(context, "part ", part, " of a job of ", spec->training.parts, " parts"));
    }
    parts_.push_back(PartId(part));
  }
  std::sort(parts_.begin(), parts_.end());
  if (parts_.empty() || reply.servers().empty()) {
    return absl::InternalError(absl::StrCat(context, "the reply names no parts or no servers"));
  }
  job_.chunks = ChunkMap::Build(*spec);
  job_.id = spec->id();
  job_.spec = *std::move(spec);
  absl::StatusOr<CodecTable> codecs = CodecTable::Build(job_.spec, job_.chunks);
  if (!codecs.ok()) {
    return absl::Status(
        codecs.status().code(),
        absl::StrCat(context, "this worker cannot take part: ", codecs.status().message(),
                     "; the codecs of the job are ", absl::StrJoin(CodecNamesOf(job_.spec), ", ")));
  }
  job_.codecs.emplace(*std::move(codecs));
  job_.term = Term(reply.term());
  job_.servers.assign(reply.servers().begin(), reply.servers().end());
  job_.placement = job_.chunks.Place(static_cast<uint32_t>(job_.servers.size()));
  return absl::OkStatus();
}

absl::Status GrpcParameterClient::ConnectShards() {
  for (const std::string& address : job_.servers) {
    EPS_RETURN_IF_ERROR(CheckAddress(address, /*allow_any_port=*/false));
  }
  std::vector<Shard> shards(job_.servers.size());
  for (size_t i = 0; i < shards.size(); ++i) {
    shards[i].down = NewChannel(job_.servers[i]);
    shards[i].up = NewChannel(job_.servers[i]);
    EPS_RETURN_IF_ERROR(SayHello(job_.servers[i], shards[i].down));
  }
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
  for (const PartId part : parts_) request.add_parts(part.value());
  request.set_worker_nonce(core_->nonce);
  return request;
}

absl::StatusOr<v1::BeginStepReply> GrpcParameterClient::ProbeShards() {
  v1::BeginStepRequest request = NewBeginStep(Step(0));
  request.set_probe(true);
  std::vector<BeginTarget> targets;
  for (size_t i = 0; i < shards_.size(); ++i) targets.push_back({job_.servers[i], shards_[i].down});
  EPS_ASSIGN_OR_RETURN(const std::vector<v1::BeginStepReply> replies,
                       BeginStepOnAll(core_, job_, targets, request));
  return open_step_->TakeProbes(replies);
}

absl::StatusOr<StepStart> GrpcParameterClient::BeginStep(Step step) {
  EPS_CHECK_MSG(!shards_.empty() && step.value() >= 1, "BeginStep " << step << " before Join");
  const std::vector<size_t> asked = open_step_->ShardsToAsk(step);
  std::vector<BeginTarget> targets;
  for (const size_t i : asked) targets.push_back({job_.servers[i], shards_[i].down});
  EPS_ASSIGN_OR_RETURN(const std::vector<v1::BeginStepReply> replies,
                       BeginStepOnAll(core_, job_, targets, NewBeginStep(step)));
  EPS_ASSIGN_OR_RETURN(const StepStart start, open_step_->TakeReplies(step, asked, replies));
  std::vector<bool> push_residuals(shards_.size(), false);
  for (size_t i = 0; i < replies.size(); ++i) {
    push_residuals[asked[i]] = replies[i].push_residuals();
  }
  ClientLock lock(&core_->mu);
  residuals_->Begin(step, start.version, std::move(push_residuals));
  return start;
}

absl::Status GrpcParameterClient::Report(v1::BeginStepRequest request) {
  request.set_report_only(true);
  return BeginStepOnAll(core_, job_, {{job_.servers[0], shards_[0].down}}, request).status();
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
                                                              bool backward, TensorPointers out) {
  EPS_CHECK_MSG(!shards_.empty() && stage.value() < job_.spec.stages.size(), "stage " << stage);
  const size_t uses = job_.spec.stages[stage.value()].uses.size();
  const bool two_views =
      backward && job_.spec.codecs.backward_weights == BackwardWeights::kBothAxes;
  EPS_CHECK(out.size() == (two_views ? 2 : 1) * uses);
  auto op = std::make_shared<FetchOp>();
  op->stage = stage;
  op->version = version;
  op->backward = backward;
  op->out = std::move(out);
  const absl::Span<const ChunkId> chunks = job_.chunks.ChunksOfStage(stage);
  for (const ChunkId chunk : chunks) {
    op->missing += job_.codecs->axes(stage, chunk, backward).has_second ? 2 : 1;
  }
  ClientLock lock(&core_->mu);
  FetchFromShards(op, {chunks.begin(), chunks.end()});
  if (backward) residuals_->Want(stage);
  return NewPendingFetch(core_, std::move(op));
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
                                       TensorPointers gradient, std::shared_ptr<void> keep_alive) {
  EPS_CHECK_MSG(!shards_.empty() && use.value() < job_.spec.stages.size(), "stage " << use);
  EPS_CHECK(gradient.size() == job_.spec.stages[use.value()].uses.size());
  PushQueue::Job job;  // declared before the lock, so keep_alive is dropped without the lock
  job.use = use;
  job.part = part;
  job.tokens = tokens;
  job.step = open_step_->step();
  job.gradient = std::move(gradient);
  job.keep_alive = std::move(keep_alive);
  for (const ChunkId chunk : job_.chunks.ChunksOfStage(use)) {
    if (!open_step_->IsCounted(use, part, chunk)) job.chunks.push_back(chunk);
  }
  if (job.chunks.empty()) return absl::OkStatus();
  const TimePoint start = steady_clock::now();
  ClientLock lock(&core_->mu);
  while (core_->failure.ok() && !queue_->admits()) {
    core_->changed.WaitFor(&core_->mu, std::chrono::seconds(1));
  }
  const std::chrono::duration<double> waited = steady_clock::now() - start;
  core_->stats.push_wait_seconds += waited.count();
  if (!core_->failure.ok()) return core_->failure;
  residuals_->Want(use);  // usually already requested with the weights of the backward pass
  queue_->Add(std::move(job));
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
  ClientLock lock(&core_->mu);
  // The links bound this wait: they fail the client when a server no longer answers.
  while (core_->failure.ok() && !AllCounted()) {
    core_->changed.WaitFor(&core_->mu, std::chrono::seconds(1));
  }
  const std::chrono::duration<double> waited = steady_clock::now() - start;
  core_->stats.push_wait_seconds += waited.count();
  return core_->failure;
}

// Does the timed work: connects again, offers gradients again, probes silent servers. Once the
// client has failed, drops everything queued.
void GrpcParameterClient::Supervise() {
  for (;;) {
    std::deque<std::shared_ptr<PushQueue::Job>> dropped;  // destroyed without the lock
    ClientLock lock(&core_->mu);
    if (stopping_) return;
    const TimePoint now = steady_clock::now();
    TimePoint next = now + std::chrono::seconds(10);
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
    if (!core_->failure.ok()) dropped = queue_->Clear();
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
