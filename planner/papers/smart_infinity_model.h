#ifndef EPS_PLANNER_PAPERS_SMART_INFINITY_MODEL_H_
#define EPS_PLANNER_PAPERS_SMART_INFINITY_MODEL_H_

// Smart-Infinity (arXiv 2403.06664) as formulas and as a simulation: training on one machine whose
// optimizer state is on storage, updated by the host (the paper's baseline, ZeRO-Infinity) or by
// computational storage devices. Pure functions.
//
// "c" is the paper's compression ratio: the volume of the index and value lists divided by that of
// the dense gradients, so c = 2 % selects the top 1 %.

#include <cstdint>

#include "planner/units.h"

namespace eps::planner::smart_infinity {

// The paper's baseline and its three methods.
enum class Variant {
  kBase,      // BASE: a RAID0 updated by the host
  kNaive,     // SU: updated by the devices, one subgroup after the other
  kHandover,  // SU+O: SU with the paper's transfer handler (section IV-B)
  kTopK,      // SU+O+C: SU+O with compressed gradients (section IV-C)
};

// An optimizer by its state.
struct Optimizer {
  const char* name;
  int moments;  // FP32 values per parameter, without the parameter itself
};
inline constexpr Optimizer kAdam{"Adam", 2};
inline constexpr Optimizer kSgdMomentum{"SGD with momentum", 1};
inline constexpr Optimizer kAdaGrad{"AdaGrad", 1};

// The widths of one value. The paper's results use FP32 for everything that crosses the
// interconnect.
struct Widths {
  Bytes state{4};
  Bytes gradient{4};
  Bytes up{4};      // updated parameters sent to the host; 2 if the device converts them
  Bytes weight{2};  // parameters on the GPU; the host keeps a copy
};

// One configuration of the paper.
struct Method {
  Variant variant = Variant::kBase;
  Optimizer optimizer = kAdam;
  double c = 0.02;  // for kTopK only
  Widths widths;

  Bytes states() const { return (1 + optimizer.moments) * widths.state; }  // per parameter
  Bytes gradient() const {  // per parameter, as stored
    return variant == Variant::kTopK ? c * widths.gradient : widths.gradient;
  }
};

// Bytes per parameter and step: those that cross the host's interconnect (Table I), those that move
// between a device's medium and its updater, and the total that the medium reads and writes.
struct Traffic {
  Bytes host_states_read;  // with devices that update: the updated parameters
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
// Computes the traffic from the optimizer's fields and the widths alone (sections II-A, IV-A and
// IV-C).
Traffic TrafficOf(const Method& method);

// Return the entries and the bytes of a top-k list for `elements` gradients: c of their bytes, in
// entries of an int32 index and a value (section IV-C).
uint64_t TopKEntries(const Method& method, uint64_t elements);
Bytes TopKBytes(const Method& method, uint64_t elements);

// Returns the memory of one device with `sets` sets of buffers for `elements` elements, the largest
// subgroup. kNaive and kHandover use one set, a pipelined handler 2 or 3. kTopK scatters into a
// dense gradient buffer and keeps its lists as well; with a narrow `up`, the converted parameters
// have a buffer too.
Bytes DeviceMemory(const Method& method, uint64_t elements, int sets);

// Returns the factor that the update applies to gradients: 1 / (scale * max(1, (norm / scale +
// 1e-6) / clip)), where `norm` is that of the scaled gradients (the authors' public code).
double UnscaleFactor(double scale, double scaled_norm, double clip);

// Returns the time per step of GPT-2 4.0B on an A5000 with n devices, from curves fitted to figures
// 9 and 11.
Seconds ClosedForm(Variant variant, double n);

// The time and the price of one GPU.
struct Gpu {
  const char* name;
  Seconds forward;   // per parameter, batch 4
  Seconds backward;  // per parameter, with the recomputation and the top-k selection
  Dollars price;     // section VII-I
};
extern const Gpu kA5000;
extern const Gpu kA100;

// The physical inputs of the simulation. PaperMachine() has the values for the paper's machine and
// their sources.
struct Machine {
  // Per direction, shared by all devices; the GPU's link has the same speed.
  BytesPerSecond host_link;
  BytesPerSecond internal_link;  // per device, both directions together
  // A medium either reads or writes, so the times of reads and writes add up.
  BytesPerSecond host_read;  // of one medium, with the host's deep queues
  BytesPerSecond host_write;
  BytesPerSecond device_read;  // of one medium, by its updater
  BytesPerSecond device_write;
  BytesPerSecond update;  // of the updater, in input bytes
  // Decompression followed by the update, in bytes before decompression. Must not be faster than
  // `update` alone would be for the same parameters.
  BytesPerSecond decompress_update;
  // If false, decompression follows all reads, as in the authors' public code, whose kernel
  // decompresses and updates in one call. If true, it overlaps the reads of the states.
  bool decompress_beside_reads = false;
  double subgroup = 0;           // parameters
  int base_buffers = 0;          // subgroups in flight during the baseline's update
  BytesPerSecond base_software;  // of the baseline's host, in bytes read and written
  BytesPerSecond take_over;      // of the single host thread that copies updated FP32 parameters
};
Machine PaperMachine();

// The phases of one step.
struct StepTime {
  Seconds forward;
  Seconds backward;  // includes sending the gradients to storage
  Seconds update;    // includes moving the states up and down
  Seconds total() const { return forward + backward + update; }
};
// Simulates one training step (planner/papers/flow_network.h). The three phases run in sequence,
// because the norm of all gradients is needed before the first update. Figures 9 and 11 decided
// what the paper leaves open: which of figure 14's points apply to the host's and which to the
// device's transfers, and that a medium does one thing at a time. One set of inputs serves all
// rows.
StepTime Simulate(const Machine& machine, const Gpu& gpu, const Method& method, double parameters,
                  int devices);

// Returns the price of a server with its GPU and storage devices (section VII-I).
Dollars Price(const Gpu& gpu, Variant variant, int devices);

}  // namespace eps::planner::smart_infinity

#endif  // EPS_PLANNER_PAPERS_SMART_INFINITY_MODEL_H_
