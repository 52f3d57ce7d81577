#include "planner/step_model.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace eps::planner {
namespace {

constexpr int kSteps = 12;  // simulated; the last ones are steady
constexpr int kSteadySteps = 4;
constexpr double kFp32 = 4;  // bytes
// On one machine a core sends what another one receives.
constexpr double kSidesOfATransfer = 2;
// The state is read and written by an update, a gradient is written when it comes and read once.
constexpr double kReadAndWritten = 2;

// A resource that does one thing after another, in the order in which it is told of them. That
// order does not depend on how long anything takes, so that a step is a maximum over paths, and
// nothing that gets faster can make it longer.
class Lane {
 public:
  // When something that can begin at `ready` and takes `duration` is done.
  Seconds Run(Seconds ready, Seconds duration) {
    if (duration == Seconds(0)) return ready;
    free_ = Max(free_, ready) + duration;
    busy_ += duration;
    return free_;
  }
  Seconds busy() const { return busy_; }

 private:
  Seconds free_;
  Seconds busy_;
};

// The servers of a run as one: their rates together, as far as processes make use of them.
struct ServerRates {
  BytesPerSecond encode;
  BytesPerSecond update;
  BytesPerSecond memory;
  BytesPerSecond send;
  BytesPerSecond receive;
  BytesPerSecond read;
  BytesPerSecond write;
  double cores = 0;  // that work for the run
};

// Of one core. Weights that are only copied are not slower than quantized ones.
BytesPerSecond EncodeRate(const Hardware& hardware, const ServerKind& kind,
                          const std::string& codec) {
  const CodecRates* const measured = hardware.CodecOrNull(codec);
  if (measured != nullptr) return measured->encode;
  return codec == "fp32" ? Max(kind.memory_bandwidth / kind.cores, kind.encode) : kind.encode;
}

ServerRates RatesOf(const Hardware& hardware, const RunShape& shape) {
  ServerRates rates;
  const double machines = hardware.server_count();
  const double processes_each = shape.servers / machines;  // on average; less than 1: some idle
  for (const ServerKind& kind : hardware.servers) {
    const double used = std::min(1.0, processes_each) * kind.count;
    const double threads =
        std::min<double>(kind.cores, std::max(1.0, processes_each) * shape.server_threads);
    rates.encode += used * threads * EncodeRate(hardware, kind, shape.weights);
    rates.update += used * threads * kind.update;
    rates.memory += used * kind.memory_bandwidth;
    rates.send += used * kind.send;
    rates.receive += used * kind.receive;
    rates.cores += used * threads;
    if (kind.storage.has_value()) {
      rates.read += used * kind.storage->count * kind.storage->read;
      rates.write += used * kind.storage->count * kind.storage->write;
    }
  }
  return rates;
}

class StepModel {
 public:
  StepModel(const Workload& work, const Hardware& hardware, const WorkerKind& worker,
            const RunShape& shape)
      : work_(work),
        worker_(worker),
        shape_(shape),
        servers_(RatesOf(hardware, shape)),
        shared_cores_(hardware.one_machine && worker.device.host),
        decode_(worker.decode),
        encode_(worker.encode) {
    if (worker.device.host) {
      const CodecRates* const weights = hardware.CodecOrNull(shape.weights);
      const CodecRates* const gradients = hardware.CodecOrNull(shape.gradients);
      if (weights != nullptr) decode_ = weights->decode;
      if (gradients != nullptr) encode_ = gradients->encode;
    }
    for (const StageWork& stage : work.stages) times_.push_back(TimesOf(stage));
  }

  StepEstimate Run();

 private:
  // A use of a stage in a step.
  struct Visit {
    size_t stage = 0;
    bool backward = false;
  };

  bool IsTurn(const Visit& visit) const { return visit.stage + 1 == times_.size(); }
  double parts_here() const { return std::ceil(static_cast<double>(work_.parts) / shape_.workers); }
  StageTimes TimesOf(const StageWork& stage) const;
  std::vector<Visit> Visits() const;
  Seconds RunStep(Seconds start);
  Seconds Encode(const Visit& visit, Seconds ahead);
  Seconds Fetch(const Visit& visit, Seconds encoded, Seconds issued);
  Seconds Push(size_t stage, Seconds computed);
  std::vector<Resource> Resources() const;
  Seconds CoreBound() const;

  const Workload& work_;
  const WorkerKind& worker_;
  const RunShape& shape_;
  const ServerRates servers_;
  const bool shared_cores_;  // servers and workers compute on the same ones
  BytesPerSecond decode_;    // of a worker
  BytesPerSecond encode_;
  std::vector<StageTimes> times_;

