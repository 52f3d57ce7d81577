// The times of one stage: what each activity of a step takes alone.

#include <algorithm>
#include <string>
#include <vector>

#include "planner/step_model.h"

namespace eps::planner {
namespace {

constexpr double kFp32 = 4;  // bytes
// An update reads and writes the state; a gradient is written on arrival and read once.
constexpr double kReadAndWritten = 2;

// Returns the rate of one core. Copying FP32 weights is never slower than quantizing them.
BytesPerSecond EncodeRate(const Hardware& hardware, const ServerKind& kind,
                          const std::string& codec) {
  const CodecRates* const measured = hardware.CodecOrNull(codec);
  if (measured != nullptr) return measured->encode;
  return codec == "fp32" ? Max(kind.memory_bandwidth / kind.cores, kind.encode) : kind.encode;
}

}  // namespace

StepModel::ServerRates StepModel::RatesOf(const Hardware& hardware, const RunShape& shape) {
  ServerRates rates;
  const double machines = hardware.server_count();
  // On average; below 1, some machines are idle.
  const double processes_each = shape.servers / machines;
  for (const ServerKind& kind : hardware.servers) {
    const double used = std::min(1.0, processes_each) * kind.count;
    const double threads =
        std::min<double>(kind.cores, std::max(1.0, processes_each) * shape.server_threads);
    rates.encode += used * threads * EncodeRate(hardware, kind, shape.weights);
    rates.update += used * threads * kind.update;
    rates.memory += used * kind.memory_bandwidth;
    rates.send += used * kind.send;
    rates.receive += used * kind.receive;
    rates.transport += used * kind.cores * kind.transport;
    rates.chunks += PerSecond(used * kind.cores / kind.chunk_overhead.value());
    if (kind.storage.has_value()) {
      const double disks = kind.storage->count;
      rates.read += used * Min(disks * kind.storage->read, kind.storage->link);
      rates.write += used * Min(disks * kind.storage->write, kind.storage->link);
      rates.device_read += used * disks * kind.storage->read;
      rates.device_write += used * disks * kind.storage->write;
      rates.device_update += used * disks * kind.storage->update;
      rates.sync = Max(rates.sync, kind.storage->sync);
    }
  }
  return rates;
}

Seconds StepModel::OnWorker(Bytes bytes, double chunks) const {
  return bytes / worker_.transport + chunks * worker_.chunk_overhead;
}

Seconds StepModel::OnServers(Bytes bytes, double chunks) const {
  return bytes / servers_.transport + Seconds(chunks / servers_.chunks.value());
}

StepModel::Crowd StepModel::CrowdOf(const std::vector<WorkerClass>& classes) {
  Crowd crowd;
  for (const WorkerClass& c : classes) {
    crowd.workers += c.workers;
    crowd.parts += static_cast<double>(c.workers) * c.parts;
  }
  return crowd;
}

StageTimes StepModel::TimesOf(const StageWork& stage, double parts, const Crowd& crowd) const {
  const Bytes fp32(kFp32 * static_cast<double>(stage.elements));
  StageTimes t;
  // The servers read the FP32 weights, write the encoded ones once and read them for every worker.
  t.encode = {fp32 / servers_.encode,
              (fp32 + (1 + crowd.workers) * stage.fetch_forward) / servers_.memory};
  const auto fetch = [&](Bytes weights, Bytes residual) {
    const double chunks = stage.chunks_of(weights, residual > Bytes(0) ? parts : 0);
    const Bytes bytes = weights + parts * residual;
    const Bytes sent = crowd.workers * weights + crowd.parts * residual;
    return Max(Max(bytes / worker_.receive, OnWorker(bytes, chunks) / shape_.servers),
               Max(sent / servers_.send, OnServers(sent, crowd.workers * chunks)));
  };
  t.fetch_forward = fetch(stage.fetch_forward, Bytes(0));
  t.fetch_backward = fetch(stage.fetch_backward, stage.residual);
  const Device& device = worker_.device;
  const auto land = [&](Bytes fetched, Seconds* decode, Seconds* to_device) {
    if (fetched == Bytes(0)) return;
    if (!device.codes) *decode = fp32 / decode_;
    *to_device = (device.codes ? fetched : fp32) / device.to_device;
  };
  land(stage.fetch_forward, &t.decode_forward, &t.to_device_forward);
  land(stage.fetch_backward, &t.decode_backward, &t.to_device_backward);
  const Seconds overhead = parts * work_.micro_batches * device.stage_overhead;
  const auto pass = [&](Flops operations, Bytes activations) {
    return parts * operations / device.products(work_.precision) +
           parts * activations / device.activations + overhead;
  };
  t.forward = pass(stage.forward, stage.forward_activations);
  t.backward = pass(stage.backward, stage.backward_activations);
  t.stash = (1 - shape_.stash_on_device) * parts * stage.stash /
            Min(device.to_device, device.from_device);
  t.from_device = parts * (device.codes ? stage.push : fp32) / device.from_device;
  if (!device.codes) t.encode_push = parts * fp32 / encode_;
  const Bytes pushed = stage.push + stage.residual;
  const double chunks = stage.chunks;
  t.push =
      Max(Max(parts * pushed / worker_.send, parts * OnWorker(pushed, chunks) / shape_.servers),
          Max(crowd.parts * pushed / servers_.receive, crowd.parts * OnServers(pushed, chunks)));
  AddUpdate(stage, crowd.parts, &t);
  if (shape_.log) t.log = crowd.parts * pushed / servers_.write;
  return t;
}

// Adds the reduction and the update. An encoded gradient is written on arrival and read once. In
// mode sealed the sum waits for the decision: as it arrived if there is one part, else in FP32.
void StepModel::AddUpdate(const StageWork& stage, double parts, StageTimes* t) const {
  const Bytes fp32(kFp32 * static_cast<double>(stage.elements));
  const Bytes state = static_cast<double>(stage.elements) * work_.state_per_parameter;
  const Bytes pushed = stage.push + stage.residual;
  const Seconds pass = fp32 / servers_.update;  // of the cores over a gradient
  const Seconds arrival = kReadAndWritten * pushed / servers_.memory;
  const Seconds in_place = kReadAndWritten * state / servers_.memory;
  if (work_.sealed) {
    const Bytes sum = parts > 1 && pushed > Bytes(0) ? fp32 : Bytes(0);
    t->reduce = {(parts - 1) * pass, parts * arrival + sum / servers_.memory};
    t->update = {pass, in_place + Max(pushed, sum) / servers_.memory};
  } else {
    t->reduce = (parts - 1) * ServerTime{pass, arrival};
    t->update = {pass, in_place + arrival};
  }
  AddStorage(state, fp32, {pass, work_.sealed ? Seconds(0) : arrival}, t);
}

// Adds what the place of the state costs. `pass` is one over the gradients of a part.
void StepModel::AddStorage(Bytes state, Bytes fp32, ServerTime pass, StageTimes* t) const {
  // Norms read the state and the reduced gradient once more, and write nothing.
  const Bytes measured = work_.measures ? state + fp32 : Bytes(0);
  const Seconds measuring = measured / servers_.memory;
  t->update += {measuring, measuring};
  const ServerTime on_host = t->update;
  if (shape_.state_on_disk) {
    t->read = fp32 / servers_.read;
    t->disk = state / servers_.read + state / servers_.write;
    if (work_.sealed) {
      t->spill = fp32 / servers_.write;
      t->disk += fp32 / servers_.read;
    }
    t->disk += measured / servers_.read;
  }
  if (shape_.update_in_storage) {
    // Smart-Infinity (sections II-A and IV-A): the host reduces and writes one FP32 gradient; the
    // devices read it and the state, update the state and write it. Plain drives work meanwhile.
    t->reduce += shape_.disk_share * shape_.near_share * pass;
    t->update = (1 - shape_.near_share) * on_host;
    const Bytes taken_in = state + fp32;
    const Seconds near = Max(taken_in / servers_.device_update,
                             fp32 / servers_.write + taken_in / servers_.device_read +
                                 state / servers_.device_write) +
                         Max(measured / servers_.device_update, measured / servers_.device_read);
    if (shape_.near_share < 1) {
      t->disk = Max(near, t->disk);
    } else {
      t->disk = near;
      t->spill = Seconds(0);  // the host's write above
    }
  }
  if (shape_.state_on_disk) {
    // The host updates the part in memory.
    t->update = shape_.disk_share * t->update + (1 - shape_.disk_share) * on_host;
    for (Seconds* const time : {&t->read, &t->disk, &t->spill}) *time = shape_.disk_share * *time;
  }
  const double in_memory = shape_.state_on_disk ? 1 - shape_.disk_share : 1;
  if (shape_.durable) t->cut = in_memory * state / servers_.write;
}

std::vector<StageTimes> StepModel::StagesOf(uint32_t parts, const Crowd& crowd) const {
  std::vector<StageTimes> stages;
  stages.reserve(work_.stages.size());
  for (const StageWork& stage : work_.stages) stages.push_back(TimesOf(stage, parts, crowd));
  return stages;
}

}  // namespace eps::planner
