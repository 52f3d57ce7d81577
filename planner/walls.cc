#include "planner/walls.h"

#include <algorithm>
#include <cstddef>
#include <limits>

namespace eps::planner {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

// The walls of both passes: sums over the stages. A transfer over the network bears the name of the
// end that is busier in the step.
class Passes {
 public:
  Passes(const Workload& work, const StepEstimate& estimate)
      : work_(work), stages_(estimate.stages), times_(estimate.times) {}

  std::vector<Wall> Forward() const {
    ServerTime serving;
    Wall compute{Resource::kWorkerCompute, {}, {}};
    Wall fetch{Busier(Resource::kWorkerReceive, Resource::kServerSend), {}, {}};
    Wall decoding{Resource::kWorkerDecoding, {}, {}};
    Wall in{Resource::kToDevice, {}, {}};
    Wall out{Resource::kFromDevice, {}, {}};
    Wall disks{Resource::kServerDisks, {}, {}};
    for (const StageTimes& t : stages_) {
      serving += t.encode;
      compute.growing += t.forward;
      fetch.fixed += t.fetch_forward;
      decoding.fixed += t.decode_forward;
      in.fixed += t.to_device_forward;
      out.growing += t.stash;
      disks.fixed += t.read;
      if (!work_.sealed) continue;  // the update of the previous step
      serving += t.update;
      disks.fixed += t.disk;
    }
    return {compute, fetch, decoding, in, out, disks, CoresOf(serving), MemoryOf(serving)};
  }

  std::vector<Wall> Backward() const {
    ServerTime serving;
    Wall compute{Resource::kWorkerCompute, {}, {}};
    Wall fetch{Busier(Resource::kWorkerReceive, Resource::kServerSend), {}, {}};
    Wall decoding{Resource::kWorkerDecoding, {}, {}};
    Wall in{Resource::kToDevice, {}, {}};
    Wall out{Resource::kFromDevice, {}, {}};
    Wall encoding{Resource::kWorkerEncoding, {}, {}};
    Wall push{Busier(Resource::kWorkerSend, Resource::kServerReceive), {}, {}};
    Wall disks{Resource::kServerDisks, {}, {}};
    for (size_t s = 0; s < stages_.size(); ++s) {
      const StageTimes& t = stages_[s];
      // The last stage is fetched once for both passes.
      const bool again = s + 1 < stages_.size() && work_.stages[s].fetch_backward > Bytes(0);
      if (again) serving += t.encode;
      serving += t.reduce;
      compute.growing += t.backward;
      fetch.fixed += t.fetch_backward;
      decoding.fixed += t.decode_backward;
      in.fixed += t.to_device_backward;
      in.growing += t.stash;
      out.fixed += t.from_device;
      encoding.fixed += t.encode_push;
      push.fixed += t.push;
      disks.fixed += (again ? t.read : Seconds(0)) + t.log + (work_.sealed ? t.spill : t.disk);
      if (!work_.sealed) serving += t.update;
    }
    return {compute,          fetch, decoding, in, out, encoding, push, disks, CoresOf(serving),
            MemoryOf(serving)};
  }

 private:
  Resource Busier(Resource a, Resource b) const {
    return times_.busiest_of(a) < times_.busiest_of(b) ? b : a;
  }
  static Wall CoresOf(const ServerTime& t) { return {Resource::kServerProcessors, t.cores, {}}; }
  static Wall MemoryOf(const ServerTime& t) { return {Resource::kServerMemory, t.memory, {}}; }

  const Workload& work_;
  const std::vector<StageTimes>& stages_;
  const StepTimes& times_;
};

// Returns the wall that binds at `share`; of equal ones, that which binds just above it.
const Wall& Binding(const std::vector<Wall>& walls, double share) {
  return *std::max_element(walls.begin(), walls.end(), [share](const Wall& a, const Wall& b) {
    if (a.at(share) == b.at(share)) return a.growing < b.growing;
    return a.at(share) < b.at(share);
  });
}

PassWalls PassOf(const std::vector<Wall>& walls, double tokens) {
  return {Binding(walls, 1).at(1), RangesOf(walls, tokens)};
}

}  // namespace

std::vector<WallRange> RangesOf(const std::vector<Wall>& walls, double tokens) {
  std::vector<WallRange> ranges;
  const Wall* wall = &Binding(walls, 0);
  while (true) {
    // The first of the steeper walls that this one meets is the next: times are straight lines.
    const Wall* next = nullptr;
    double meet = kInfinite;
    for (const Wall& other : walls) {
      if (other.growing <= wall->growing) continue;
      const double at = (wall->fixed - other.fixed) / (other.growing - wall->growing);
      if (at > meet || (at == meet && other.growing <= next->growing)) continue;
      meet = at;
      next = &other;
    }
    ranges.push_back({wall->resource, meet * tokens});
    if (next == nullptr) return ranges;
    wall = next;
  }
}

StepWalls WallsOf(const Workload& work, const StepEstimate& estimate) {
  const Passes passes(work, estimate);
  const auto tokens = static_cast<double>(work.tokens);
  return {PassOf(passes.Forward(), tokens), PassOf(passes.Backward(), tokens)};
}

}  // namespace eps::planner