  Lane processors_, disks_, network_in_, network_out_, decoder_, encoder_, to_device_, from_device_,
      device_;
  std::vector<Seconds> weights_ready_;  // of the version that the next visit wants
};

StageTimes StepModel::TimesOf(const StageWork& stage) const {
  const Bytes fp32(kFp32 * static_cast<double>(stage.elements));
  const double workers = shape_.workers;
  const double parts = work_.parts;
  const FlopsPerSecond speed = worker_.device.efficiency * worker_.device.peak;
  const double passes = parts_here() * work_.micro_batches;
  StageTimes t;
  t.name = stage.name;
  // Exact weights are only copied, which the reading of the memory bounds.
  // FP32 weights are read, encoded ones written once and read for every worker.
  t.encode =
      Max(fp32 / servers_.encode, (fp32 + (1 + workers) * stage.fetch_forward) / servers_.memory);
  const auto network_in = [&](Bytes bytes) {
    return Max(bytes / worker_.receive, workers * bytes / servers_.send);
  };
  t.fetch_forward = network_in(stage.fetch_forward);
  t.fetch_backward = network_in(stage.fetch_backward + parts_here() * stage.residual);
  const auto copies = [&](Bytes fetched) { return fetched > Bytes(0) ? 1.0 : 0.0; };
  t.decode_forward = copies(stage.fetch_forward) * fp32 / decode_;
  t.decode_backward = copies(stage.fetch_backward) * fp32 / decode_;
  t.to_device = fp32 / worker_.device.to_device;
  t.forward = parts_here() * stage.forward / speed + passes * worker_.device.stage_overhead;
  t.backward = parts_here() * stage.backward / speed + passes * worker_.device.stage_overhead;
  if (!shape_.stash_on_device) {
    t.stash =
        parts_here() * stage.stash / Min(worker_.device.to_device, worker_.device.from_device);
  }
  t.from_device = parts_here() * fp32 / worker_.device.from_device;
  t.encode_push = parts_here() * fp32 / encode_;
  const Bytes pushed = stage.push + stage.residual;
  t.push = Max(parts_here() * pushed / worker_.send, parts * pushed / servers_.receive);
  // One pass over the state with the first part, and one more reading of each further one.
  const Bytes state = static_cast<double>(stage.elements) * work_.state_per_parameter;
  t.update = Max(parts * fp32 / servers_.update,
                 (kReadAndWritten * (state + parts * pushed)) / servers_.memory);
  if (shape_.state_on_disk) t.disk = state / servers_.read + state / servers_.write;
  return t;
}

std::vector<StepModel::Visit> StepModel::Visits() const {
  std::vector<Visit> visits;
  const size_t stages = work_.stages.size();
  for (size_t s = 0; s + 1 < stages; ++s) visits.push_back({s, false});
  for (size_t s = stages; s-- > 0;) visits.push_back({s, true});
  return visits;
}

// When the servers have encoded the weights, of which they know `ahead` that they will be wanted.
Seconds StepModel::Encode(const Visit& visit, Seconds ahead) {
  return processors_.Run(Max(weights_ready_[visit.stage], ahead), times_[visit.stage].encode);
}

// When weights that are `encoded` are on the device, if the worker asks for them at `issued`.
Seconds StepModel::Fetch(const Visit& visit, Seconds encoded, Seconds issued) {
  const StageTimes& t = times_[visit.stage];
  Seconds network = visit.backward ? t.fetch_backward : t.fetch_forward;
  Seconds decode = visit.backward ? t.decode_backward : t.decode_forward;
  if (IsTurn(visit)) {  // one fetch for its forward and its backward pass
    network = t.fetch_forward + t.fetch_backward;
    decode = t.decode_forward + t.decode_backward;
  }
  const Seconds arrived = network_in_.Run(Max(encoded, issued) + worker_.latency, network);
  return to_device_.Run(decoder_.Run(arrived, decode), t.to_device);
}

// When the servers have all parts of the stage's gradient and, in eager mode, have updated it.
Seconds StepModel::Push(size_t stage, Seconds computed) {
  const StageTimes& t = times_[stage];
  const Seconds on_host = from_device_.Run(computed, t.from_device);
  const Seconds arrived =
      network_out_.Run(encoder_.Run(on_host, t.encode_push), t.push) + worker_.latency;
  if (work_.sealed) return arrived;
  return disks_.Run(processors_.Run(arrived, t.update), t.disk);
}

// The end of a step that begins at `start`: the worker may begin the next one.
Seconds StepModel::RunStep(Seconds start) {
  const std::vector<Visit> visits = Visits();
  const size_t ahead = static_cast<size_t>(shape_.prefetch);
  std::vector<Seconds> encoded;
  std::vector<Seconds> on_device;
  std::vector<Seconds> pushed(times_.size());
  Seconds computed = start;
  for (size_t v = 0; v < visits.size(); ++v) {
    const Visit& visit = visits[v];
    const StageTimes& t = times_[visit.stage];
    // What this visit sets off: fetches ahead of it, and the servers' encoding ahead of those.
    const size_t jit = ahead + static_cast<size_t>(shape_.jit_depth);
    while (encoded.size() < std::min(visits.size(), v + jit + 1)) {
      encoded.push_back(Encode(visits[encoded.size()], computed));
    }
    while (on_device.size() < std::min(visits.size(), v + ahead + 1)) {
      const size_t next = on_device.size();
      on_device.push_back(Fetch(visits[next], encoded[next], computed));
    }
    // Stashed inputs go out behind a forward pass and come back for the backward pass.
    const Seconds input = visit.backward ? to_device_.Run(computed, t.stash) : computed;
    Seconds duration = visit.backward ? t.backward : t.forward;
    if (IsTurn(visit)) duration = t.forward + t.backward;
    computed = device_.Run(Max(on_device[v], input), duration);
    if (visit.backward) {
      pushed[visit.stage] = Push(visit.stage, computed);
    } else {
      from_device_.Run(computed, t.stash);
    }
  }
  if (!work_.sealed) {
    weights_ready_ = pushed;
    return computed;
  }
  // The decision waits for everything; then updates run in forward order.
  const Seconds decided = *std::max_element(pushed.begin(), pushed.end());
  for (size_t s = 0; s < times_.size(); ++s) {
    weights_ready_[s] = disks_.Run(processors_.Run(decided, times_[s].update), times_[s].disk);
  }
  return decided + worker_.latency;
}

// Where workers and servers share cores: the threads of a product wait for the slowest of them, so
// that whatever else one core does is added to what all of them compute. Measured
// (docs/benchmarks.md, "Plans against runs").
Seconds StepModel::CoreBound() const {
  if (!shared_cores_) return Seconds(0);
  const double workers = shape_.workers;
  const Seconds compute = workers * device_.busy() / kSteps;
  const Seconds codecs = workers * (decoder_.busy() + encoder_.busy()) / kSteps;
  const Seconds servers = processors_.busy() / kSteps;
  const Bytes residuals = ResidualBytes(work_);
  const Seconds transfers =
      kSidesOfATransfer * ((FetchedBytes(work_, shape_.workers) + residuals) / worker_.receive +
                           (PushedBytes(work_) + residuals) / worker_.send);
  return compute + codecs + servers + transfers;
}

std::vector<Resource> StepModel::Resources() const {
  const auto of = [](const char* name, const Lane& lane, const char* remedy) {
    return Resource{name, lane.busy() / kSteps, remedy};
  };
  std::vector<Resource> resources = {
      of("worker compute", device_,
         "more workers with more parts (worker.count, training.parts), or faster devices"),
      of("weights over the network", network_in_,
         "fewer bits (quantization.weights), more micro-batches per step "
         "(training.micro_batches), or faster links"),
      of("gradients over the network", network_out_,
         "fewer bits (quantization.gradients), more micro-batches per step "
         "(training.micro_batches), or faster links"),
      of("worker decoding", decoder_, "another codec (quantization.weights), or more host cores"),
      of("worker encoding", encoder_, "another codec (quantization.gradients), or more host cores"),
      of("weights to the device", to_device_,
         "more micro-batches per step (training.micro_batches), or worker.stash=device"),
      of("gradients from the device", from_device_,
         "more micro-batches per step (training.micro_batches), or worker.stash=device"),
      of("server processors", processors_,
         "more threads or servers (servers.threads, servers.addresses), or more micro-batches per "
         "step (training.micro_batches)"),
      of("server disks", disks_,
         "more disks or servers, state in memory (storage.kind=dram), or more micro-batches per "
         "step (training.micro_batches)"),
  };
  if (shared_cores_) {
    resources.push_back({"shared cores", CoreBound(),
                         "servers on another machine, or more micro-batches per step "
                         "(training.micro_batches)"});
  }
  std::stable_sort(resources.begin(), resources.end(),
                   [](const Resource& a, const Resource& b) { return a.busy > b.busy; });
  return resources;
}

StepEstimate StepModel::Run() {
  weights_ready_.assign(times_.size(), Seconds(0));
  std::vector<Seconds> ends = {Seconds(0)};
  for (int i = 0; i < kSteps; ++i) ends.push_back(RunStep(ends.back()));
  StepEstimate estimate;
  estimate.step = Max((ends[kSteps] - ends[kSteps - kSteadySteps]) / kSteadySteps, CoreBound());
  estimate.stages = times_;
  estimate.worker = worker_.name;
  estimate.resources = Resources();
  estimate.waiting = estimate.step - device_.busy() / kSteps;
  return estimate;
}

}  // namespace

StepEstimate EstimateStep(const Workload& work, const Hardware& hardware, const RunShape& shape) {
  StepEstimate slowest;
  for (const WorkerKind& worker : hardware.workers) {
    StepEstimate estimate = StepModel(work, hardware, worker, shape).Run();
    if (slowest.stages.empty() || estimate.step > slowest.step) slowest = std::move(estimate);
  }
  return slowest;
}

}  // namespace eps::planner
