#ifndef EPS_PLANNER_HARDWARE_H_
#define EPS_PLANNER_HARDWARE_H_

// A description of machines, read from YAML (docs/reference/hardware.md): what a plan is made for.
// Every number has its unit in the text ("16GB", "12GB/s", "125TFLOP/s"); unknown keys, missing
// units and numbers that are not finite and above zero are refused with the line.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "planner/units.h"

namespace eps::planner {

// What computes a worker's stages: an accelerator, or the cores of its own host.
struct Device {
  std::string name;
  bool host = false;  // the cores and the memory of the worker's host; copies nothing
  Bytes memory;
  FlopsPerSecond peak;    // of the data type that the stages compute in; MFU counts against it
  double efficiency = 1;  // of the peak, that a stage's matrix products reach
  BytesPerSecond activations = kNoLimit;  // that a stage's other operations make
  // Host to device and back, each while the other direction is busy, too.
  BytesPerSecond to_device = kNoLimit;
  BytesPerSecond from_device = kNoLimit;
  Seconds stage_overhead;  // per pass of a micro-batch over a stage, beside its operations
};

struct WorkerKind {
  std::string name;
  uint32_t count = 1;
  Device device;
  Bytes memory;  // of the host
  BytesPerSecond receive;
  BytesPerSecond send;
  Seconds latency;  // of one request to a server and its answer
  // What a core takes or gives by the stream of one server, beside the link; and what each chunk
  // takes of it.
  BytesPerSecond transport = kNoLimit;
  Seconds chunk_overhead;
  BytesPerSecond encode;  // FP32 bytes of gradients that become encoded ones
  BytesPerSecond decode;  // FP32 bytes of weights that come out of encoded ones
  DollarsPerSecond price;
};

enum class StorageDeviceKind { kNvme, kCsd };
struct StorageDevices {
  StorageDeviceKind kind = StorageDeviceKind::kNvme;
  uint32_t count = 1;
  Bytes capacity;  // of one
  BytesPerSecond read;
  BytesPerSecond write;
  Bytes endurance;                 // bytes that one may be written; 0: not given
  BytesPerSecond link = kNoLimit;  // of a server to all of its disks, each direction
  Seconds sync;  // until what was written is durable, beside the time of its bytes
  // Of computational storage: bytes of gradients and state that its updater takes in per second, 0:
  // not given; and its own memory.
  BytesPerSecond update;
  Bytes memory;
};

// A server's rates are in FP32 bytes of weights (4 per parameter) that one core works through.
struct ServerKind {
  std::string name;
  uint32_t count = 1;
  uint32_t cores = 1;
  Bytes memory;
  BytesPerSecond memory_bandwidth;
  BytesPerSecond receive;
  BytesPerSecond send;
  BytesPerSecond transport = kNoLimit;  // as of a worker, of any stream
  Seconds chunk_overhead;
  BytesPerSecond encode;  // just-in-time quantization of weights
  BytesPerSecond update;  // reduction and update of an FP32 gradient
  std::optional<StorageDevices> storage;
  DollarsPerSecond price;
};

// What one core makes of one codec, in FP32 bytes.
struct CodecRates {
  std::string name;  // as in quantization.weights: "mx6"
  BytesPerSecond encode;
  BytesPerSecond decode;
};

struct Hardware {
  std::string name;
  std::string source;  // where its numbers are from
  std::vector<WorkerKind> workers;
  std::vector<ServerKind> servers;
  // Of servers, and of workers that compute on their host. Codecs that are not here have the rates
  // that stand with the servers and workers.
  std::vector<CodecRates> codecs;
  // Workers and servers are processes of one machine and share its cores and memory.
  bool one_machine = false;

  // Whether every server has disks, and whether all of them are computational storage that updates.
  bool has_storage() const;
  bool has_updating_storage() const;
  // Null if they are not known.
  const CodecRates* CodecOrNull(absl::string_view name) const;
  uint32_t worker_count() const;
  uint32_t server_count() const;
};

// `origin` (a file's name) stands in the errors.
absl::StatusOr<Hardware> ParseHardware(absl::string_view yaml, absl::string_view origin);
// YAML that ParseHardware reads back to the same values.
std::string HardwareToYaml(const Hardware& hardware);

// The descriptions that come with the program, by name ("h200_node"), and their YAML.
std::vector<std::string> HardwareExamples();
absl::StatusOr<std::string> HardwareExample(absl::string_view name);

// The page docs/reference/hardware.md, in Markdown: every key of the schema, and the examples.
std::string HardwareReference();

}  // namespace eps::planner

#endif  // EPS_PLANNER_HARDWARE_H_
