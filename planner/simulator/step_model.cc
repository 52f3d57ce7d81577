#include "planner/simulator/step_model.h"

#include <algorithm>
#include <cmath>

#include "planner/simulator/draws.h"

namespace eps::planner::simulator {
namespace {

// As many gradients as a worker holds: one is sent while the next is computed (worker/relay).
constexpr size_t kGradientsInFlight = 2;

constexpr const char* kResourceNames[kResourceCount] = {
    "worker compute", "worker receive", "worker send",
    "server send",    "server receive", "server processors",
};

constexpr size_t Index(Resource resource) { return static_cast<size_t>(resource); }

// The servers' processors, which reduce and update while nothing has to be encoded. Work comes in
// order of time.
class Processors {
 public:
  void Encode(Seconds start, Seconds end) { encodings_.push_back({start, end}); }

  // When `work` that is there at `arrival` is done, behind all work that came before.
  Seconds Serve(Seconds arrival, Seconds work) {
    const Seconds start = Max(free_, arrival);
    free_ = start + work;
    for (; next_ < encodings_.size() && encodings_[next_].start < free_; ++next_) {
      const Span& encoding = encodings_[next_];
      if (encoding.end > start) free_ += encoding.end - Max(encoding.start, start);
    }
    return free_;
  }
  Seconds free() const { return free_; }

 private:
  struct Span {
    Seconds start;
    Seconds end;
  };
  std::vector<Span> encodings_;  // one behind the other
  size_t next_ = 0;              // that no work has met yet
  Seconds free_;
};

}  // namespace

const char* ResourceName(Resource resource) { return kResourceNames[Index(resource)]; }

bool IsOfWorkers(size_t resource) { return resource <= Index(Resource::kWorkerSend); }

Resource StepTimes::bottleneck() const {
  const auto most = std::max_element(busiest.begin(), busiest.end());
  return static_cast<Resource>(most - busiest.begin());
}

// One class of workers on its way through the visits.
class StepModel::Workers {
 public:
  Workers(const WorkerClass& workers, BytesPerSecond receive, BytesPerSecond send,
          const std::vector<Visit>& visits)
      : class_(workers), receive_(receive), send_(send), visits_(visits) {}

  // When the memory for a visit's weights is free.
  Seconds Free(size_t visit, size_t prefetch) const {
    return visit > prefetch ? computed_[visit - prefetch - 1] : Seconds(0);
  }

  // The next visit, whose weights can be fetched from `ready` on.
  void Next(Seconds ready) {
    const Visit& visit = visits_[computed_.size()];
    if (visit.fetch > Bytes(0)) fetched_ = Max(fetched_, ready) + visit.fetch / receive_;
    Seconds start = Max(fetched_, computed());
    if (pushed_.size() >= kGradientsInFlight) {
      start = Max(start, pushed_[pushed_.size() - kGradientsInFlight]);
    }
    const double factor = class_.parts * class_.slowdown;
    if (visit.turns) turned_ = start + factor * visit.forward;
    computed_.push_back(start + factor * visit.compute);
    const Seconds pushed = pushed_.empty() ? Seconds(0) : pushed_.back();
    const bool gradients = visit.push > Bytes(0);
    pushed_.push_back(gradients ? Max(pushed, computed()) + class_.parts * visit.push / send_
                                : pushed);
  }

  Seconds computed() const { return computed_.empty() ? Seconds(0) : computed_.back(); }
  Seconds turned() const { return turned_; }
  // When the gradients of a visit are at the servers.
  Seconds arrived(size_t visit) const { return Max(computed_[visit], pushed_[visit]); }
  uint32_t parts() const { return class_.workers * class_.parts; }

