#include "worker/run_worker.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/job/evaluation/evaluation_metrics.h"
#include "base/job/models/model_family.h"
#include "base/log.h"
#include "base/machine/host_name.h"
#include "base/machine/machine_limits.h"
#include "base/memory_account.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "wire/security/identity.h"
#include "worker/await_job.h"
#include "worker/client/parameter_client.h"
#include "worker/data/batch_source.h"
#include "worker/data/sample_source.h"
#include "worker/exec/torch_runtime.h"
#include "worker/http/worker_metrics.h"
#include "worker/models/model_runtime.h"
#include "worker/relay/relay.h"
#include "worker/stash_room.h"

namespace eps {
namespace {

RuntimeOptions RuntimeOptionsOf(const WorkerOptions& worker) {
  RuntimeOptions options;
  options.device = worker.config.worker.device;
  options.stash = worker.config.worker.stash;
  options.stash_host = StashRoom(worker.config.worker.stash_host, worker.local_count);
  options.stash_path = worker.config.worker.stash_path;
  options.device_memory = worker.config.worker.device_memory;
  options.keep = worker.config.worker.keep;
  options.threads = worker.config.worker.threads;
  if (options.threads == 0) {
    const int local = std::max(1, worker.local_count);
    options.threads = std::max(1, static_cast<int>(UsableProcessors()) / local);
  }
  options.local_rank = worker.local_rank;
  options.local_count = worker.local_count;
  return options;
}

// Opens the job's data, which must be the data that the job was created with.
absl::StatusOr<std::shared_ptr<const SampleSource>> OpenData(const DataConfig& config,
                                                             const JobSpec& spec) {
  if (config.path.empty()) {
    return absl::InvalidArgumentError(
        "data.path is empty: give the files that the job was created with (--data)");
  }
  EPS_ASSIGN_OR_RETURN(auto data, SampleSource::Open(config.path, NeedsOf(spec.model)));
  if (data->tokens() != spec.data.tokens || data->rows() != spec.data.samples) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data.path: ", absl::StrJoin(config.path, ", "), " holds ", data->tokens(), " tokens in ",
        data->rows(), " rows, the job's data has ", spec.data.tokens, " in ", spec.data.samples,
        "; give the files that the job was created with, in the same order"));
  }
  const std::string sha256 = data->Sha256Hex();
  if (sha256 != spec.data.sha256) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.path: the tokens of ", absl::StrJoin(config.path, ", "),
                     " have SHA-256 ", sha256, ", those of the job's data ", spec.data.sha256,
                     "; give the files that the job was created with, in the same order"));
  }
  return data;
}

// The held-out data of a job's evaluations. It does not affect training, so every worker reads it
// from its own configuration. Null without evaluations.
struct HeldOut {
  std::shared_ptr<const SampleSource> data;
  std::unique_ptr<EvaluationSource> source;
  bool count_predictions = false;  // for the metrics of the configuration
};

absl::StatusOr<HeldOut> OpenHeldOut(const Config& config, const JobSpec& spec) {
  HeldOut held_out;
  const TrainingConfig& training = config.training;
  if (training.eval_steps == 0) return held_out;
  EPS_ASSIGN_OR_RETURN(const std::vector<Metric> metrics,
                       ChooseMetrics(spec.model, config.eval.metrics));
  held_out.count_predictions = NeedPredictions(metrics);
  if (!FamilyOf(spec.model.type).ReadsData(spec.model)) {
    if (training.eval_samples > 0) {
      held_out.source = NewEmptyEvaluationSource(spec, training.eval_samples);
    }
    return held_out;
  }
  if (config.data.eval_path.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("training.eval_steps is ", training.eval_steps,
                     ", but data.eval_path names no held-out data; name it, or set 0"));
  }
  const DataNeeds needs = NeedsOf(spec.model);
  EPS_ASSIGN_OR_RETURN(held_out.data,
                       SampleSource::Open(config.data.eval_path, needs, "data.eval_path"));
  EPS_RETURN_IF_ERROR(held_out.data->CheckContent(needs));
  EPS_ASSIGN_OR_RETURN(held_out.source,
                       NewEvaluationSource(spec, *held_out.data, training.eval_samples));
  return held_out;
}

