#include "planner/step_model.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "base/job/cut_interval.h"
#include "planner/lanes.h"

namespace eps::planner {
namespace {

// Gradients that a worker holds: one is sent while the next is computed (worker/relay).
constexpr size_t kGradientsInFlight = 2;

// The texts of one resource.
struct ResourceText {
  const char* name;
  const char* remedy;
};
constexpr char kLessWeights[] =
    "fewer bits (quantization.weights), more micro-batches per step (training.micro_batches), or "
    "faster links";
constexpr char kLessGradients[] =
    "fewer bits (quantization.gradients), more micro-batches per step (training.micro_batches), or "
    "faster links";
constexpr char kLessOnTheDevice[] =
    "more micro-batches per step (training.micro_batches), or worker.stash=device";
constexpr ResourceText kResources[kResourceCount] = {
    {"worker compute",
     "more workers with more parts (worker.count, training.parts), or faster devices"},
    {"worker receive", kLessWeights},
    {"worker send", kLessGradients},
    {"worker decoding", "another codec (quantization.weights), or more host cores"},
    {"worker encoding", "another codec (quantization.gradients), or more host cores"},
    {"weights to the device", kLessOnTheDevice},
    {"gradients from the device", kLessOnTheDevice},
    {"server send", kLessWeights},
    {"server receive", kLessGradients},
    {"server processors",
     "more threads or servers (servers.threads, servers.addresses), or more micro-batches per step "
     "(training.micro_batches)"},
    {"server memory bandwidth",
     "more micro-batches per step (training.micro_batches), fewer bits (quantization.weights, "
     "quantization.gradients), or more servers (servers.addresses)"},
    {"server disks",
     "more disks or servers, state in memory (storage.kind=dram), a log of fewer bits "
     "(quantization.gradients), or more micro-batches per step "
     "(training.micro_batches)"},
    {"shared cores",
     "servers on another machine, or more micro-batches per step (training.micro_batches)"},
};

constexpr size_t Index(Resource resource) { return static_cast<size_t>(resource); }

// Adds to the estimate what cuts cost on average per step. `following` is a step that follows a
// cut.
void AddCuts(const RunShape& shape, const StepTimes& following, StepEstimate* estimate) {
  StepTimes& times = estimate->times;
  Seconds written;
  for (const StageTimes& stage : estimate->stages) written += stage.cut;
  estimate->cut_steps = StepsBetweenCuts(shape.cut_steps, shape.cut_seconds.value(),
                                         written.value(), times.duration.value());
  if (estimate->cut_steps == 0) return;
  const auto steps = static_cast<double>(estimate->cut_steps);
  estimate->held = following.duration - times.duration;
  times.duration += estimate->held / steps;
  times.busiest[Index(Resource::kServerDisks)] += written / steps;
}

}  // namespace

const char* ResourceName(Resource resource) { return kResources[Index(resource)].name; }
const char* ResourceRemedy(Resource resource) { return kResources[Index(resource)].remedy; }
bool IsOfWorkers(Resource resource) { return resource <= Resource::kFromDevice; }

std::vector<Resource> StepTimes::by_use() const {
  std::vector<Resource> resources;
  for (size_t r = 0; r < kResourceCount; ++r) {
    if (busiest[r] > Seconds(0)) resources.push_back(static_cast<Resource>(r));
  }
  std::stable_sort(resources.begin(), resources.end(),
                   [this](Resource a, Resource b) { return busiest_of(a) > busiest_of(b); });
  return resources;
}

std::vector<WorkerClass> DealParts(uint32_t workers, uint32_t parts, uint32_t slow,
                                   double slowdown) {
  const uint32_t busy = std::min(workers, parts);
  const uint32_t idle = workers - busy;
  const uint32_t slow_and_busy = slow > idle ? slow - idle : 0;
  const uint32_t more = parts % busy;  // workers that host one part more than the others
  // The workers in order: those with more parts first, the slow ones last.
  const uint32_t first_slow = busy - slow_and_busy;
  uint32_t borders[] = {0, more, first_slow, busy};
  std::sort(std::begin(borders), std::end(borders));
  std::vector<WorkerClass> classes;
  for (size_t i = 0; i + 1 < std::size(borders); ++i) {
    const uint32_t first = borders[i];
    if (first == borders[i + 1]) continue;
    classes.push_back({borders[i + 1] - first, parts / busy + (first < more ? 1 : 0),
                       first >= first_slow ? slowdown : 1});
  }
  return classes;
}

// One class of workers as it proceeds through the visits.
class StepModel::Relay {
 public:
  // Borrows `times`, those of a worker with as many parts.
  Relay(const WorkerClass& workers, Seconds latency, const std::vector<StageTimes>& times)
      : class_(workers), latency_(latency), times_(times) {
    computed_.reserve(2 * times.size());
    pushed_.reserve(2 * times.size());
  }