 private:
  const WorkerClass class_;
  const BytesPerSecond receive_;  // its share
  const BytesPerSecond send_;
  const std::vector<Visit>& visits_;
  std::vector<Seconds> computed_;  // by visit
  std::vector<Seconds> pushed_;
  Seconds fetched_;  // the weights of the last visit that fetched any
  Seconds turned_;
};

StepModel::StepModel(const Scenario& scenario) : scenario_(scenario) {
  const auto& stages = scenario.stages;
  const double servers = scenario.servers;
  Seconds updated;
  const bool sealed = scenario.mode == UpdateMode::kSealed;
  for (const StageLoad& stage : stages) {
    Visit up;
    up.fetch = stage.fetch_forward;
    up.compute = stage.forward;
    up.encode = stage.encode / servers;
    if (sealed) updated += stage.update / servers;
    up.updated_before = updated;
    visits_.push_back(up);
  }
  Visit& turn = visits_.back();
  turn.fetch += stages.back().fetch_backward;
  turn.compute += stages.back().backward;
  turn.turns = true;
  turn.forward = stages.back().forward;
  for (size_t s = stages.size(); s-- > 0;) {
    const StageLoad& stage = stages[s];
    if (s + 1 < stages.size()) {
      Visit down;
      down.fetch = stage.fetch_backward;
      down.compute = stage.backward;
      down.encode = stage.encode / servers;
      visits_.push_back(down);
    }
    visits_.back().push = stage.push;
    visits_.back().reduce = stage.reduce / servers;
    visits_.back().update = stage.update / servers;
  }
  for (Visit& visit : visits_) {
    if (visit.fetch == Bytes(0)) visit.encode = Seconds(0);
  }
}

std::vector<WorkerClass> StepModel::Classes(uint32_t workers) const {
  const uint32_t parts = scenario_.part_count();
  const uint32_t busy = std::min(workers, parts);
  const auto all_slow = static_cast<uint32_t>(std::lround(scenario_.slow_fraction * workers));
  const uint32_t idle = workers - busy;
  const uint32_t slow = all_slow > idle ? all_slow - idle : 0;
  const uint32_t more = parts % busy;  // host one part more than the others
  // Workers in order: those with more parts first, the slow ones last.
  uint32_t borders[] = {0, more, busy - slow, busy};
  std::sort(std::begin(borders), std::end(borders));
  std::vector<WorkerClass> classes;
  for (size_t i = 0; i + 1 < std::size(borders); ++i) {
    const uint32_t first = borders[i];
    if (first == borders[i + 1]) continue;
    WorkerClass workers_alike;
    workers_alike.workers = borders[i + 1] - first;
    workers_alike.parts = parts / busy + (first < more ? 1 : 0);
    workers_alike.slowdown = first >= busy - slow ? scenario_.slow_factor : 1;
    classes.push_back(workers_alike);
  }
  return classes;
}

std::vector<WorkerClass> StepModel::Disturbed(const std::vector<WorkerClass>& classes,
                                              uint64_t step) const {
  std::vector<WorkerClass> disturbed;
  for (size_t i = 0; i < classes.size(); ++i) {
    const double uniform =
        UniformDraw(scenario_.seed, DrawPurpose::kJitter, static_cast<uint32_t>(i), step);
    const double largest = LargestLognormal(uniform, classes[i].workers, scenario_.jitter);
    WorkerClass slowest = classes[i];
    slowest.workers = 1;
    slowest.slowdown *= largest;
    disturbed.push_back(slowest);
    if (classes[i].workers == 1) continue;
    WorkerClass others = classes[i];
    --others.workers;
    others.slowdown *= std::min(1.0, largest);
    disturbed.push_back(others);
  }
  return disturbed;
}

StepTimes StepModel::Run(const std::vector<WorkerClass>& classes, uint32_t members) const {
  uint32_t busy = 0;
  for (const WorkerClass& c : classes) busy += c.workers;
  const double servers_per_worker = static_cast<double>(scenario_.servers) / busy;
  std::vector<Workers> workers;
  for (const WorkerClass& c : classes) {
    workers.emplace_back(
        c, Min(scenario_.worker_receive, servers_per_worker * scenario_.server_send),
        Min(scenario_.worker_send, servers_per_worker * scenario_.server_receive), visits_);
  }

  Processors processors;
  Seconds encoded;      // the last visit's weights
  Seconds encode_work;  // of the visits before
  for (size_t v = 0; v < visits_.size(); ++v) {
    const Visit& visit = visits_[v];
    Seconds asked = workers[0].Free(v, scenario_.prefetch);
    for (const Workers& w : workers) asked = Min(asked, w.Free(v, scenario_.prefetch));
    if (visit.fetch > Bytes(0)) {
      // Sealed: the update of this stage is done when the processors have had time for all updates
      // up to it, and for what is encoded before.
      const Seconds start = Max(Max(encoded, asked), visit.updated_before + encode_work);
      encoded = start + visit.encode;
      encode_work += visit.encode;
      processors.Encode(start, encoded);
    }
    for (Workers& w : workers) w.Next(Max(encoded, w.Free(v, scenario_.prefetch)));
  }

  StepTimes times;
  const size_t turn = scenario_.stages.size() - 1;
  std::vector<const Workers*> by_arrival;
  for (const Workers& w : workers) {
    by_arrival.push_back(&w);
    times.forward = Max(times.forward, w.turned());
    times.duration = Max(times.duration, w.arrived(visits_.size() - 1));
  }
  // Sealed: whatever was fetched, no reduction comes before an update.
  processors.Serve(Seconds(0), visits_[turn].updated_before);
  for (size_t v = turn; v < visits_.size(); ++v) {
    std::sort(by_arrival.begin(), by_arrival.end(),
              [v](const Workers* a, const Workers* b) { return a->arrived(v) < b->arrived(v); });
    for (const Workers* w : by_arrival) {
      processors.Serve(w->arrived(v), w->parts() * visits_[v].reduce);
    }
    if (scenario_.mode == UpdateMode::kEager) {
      processors.Serve(processors.free(), visits_[v].update);
    }
  }
  times.duration = Max(times.duration, processors.free());
  AddBusy(classes, members, &times);
  return times;
}

void StepModel::AddBusy(const std::vector<WorkerClass>& classes, uint32_t members,
                        StepTimes* times) const {
  Visit sum;
  for (const Visit& visit : visits_) {
    sum.fetch += visit.fetch;
    sum.push += visit.push;
    sum.compute += visit.compute;
    sum.encode += visit.encode;
    sum.reduce += visit.reduce;
    sum.update += visit.update;
  }
  double workers = 0;
  double parts = 0;
  double most_parts = 0;
  double work = 0;  // in parts at full speed
  double most_work = 0;
  for (const WorkerClass& c : classes) {
    workers += c.workers;
    parts += static_cast<double>(c.workers) * c.parts;
    work += static_cast<double>(c.workers) * c.parts * c.slowdown;
    most_parts = std::max<double>(most_parts, c.parts);
    most_work = std::max(most_work, c.parts * c.slowdown);
  }
  const Seconds receive = sum.fetch / scenario_.worker_receive;
  const Seconds send = sum.push / scenario_.worker_send;
  const double servers = scenario_.servers;
  const Seconds server_send = workers * sum.fetch / (servers * scenario_.server_send);
  const Seconds server_receive = parts * sum.push / (servers * scenario_.server_receive);
  const Seconds processors = sum.encode + parts * sum.reduce + sum.update;
  times->busy = {work / members * sum.compute,
                 workers / members * receive,
                 parts / members * send,
                 server_send,
                 server_receive,
                 processors};
  times->busiest = {most_work * sum.compute, receive,   most_parts * send, server_send,
                    server_receive,          processors};
}

}  // namespace eps::planner::simulator
