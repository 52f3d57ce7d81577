#include "worker/measure/step_speed.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/job/keys.h"
#include "base/job/names.h"
#include "base/status_macros.h"
#include "base/trace/trace_log.h"
#include "worker/exec/torch_runtime.h"
#include "worker/measure/gpt2_job.h"
#include "worker/measure/instant_client.h"
#include "worker/models/model_stages.h"
#include "worker/relay/host_stage_pool.h"
#include "worker/relay/relay.h"

namespace eps {
namespace {

using std::chrono::steady_clock;

constexpr size_t kHostStages = 4;

absl::StatusOr<JobSpec> SpecOf(const StepOptions& options) {
  MeasuredShape shape = {options.layers,
                         options.width,
                         options.heads,
                         options.vocab,
                         options.seq_len,
                         options.samples,
                         {}};
  if (!FindName(options.precision, &shape.precision)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--precision=", options.precision, ": expected fp32, bf16 or cmp"));
  }
  EPS_ASSIGN_OR_RETURN(JobSpec spec, MeasuredJob(shape));
  if (!FindName(options.gradient_sum, &spec.training.gradient_sum)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--gradient-sum=", options.gradient_sum, ": expected tree or fused"));
  }
  spec.training.micro_batches = options.micro_batches;
  // One step warms up, and one more is traced.
  spec.training.steps = options.steps + 1 + (options.trace.empty() ? 0 : 1);
  if (shape.precision == Precision::kFp32) return spec;
  for (TensorCodecs* const of : {&spec.codecs.embedding, &spec.codecs.head}) {
    of->weights = of->gradients = "bf16";
  }
  spec.codecs.weights = spec.codecs.gradients = "bf16";
  return spec;
}

// Serves the same batch for every step.
class OneBatch final : public BatchSource {
 public:
  explicit OneBatch(MicroBatch batch) : batch_(std::move(batch)) {}
  absl::StatusOr<MicroBatch> Get(Step step, uint32_t index) override {
    MicroBatch batch = batch_;
    batch.step = step;
    batch.index = index;
    return batch;
  }

 private:
  const MicroBatch batch_;
};

double MedianOf(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  return seconds.empty() ? 0 : seconds[seconds.size() / 2];
}

double SecondsSince(steady_clock::time_point begin) {
  return std::chrono::duration<double>(steady_clock::now() - begin).count();
}

// As many threads as a worker's client has.
int ClientThreads() {
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 2, 1, 4);
}

absl::Status WriteTrace(const std::string& path, const std::vector<RecordedSpan>& spans) {
  int64_t first = spans.empty() ? 0 : spans[0].start_ns;
  for (const RecordedSpan& span : spans) first = std::min(first, span.start_ns);
  std::string json = "{\"traceEvents\": [";
  for (const RecordedSpan& span : spans) {
    absl::StrAppendFormat(&json,
                          "%s\n{\"ph\": \"X\", \"pid\": 1, \"tid\": %u, \"name\": \"%s\", "
                          "\"ts\": %.3f, \"dur\": %.3f, \"args\": {\"step\": %u, \"stage\": %d}}",
                          &span == &spans[0] ? "" : ",", span.thread, span.name,
                          static_cast<double>(span.start_ns - first) / 1e3,
                          static_cast<double>(span.duration_ns) / 1e3, span.place.step,
                          static_cast<int>(span.place.subject) - 1);
  }
  json += "\n]}\n";
  std::FILE* const file = std::fopen(path.c_str(), "w");
  const bool written =
      file != nullptr && std::fwrite(json.data(), 1, json.size(), file) == json.size();
  if (file != nullptr && std::fclose(file) == 0 && written) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--trace=", path, ": the file cannot be written"));
}

// Returns the seconds of a step by the relay, between the ends of two steps; the end of a step
// waits for the device, because it reads the losses.
absl::StatusOr<double> TimeRelay(const JobSpec& spec, StageRuntime* runtime,
                                 const std::string& trace) {
  JoinedJob job;
  job.spec = spec;
  job.parts = {PartId(0)};
  job.next_step = Step(1);
  InstantClient client(spec, ClientThreads());
  OneBatch batches(MeasuredBatch(spec, spec.training.micro_batch_size));
  Relay relay(job, &client, runtime, &batches, RelayOptions());
  std::vector<double> seconds;
  std::unique_ptr<TraceRecording> recording;  // of the last step, which is not timed
  steady_clock::time_point last = steady_clock::now();
  EPS_RETURN_IF_ERROR(relay.Run(nullptr, [&](Step step, const LossSum&, const StepTiming&) {
    if (recording != nullptr) return;
    if (step.value() > 1) seconds.push_back(SecondsSince(last));
    last = steady_clock::now();
    if (!trace.empty() && step.value() + 1 == spec.training.steps) {
      recording = std::make_unique<TraceRecording>();
    }
  }));
  if (recording != nullptr) EPS_RETURN_IF_ERROR(WriteTrace(trace, recording->Take().spans));
  return MedianOf(std::move(seconds));
}

// The two halves of a step. All blocks have the same shape, so the weights and the gradient of one
// block are used for all of them.
class Halves {
 public:
  Halves(const JobSpec& spec, uint64_t steps, StageRuntime* runtime)
      : spec_(spec),
        steps_(steps),
        runtime_(runtime),
        pool_(runtime, &spec, kHostStages),
        client_(spec, ClientThreads()),
        batch_(MeasuredBatch(spec, spec.training.micro_batch_size)),
        last_(static_cast<uint32_t>(spec.stages.size()) - 1),
        copies_(!absl::StrContains(runtime->compute_profile(), " cpu ")) {}