// Writes one line of JSON per step with its figures.
class Report {
 public:
  static absl::StatusOr<std::unique_ptr<Report>> Open(const std::string& path) {
    auto report = std::make_unique<Report>();
    if (path.empty()) return report;
    report->path_ = path;
    report->file_ = std::fopen(path.c_str(), "w");
    if (report->file_ == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("--report: cannot write ", path));
    }
    return report;
  }
  Report() : last_(std::chrono::steady_clock::now()) {}
  ~Report() {
    if (file_ != nullptr) std::fclose(file_);
  }
  Report(const Report&) = delete;
  Report& operator=(const Report&) = delete;

  void Add(Step step, const LossSum& loss, const StepTiming& timing, const ClientStats& stats,
           const DeviceMemory& device, const MemoryAccount& host) {
    const auto now = std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(now - last_).count();
    last_ = now;
    if (file_ == nullptr) return;
    nlohmann::ordered_json line;
    line["step"] = step.value();
    line["seconds"] = seconds;
    line["forward_seconds"] = timing.forward_seconds;
    line["backward_seconds"] = timing.backward_seconds;
    line["fetch_wait_seconds"] = timing.fetch_wait_seconds;
    line["push_wait_seconds"] = timing.push_wait_seconds;
    line["loss_sum"] = loss.sum;
    line["tokens"] = loss.tokens;
    line["fetched_bytes"] = stats.fetched_bytes;
    line["pushed_bytes"] = stats.pushed_bytes;
    line["reconnects"] = stats.reconnects;
    line["device_live_bytes"] = device.live_bytes;
    line["device_peak_bytes"] = device.peak_bytes;
    line["stash_peak_bytes"] = host.peak_bytes(MemoryKind::kStash);
    line["host_peak_bytes"] = host.peak_bytes();
    std::fprintf(file_, "%s\n", line.dump().c_str());
    std::fflush(file_);
  }

  // The report is a convenience: a full disk is logged once at the end and does not end the run.
  void WarnIfIncomplete() const {
    if (file_ != nullptr && std::ferror(file_) != 0) {
      EPS_LOG_WARN("--report: " << path_ << " could not be written completely");
    }
  }

 private:
  std::string path_;
  std::FILE* file_ = nullptr;
  std::chrono::steady_clock::time_point last_;
};

std::string PartsText(const std::vector<PartId>& parts) {
  return absl::StrJoin(parts, ",",
                       [](std::string* out, PartId part) { absl::StrAppend(out, part.value()); });
}

absl::StatusOr<Transport> TransportOf(const std::string& name) {
  if (name == "auto") return Transport::kAuto;
  if (name == "shm") return Transport::kShm;
  if (name == "grpc") return Transport::kGrpc;
  return absl::InvalidArgumentError(
      absl::StrCat("worker.transport: expected auto, shm or grpc, found \"", name, "\""));
}

absl::StatusOr<std::unique_ptr<ParameterClient>> ConnectTo(const WorkerOptions& options,
                                                           const std::function<bool()>& interrupted,
                                                           MemoryAccount* account) {
  ClientOptions client;
  client.servers = options.servers;
  client.client_name = absl::StrCat("eps-worker rank ", options.config.worker.rank);
  client.rpc_timeout = std::chrono::milliseconds(options.config.worker.rpc_timeout_ms);
  EPS_ASSIGN_OR_RETURN(client.transport, TransportOf(options.config.worker.transport));
  client.frozen_cache_bytes = options.config.worker.frozen_cache;
  client.account = account;
  client.interrupted = interrupted;
  // A figure of the step before the last one may have ended the run at the border between.
  const TrainingConfig& training = options.config.training;
  if (training.early_stop_patience > 0) {
    client.awaits_driver = [every = training.eval_steps](Step step) {
      return every > 0 && step.value() > 2 && (step.value() - 2) % every == 0;
    };
  }
  return ParameterClient::Connect(std::move(client));
}

// The state that a worker keeps from one term of its job to the next.
class Worker {
 public:
  Worker(const WorkerOptions& options, const std::function<bool()>& interrupted, JoinOptions join,
         std::unique_ptr<Report> report, WorkerMetrics* metrics)
      : options_(options),
        interrupted_(interrupted),
        join_(std::move(join)),
        report_(std::move(report)),
        metrics_(metrics) {}

