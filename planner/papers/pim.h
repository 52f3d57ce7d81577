#ifndef EPS_PLANNER_PAPERS_PIM_H_
#define EPS_PLANNER_PAPERS_PIM_H_

// Quantization by processing-in-memory units (JIT-Q sections 2.3 and 4): the placement of a
// weight's tiles, the commands that convert them into a shared-microexponent format, and the time
// that the commands take.
//
// A command goes to all units of a channel at once, so one group of tiles, those that one unit
// processes, represents all. A group has 256 words of the unit's width in both placements. In the
// strided placement, a word holds one element of each of as many 16 x 16 tiles as the unit has
// lanes. A unit serves two banks; the rows of a group alternate between the even and the odd bank,
// and opening a row opens the same row in both.
//
// The paper gives the instructions and the steps but not the number of commands. The counts here
// follow from the steps, except for two choices that PimKernel names.

#include <cstdint>

#include "base/job/job_spec.h"
#include "planner/papers/jitq_capacity.h"
#include "planner/units.h"

namespace eps::planner {

// The memory of JIT-Q table 1; the width and the banks of a unit are from section 2.3.
struct PimMemory {
  int banks_per_stack = 512;
  int units_per_stack = 256;
  int registers = 16;                   // per unit, one word each
  Bytes word = Bytes(256 / 8);          // processed by one command
  Bytes row = Bytes(1024);              // of one bank
  Seconds command = Seconds(3.33e-9);   // tCCDL
  Seconds precharge = Seconds(15e-9);   // tRP
  Seconds row_active = Seconds(33e-9);  // tRAS
  double pins = 1024;                   // data pins per stack (HBM3, JEDEC JESD238)
  BytesPerSecond pin = BytesPerSecond(4.8e9 / 8);

  constexpr Seconds row_open() const { return precharge + row_active; }
  // Bandwidth of one stack for the device, and for its units, each of which processes one word per
  // command.
  constexpr BytesPerSecond device_bandwidth() const { return pins * pin; }
  constexpr BytesPerSecond unit_bandwidth() const { return units_per_stack * word / command; }
};

// A scalar floating-point format.
struct ScalarFormat {
  int bits;
  int significand;  // significand bits, the hidden one included
};
inline constexpr ScalarFormat kBf16{16, 8};
inline constexpr ScalarFormat kFp32{32, 24};

// Returns the number of one-bit right shifts that reduce the significand of a block's largest
// element to the format's mantissa. Smaller elements are shifted further.
constexpr int ShiftsOfMaximum(const ScalarFormat& from, const MxFormat& to) {
  return from.significand - to.mantissa_bits;
}

// The placement of a weight's tiles in the words of a group.
enum class Placement {
  kTiled,    // one word holds a row of a 16 x 16 tile, so work on a block crosses lanes
  kStrided,  // one lane of each word holds an element of a tile
};

// Commands per element that extract its sign, exponent and significand and assemble the result. The
// paper does not count them. CALIBRATED: the whole number for which the ratio of strided with
// conditional shifts to strided is closest to the printed 0.30 : 0.52.
inline constexpr int kFieldCommands = 7;
// Maxima over the lanes of a word: the paper's "series of pim-MAX", each after a shift by one lane.
// CHOSEN: a tree would have 4 maxima over the same number of lane shifts; the printed 0.52 supports
// the series.
inline constexpr int kLaneMaxima = 15;

// One way to quantize a group.
struct PimKernel {
  Placement placement = Placement::kStrided;
  // If true, lanes count their shifts and skip the excess ones (pim-jitq-opt), with one command per
  // bit. If false, three commands per bit: compare, shift, add (JIT-Q section 4.1).
  bool conditional_shift = true;
  Axis axis = Axis::kRow;  // the direction of the blocks
  ScalarFormat from = kBf16;
  MxFormat to = kMx6;
  int field_commands = kFieldCommands;
  int lane_maxima = kLaneMaxima;  // for kTiled only
};

// The commands that a unit receives for one group.
struct PimCommands {
  uint64_t load = 0;  // row buffer to register
  uint64_t max = 0;
  uint64_t compare = 0;
  uint64_t add = 0;
  uint64_t lane_shift = 0;
  uint64_t bit_shift = 0;  // includes the comparisons and additions of a shift
  uint64_t field = 0;
  uint64_t store = 0;
  uint64_t activations = 0;  // row opens, which are not commands of the unit

  uint64_t commands() const {
    return load + max + compare + add + lane_shift + bit_shift + field + store;
  }
};

// Returns the lanes of a unit: the elements per word, and the tiles per strided group.
int LanesOf(const PimMemory& memory, const ScalarFormat& from);
// Returns the elements of a group of 256 words.
double GroupElements(const PimMemory& memory, const ScalarFormat& from);
// Returns the number of bank rows that hold the elements of one block of a strided group.
int RowsOfBlock(const PimMemory& memory, Axis axis);

// Counts the commands of one group: its blocks, their steps, and the rows that these must open. A
// kTiled placement is modelled only for block rows that are one word: REQUIRES kRow and 16 lanes in
// that case.
PimCommands CommandsOfGroup(const PimMemory& memory, const PimKernel& kernel);
// Returns activations (tRP + tRAS) + commands tCCDL. Commands are issued one at a time, in order.
Seconds TimeOf(const PimMemory& memory, const PimCommands& commands);

// Returns the time of one unit per element.
Seconds UnitTimePerElement(const PimMemory& memory, const PimKernel& kernel);
// Returns the time of `elements` elements that are spread evenly over the units of `stacks` stacks.
Seconds QuantizationTime(const PimMemory& memory, const PimKernel& kernel, double elements,
                         int stacks);

}  // namespace eps::planner

#endif  // EPS_PLANNER_PAPERS_PIM_H_
