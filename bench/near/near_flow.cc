#include "bench/near/near_flow.h"

#include <cstddef>
#include <vector>

#include "planner/papers/flow_network.h"
#include "planner/units.h"

namespace eps {
namespace {

using planner::Bytes;
using planner::BytesPerSecond;
using planner::Crossing;
using planner::FlowNetwork;
using planner::LinkId;
using planner::ResourceId;
using planner::Seconds;
using planner::TaskId;
using planner::smart_infinity::Machine;
using Tasks = std::vector<TaskId>;

constexpr Bytes kValue(4);  // of weights and moments
constexpr Bytes kHalf(2);

// One device: its medium is a link of capacity host_read, which every other access crosses at a
// higher cost.
class Device {
 public:
  Device(const Machine& machine, FlowNetwork* net)
      : machine_(machine),
        medium_(net->AddLink(machine.host_read)),
        internal_(net->AddLink(machine.internal_link)),
        updater_(net->AddResource()) {}

  std::vector<Crossing> HostRead(LinkId up) const { return {{medium_}, {internal_}, {up}}; }
  std::vector<Crossing> HostWrite(LinkId down) const {
    return {{medium_, machine_.host_read / machine_.host_write}, {internal_}, {down}};
  }
  // Between device memory and the host.
  std::vector<Crossing> Memory(LinkId link) const { return {{internal_}, {link}}; }
  std::vector<Crossing> Load() const {
    return {{medium_, machine_.host_read / machine_.device_read}, {internal_}};
  }
  std::vector<Crossing> Store() const {
    return {{medium_, machine_.host_read / machine_.device_write}, {internal_}};
  }
  ResourceId updater() const { return updater_; }

  // The tasks after which the sets are free, one after the other; with one entry per buffer where
  // buffers are handed over.
  std::vector<Tasks> free_sets;

 private:
  const Machine& machine_;
  LinkId medium_;
  LinkId internal_;
  ResourceId updater_;
};

// The network of a step's backward pass and update.
class StepFlows {
 public:
  StepFlows(const NearVariant& variant, const NearJob& job, int chunks)
      : variant_(variant),
        machine_(job.machine),
        size_(job.full_parameters / chunks),
        state_(size_ * (variant.arrays() * kValue)),
        up_(net_.AddLink(machine_.host_link)),
        down_(net_.AddLink(machine_.host_link)),
        software_(net_.AddLink(variant.host_is_papers ? HostRate() : planner::kNoLimit)) {
    for (int i = 0; i < job.devices; ++i) devices_.emplace_back(machine_, &net_);
  }

  Device* device(int chunk) { return &devices_[static_cast<size_t>(chunk) % devices_.size()]; }
  FlowNetwork* net() { return &net_; }
  LinkId up() const { return up_; }
  LinkId down() const { return down_; }

  // Returns the task that ends after that time.
  Tasks After(Seconds time) { return {net_.AddWork(time, net_.AddResource(), {})}; }
  // Moves a gradient down, where it waits.
  void Offload(int chunk, const Tasks& after) {
    const Device& device = *this->device(chunk);
    net_.AddFlow(size_ * Gradient(),
                 variant_.gradients_in_memory ? device.Memory(down_) : device.HostWrite(down_),
                 after);
  }
  void Update(int chunk, const Tasks& after) {
    if (variant_.host_updates) return UpdateOnHost(chunk, after);
    if (variant_.hands_buffers_over) return UpdateWithHandover(chunk, after);
    UpdateInSet(chunk, after);
  }

 private:
  Bytes Gradient() const { return Bytes(variant_.gradient_bytes); }
  // Both RAID0's reads and writes, and the weights that devices send up, pass the host's software.
  BytesPerSecond HostRate() const {
    return variant_.host_updates ? machine_.base_software : machine_.take_over;
  }
  std::vector<Crossing> ThroughSoftware(std::vector<Crossing> path) const {
    path.push_back({software_});
    return path;
  }

  // Returns what a chunk waits for until it has one of the device's sets.
  Tasks WithSet(const Device& device, Tasks after) const {
    const size_t sets = static_cast<size_t>(variant_.sets);
    if (device.free_sets.size() < sets) return after;
    const Tasks& free = device.free_sets[device.free_sets.size() - sets];
    after.insert(after.end(), free.begin(), free.end());
    return after;
  }

  void UpdateOnHost(int chunk, const Tasks& after) {
    Device* const device = this->device(chunk);
    const TaskId read =
        net_.AddFlow(state_ + size_ * Gradient(), ThroughSoftware(device->HostRead(up_)),
                     WithSet(*device, after));
    device->free_sets.push_back(
        {net_.AddFlow(state_, ThroughSoftware(device->HostWrite(down_)), {read})});
  }

  Tasks LoadGradient(const Device& device, const Tasks& after) {
    if (variant_.eager) return {net_.AddFlow(size_ * Gradient(), device.Memory(down_), after)};
    if (variant_.gradients_in_memory) return after;
    return {net_.AddFlow(size_ * Gradient(), device.Load(), after)};
  }
  TaskId Compute(const Device& device, const Tasks& after) {
    const BytesPerSecond rate = variant_.sparse() ? machine_.decompress_update : machine_.update;
    return net_.AddWork((state_ + size_ * Gradient()) / rate, device.updater(), after);
  }
  TaskId BringUp(const Device& device, TaskId computed, const Tasks& written) {
    if (variant_.encodes_weights) {
      return net_.AddFlow(size_ * kHalf, device.Memory(up_), {computed});
    }
    return net_.AddFlow(size_ * kValue, ThroughSoftware(device.HostRead(up_)), written);
  }