  // Waits for the job and runs to its end, and with worker.stay through all later jobs. Joins again
  // if the job's state returned to a durable border, if this worker lost its lease, or if another
  // job took the place of this one (Aborted).
  absl::Status Run() {
    const WorkerConfig& config = options_.config.worker;
    for (;;) {
      const bool has_limit = done_ == JobId(0);  // the next job may be far away
      EPS_RETURN_IF_ERROR(AwaitJob(
          options_.servers[0], done_,
          std::chrono::milliseconds(has_limit ? config.join_timeout_ms : 0), interrupted_));
      const absl::Status status = TrainUntilFenced();
      metrics_->OnLeft();
      if (status.ok() && drained_) return status;
      if (status.ok() && config.stay) {
        done_ = job_;
        continue;
      }
      if (absl::IsFailedPrecondition(status)) return WithFailureCode(status, options_.servers[0]);
      if (!absl::IsAborted(status)) return status;
      if (interrupted_()) {
        return absl::CancelledError(absl::StrCat("interrupted; ", status.message()));
      }
      if (fruitless_joins_ >= kMaxFruitlessJoins) {
        return absl::AbortedError(
            absl::StrCat("joined ", fruitless_joins_, " times in term ", term_.value(),
                         " without completing a step; the last time: ", status.message()));
      }
      EPS_LOG_WARN("joining again: " << status.message());
    }
  }
  void WarnIfIncomplete() const { report_->WarnIfIncomplete(); }

 private:
  // A worker that loses its lease so often in a term, without a step between, gives up.
  static constexpr int kMaxFruitlessJoins = 3;

  // Opens the data of the job that was joined, unless they are open.
  absl::Status OpenBatches(const JobSpec& spec);
  // Joins with a new client, which has no residuals and nothing to push, and trains with it.
  absl::Status TrainUntilFenced();
  // Gives back the leases after step `finished` of `steps`, as the lead wishes or because of an
  // interrupt; returns Aborted if the worker shall join again, and Cancelled after an interrupt.
  absl::Status Drain(ParameterClient* client, uint64_t finished, uint64_t steps);

  const WorkerOptions& options_;
  const std::function<bool()>& interrupted_;
  const JoinOptions join_;
  const std::unique_ptr<Report> report_;
  WorkerMetrics* const metrics_;
  MemoryAccount account_;
  JobId job_{0};             // of the last Join
  JobId done_{0};            // the last job that came to its end
  Term term_;                // of the last Join
  bool drained_ = false;     // the lead has asked this worker to end
  int fruitless_joins_ = 0;  // joins in term_ since the last step that this worker completed
  std::shared_ptr<const SampleSource> data_;
  std::unique_ptr<BatchSource> batches_;
  HeldOut held_out_;
};

absl::Status Worker::OpenBatches(const JobSpec& spec) {
  if (batches_ != nullptr) return absl::OkStatus();
  EPS_ASSIGN_OR_RETURN(held_out_, OpenHeldOut(options_.config, spec));
  if (!FamilyOf(spec.model.type).ReadsData(spec.model)) {
    batches_ = NewEmptyBatchSource(spec);
    return absl::OkStatus();
  }
  EPS_ASSIGN_OR_RETURN(data_, OpenData(options_.config.data, spec));
  batches_ = NewBatchSource(spec, *data_);
  return absl::OkStatus();
}

absl::Status Worker::Drain(ParameterClient* client, uint64_t finished, uint64_t steps) {
  if (client->HandOver()) {
    EPS_LOG_WARN("step " << finished + 1
                         << " did not begin in time (worker.rpc_timeout): the residuals "
                         << "of this worker are lost (quantization.residual_home=worker)");
  }
  // Everything of the step is counted. Without a Leave, the leases end a little later.
  const absl::Status left = client->Leave();
  if (!left.ok()) EPS_LOG_WARN("the leases are not given back: " << left.message());
  if (client->wish() == WorkerWish::kRejoin && !interrupted_()) {
    fruitless_joins_ = 0;
    return absl::AbortedError("the lead deals the parts to other workers");
  }
  EPS_LOG_INFO("drained after step " << finished << " of " << steps);
  drained_ = client->wish() == WorkerWish::kEnd;
  if (drained_) return absl::OkStatus();
  return absl::CancelledError(absl::StrCat("interrupted after step ", finished, " of ", steps));
}

