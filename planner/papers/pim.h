#ifndef EPS_PLANNER_PAPERS_PIM_H_
#define EPS_PLANNER_PAPERS_PIM_H_

// Quantization by units in memory (JIT-Q sections 2.3 and 4): where a weight's tiles lie, which
// commands turn them into a shared-microexponent format, and how long these take.
//
// A command goes to all units of a channel at once, so one group of tiles stands for all: the one
// that a unit works on. A group is 256 words of the unit's width in both placements; strided, a
// word holds one element of each of as many 16 x 16 tiles as the unit has lanes. A unit serves two
// banks; a group's rows lie alternately in the even and the odd one, and opening a row opens the
// same one in both.
//
// The paper gives the instructions and the steps but not how many commands they are. The counts
// here follow from the steps, but for two choices that PimKernel names.

#include <cstdint>

#include "planner/papers/jitq_capacity.h"
#include "planner/units.h"
#include "base/job/job_spec.h"

namespace eps::planner {

// JIT-Q table 1, and section 2.3 for the width and the banks of a unit.
struct PimMemory {
  int banks_per_stack = 512;
  int units_per_stack = 256;
  int registers = 16;                   // of a unit, each a word
  Bytes word = Bytes(256 / 8);          // what one command works on
  Bytes row = Bytes(1024);              // of one bank
  Seconds command = Seconds(3.33e-9);   // tCCDL
  Seconds precharge = Seconds(15e-9);   // tRP
  Seconds row_active = Seconds(33e-9);  // tRAS
  double pins = 1024;                   // data pins of a stack (HBM3, JEDEC JESD238)
  BytesPerSecond pin = BytesPerSecond(4.8e9 / 8);

  constexpr Seconds row_open() const { return precharge + row_active; }
  // What the device sees of a stack, and what its units see: a word per command each.
  constexpr BytesPerSecond device_bandwidth() const { return pins * pin; }
  constexpr BytesPerSecond unit_bandwidth() const { return units_per_stack * word / command; }
};

struct ScalarFormat {
  int bits;
  int significand;  // bits of it, the hidden one included
};
inline constexpr ScalarFormat kBf16{16, 8};
inline constexpr ScalarFormat kFp32{32, 24};

// How often the significand of a block's largest element is shifted to the right by one bit until
// the format's mantissa is left. Smaller ones are shifted further.
constexpr int ShiftsOfMaximum(const ScalarFormat& from, const MxFormat& to) {
  return from.significand - to.mantissa_bits;
}

enum class Placement {
  kTiled,    // a row of a 16 x 16 tile in one word: work on a block crosses lanes
  kStrided,  // an element of a tile in one lane of each word
};

// Commands per element that take an element's sign, exponent and significand apart and put the
// result together. The paper counts them nowhere. CALIBRATED: the whole number with which strided
// with conditional shifts : strided comes closest to the printed 0.30 : 0.52.
inline constexpr int kFieldCommands = 7;
// Maxima over the lanes of a word: the paper's "series of pim-MAX", each after a shift by one lane.
// CHOSEN: a tree would have 4 over as many lane shifts; the printed 0.52 speaks for the series.
inline constexpr int kLaneMaxima = 15;

struct PimKernel {
  Placement placement = Placement::kStrided;
  // Lanes count their shifts and skip those beyond (pim-jitq-opt): one command per bit. Without,
  // three: compare, shift, add (JIT-Q section 4.1).
  bool conditional_shift = true;
  Axis axis = Axis::kRow;  // along which blocks run
  ScalarFormat from = kBf16;
  MxFormat to = kMx6;
  int field_commands = kFieldCommands;
  int lane_maxima = kLaneMaxima;  // of kTiled
};

// What a unit is sent for one group.
struct PimCommands {
  uint64_t load = 0;  // row buffer to register
  uint64_t max = 0;
  uint64_t compare = 0;
  uint64_t add = 0;
  uint64_t lane_shift = 0;
  uint64_t bit_shift = 0;  // with the comparisons and additions that belong to them
  uint64_t field = 0;
  uint64_t store = 0;
  uint64_t activations = 0;  // row opens; not a command of the unit

  uint64_t commands() const {
    return load + max + compare + add + lane_shift + bit_shift + field + store;
  }
};

// Lanes of a unit: elements of a word, and tiles of a strided group.
int LanesOf(const PimMemory& memory, const ScalarFormat& from);
// Elements of a group: 256 words.
double GroupElements(const PimMemory& memory, const ScalarFormat& from);
// Rows of the banks that one block of a strided group has its elements in.
int RowsOfBlock(const PimMemory& memory, Axis axis);

// Walks one group: its blocks, their steps, and the rows that these find open. A kTiled placement
// is only modelled for rows that are one word: REQUIRES kRow and 16 lanes then.
PimCommands CommandsOfGroup(const PimMemory& memory, const PimKernel& kernel);
// activations (tRP + tRAS) + commands tCCDL: commands are issued in order, one after the other.
Seconds TimeOf(const PimMemory& memory, const PimCommands& commands);

// Of one element, by one unit.
Seconds UnitTimePerElement(const PimMemory& memory, const PimKernel& kernel);
// Of `elements` spread evenly over the units of `stacks` stacks.
Seconds QuantizationTime(const PimMemory& memory, const PimKernel& kernel, double elements,
                         int stacks);

}  // namespace eps::planner

#endif  // EPS_PLANNER_PAPERS_PIM_H_