  // Returns when only `ahead` visits are left before `visit`: when the visit `ahead` + 1 earlier
  // has been computed.
  Seconds Nears(size_t visit, size_t ahead) const {
    return visit > ahead ? computed_[visit - ahead - 1] : Seconds(0);
  }

  // Appends the next visit, whose weights can be fetched from `ready` on.
  void Next(const Visit& visit, Seconds ready) {
    const StageTimes& t = times_[visit.stage];
    const auto both_ways = [&](Seconds up, Seconds down) {
      return (visit.up ? up : Seconds(0)) + (visit.down ? down : Seconds(0));
    };
    const Seconds fetch = both_ways(t.fetch_forward, t.fetch_backward);  // with residuals
    const bool waits = visit.fetches > 0 || fetch > Seconds(0);
    const Seconds arrived = waits ? receive_.Run(ready + latency_, fetch) : Seconds(0);
    const Seconds decoded = decoder_.Run(arrived, both_ways(t.decode_forward, t.decode_backward));
    // The stash returns to the device after the weights.
    const Seconds there =
        to_device_.Run(decoded, both_ways(t.to_device_forward, t.to_device_backward + t.stash));
    Seconds start = Max(there, computed());
    if (pushed_.size() >= kGradientsInFlight) {
      start = Max(start, pushed_[pushed_.size() - kGradientsInFlight]);
    }
    if (visit.up) turned_ = start + class_.slowdown * t.forward;
    computed_.push_back(device_.Run(start, class_.slowdown * both_ways(t.forward, t.backward)));
    const Seconds on_host = from_device_.Run(computed(), visit.down ? t.from_device : t.stash);
    if (visit.down) {
      pushed_.push_back(send_.Run(encoder_.Run(on_host, t.encode_push), t.push));
    } else {
      pushed_.push_back(Seconds(0));
    }
  }

  const WorkerClass& workers() const { return class_; }
  Seconds turned() const { return turned_; }
  // Returns when the gradients of the last visit have arrived at the servers.
  Seconds arrived() const { return send_.free() + latency_; }
  // Keeps the memory of the last visit's gradients in use at least until `time`.
  void Acknowledge(Seconds time) { pushed_.back() = Max(pushed_.back(), time); }
  // Busy times of one worker.
  Seconds computing() const { return device_.busy(); }
  Seconds decoding() const { return decoder_.busy(); }
  Seconds encoding() const { return encoder_.busy(); }
  Seconds to_device() const { return to_device_.busy(); }
  Seconds from_device() const { return from_device_.busy(); }

 private:
  Seconds computed() const { return computed_.empty() ? Seconds(0) : computed_.back(); }