  // A chunk holds a set until it is written and its weights are up.
  void UpdateInSet(int chunk, const Tasks& after) {
    Device* const device = this->device(chunk);
    const Tasks before = WithSet(*device, after);
    Tasks loaded = LoadGradient(*device, before);
    loaded.push_back(net_.AddFlow(state_, device->Load(), before));
    const TaskId computed = Compute(*device, loaded);
    const TaskId written = net_.AddFlow(state_, device->Store(), {computed});
    device->free_sets.push_back({written, BringUp(*device, computed, {written})});
  }

  // A chunk takes over each buffer once it is free: the gradient's after the update, that of the
  // weights once they are up, the others once they are written.
  void UpdateWithHandover(int chunk, const Tasks& after) {
    Device* const device = this->device(chunk);
    const auto with = [&](size_t buffer) {
      Tasks before = after;
      if (!device->free_sets.empty()) before.push_back(device->free_sets.back()[buffer]);
      return before;
    };
    const auto arrays = static_cast<size_t>(variant_.arrays());
    Tasks loaded = LoadGradient(*device, with(arrays));
    for (size_t i = 0; i < arrays; ++i) {
      loaded.push_back(net_.AddFlow(size_ * kValue, device->Load(), with(i)));
    }
    const TaskId computed = Compute(*device, loaded);
    Tasks free;
    const TaskId weights = net_.AddFlow(size_ * kValue, device->Store(), {computed});
    free.push_back(BringUp(*device, computed, {weights}));
    for (size_t i = 1; i < arrays; ++i) {
      free.push_back(net_.AddFlow(size_ * kValue, device->Store(), {weights}));
    }
    free.push_back(computed);
    device->free_sets.push_back(free);
  }

  const NearVariant& variant_;
  const Machine& machine_;
  const double size_;  // parameters of a chunk
  const Bytes state_;
  FlowNetwork net_;
  LinkId up_;
  LinkId down_;
  LinkId software_;
  std::vector<Device> devices_;
};

// A GPU that computes chunk after chunk and sends each gradient before it goes on.
class GpuFlows {
 public:
  GpuFlows(const NearVariant& variant, const NearJob& job, int chunks, StepFlows* flows)
      : job_(job),
        flows_(flows),
        compute_(flows->net()->AddResource()),
        size_(job.full_parameters / chunks),
        gradient_(size_ * Bytes(variant.gradient_bytes)) {}

  // Returns the task that ends when the next chunk's gradient has left the GPU.
  Tasks Next() {
    FlowNetwork* const net = flows_->net();
    Tasks before = sent_;
    const Seconds time = size_ * job_.gpu.backward;
    if (!job_.gpus_share_link) {
      sent_ = {net->AddWork(time + gradient_ / job_.machine.host_link, compute_, before)};
      return sent_;
    }
    // The next chunk's weights come while this one is computed.
    loaded_.insert(loaded_.end(), sent_before_.begin(), sent_before_.end());
    loaded_ = {net->AddFlow(size_ * kHalf, {{flows_->down()}}, loaded_)};
    before.insert(before.end(), loaded_.begin(), loaded_.end());
    const TaskId computed = net->AddWork(time, compute_, before);
    sent_before_ = sent_;
    sent_ = {net->AddFlow(gradient_, {{flows_->up()}}, {computed})};
    return sent_;
  }

 private:
  const NearJob& job_;
  StepFlows* const flows_;
  const ResourceId compute_;
  const double size_;
  const Bytes gradient_;
  Tasks loaded_;
  Tasks sent_;         // of the last chunk
  Tasks sent_before_;  // of the one before it
};

}  // namespace

NearStep SimulateNear(const NearVariant& variant, const NearJob& job, int chunks) {
  const double size = job.full_parameters / chunks;
  const Bytes state = size * (variant.arrays() * kValue);
  NearStep result;
  result.forward = (job.full_parameters * job.gpu.forward).value();
  // Devices drift apart. In lockstep, all of them would leave a shared link idle at the same time.
  const Seconds apart = state / job.machine.device_read + state / job.machine.device_write;
  // Backward with the updates, or both alone.
  StepFlows backward(variant, job, chunks);
  StepFlows update(variant, job, chunks);
  GpuFlows gpu(variant, job, chunks, &backward);
  Tasks sent;
  for (int i = 0; i < chunks; ++i) {
    sent = gpu.Next();
    if (variant.eager) {
      backward.Update(i, sent);
    } else {
      backward.Offload(i, sent);
      update.Update(i, i < job.devices ? update.After(apart * (1.0 * i / job.devices)) : Tasks());
    }
  }
  const FlowNetwork::Schedule schedule = backward.net()->Run();
  if (variant.eager) {
    const Seconds gpu_ends = schedule.FinishOf(sent.front());
    result.backward = gpu_ends.value();
    result.update = (schedule.end() - gpu_ends).value();
  } else {
    result.backward = schedule.end().value();
    result.update = update.net()->Run().end().value();
  }
  return result;
}

}  // namespace eps
