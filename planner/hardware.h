#ifndef EPS_PLANNER_HARDWARE_H_
#define EPS_PLANNER_HARDWARE_H_

// The description of the machines that a plan is made for, read from YAML
// (docs/reference/hardware.md). Every number carries its unit ("16GB", "12GB/s", "125TFLOP/s").
// Unknown keys, missing units and numbers that are not finite and positive are refused with the
// line number.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/job/keys.h"
#include "planner/units.h"

namespace eps::planner {

// The device that computes a worker's stages: an accelerator, or the cores of the worker's host.
struct Device {
  std::string name;
  bool host = false;  // uses the cores and the memory of the worker's host; nothing is copied
  Bytes memory;
  // Dense peaks of matrix products by compute type; FP32 is without TF32. All but `peak_fp32` are 0
  // if unknown, and no plan uses `peak_tf32`.
  FlopsPerSecond peak_fp32;
  FlopsPerSecond peak_tf32;
  FlopsPerSecond peak_fp16;
  FlopsPerSecond peak_bf16;
  double efficiency = 1;  // share of `peak_fp32` that a stage's matrix products reach
  std::optional<double> efficiency_16bit;  // the same of `peak_bf16` and `peak_fp16`
  // Bytes per second that a stage's other operations produce.
  BytesPerSecond activations = kNoLimit;
  // Rates from host to device and back, each measured while the other direction is busy.
  BytesPerSecond to_device = kNoLimit;
  BytesPerSecond from_device = kNoLimit;
  // The device decodes weights and encodes gradients, so that encoded bytes cross its links.
  // Otherwise the host does, and FP32 crosses them.
  bool codes = false;
  Seconds stage_overhead;  // per pass of a micro-batch over a stage, in addition to its operations

  // Returns the peak in the type in which a job computes, to which MFU is relative. Where it is
  // unknown, the job is planned at the rate of FP32.
  FlopsPerSecond peak(Precision precision) const;
  // Returns the rate that the matrix products of a stage reach.
  FlopsPerSecond products(Precision precision) const;
};

// A group of equal workers: their device, their host and their network.
struct WorkerKind {
  std::string name;
  uint32_t count = 1;
  Device device;
  Bytes memory;  // memory of the host
  BytesPerSecond receive;
  BytesPerSecond send;
  Seconds latency;  // round trip of one request to a server
  // The rate at which one core receives or sends over the stream of one server, apart from the
  // link, and the time that each chunk adds.
  BytesPerSecond transport = kNoLimit;
  Seconds chunk_overhead;
  BytesPerSecond encode;  // FP32 bytes of gradients encoded per second
  BytesPerSecond decode;  // FP32 bytes of weights decoded per second
  DollarsPerSecond price;
};

enum class StorageDeviceKind { kNvme, kCsd };
// The disks of one server.
struct StorageDevices {
  StorageDeviceKind kind = StorageDeviceKind::kNvme;
  uint32_t count = 1;
  Bytes capacity;  // of one disk
  BytesPerSecond read;
  BytesPerSecond write;
  Bytes endurance;                 // bytes that may be written to one disk; 0 if unknown
  BytesPerSecond link = kNoLimit;  // from a server to all of its disks together, each direction
  Seconds sync;  // time until written data is durable, in addition to the transfer
  // For computational storage only: the bytes of gradients and state that its updater processes per
  // second (0 if unknown), and its own memory.
  BytesPerSecond update;
  Bytes memory;
};

// The rates of a server count FP32 bytes of weights (4 per parameter) processed by one core.
struct ServerKind {
  std::string name;
  uint32_t count = 1;
  uint32_t cores = 1;
  Bytes memory;
  BytesPerSecond memory_bandwidth;
  BytesPerSecond receive;
  BytesPerSecond send;
  BytesPerSecond transport = kNoLimit;  // as for a worker, over any stream
  Seconds chunk_overhead;
  BytesPerSecond encode;  // just-in-time quantization of weights
  BytesPerSecond update;  // reduction and update of an FP32 gradient
  std::optional<StorageDevices> storage;
  DollarsPerSecond price;
};

// The rates of one core for one codec, in FP32 bytes per second.
struct CodecRates {
  std::string name;  // as in quantization.weights: "mx6"
  BytesPerSecond encode;
  BytesPerSecond decode;
};

// All machines of one description.
struct Hardware {
  std::string name;
  std::string source;  // where the numbers come from
  std::vector<WorkerKind> workers;
  std::vector<ServerKind> servers;
  // Rates by codec, for servers and for workers that compute on their host. A codec that is not
  // listed has the rates of its server or worker.
  std::vector<CodecRates> codecs;
  // Workers and servers are processes on one machine and share its cores and memory.
  bool one_machine = false;

  // True if every server has disks; true if all of them are computational storage that updates.
  bool has_storage() const;
  bool has_updating_storage() const;
  // Returns null if the codec is not listed.
  const CodecRates* CodecOrNull(absl::string_view name) const;
  uint32_t worker_count() const;
  uint32_t server_count() const;
};

// `origin` (a file name) prefixes the errors.
absl::StatusOr<Hardware> ParseHardware(absl::string_view yaml, absl::string_view origin);
// Returns YAML that ParseHardware reads back to the same values.
std::string HardwareToYaml(const Hardware& hardware);

// The built-in descriptions: their names ("h200_node"), and the YAML of one. NotFound for an
// unknown name.
std::vector<std::string> HardwareExamples();
absl::StatusOr<std::string> HardwareExample(absl::string_view name);

// Returns the text of docs/reference/hardware.md: every key of the schema, and the examples.
std::string HardwareReference();

}  // namespace eps::planner

#endif  // EPS_PLANNER_HARDWARE_H_