  // Loads weights and computes gradients. Call it first.
  absl::Status Prepare() {
    for (const uint32_t s : {0u, 1u, last_}) {
      EPS_ASSIGN_OR_RETURN(auto host, Take(s));
      weights_[s] = runtime_->Load(StageId(s), std::move(host));
    }
    EPS_RETURN_IF_ERROR(Compute(&gradients_));
    EPS_RETURN_IF_ERROR(Wait());
    EPS_ASSIGN_OR_RETURN(stashed_, runtime_->Stash(activation_));
    return absl::OkStatus();
  }
  // Times forward and backward of all micro-batches in all stages, with weights on the device.
  absl::StatusOr<double> TimeComputing() {
    return Time([this] { return Compute(nullptr); });
  }
  // Times the transfers: weights to the device for both passes, a gradient from every stage, and a
  // stash in both directions if it is elsewhere. TimeComputing cannot follow.
  absl::StatusOr<double> TimeTransfers() {
    weights_.clear();
    return Time([this] { return Transfer(); });
  }

 private:
  uint32_t KindOf(uint32_t s) const { return s == 0 || s == last_ ? s : 1; }

  // Returns host memory with small numbers, which are written once.
  absl::StatusOr<std::shared_ptr<HostStage>> Take(uint32_t s) {
    EPS_ASSIGN_OR_RETURN(std::shared_ptr<HostStage> host, pool_.Take(StageId(s)));
    if (!filled_.insert(host->tensor(0)).second) return host;
    for (size_t use = 0; use < spec_.stages[s].uses.size(); ++use) {
      const uint64_t n = spec_.tensors[spec_.stages[s].uses[use].tensor.value()].elements();
      float* const values = host->tensor(use);
      for (uint64_t i = 0; i < n; ++i) values[i] = 0.001f * static_cast<float>(i % 17) - 0.008f;
    }
    return host;
  }

  // Stores gradients by kind of stage in `out`, unless it is null.
  absl::Status Compute(std::map<uint32_t, StageGradientPtr>* out) {
    for (uint32_t j = 0; j < spec_.training.micro_batches; ++j) {
      for (uint32_t s = 0; s < last_; ++s) {
        EPS_ASSIGN_OR_RETURN(activation_, runtime_->program(StageId(s))
                                              .Forward(*weights_[KindOf(s)], batch_,
                                                       s == 0 ? nullptr : activation_));
      }
      ActivationPtr grad;
      for (uint32_t s = last_ + 1; s-- > 0;) {
        EPS_ASSIGN_OR_RETURN(
            auto result, runtime_->program(StageId(s))
                             .Backward(*weights_[KindOf(s)], batch_, s == 0 ? nullptr : activation_,
                                       grad, 0, nullptr));
        if (result.grad_in != nullptr) grad = std::move(result.grad_in);
        if (out != nullptr) (*out)[KindOf(s)] = std::move(result.gradient);
        if (result.late_loss != nullptr) late_loss_ = std::move(result.late_loss);
      }
    }
    return absl::OkStatus();
  }

  // Loads a stage as a relay does.
  absl::StatusOr<std::shared_ptr<const StageWeights>> LoadWeights(uint32_t s, bool backward) {
    EPS_ASSIGN_OR_RETURN(const auto arriving, runtime_->NewArrival(StageId(s), backward));
    if (arriving == nullptr) {
      EPS_ASSIGN_OR_RETURN(auto from, Take(s));
      return runtime_->Load(StageId(s), std::move(from));
    }
    const auto fetch = client_.FetchStage(StageId(s), Version(0), backward, arriving->sink());
    EPS_RETURN_IF_ERROR(fetch->Wait());
    return arriving->Load();
  }