absl::Status Worker::TrainUntilFenced() {
  std::unique_ptr<StageRuntime> runtime;  // outlives the client, which reads gradients in it
  EPS_ASSIGN_OR_RETURN(const auto client, ConnectTo(options_, interrupted_, &account_));
  const absl::StatusOr<JoinedJob> joined = client->Join(join_);
  if (absl::IsCancelled(joined.status()) && client->wish() == WorkerWish::kEnd) {
    drained_ = true;  // as a standby
    return absl::OkStatus();
  }
  EPS_RETURN_IF_ERROR(joined.status());
  const JoinedJob& job = *joined;
  if (job.spec.id() != job_) {
    job_ = job.spec.id();
    term_ = Term(0);
    batches_.reset();
  }
  fruitless_joins_ = job.term == term_ ? fruitless_joins_ + 1 : 1;
  term_ = job.term;
  if (job.done) {
    EPS_LOG_INFO("the job is done: nothing to compute");
    return absl::OkStatus();
  }
  EPS_LOG_INFO("joined the job at step "
               << job.next_step << " of " << job.spec.training.steps << ", term " << job.term
               << ", with parts " << PartsText(job.parts) << " (" << join_.compute_profile << ")");
  metrics_->OnJoined(job.parts.size());
  EPS_RETURN_IF_ERROR(OpenBatches(job.spec));
  EPS_ASSIGN_OR_RETURN(
      runtime,
      NewModelRuntime(job.spec, RuntimeOptionsOf(options_),
                      std::chrono::milliseconds(options_.config.worker.pass_time_ms), &account_));

  RelayOptions relay_options;
  relay_options.prefetch = options_.config.worker.prefetch;
  relay_options.evaluation_or_null = held_out_.source.get();
  relay_options.eval_steps = options_.config.training.eval_steps;
  relay_options.count_predictions = held_out_.count_predictions;
  Relay relay(job, client.get(), runtime.get(), batches_.get(), relay_options);
  uint64_t finished = job.next_step.value() - 1;
  bool stopped = false;
  // After the last step only its completion is outstanding; an interrupt does not cut that off.
  const auto leaves = [&] { return interrupted_() || client->wish() != WorkerWish::kNone; };
  const auto stop = [&] {
    if (finished >= job.next_step.value()) fruitless_joins_ = 0;  // and all of it is counted
    stopped = finished < job.spec.training.steps && leaves() && !client->HandOver();
    return stopped;
  };
  const absl::Status status =
      relay.Run(stop, [&](Step step, const LossSum& loss, const StepTiming& timing) {
        finished = step.value();
        const ClientStats stats = client->stats();
        const DeviceMemory device = runtime->device_memory();
        report_->Add(step, loss, timing, stats, device, account_);
        metrics_->OnStep(step, loss, timing, stats, device, account_);
      });
  stopped = stopped || (absl::IsCancelled(status) && leaves());  // in BeginStep
  if (!stopped) EPS_RETURN_IF_ERROR(status);
  if (stopped) return Drain(client.get(), finished, job.spec.training.steps);
  // The job is done, so nobody misses the leases if the servers are gone already.
  const absl::Status left = client->Leave();
  if (!left.ok()) EPS_LOG_INFO("the job is done; the lease ends by itself: " << left.message());
  return absl::OkStatus();
}

}  // namespace

absl::Status RunWorker(const WorkerOptions& options, const std::function<bool()>& interrupted) {
  const SecurityConfig& config = options.config.security;
  SecurityOptions security;
  security.dir = config.dir;
  security.trust_domain = config.trust_domain;
  security.token = config.token;
  EPS_RETURN_IF_ERROR(UseSecurity(std::move(security), config.tls));
  JoinOptions join;
  join.rank = static_cast<uint32_t>(options.config.worker.rank);
  join.count = static_cast<uint32_t>(options.config.worker.count);
  join.host = HostName();
  join.codec_plugin = options.config.quantization.plugin;
  EPS_ASSIGN_OR_RETURN(join.compute_profile, TorchComputeProfile(RuntimeOptionsOf(options)));
  EPS_ASSIGN_OR_RETURN(auto report, Report::Open(options.report_path));
  WorkerMetrics metrics;
  std::unique_ptr<HttpServer> http;
  if (const std::string& listen = options.config.worker.http; !listen.empty()) {
    EPS_ASSIGN_OR_RETURN(http, ServeWorkerMetrics(listen, &metrics));
    EPS_LOG_INFO("probes and metrics: http://" << http->address());
  }
  Worker worker(options, interrupted, std::move(join), std::move(report), &metrics);
  const absl::Status status = worker.Run();
  worker.WarnIfIncomplete();
  return status;
}

}  // namespace eps
