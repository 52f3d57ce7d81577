#include "cli/measure/exchange_speed.h"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/ids.h"
#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"
#include "base/job/layout/model_layout.h"
#include "base/job/layout/visits.h"
#include "base/status_macros.h"
#include "eps_server/server.h"
#include "planner/workload.h"
#include "wire/control_client.h"
#include "worker/client/parameter_client.h"

namespace eps {
namespace {

using planner::Bytes;
using planner::Seconds;

constexpr int kStages = 12;
constexpr int kRounds = 5;
constexpr uint64_t kStepsOfRound = 8;
constexpr std::chrono::seconds kPatience{20};
constexpr double kSides = 2;

// Returns a job with one part, one micro-batch, and FP32 everywhere.
absl::StatusOr<JobSpec> SpecOf(int width, uint64_t chunk_elements) {
  JobSpec spec;
  spec.name = "calibrate";
  spec.model.type = ModelType::kSynthetic;
  spec.model.synthetic.n_layer = kStages;
  spec.model.synthetic.n_embd = width;
  spec.chunk_elements = chunk_elements;
  spec.training.steps = 1'000'000;
  spec.training.micro_batch_size = 1;
  spec.training.seq_len = 1;
  spec.data.tokens = 1000;
  spec.data.sha256 = std::string(64, '0');
  EPS_RETURN_IF_ERROR(BuildLayout(/*weight_decay=*/0.01, &spec));
  EPS_RETURN_IF_ERROR(spec.Validate());
  return spec;
}

Seconds ProcessorTime() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return Seconds(seconds(usage.ru_utime) + seconds(usage.ru_stime));
}

// A server with one job, and the worker of its only part.
class Exchange {
 public:
  static absl::StatusOr<std::unique_ptr<Exchange>> Open(const JobSpec& spec) {
    auto exchange = std::make_unique<Exchange>(spec);
    EPS_RETURN_IF_ERROR(exchange->Begin());
    return exchange;
  }
  explicit Exchange(const JobSpec& spec) : spec_(spec) {}

  // Returns this process's processor time per step; the process is both server and worker.
  absl::StatusOr<Seconds> Measure() {
    const Seconds before = ProcessorTime();
    for (uint64_t i = 0; i < kStepsOfRound; ++i) EPS_RETURN_IF_ERROR(RunStep());
    return (ProcessorTime() - before) / static_cast<double>(kStepsOfRound);
  }

 private:
  absl::Status Begin() {
    EPS_ASSIGN_OR_RETURN(server_, Server::Start(ServerOptions()));
    EPS_ASSIGN_OR_RETURN(
        const auto control,
        ControlClient::Connect({server_->address()}, std::chrono::steady_clock::now() + kPatience));
    EPS_RETURN_IF_ERROR(control->CreateJob(spec_).status());
    EPS_RETURN_IF_ERROR(control->Initialize(ShardId(0)));
    ClientOptions options;
    options.servers = {server_->address()};
    options.rpc_timeout = kPatience;
    EPS_ASSIGN_OR_RETURN(client_, ParameterClient::Connect(std::move(options)));
    EPS_ASSIGN_OR_RETURN(const JoinedJob job, client_->Join(JoinOptions()));
    next_step_ = job.next_step;
    for (std::vector<float>& stage : stages_) stage.resize(LargestStage());
    gradient_ = std::make_shared<std::vector<float>>(LargestStage(), 1e-3F);
    return RunStep();  // the first one allocates
  }

  size_t LargestStage() const {
    const ChunkMap chunks = ChunkMap::Build(spec_);
    uint64_t most = 0;
    for (uint32_t s = 0; s < spec_.stages.size(); ++s) {
      most = std::max(most, chunks.StageElements(StageId(s)));
    }
    return most;
  }

  TensorPointers PointersInto(StageId stage, std::vector<float>* memory) const {
    TensorPointers pointers;
    size_t at = 0;
    for (const TensorUse& use : spec_.stages[stage.value()].uses) {
      pointers.push_back(memory->data() + at);
      at += spec_.tensors[use.tensor.value()].elements();
    }
    return pointers;
  }