  const WorkerClass class_;
  const Seconds latency_;
  const std::vector<StageTimes>& times_;
  Lane receive_, decoder_, to_device_, device_, from_device_, encoder_, send_;
  std::vector<Seconds> computed_;  // by visit
  std::vector<Seconds> pushed_;
  Seconds turned_;
};

StepModel::StepModel(const Workload& work, const Hardware& hardware, const WorkerKind& worker,
                     const RunShape& shape)
    : work_(work),
      worker_(worker),
      shape_(shape),
      servers_(RatesOf(hardware, shape)),
      shared_cores_(hardware.one_machine && worker.device.host ? hardware.servers.front().cores
                                                               : 0),
      decode_(worker.decode),
      encode_(worker.encode) {
  if (worker.device.host) {
    const CodecRates* const weights = hardware.CodecOrNull(shape.weights);
    const CodecRates* const gradients = hardware.CodecOrNull(shape.gradients);
    if (weights != nullptr) decode_ = weights->decode;
    if (gradients != nullptr) encode_ = gradients->encode;
  }
  const size_t stages = work.stages.size();
  for (size_t s = 0; s < stages; ++s) visits_.push_back({s, true, s + 1 == stages, 1});
  for (size_t s = stages - 1; s-- > 0;) {
    visits_.push_back({s, false, true, work.stages[s].fetch_backward > Bytes(0) ? 1.0 : 0.0});
  }
}

StepTimes StepModel::Run(const std::vector<WorkerClass>& classes, uint32_t members,
                         bool behind_cut) const {
  const Crowd crowd = CrowdOf(classes);
  std::map<uint32_t, std::vector<StageTimes>> stages;  // by the number of parts of a worker
  std::vector<Relay> relays;
  for (const WorkerClass& c : classes) {
    const auto [found, is_new] = stages.try_emplace(c.parts);
    if (is_new) found->second = StagesOf(c.parts, crowd);
    relays.emplace_back(c, worker_.latency, found->second);
  }
  // The servers' share is the same in every entry.
  const std::vector<StageTimes>& servers = stages.begin()->second;
  const auto prefetch = static_cast<size_t>(shape_.prefetch);
  const size_t jit = prefetch + static_cast<size_t>(shape_.jit_depth);

  UrgentLane processors;
  UrgentLane disks;
  Lane log;
  StepTimes times;
  // When the gradients of all parts have arrived, by visit.
  std::vector<Seconds> arrived(visits_.size());
  for (size_t v = 0; v < visits_.size(); ++v) {
    const Visit& visit = visits_[v];
    const StageTimes& t = servers[visit.stage];
    Seconds asked = relays[0].Nears(v, jit);
    for (const Relay& relay : relays) asked = Min(asked, relay.Nears(v, jit));
    if (work_.sealed && visit.up) {  // the update of the previous step
      processors.Run(Seconds(0), t.update.alone());
      disks.Run(Seconds(0), t.disk);
      asked = Max(asked, Max(processors.free(), disks.free()));
    }
    const Seconds read = disks.RunUrgent(asked, visit.fetches * t.read);
    const Seconds encoded =
        Max(read, processors.RunUrgent(asked, visit.fetches * t.encode.alone()));
    for (Relay& relay : relays) {
      relay.Next(visit, Max(encoded, relay.Nears(v, prefetch)));
      arrived[v] = Max(arrived[v], relay.arrived());
      times.forward = Max(times.forward, relay.turned());
    }
    if (!visit.down || !shape_.log) continue;
    times.duration = log.Run(arrived[v], t.log) + servers_.sync;
    for (Relay& relay : relays) relay.Acknowledge(times.duration);
  }

  Lane copies;  // copies of a cut, in the order of the updates that wait for them
  if (behind_cut) {
    for (const StageTimes& t : servers) disks.Run(Seconds(0), t.cut);
  }
  for (size_t v = work_.stages.size() - 1; v < visits_.size(); ++v) {
    const StageTimes& t = servers[visits_[v].stage];
    const Seconds copied = copies.Run(Seconds(0), behind_cut ? t.cut : Seconds(0));
    if (work_.sealed) {
      processors.Run(arrived[v], t.reduce.alone());
      disks.Run(arrived[v], t.log + t.spill);
    } else {
      processors.Run(Max(arrived[v], copied), t.reduce.alone() + t.update.alone());
      disks.Run(arrived[v], t.log + t.disk);
    }
    times.duration = Max(times.duration, arrived[v]);
  }
  times.duration = Max(times.duration, Max(processors.free(), disks.free()));
  if (work_.sealed) times.duration += worker_.latency;
  times.serving = processors.busy();
  times.busiest[Index(Resource::kServerDisks)] = disks.busy();
  AddServing(servers, &times);
  AddUse(relays, members, &times);
  times.duration = Max(times.duration, times.busiest_of(Resource::kSharedCores));
  return times;
}

// Adds the use of the servers' processors and of their memory.
void StepModel::AddServing(const std::vector<StageTimes>& servers, StepTimes* times) const {
  ServerTime sum;
  for (const Visit& visit : visits_) {
    const StageTimes& t = servers[visit.stage];
    sum += visit.fetches * t.encode;
    if (visit.down) sum += t.reduce + t.update;
  }
  times->busiest[Index(Resource::kServerProcessors)] = sum.cores;
  times->busiest[Index(Resource::kServerMemory)] = sum.memory;
}

// Adds the use of all resources except those of the servers that Run has set. Where
// workers and servers share cores, a matrix product waits for its slowest thread, so any other work
// on one core adds to the time of all of them; the exchange of a stage therefore runs in sequence
// with its computation. Measured in docs/benchmarks.md, "Plans against runs".
void StepModel::AddUse(const std::vector<Relay>& relays, uint32_t members, StepTimes* times) const {
  const Bytes fetched = work_.fetched_by_worker();
  const Bytes pushed = work_.pushed_of_part();
  const Bytes residual = work_.residual_of_part();
  Bytes sent;  // sent by the servers
  Bytes received;
  double chunks_sent = 0;
  double chunks_received = 0;
  Seconds computing;  // all workers together, also for the next two
  Seconds beside;
  for (const Relay& relay : relays) {
    const WorkerClass& c = relay.workers();
    const Bytes receives = fetched + c.parts * residual;
    const Bytes sends = c.parts * (pushed + residual);
    const double chunks_in = work_.fetched_chunks(c.parts);
    const double chunks_out = c.parts * work_.pushed_chunks_of_part();
    const Seconds receiving = OnWorker(receives, chunks_in);
    const Seconds sending = OnWorker(sends, chunks_out);
    sent += c.workers * receives;
    received += c.workers * sends;
    chunks_sent += c.workers * chunks_in;
    chunks_received += c.workers * chunks_out;
    computing += c.workers * relay.computing();
    beside += c.workers * (relay.decoding() + relay.encoding() + receiving + sending);
    const std::pair<Resource, Seconds> uses[] = {
        {Resource::kWorkerCompute, relay.computing()},
        {Resource::kWorkerReceive, Max(receives / worker_.receive, receiving / shape_.servers)},
        {Resource::kWorkerSend, Max(sends / worker_.send, sending / shape_.servers)},
        {Resource::kWorkerDecoding, relay.decoding()},
        {Resource::kWorkerEncoding, relay.encoding()},
        {Resource::kToDevice, relay.to_device()},
        {Resource::kFromDevice, relay.from_device()},
    };
    for (const auto& [resource, use] : uses) {
      times->busy[Index(resource)] += static_cast<double>(c.workers) / members * use;
      times->busiest[Index(resource)] = Max(times->busiest[Index(resource)], use);
    }
  }
  const Seconds serving = OnServers(sent, chunks_sent);
  const Seconds taking_in = OnServers(received, chunks_received);
  times->busiest[Index(Resource::kServerSend)] = Max(sent / servers_.send, serving);
  times->busiest[Index(Resource::kServerReceive)] = Max(received / servers_.receive, taking_in);
  if (shared_cores_ > 0) {
    times->busiest[Index(Resource::kSharedCores)] =
        computing + beside + times->serving + shared_cores_ * (serving + taking_in);
  }
  for (size_t r = 0; r < kResourceCount; ++r) {
    if (!IsOfWorkers(static_cast<Resource>(r))) times->busy[r] = times->busiest[r];
  }
}

StepEstimate EstimateStep(const Workload& work, const Hardware& hardware, const RunShape& shape) {
  StepEstimate slowest;
  const std::vector<WorkerClass> classes = DealParts(shape.workers, work.parts);
  for (const WorkerKind& worker : hardware.workers) {
    const StepModel model(work, hardware, worker, shape);
    StepEstimate estimate;
    estimate.times = model.Run(classes, shape.workers);
    estimate.stages = model.Stages(classes);
    estimate.worker = worker.name;
    if (shape.durable) AddCuts(shape, model.Run(classes, shape.workers, true), &estimate);
    if (!slowest.stages.empty() && estimate.times.duration <= slowest.times.duration) continue;
    slowest = std::move(estimate);
  }
  return slowest;
}

}  // namespace eps::planner
