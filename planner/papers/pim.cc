#include "planner/papers/pim.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/check.h"

namespace eps::planner {
namespace {

constexpr int kTile = kMxBlock;             // a tile holds whole blocks along both axes
constexpr int kGroupWords = kTile * kTile;  // words of the source, in both placements
constexpr int kShiftCommands = 3;  // per bit, without conditional shifts: compare, shift, add
// Registers that hold no elements: the maximum, and either the shift amounts or the word being
// assembled.
constexpr int kOtherRegisters = 2;

int WordsPerRow(const PimMemory& memory) { return static_cast<int>(memory.row / memory.word); }

// Returns the word of element `i` of block `b` in a strided group; a tile is row-major.
int WordOf(Axis axis, int b, int i) { return axis == Axis::kRow ? b * kTile + i : i * kTile + b; }

// Counts the commands that one group receives.
class Walk {
 public:
  Walk(const PimMemory& memory, const PimKernel& kernel)
      : kernel_(kernel),
        words_per_open_(memory.banks_per_stack / memory.units_per_stack * WordsPerRow(memory)),
        elements_held_(memory.registers - kOtherRegisters) {}

  PimCommands Tiled();
  PimCommands Strided();

 private:
  void Open(int row) {
    if (row == open_row_) return;
    open_row_ = row;
    ++counts_.activations;
  }
  void Load(int word) {
    Open(word / words_per_open_);
    ++counts_.load;
  }
  // Results follow the group in memory, in the order of the stores.
  void Store() {
    Open((kGroupWords + stored_++) / words_per_open_);
    ++counts_.store;
  }
  // The steps for one word of elements, in both placements, once its shared exponents are known.
  // All lanes receive as many shifts as the smallest element may need: all bits of a significand.
  void ShiftOneWord() {
    counts_.add += 1;  // the shift amounts: shared exponent minus the element's
    counts_.bit_shift +=
        kernel_.from.significand * (kernel_.conditional_shift ? 1 : kShiftCommands);
    counts_.field += kernel_.field_commands;
  }

  const PimKernel& kernel_;
  const int words_per_open_;
  const int elements_held_;
  int open_row_ = -1;
  int stored_ = 0;
  PimCommands counts_;
};

// A word is a block. Words are processed in batches that fit in the registers, so that source and
// results do not close each other's rows at every word.
PimCommands Walk::Tiled() {
  for (int first = 0; first < kGroupWords; first += elements_held_) {
    const int end = std::min(first + elements_held_, kGroupWords);
    for (int word = first; word < end; ++word) {
      Load(word);
      // The first-level exponent: the word rotates by one lane kMxBlock - 1 times.
      counts_.lane_shift += kMxBlock - 1;
      counts_.max += kernel_.lane_maxima;
      // The second level: each lane is combined with the other of its pair, to its left or to its
      // right.
      counts_.lane_shift += 2;
      counts_.add += 1;
      counts_.max += 1;
      counts_.compare += 1;
      ShiftOneWord();
    }
    for (int word = first; word < end; ++word) Store();
  }
  return counts_;
}

// A word holds one element from as many blocks as there are lanes. The words of a block are read
// once, in order, while registers last; those without a register are read again, last first, while
// their row is open. Results are assembled in registers and then stored.
PimCommands Walk::Strided() {
  const int result_words =
      static_cast<int>(std::ceil(kernel_.to.bits_per_element() * kMxBlock / kernel_.from.bits));
  for (int block = 0; block < kTile; ++block) {
    for (int i = 0; i < kMxBlock; ++i) {
      Load(WordOf(kernel_.axis, block, i));
      counts_.max += 1;
    }
    counts_.max += kMxBlock / kMxPair;
    counts_.compare += kMxBlock / kMxPair;
    for (int i = kMxBlock - 1; i >= 0; --i) {
      if (i >= elements_held_) Load(WordOf(kernel_.axis, block, i));
      ShiftOneWord();
    }
    for (int i = 0; i < result_words; ++i) Store();
  }
  return counts_;
}

}  // namespace

int LanesOf(const PimMemory& memory, const ScalarFormat& from) {
  return static_cast<int>(memory.word.value() * 8 / from.bits);
}

double GroupElements(const PimMemory& memory, const ScalarFormat& from) {
  return kGroupWords * LanesOf(memory, from);
}

int RowsOfBlock(const PimMemory& memory, Axis axis) {
  std::set<int> rows;
  for (int i = 0; i < kMxBlock; ++i) rows.insert(WordOf(axis, 0, i) / WordsPerRow(memory));
  return static_cast<int>(rows.size());
}

PimCommands CommandsOfGroup(const PimMemory& memory, const PimKernel& kernel) {
  EPS_CHECK(memory.registers > kOtherRegisters);
  Walk walk(memory, kernel);
  if (kernel.placement == Placement::kStrided) return walk.Strided();
  EPS_CHECK(kernel.axis == Axis::kRow && LanesOf(memory, kernel.from) == kMxBlock);
  return walk.Tiled();
}

Seconds TimeOf(const PimMemory& memory, const PimCommands& commands) {
  return commands.activations * memory.row_open() + commands.commands() * memory.command;
}

Seconds UnitTimePerElement(const PimMemory& memory, const PimKernel& kernel) {
  return TimeOf(memory, CommandsOfGroup(memory, kernel)) / GroupElements(memory, kernel.from);
}

Seconds QuantizationTime(const PimMemory& memory, const PimKernel& kernel, double elements,
                         int stacks) {
  return elements / (memory.units_per_stack * stacks) * UnitTimePerElement(memory, kernel);
}

}  // namespace eps::planner
