#ifndef EPS_PLANNER_HARDWARE_SCHEMA_H_
#define EPS_PLANNER_HARDWARE_SCHEMA_H_

// The keys of a hardware file. Private to hardware.cc, which reads, writes and documents them.

#include "planner/hardware.h"

namespace eps::planner {

enum class Presence { kRequired, kOptional };

// The schema: for each of its keys, an object calls `visit` with the key, the field, whether it is
// required, and its meaning. Reading, writing and the reference page all use it.
template <class Visitor>
void ForEachField(Device* d, Visitor* visit) {
  (*visit)("name", &d->name, Presence::kRequired, "Name of the device.");
  (*visit)("host", &d->host, Presence::kOptional,
           "The worker computes on the cores and in the memory of its host; nothing is copied.");
  (*visit)("memory", &d->memory, Presence::kRequired, "Memory of one device.");
  (*visit)("peak_fp32", &d->peak_fp32, Presence::kRequired,
           "Peak in FP32 without TF32. MFU is relative to the peak of `training.precision`.");
  (*visit)("peak_tf32", &d->peak_tf32, Presence::kOptional, "Dense, in TF32. No plan uses it.");
  (*visit)("peak_fp16", &d->peak_fp16, Presence::kOptional,
           "Dense, in FP16, for `training.precision: cmp`; if not given, that of FP32.");
  (*visit)("peak_bf16", &d->peak_bf16, Presence::kOptional,
           "Dense, in BF16, for `training.precision: bf16`; if not given, that of FP32.");
  (*visit)("efficiency", &d->efficiency, Presence::kOptional,
           "Share of `peak_fp32` that the matrix products of a stage reach.");
  (*visit)("efficiency_16bit", &d->efficiency_16bit, Presence::kOptional,
           "The same of `peak_bf16` and `peak_fp16`; if not given, `efficiency`.");
  (*visit)("activations", &d->activations, Presence::kOptional,
           "FP32 bytes of activations that the operations of a pass other than matrix products "
           "produce.");
  (*visit)("to_device", &d->to_device, Presence::kOptional,
           "From the host to the device, while the other direction is busy.");
  (*visit)("from_device", &d->from_device, Presence::kOptional,
           "From the device to the host, while the other direction is busy.");
  (*visit)("codes", &d->codes, Presence::kOptional,
           "The device decodes weights and encodes gradients, and encoded bytes cross its links. "
           "Otherwise the host does, and FP32 crosses them.");
  (*visit)("stage_overhead", &d->stage_overhead, Presence::kOptional,
           "Added to each pass of a micro-batch over a stage.");
}

template <class Visitor>
void ForEachField(WorkerKind* w, Visitor* visit) {
  (*visit)("name", &w->name, Presence::kRequired, "Name of the kind.");
  (*visit)("count", &w->count, Presence::kOptional,
           "Machines or devices of this kind; each runs one worker process.");
  (*visit)("device", &w->device, Presence::kRequired, "The device that computes.");
  (*visit)("memory", &w->memory, Presence::kRequired, "Host memory of one worker.");
  (*visit)("receive", &w->receive, Presence::kRequired, "From the network.");
  (*visit)("send", &w->send, Presence::kRequired, "To the network.");
  (*visit)("latency", &w->latency, Presence::kOptional, "Round trip of one request to a server.");
  (*visit)("transport", &w->transport, Presence::kOptional,
           "What one core receives or sends, apart from the network; the stream of each server has "
           "its own core.");
  (*visit)("chunk_overhead", &w->chunk_overhead, Presence::kOptional,
           "Core time per chunk received or sent, in addition to its bytes.");
  (*visit)("encode", &w->encode, Presence::kRequired,
           "FP32 bytes of gradients encoded per second; by one core if the host computes.");
  (*visit)("decode", &w->decode, Presence::kRequired,
           "FP32 bytes of weights decoded per second; by one core if the host computes.");
  (*visit)("price", &w->price, Presence::kOptional, "Price of one.");
}

template <class Visitor>
void ForEachField(StorageDevices* s, Visitor* visit) {
  (*visit)("kind", &s->kind, Presence::kRequired,
           "`nvme`, or `csd` for computational storage. The program uses both as disks.");
  (*visit)("count", &s->count, Presence::kOptional, "Disks per server.");
  (*visit)("capacity", &s->capacity, Presence::kRequired, "Capacity of one disk.");
  (*visit)("read", &s->read, Presence::kRequired, "Read rate of one disk.");
  (*visit)("write", &s->write, Presence::kRequired, "Write rate of one disk.");
  (*visit)("endurance", &s->endurance, Presence::kOptional,
           "Bytes that may be written to one disk over its life.");
  (*visit)("link", &s->link, Presence::kOptional,
           "From one server to all of its disks together, each direction.");
  (*visit)("sync", &s->sync, Presence::kOptional,
           "Time until written data is durable, in addition to the transfer.");
  (*visit)("update", &s->update, Presence::kOptional,
           "For `csd`: bytes of gradients and state that its updater processes per second. A plan "
           "then shows the step that updates inside the devices would give.");
  (*visit)("memory", &s->memory, Presence::kOptional,
           "For `csd`: its own memory. No plan uses it.");
}

template <class Visitor>
void ForEachField(ServerKind* s, Visitor* visit) {
  (*visit)("name", &s->name, Presence::kRequired, "Name of the kind.");
  (*visit)("count", &s->count, Presence::kOptional, "Machines of this kind.");
  (*visit)("cores", &s->cores, Presence::kRequired, "Cores of one machine.");
  (*visit)("memory", &s->memory, Presence::kRequired, "Memory of one machine.");
  (*visit)("memory_bandwidth", &s->memory_bandwidth, Presence::kRequired,
           "Memory bandwidth of one machine, reads and writes together.");
  (*visit)("receive", &s->receive, Presence::kRequired, "From the network.");
  (*visit)("send", &s->send, Presence::kRequired, "To the network.");
  (*visit)("transport", &s->transport, Presence::kOptional,
           "What one core receives or sends, apart from the network.");
  (*visit)("chunk_overhead", &s->chunk_overhead, Presence::kOptional,
           "Core time per chunk received or sent, in addition to its bytes.");
  (*visit)("encode", &s->encode, Presence::kRequired,
           "FP32 bytes of weights that one core quantizes just in time per second.");
  (*visit)("update", &s->update, Presence::kRequired,
           "FP32 bytes of one gradient that one core reduces and applies per second.");
  (*visit)("storage", &s->storage, Presence::kOptional, "The disks of one server.");
  (*visit)("price", &s->price, Presence::kOptional, "Price of one machine.");
}

template <class Visitor>
void ForEachField(CodecRates* c, Visitor* visit) {
  (*visit)("name", &c->name, Presence::kRequired,
           "Name of the codec, as in `quantization.weights`.");
  (*visit)("encode", &c->encode, Presence::kRequired,
           "FP32 bytes that one core encodes per second, on servers and on workers that compute on "
           "their host.");
  (*visit)("decode", &c->decode, Presence::kRequired,
           "FP32 bytes that one core decodes per second, on workers that compute on their host.");
}

template <class Visitor>
void ForEachField(Hardware* h, Visitor* visit) {
  (*visit)("name", &h->name, Presence::kRequired, "Name of the machines.");
  (*visit)("source", &h->source, Presence::kRequired, "Where the numbers come from.");
  (*visit)("one_machine", &h->one_machine, Presence::kOptional,
           "Workers and servers are processes on one machine. If the host computes, they share its "
           "cores.");
  (*visit)("workers", &h->workers, Presence::kRequired, "Kinds of workers.");
  (*visit)("servers", &h->servers, Presence::kRequired, "Kinds of servers.");
  (*visit)("codecs", &h->codecs, Presence::kOptional,
           "Codecs with measured rates; the others have the rates of the workers and servers.");
}

}  // namespace eps::planner

#endif  // EPS_PLANNER_HARDWARE_SCHEMA_H_
