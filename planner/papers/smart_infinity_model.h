#ifndef EPS_PLANNER_PAPERS_SMART_INFINITY_MODEL_H_
#define EPS_PLANNER_PAPERS_SMART_INFINITY_MODEL_H_

// Smart-Infinity (arXiv 2403.06664) as formulas and as a simulation: training on one machine whose
// optimizer state lies on storage, updated by the host (the paper's baseline, ZeRO-Infinity) or by
// computational storage devices. Pure functions.
//
// "c" is the paper's compression ratio: the volume of the index and value lists over that of the
// dense gradients, so that c = 2 % is the top 1 %.

#include <cstdint>

#include "planner/units.h"

namespace eps::planner::smart_infinity {

enum class Variant {
  kBase,      // BASE: RAID0, the host updates
  kNaive,     // SU: devices update; one subgroup after the other
  kHandover,  // SU+O: the paper's transfer handler (section IV-B)
  kTopK,      // SU+O+C: the same with compressed gradients (section IV-C)
};

struct Optimizer {
  const char* name;
  int moments;  // FP32 values per parameter beside the parameter itself
};
inline constexpr Optimizer kAdam{"Adam", 2};
inline constexpr Optimizer kSgdMomentum{"SGD with momentum", 1};
inline constexpr Optimizer kAdaGrad{"AdaGrad", 1};

// Widths of one value. The paper's results use FP32 for all that crosses the interconnect.
struct Widths {
  Bytes state{4};
  Bytes gradient{4};
  Bytes up{4};      // of updated parameters on their way to the host; 2: the device converts them
  Bytes weight{2};  // of the GPU's parameters, which the host keeps
};

struct Method {
  Variant variant = Variant::kBase;
  Optimizer optimizer = kAdam;
  double c = 0.02;  // of kTopK
  Widths widths;

  Bytes states() const { return (1 + optimizer.moments) * widths.state; }  // per parameter
  Bytes gradient() const {  // per parameter, as it is stored
    return variant == Variant::kTopK ? c * widths.gradient : widths.gradient;
  }
};

// Bytes per parameter and step. What crosses the host's interconnect (Table I), what moves between
// a device's medium and its updater, and what the medium reads and writes in all.
struct Traffic {
  Bytes host_states_read;  // updated parameters, of devices that update
  Bytes host_states_written;
  Bytes host_gradients_read;
  Bytes host_gradients_written;
  Bytes internal_read;
  Bytes internal_written;
  Bytes media_read;
  Bytes media_written;

  Bytes host_read() const { return host_states_read + host_gradients_read; }
  Bytes host_written() const { return host_states_written + host_gradients_written; }
};
// From the fields of the optimizer and the widths alone (sections II-A, IV-A and IV-C).
Traffic TrafficOf(const Method& method);

// Entries of a top-k list for `elements` gradients: c of their bytes, an int32 index and a value
// each (section IV-C).
uint64_t TopKEntries(const Method& method, uint64_t elements);
Bytes TopKBytes(const Method& method, uint64_t elements);

// Memory of one device: buffers for `elements` (the largest subgroup), in `sets`. naive and
// handover have one set, a pipelined handler 2 or 3; kTopK scatters into a dense gradient buffer
// and has its lists beside it; with narrow `up`, the converted parameters have a buffer, too.
Bytes DeviceMemory(const Method& method, uint64_t elements, int sets);

// The factor that is folded into the update: 1 / (scale * max(1, (norm / scale + 1e-6) / clip)),
// where `norm` is that of the scaled gradients (the authors' public code).
double UnscaleFactor(double scale, double scaled_norm, double clip);

// Seconds per step of GPT-2 4.0B on an A5000 with n devices: curves fitted to figures 9 and 11.
Seconds ClosedForm(Variant variant, double n);

struct Gpu {
  const char* name;
  Seconds forward;   // per parameter, batch 4
  Seconds backward;  // per parameter, with the recomputation and the choice of the top k
  Dollars price;     // section VII-I
};
extern const Gpu kA5000;
extern const Gpu kA100;

// The physical inputs of the simulation; their values for the paper's machine, and where each is
// from, stand in PaperMachine().
struct Machine {
  BytesPerSecond host_link;  // per direction, shared by all devices; the GPU's has the same speed
  BytesPerSecond internal_link;  // of one device, both directions together
  // A medium does one thing at a time, so that reads and writes add up.
  BytesPerSecond host_read;  // of one medium, by the host's deep queues
  BytesPerSecond host_write;
  BytesPerSecond device_read;  // of one medium, by its updater
  BytesPerSecond device_write;
  BytesPerSecond update;  // of the updater, counted in bytes that it takes in
  // Of decompression and then the update, counted in bytes before decompression. Not faster than
  // `update` alone would be for the same parameters.
  BytesPerSecond decompress_update;
  // False: after all reads, as in the authors' public code, whose kernel decompresses and updates
  // in one call. True: while the states are read.
  bool decompress_beside_reads = false;
  double subgroup = 0;           // parameters
  int base_buffers = 0;          // subgroups in flight in the baseline's update
  BytesPerSecond base_software;  // of the baseline's host, counted in bytes read and written
  BytesPerSecond take_over;      // of the host's one thread that takes updated FP32 parameters
};
Machine PaperMachine();

struct StepTime {
  Seconds forward;
  Seconds backward;  // with the gradients' way to storage
  Seconds update;    // with the states' way up and down
  Seconds total() const { return forward + backward + update; }
};
// One training step as an event simulation (planner/papers/flow_network.h); the three phases follow each
// other, because the norm of all gradients comes before the first update.
// What the paper leaves open was decided with figures 9 and 11 at hand: which of figure 14's points
// the host's and which the device's transfers reach, and that a medium does one thing at a time.
// One set of inputs serves all rows.
StepTime Simulate(const Machine& machine, const Gpu& gpu, const Method& method, double parameters,
                  int devices);

// Of a server with its GPU and storage devices (section VII-I).
Dollars Price(const Gpu& gpu, Variant variant, int devices);

}  // namespace eps::planner::smart_infinity

#endif  // EPS_PLANNER_PAPERS_SMART_INFINITY_MODEL_H_