  absl::Status Transfer() {
    std::unique_ptr<PendingCopy> pending;
    std::shared_ptr<HostStage> host;
    for (uint32_t visit = 0; visit < 2 * last_ + 1; ++visit) {
      const bool backward = visit > last_;
      const uint32_t s = backward ? 2 * last_ - visit : visit;
      EPS_ASSIGN_OR_RETURN(const auto weights, LoadWeights(s, backward));
      // A forward visit reads an input and stashes an output. A backward visit reads an input and a
      // gradient and stashes a gradient. The last stage does both in one visit.
      for (uint32_t j = 0; j < spec_.training.micro_batches; ++j) {
        if (copies_) {
          EPS_ASSIGN_OR_RETURN(stashed_, runtime_->Stash(activation_));
        }
        const int reads = (s > 0 ? 1 : 0) + (backward ? 1 : 0);
        for (int i = 0; i < reads; ++i) {
          EPS_RETURN_IF_ERROR(runtime_->Unstash(stashed_).status());
        }
      }
      if (visit < last_) continue;
      if (pending != nullptr) EPS_RETURN_IF_ERROR(pending->Wait());
      EPS_ASSIGN_OR_RETURN(host, pool_.Take(StageId(s)));
      EPS_ASSIGN_OR_RETURN(pending,
                           runtime_->StartToHost(StageId(s), *gradients_[KindOf(s)], host.get()));
    }
    return pending == nullptr ? absl::OkStatus() : pending->Wait();
  }

  // Waits until all enqueued work is done.
  absl::Status Wait() {
    EPS_ASSIGN_OR_RETURN(const auto host, pool_.Take(StageId(0)));
    return runtime_->ToHost(StageId(0), *gradients_[0], host.get());
  }

  template <class Body>
  absl::StatusOr<double> Time(const Body& body) {
    std::vector<double> seconds;
    for (uint64_t step = 0; step <= steps_; ++step) {
      const steady_clock::time_point begin = steady_clock::now();
      EPS_RETURN_IF_ERROR(body());
      EPS_RETURN_IF_ERROR(Wait());
      if (step > 0) seconds.push_back(SecondsSince(begin));
    }
    return MedianOf(std::move(seconds));
  }

  const JobSpec& spec_;
  const uint64_t steps_;
  StageRuntime* const runtime_;
  HostStagePool pool_;
  InstantClient client_;
  std::set<const float*> filled_;
  const MicroBatch batch_;
  const uint32_t last_;
  const bool copies_;  // false on a CPU: it stashes without copies, an activation only once
  std::map<uint32_t, std::shared_ptr<const StageWeights>> weights_;  // by kind
  std::map<uint32_t, StageGradientPtr> gradients_;                   // by kind
  ActivationPtr activation_;
  ActivationPtr stashed_;
  std::unique_ptr<LateLoss> late_loss_;
};

}  // namespace

double StepSpeed::over_slower_half() const {
  return step_seconds / std::max(compute_seconds, transfer_seconds);
}

absl::StatusOr<StepSpeed> MeasureStepSpeed(const StepOptions& options) {
  EPS_ASSIGN_OR_RETURN(const JobSpec spec, SpecOf(options));
  EPS_ASSIGN_OR_RETURN(const auto runtime,
                       NewTorchRuntime(spec, NewModelStage, options.runtime, nullptr));
  StepSpeed speed;
  speed.device = runtime->compute_profile();
  speed.precision = options.precision;
  speed.gradient_sum = options.gradient_sum;
  speed.keep = options.runtime.keep;
  speed.layers = options.layers;
  speed.width = options.width;
  for (const TensorSpec& tensor : spec.tensors) speed.parameters += tensor.elements();
  speed.tokens = uint64_t{options.micro_batches} * options.samples * options.seq_len;
  // It runs first, because the peak counts from here.
  EPS_ASSIGN_OR_RETURN(speed.step_seconds, TimeRelay(spec, runtime.get(), options.trace));
  speed.device_peak_bytes = runtime->device_memory().peak_bytes;
  Halves halves(spec, options.steps, runtime.get());
  EPS_RETURN_IF_ERROR(halves.Prepare());
  EPS_ASSIGN_OR_RETURN(speed.compute_seconds, halves.TimeComputing());
  EPS_ASSIGN_OR_RETURN(speed.transfer_seconds, halves.TimeTransfers());
  return speed;
}

std::string StepSpeedToJson(const StepSpeed& speed) {
  return absl::StrFormat(
      "{\"device\": \"%s\", \"precision\": \"%s\", \"gradient_sum\": \"%s\", \"keep\": \"%s\", "
      "\"layers\": %u, \"width\": %u, "
      "\"parameters\": %u, \"tokens\": %u, \"step_s\": %.6f, \"compute_s\": %.6f, "
      "\"transfer_s\": %.6f, \"over_slower_half\": %.4f, \"device_peak_bytes\": %u}",
      speed.device, speed.precision, speed.gradient_sum, speed.keep, speed.layers, speed.width,
      speed.parameters, speed.tokens, speed.step_seconds, speed.compute_seconds,
      speed.transfer_seconds, speed.over_slower_half(), speed.device_peak_bytes);
}

}  // namespace eps
