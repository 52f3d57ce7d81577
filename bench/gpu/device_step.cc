// Measures how well a device overlaps transfers with computing. Times a training step of a GPT-2 by
// the worker's own relay against servers that answer at once, and in the same run its two halves
// alone: computing without transfers, and transfers without computing. A step cannot be faster than
// the slower half. Prints one line of JSON.
//
//   device_step [--device=auto] [--stash=host] [--layers=12] [--width=768] [--heads=12]
//               [--seq=1024] [--samples=8] [--micro_batches=2] [--vocab=50257] [--steps=5]
//               [--precision=fp32] [--trace=FILE]
//
// With --precision=bf16 or cmp, weights and gradients travel as bf16. --trace writes the last step
// in Chrome's JSON trace event format: a track for each thread and, from number 1048577, for each
// queue of the device.
//
// Sizes are arbitrary; the computed values have no meaning. Exits with 64 for a wrong argument.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "base/job/keys.h"
#include "base/job/layout/model_layout.h"
#include "base/job/names.h"
#include "base/trace/trace_log.h"
#include "bench/gpu/instant_client.h"
#include "worker/exec/torch_runtime.h"
#include "worker/models/model_stages.h"
#include "worker/relay/host_stage_pool.h"
#include "worker/relay/relay.h"

namespace eps {
namespace {

using std::chrono::steady_clock;

// The model's size and the runtime's options.
struct Shape {
  RuntimeOptions runtime;
  Precision precision = Precision::kFp32;
  std::string trace;  // a file; empty: none
  std::map<std::string, int> numbers = {{"layers", 12}, {"width", 768},  {"heads", 12},
                                        {"seq", 1024},  {"samples", 8},  {"micro_batches", 2},
                                        {"steps", 5},   {"vocab", 50257}};
  int at(const char* name) const { return numbers.at(name); }
};

bool Refuse(const char* argument) {
  std::fprintf(stderr, "device_step: unknown argument %s\n", argument);
  return false;
}

bool Parse(int argc, char** argv, Shape* shape) {
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    if (absl::ConsumePrefix(&argument, "--device=")) {
      shape->runtime.device = std::string(argument);
    } else if (absl::ConsumePrefix(&argument, "--stash=")) {
      shape->runtime.stash = std::string(argument);
    } else if (absl::ConsumePrefix(&argument, "--trace=")) {
      shape->trace = std::string(argument);
    } else if (absl::ConsumePrefix(&argument, "--precision=")) {
      if (!FindName(argument, &shape->precision)) return Refuse(argv[i]);
    } else {
      absl::ConsumePrefix(&argument, "--");
      const size_t equals = argument.find('=');
      const auto it = shape->numbers.find(std::string(argument.substr(0, equals)));
      if (equals == absl::string_view::npos || it == shape->numbers.end() ||
          !absl::SimpleAtoi(argument.substr(equals + 1), &it->second) || it->second <= 0) {
        return Refuse(argv[i]);
      }
    }
  }
  return true;
}

JobSpec SpecOf(const Shape& shape) {
  JobSpec spec;
  Gpt2Config& c = spec.model.gpt2;
  c.n_layer = shape.at("layers");
  c.n_embd = shape.at("width");
  c.n_head = shape.at("heads");
  c.n_positions = shape.at("seq");
  c.vocab_size = shape.at("vocab");
  c.embd_pdrop = c.attn_pdrop = c.resid_pdrop = 0;
  spec.training.seq_len = static_cast<uint32_t>(shape.at("seq"));
  spec.training.micro_batch_size = static_cast<uint32_t>(shape.at("samples"));
  spec.training.micro_batches = static_cast<uint32_t>(shape.at("micro_batches"));
  spec.training.parts = 1;
  spec.training.precision = shape.precision;
  if (shape.precision != Precision::kFp32) {
    for (TensorCodecs* const of : {&spec.codecs.embedding, &spec.codecs.head}) {
      of->weights = of->gradients = "bf16";
    }
    spec.codecs.weights = spec.codecs.gradients = "bf16";
  }
  spec.training.steps = static_cast<uint64_t>(shape.at("steps")) + 1;  // one step to warm up
  if (!shape.trace.empty()) ++spec.training.steps;
  const absl::Status status = BuildLayout(0.01, &spec);
  EPS_CHECK_MSG(status.ok(), status);
  return spec;
}

MicroBatch BatchOf(const JobSpec& spec) {
  MicroBatch batch;
  batch.step = Step(1);
  batch.samples = spec.training.micro_batch_size;
  batch.seq_len = spec.training.seq_len;
  const uint32_t vocab = static_cast<uint32_t>(spec.model.gpt2.vocab_size);
  for (uint32_t i = 0; i < batch.samples * batch.seq_len; ++i) {
    batch.tokens.push_back(static_cast<int32_t>(i * 7919u % vocab));
    batch.labels.push_back(static_cast<int32_t>(i * 104729u % vocab));
  }
  return batch;
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

// Fills memory with small numbers, once; these are the weights that the benchmark's servers serve.
class Filler {
 public:
  explicit Filler(const JobSpec& spec) : spec_(spec) {}
  void Fill(StageId stage, const TensorPointers& tensors) {
    if (!filled_.insert(tensors[0]).second) return;
    for (size_t use = 0; use < tensors.size(); ++use) {
      const uint64_t n =
          spec_.tensors[spec_.stages[stage.value()].uses[use].tensor.value()].elements();
      for (uint64_t i = 0; i < n; ++i)
        tensors[use][i] = 0.001f * static_cast<float>(i % 17) - 0.008f;
    }
  }

 private:
  const JobSpec& spec_;
  std::set<const float*> filled_;
};

double MedianOf(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

// As many threads as a worker's client has.
int ClientThreads() {
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 2, 1, 4);
}

// Writes spans to a file in Chrome's JSON trace event format.
bool WriteTrace(const std::string& path, const std::vector<RecordedSpan>& spans) {
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
  if (file == nullptr) return false;
  const bool written = std::fwrite(json.data(), 1, json.size(), file) == json.size();
  return std::fclose(file) == 0 && written;
}

// Returns the seconds of a step by the relay, between the ends of two steps; the end of a step
// waits for the device, because it reads the losses.
double TimeRelay(const JobSpec& spec, StageRuntime* runtime, const std::string& trace) {
  JoinedJob job;
  job.spec = spec;
  job.parts = {PartId(0)};
  job.next_step = Step(1);
  InstantClient client(spec, ClientThreads());
  OneBatch batches(BatchOf(spec));
  Relay relay(job, &client, runtime, &batches, RelayOptions());
  std::vector<double> seconds;
  std::unique_ptr<TraceRecording> recording;  // of the last step, which is not timed
  steady_clock::time_point last = steady_clock::now();
  const absl::Status status = relay.Run(nullptr, [&](Step step, const LossSum&, const StepTiming&) {
    const steady_clock::time_point now = steady_clock::now();
    if (recording != nullptr) return;
    if (!trace.empty() && step.value() + 1 == spec.training.steps) {
      recording = std::make_unique<TraceRecording>();
    }
    if (step.value() > 1) {
      seconds.push_back(std::chrono::duration<double>(now - last).count());
    }
    last = now;
  });
  EPS_CHECK_MSG(status.ok(), status);
  if (recording != nullptr) {
    EPS_CHECK_MSG(WriteTrace(trace, recording->Take().spans), "cannot write " << trace);
  }
  return MedianOf(std::move(seconds));
}

// The two halves of a step. All blocks have the same shape, so the weights and the gradient of one
// block are used for all of them.
class Halves {
 public:
  Halves(const JobSpec& spec, StageRuntime* runtime)
      : spec_(spec),
        runtime_(runtime),
        pool_(runtime, &spec, 4),
        filler_(spec),
        batch_(BatchOf(spec)),
        last_(static_cast<uint32_t>(spec.stages.size()) - 1),
        copies_(!absl::StrContains(runtime->compute_profile(), " cpu ")) {
    for (const uint32_t s : {0u, 1u, last_}) weights_[s] = runtime_->Load(StageId(s), Take(s));
    Compute(&gradients_);
    Wait();
    stashed_ = Must(runtime_->Stash(activation_));
  }

  // Times forward and backward of all micro-batches in all stages, with weights on the device.
  double TimeComputing() {
    return Time([this] { Compute(nullptr); });
  }
  // Times the transfers: weights to the device for both passes, a gradient from every stage, and a
  // stash in both directions if it is elsewhere.
  double TimeTransfers() {
    weights_.clear();
    return Time([this] { Transfer(); });
  }

 private:
  uint32_t KindOf(uint32_t s) const { return s == 0 || s == last_ ? s : 1; }

  std::shared_ptr<HostStage> Take(uint32_t s) {
    std::shared_ptr<HostStage> host = Must(pool_.Take(StageId(s)));
    TensorPointers tensors;
    for (size_t use = 0; use < spec_.stages[s].uses.size(); ++use) {
      tensors.push_back(host->tensor(use));
    }
    filler_.Fill(StageId(s), tensors);
    return host;
  }

  template <class T>
  static T Must(absl::StatusOr<T> result) {
    EPS_CHECK_MSG(result.ok(), result.status());
    return *std::move(result);
  }

  // Stores gradients by kind of stage in `out`, unless it is null.
  void Compute(std::map<uint32_t, StageGradientPtr>* out) {
    for (uint32_t j = 0; j < spec_.training.micro_batches; ++j) {
      activation_ = Must(runtime_->program(StageId(0)).Forward(*weights_[0], batch_, nullptr));
      for (uint32_t s = 1; s < last_; ++s) {
        activation_ =
            Must(runtime_->program(StageId(s)).Forward(*weights_[1], batch_, activation_));
      }
      ActivationPtr grad;
      for (uint32_t s = last_ + 1; s-- > 0;) {
        auto result = Must(
            runtime_->program(StageId(s))
                .Backward(*weights_[KindOf(s)], batch_, s == 0 ? nullptr : activation_, grad, 0));
        grad = result.grad_in == nullptr ? grad : std::move(result.grad_in);
        if (out != nullptr) (*out)[KindOf(s)] = std::move(result.gradient);
        if (result.late_loss != nullptr) late_loss_ = std::move(result.late_loss);
      }
    }
  }

  void Transfer() {
    std::unique_ptr<PendingCopy> pending;
    std::shared_ptr<HostStage> host;
    for (uint32_t visit = 0; visit < 2 * last_ + 1; ++visit) {
      const bool backward = visit > last_;
      const uint32_t s = backward ? 2 * last_ - visit : visit;
      const auto weights = runtime_->Load(StageId(s), Take(s));
      // A forward visit reads an input and stashes an output. A backward visit reads an input and a
      // gradient and stashes a gradient. The last stage does both in one visit.
      for (uint32_t j = 0; j < spec_.training.micro_batches; ++j) {
        if (copies_) stashed_ = Must(runtime_->Stash(activation_));
        if (s > 0) Must(runtime_->Unstash(stashed_));
        if (backward) Must(runtime_->Unstash(stashed_));
      }
      if (visit < last_) continue;
      if (pending != nullptr) EPS_CHECK(pending->Wait().ok());
      host = Must(pool_.Take(StageId(s)));
      pending = Must(runtime_->StartToHost(StageId(s), *gradients_[KindOf(s)], host.get()));
    }
    if (pending != nullptr) EPS_CHECK(pending->Wait().ok());
  }

  // Waits until all enqueued work is done.
  void Wait() {
    const auto host = Must(pool_.Take(StageId(0)));
    EPS_CHECK(runtime_->ToHost(StageId(0), *gradients_[0], host.get()).ok());
  }

  template <class Body>
  double Time(const Body& body) {
    body();
    Wait();
    std::vector<double> seconds;
    for (uint64_t step = 1; step < spec_.training.steps; ++step) {
      const steady_clock::time_point begin = steady_clock::now();
      body();
      Wait();
      seconds.push_back(std::chrono::duration<double>(steady_clock::now() - begin).count());
    }
    return MedianOf(std::move(seconds));
  }

  const JobSpec& spec_;
  StageRuntime* const runtime_;
  HostStagePool pool_;
  Filler filler_;
  const MicroBatch batch_;
  const uint32_t last_;
  const bool copies_;  // false on a CPU: it stashes without copies, an activation only once
  std::map<uint32_t, std::shared_ptr<const StageWeights>> weights_;  // by kind
  std::map<uint32_t, StageGradientPtr> gradients_;                   // by kind
  ActivationPtr activation_;
  ActivationPtr stashed_;
  std::unique_ptr<LateLoss> late_loss_;
};

int Main(int argc, char** argv) {
  Shape shape;
  if (!Parse(argc, argv, &shape)) return 64;
  const JobSpec spec = SpecOf(shape);
  auto runtime = NewTorchRuntime(spec, NewModelStage, shape.runtime, nullptr);
  if (!runtime.ok()) {
    std::fprintf(stderr, "device_step: %s\n", std::string(runtime.status().message()).c_str());
    return 64;
  }
  // Runs first, because the peak counts from here.
  const double relay = TimeRelay(spec, runtime->get(), shape.trace);
  const uint64_t peak = (*runtime)->device_memory().peak_bytes;
  Halves halves(spec, runtime->get());
  const double compute = halves.TimeComputing();
  const double transfer = halves.TimeTransfers();
  uint64_t parameters = 0;
  for (const TensorSpec& tensor : spec.tensors) parameters += tensor.elements();
  std::printf(
      "{\"device\": \"%s\", \"layers\": %d, \"width\": %d, \"parameters\": %lu, "
      "\"tokens\": %u, \"step_s\": %.6f, \"compute_s\": %.6f, \"transfer_s\": %.6f, "
      "\"over_slower_half\": %.4f, \"device_peak_bytes\": %lu}\n",
      (*runtime)->compute_profile().c_str(), shape.at("layers"), shape.at("width"), parameters,
      spec.training.micro_batches * spec.training.micro_batch_size * spec.training.seq_len, relay,
      compute, transfer, relay / std::max(compute, transfer), peak);
  return 0;
}

}  // namespace
}  // namespace eps

int main(int argc, char** argv) { return eps::Main(argc, argv); }