  // Fetches and pushes as the relay does, one stage ahead, but computes nothing.
  absl::Status RunStep() {
    EPS_ASSIGN_OR_RETURN(const StepStart step, client_->BeginStep(next_step_));
    const std::vector<Visit> visits = VisitsOfStep(spec_);
    std::array<std::unique_ptr<PendingFetch>, 2> fetches;
    const auto fetch = [&](size_t i) {
      fetches[i % 2] = nullptr;
      if (i == visits.size() || !FetchesWeights(spec_, visits[i])) return;
      const StageId stage = visits[i].stage;
      fetches[i % 2] = client_->FetchStage(
          stage, step.version, visits[i].backward,
          std::make_shared<HostSink>(&spec_, stage, PointersInto(stage, &stages_[i % 2])));
    };
    fetch(0);
    for (size_t i = 0; i < visits.size(); ++i) {
      const StageId stage = visits[i].stage;
      fetch(i + 1);
      if (fetches[i % 2] != nullptr) EPS_RETURN_IF_ERROR(fetches[i % 2]->Wait());
      if (!visits[i].backward) continue;
      if (stage == StageId(0)) EPS_RETURN_IF_ERROR(client_->ReportLosses({{PartId(0), 1.0, 1}}));
      EPS_RETURN_IF_ERROR(
          client_->Push(stage, PartId(0), /*tokens=*/1,
                        std::make_shared<HostGradient>(
                            spec_, stage, PointersInto(stage, gradient_.get()), gradient_)));
    }
    EPS_RETURN_IF_ERROR(client_->Flush());
    next_step_ = Step(next_step_.value() + 1);
    return absl::OkStatus();
  }

  const JobSpec spec_;
  std::unique_ptr<Server> server_;
  std::array<std::vector<float>, 2> stages_;
  std::shared_ptr<std::vector<float>> gradient_;
  Step next_step_;
  std::unique_ptr<ParameterClient> client_;
};

// The messages and bytes of a step, and their processor time.
struct StepWork {
  double chunks = 0;
  Bytes bytes;
  Seconds kernels;
};

absl::StatusOr<StepWork> WorkOf(const JobSpec& spec, const planner::ServerKind& server,
                                const planner::CodecRates& fp32) {
  EPS_ASSIGN_OR_RETURN(const planner::Workload work, planner::WorkloadOf(spec));
  StepWork step;
  step.chunks = work.fetched_chunks(/*parts=*/1) + work.pushed_chunks_of_part();
  step.bytes = work.fetched_by_worker() + work.pushed_of_part();
  for (size_t s = 0; s < work.stages.size(); ++s) {
    const double fetches = work.stages[s].fetch_backward > Bytes(0) ? 2 : 1;
    const Bytes weights(sizeof(float) * static_cast<double>(work.stages[s].elements));
    step.kernels += (fetches + 1) * (weights / fp32.encode) + fetches * (weights / fp32.decode) +
                    weights / server.update;
  }
  return step;
}

}  // namespace

absl::StatusOr<ExchangeSpeed> MeasureExchange(const planner::ServerKind& server,
                                              const planner::CodecRates& fp32) {
  // Stages of one chunk, of the same bytes in several chunks, and of more bytes in one chunk.
  constexpr int kJobs = 3;
  constexpr std::pair<int, uint64_t> kShapes[kJobs] = {
      {256, 256 * 256}, {256, 32 * 256}, {768, 768 * 768}};
  std::vector<std::unique_ptr<Exchange>> exchanges;
  std::vector<StepWork> works;
  for (const auto& [width, chunk_elements] : kShapes) {
    EPS_ASSIGN_OR_RETURN(const JobSpec spec, SpecOf(width, chunk_elements));
    EPS_ASSIGN_OR_RETURN(works.emplace_back(), WorkOf(spec, server, fp32));
    EPS_ASSIGN_OR_RETURN(exchanges.emplace_back(), Exchange::Open(spec));
  }
  std::array<std::vector<Seconds>, kJobs> times;
  for (int round = 0; round < kRounds; ++round) {
    for (int job = 0; job < kJobs; ++job) {
      EPS_ASSIGN_OR_RETURN(times[job].emplace_back(), exchanges[job]->Measure());
    }
  }
  std::array<Seconds, kJobs> step;
  for (int job = 0; job < kJobs; ++job) {
    std::sort(times[job].begin(), times[job].end());
    step[job] = times[job][kRounds / 2] - works[job].kernels;
  }
  // Noise must not make a cost negative.
  const auto beyond = [&](int job) { return Max(Seconds(0), step[job] - step[0]) / kSides; };
  ExchangeSpeed speed;
  speed.chunk = beyond(1) / (works[1].chunks - works[0].chunks);
  speed.transport = (works[2].bytes - works[0].bytes) / beyond(2);
  return speed;
}

}  // namespace eps
