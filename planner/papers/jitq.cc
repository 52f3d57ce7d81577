// JIT-Q: Just-in-Time Quantization with Processing-in-Memory for Efficient ML Training. The inputs
// of all rows come first, each with its source. Inputs that the paper lacks are named assumptions,
// and rows that need them are not judged.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/job/job_spec.h"
#include "planner/papers/jitq_capacity.h"
#include "planner/papers/papers.h"
#include "planner/papers/pim.h"
#include "planner/papers/row.h"
#include "planner/units.h"

namespace eps::planner {
namespace {

// Tolerances.
constexpr double kTruncated = 0.015;  // the paper prints 6.6 for 6.67: two digits, truncated
constexpr double kRounded = 0.01;     // numbers rounded to two or three digits
constexpr double kModel = 0.15;       // a model with one constant for all its rows
// Averages over the paper's ten models, computed for one average model.
constexpr double kAverages = 0.10;
constexpr double kSimulated = 1e-9;  // a simulation against a closed form

// The printed values of each format, in percent or as a ratio.
struct PrintedFormat {
  MxFormat format;
  double saving_max;         // two copies, section 5.4
  double saving;             // on average
  double single_saving_max;  // one copy, section 5.4
  double single_saving;
  double fp32_saving;  // FP32 master weights, section 5.6
  double slack;        // T_GPU / T_PIM on average, "at least" (section 5.3)
  // "at most" (section 5.6); 0 if the text says that it is kept but gives no number.
  double fp32_slack;
  double loss;       // of throughput on average, section 5.5
  double fp32_loss;  // section 5.6
};
constexpr PrintedFormat kPrinted[] = {
    {kMx4, 12.5, 9.0, 6.6, 4.8, 5.6, 1.6, 0.51, 2.4, 4.4},
    {kMx6, 17.6, 12.5, 9.7, 6.7, 7.9, 2.4, 0.76, 1.6, 4.2},
    {kMx9, 24.2, 16.8, 13.8, 9.3, 11.1, 3.7, 0, 1.1, 3.6},
};
constexpr const PrintedFormat& kFitted = kPrinted[1];  // MX6, the format of the paper's figures

// Bytes per parameter, section 5.1.3: master weight, two moments and an FP8 gradient.
constexpr Bytes kBf16Resident(2 + 2 * 2 + 1);
constexpr Bytes kFp32Resident(4 + 2 * 4 + 1);
// An EPS server with AdamW: FP32 weight and moments; gradients are not kept.
constexpr Bytes kServerResident(3 * 4);

// Block counts of models like those that the paper evaluates (BERT 345M, GPT-2 1.5B, Megatron-LM
// 8.3B, Turing-NLG 17B, GPT-3 175B, Megatron-Turing 530B and PaLM 540B, from the papers that it
// cites) and of its table 2. The devices of a pipeline hold fewer blocks each; the paper gives that
// number only for its table 2, so the rows count all blocks on one device.
constexpr int kLayers[] = {24, 48, 72, 78, 96, 105, 118, 80, 200, 500};

constexpr int kComputeUnits = 104;  // on an MI210 (section 5.1.3)
constexpr int kTakenUnits = 16;
constexpr double kMaximumLoss = 5;  // percent, mega-lm-8.3B with MX6, section 5.5

constexpr ShardedTransformer kFutureModels[] = {
    // Table 2; K is 1024.
    {"1T", 80, 32 * 1024, 128, 4 * 1024, 1, 128, 2},
    {"10T", 200, 64 * 1024, 128, 8 * 1024, 1, 128, 8},
    {"100T", 500, 128 * 1024, 128, 16 * 1024, 1, 128, 32},
};
constexpr double kFutureParameters[] = {1e12, 1e13, 1e14};  // according to their names

// ASSUMED, since the paper gives none of them: the number of stacks of its MI210 under HBM3 timing,
// the MI210's BF16 matrix peak (AMD's data sheet), twice that for MX9, as accelerators offer for
// 8-bit floats, and twice that again for MX6 and MX4, as later ones offer for 6 and 4 bits.
constexpr int kStacks = 4;
constexpr FlopsPerSecond kBf16Peak(181e12);
constexpr double kRateOfMx9 = 2;
constexpr double kRateOfNarrow = 4;

constexpr int kShards = 8;  // for the rows on sharding; their ratios do not depend on it
constexpr int kBlocksSimulated = 64;
constexpr int kLookAheads[] = {1, 2, 4};

constexpr PimMemory kHbm3;

// Collects rows.
class Rows {
 public:
  void Judged(const std::string& id, const std::string& what, Source source, double paper,
              double ours, double tolerance, const std::string& note = "") {
    rows_.push_back({"jitq." + id, what, source, paper, ours, tolerance, note});
  }
  void Shown(const std::string& id, const std::string& what, Source source, double paper,
             double ours, const std::string& note) {
    rows_.push_back({"jitq." + id, what, source, paper, ours, std::nullopt, note});
  }
  std::vector<Row> Take() { return std::move(rows_); }

 private:
  std::vector<Row> rows_;
};

std::string Upper(const MxFormat& format) { return absl::StrCat("MX", format.name + 2); }

double MeanInverseLayers() {
  double sum = 0;
  for (int layers : kLayers) sum += 1.0 / layers;
  return sum / (sizeof(kLayers) / sizeof(kLayers[0]));
}

double SavingPercent(Bytes resident, Bytes activations, Bytes copy, int copies, double kept_share) {
  return 100 * CapacitySaving({resident, activations, copy, copies, kept_share});
}

// Returns A of the average model, fitted to one row.
Bytes FittedActivations() {
  return ActivationsForSaving(
      {kBf16Resident, Bytes(), kFitted.format.bytes_per_element(), 2, MeanInverseLayers()},
      kFitted.saving / 100);
}

void AddMaximumSavings(Rows* rows) {
  for (const PrintedFormat& p : kPrinted) {
    const Bytes copy = p.format.bytes_per_element();
    for (int copies : {2, 1}) {
      rows->Judged(absl::StrCat("capacity.max.", p.format.name, ".copies", copies),
                   absl::StrCat("largest saving of memory, ", Upper(p.format), ", ", copies,
                                copies == 1 ? " copy, %" : " copies, %"),
                   Source::kPrinted, copies == 2 ? p.saving_max : p.single_saving_max,
                   SavingPercent(kBf16Resident, Bytes(), copy, copies, 0), kTruncated,
                   "bound: no activations, infinitely many blocks");
    }
  }
}

void AddAverageSavings(Rows* rows) {
  const Bytes activations = FittedActivations();
  const std::string fit =
      absl::StrFormat("activations: %.2f B/parameter for all rows, FITTED to %s with two copies",
                      activations.value(), Upper(kFitted.format));
  for (const PrintedFormat& p : kPrinted) {
    const Bytes copy = p.format.bytes_per_element();
    for (int copies : {2, 1}) {
      const bool fitted = copies == 2 && &p == &kFitted;
      rows->Judged(absl::StrCat("capacity.mean.", p.format.name, ".copies", copies),
                   absl::StrCat("mean saving of memory, ", Upper(p.format), ", ", copies,
                                copies == 1 ? " copy, %" : " copies, %"),
                   Source::kPrinted, copies == 2 ? p.saving : p.single_saving,
                   SavingPercent(kBf16Resident, activations, copy, copies, MeanInverseLayers()),
                   kAverages, fitted ? "FITTED: activations are chosen for this row" : fit);
    }
    rows->Judged(absl::StrCat("capacity.fp32.", p.format.name),
                 absl::StrCat("mean saving of memory, FP32 master weights, two blocks kept, ",
                              Upper(p.format), ", %"),
                 Source::kPrinted, p.fp32_saving,
                 SavingPercent(kFp32Resident, activations, copy, 2, 2 * MeanInverseLayers()),
                 kAverages, fit);
  }
  rows->Shown(
      "capacity.larger_model", "larger model in the same memory, GPT-3 175B, MX6, %",
      Source::kPrinted, 20,
      100 / (1 - CapacitySaving({kBf16Resident, Bytes(), kMx6.bytes_per_element(), 2, 0})) - 100,
      "ours: without activations; the paper does not give those of this model");
}

void AddServerSavings(Rows* rows) {
  struct Case {
    const char* id;
    const char* what;
    Bytes copy;
    int copies;
    double by_hand;  // 2/14, 2.25/14.25, 1.5/13.5 and 1/13
  };
  const Case kCases[] = {
      {"bf16", "one BF16 copy", Bytes(2), 1, 14.3},
      {"mx9", "MX9 along rows and columns", kMx9.bytes_per_element(), 2, 15.8},
      {"mx6", "MX6 along rows and columns", kMx6.bytes_per_element(), 2, 11.1},
      {"mx4", "MX4 along rows and columns", kMx4.bytes_per_element(), 2, 7.7},
  };
  for (const Case& c : kCases) {
    rows->Judged(absl::StrCat("server.", c.id),
                 absl::StrCat("memory of an EPS server that keeps no copy: ", c.what, ", %"),
                 Source::kDerived, c.by_hand,
                 SavingPercent(kServerResident, Bytes(), c.copy, c.copies, 0), kRounded,
                 "of 12 B of state per parameter; `paper`: by hand, to one digit");
  }
}

double Fp32Slowdown(const MxFormat& format) {
  PimKernel kernel;
  kernel.to = format;
  const Seconds bf16 = UnitTimePerElement(kHbm3, kernel);
  kernel.from = kFp32;
  return UnitTimePerElement(kHbm3, kernel) / bf16;
}

void AddLoss(Rows* rows) {
  const double kappa = KappaOf(kFitted.loss, 1 / kFitted.slack);
  for (const PrintedFormat& p : kPrinted) {
    const bool fitted = &p == &kFitted;
    rows->Judged(absl::StrCat("loss.", p.format.name),
                 absl::StrCat("mean loss of throughput, ", Upper(p.format), ", %"),
                 Source::kPrinted, p.loss, ThroughputLoss(kappa, 1 / p.slack), kModel,
                 fitted ? "FITTED: kappa is chosen for this row; overlap: printed T_GPU / T_PIM"
                        : absl::StrFormat("kappa = %.2f %%, fitted to MX6", kappa));
  }
  for (const PrintedFormat& p : kPrinted) {
    const double rho = Fp32Slowdown(p.format) / p.slack;
    rows->Judged(
        absl::StrCat("loss.fp32.", p.format.name),
        absl::StrCat("mean loss of throughput, FP32 master weights, ", Upper(p.format), ", %"),
        Source::kPrinted, p.fp32_loss, ThroughputLoss(kappa, rho), kModel,
        absl::StrFormat("kappa fitted to BF16 and MX6; overlap %.2f%s: T_PIM of FP32 "
                        "over BF16 from our command counts",
                        rho, rho >= 1 ? ", saturated" : ""));
  }
  rows->Shown("loss.max", "largest loss of throughput (mega-lm-8.3B, MX6), %", Source::kPrinted,
              kMaximumLoss, ThroughputLoss(kappa, 1),
              "ours: the mean model's at full overlap; the paper gives neither this model's shape "
              "nor how much of its time is matrix products");
  rows->Shown(
      "loss.kappa", "loss while quantization runs, against 16 of 104 compute units, %",
      Source::kDerived, 100 * KappaBound(kTakenUnits, kComputeUnits), kappa,
      "`paper` is a bound: all work bound by compute. The measured slowdown is not printed");
}

void AddStalls(Rows* rows) {
  const Seconds compute(1);  // the unit of all times here
  for (const PrintedFormat& p : kPrinted) {
    for (int look_ahead : kLookAheads) {
      const Seconds stall =
          SustainedStall(compute / p.slack, compute, look_ahead, kBlocksSimulated);
      rows->Judged(absl::StrCat("stall.", p.format.name, ".ahead", look_ahead),
                   absl::StrCat("wait for weights per block, ", Upper(p.format), ", look-ahead ",
                                look_ahead, ", of T_GPU"),
                   Source::kPrinted, 0, stall / compute, 0, "simulated with the printed slack");
    }
  }
  for (const PrintedFormat& p : kPrinted) {
    if (p.fp32_slack == 0) continue;
    const Seconds quantize = compute / p.fp32_slack;
    for (int look_ahead : kLookAheads) {
      rows->Judged(
          absl::StrCat("stall.fp32.", p.format.name, ".ahead", look_ahead),
          absl::StrCat("wait for weights per block, FP32 master weights, ", Upper(p.format),
                       ", look-ahead ", look_ahead, ", of T_GPU"),
          Source::kDerived, (quantize - compute) / compute,
          SustainedStall(quantize, compute, look_ahead, kBlocksSimulated) / compute, kSimulated,
          "`paper`: T_PIM - T_GPU from the printed ratio; ours: simulated. No look-ahead helps "
          "against a deficit");
    }
    rows->Shown(
        absl::StrCat("stall.fp32.", p.format.name, ".loss"),
        absl::StrCat("loss of throughput if that wait is counted, ", Upper(p.format), ", %"),
        Source::kPrinted, p.fp32_loss,
        100 * (1 - compute / (compute + SustainedStall(quantize, compute, 2, kBlocksSimulated))),
        "the printed loss holds the interference alone; the paper prepares block i + 2 and "
        "prints no wait, and does not say over which models its mean slack goes");
  }
}

double SlowerThan(const PimKernel& kernel, const PimKernel& base) {
  return UnitTimePerElement(kHbm3, kernel) / UnitTimePerElement(kHbm3, base);
}

PimKernel Kernel(Placement placement, bool conditional_shift) {
  PimKernel kernel;
  kernel.placement = placement;
  kernel.conditional_shift = conditional_shift;
  return kernel;
}

void AddMemory(Rows* rows) {
  rows->Judged("pim.device_bandwidth", "bandwidth of a stack for the device, GB/s",
               Source::kPrinted, 614.4, kHbm3.device_bandwidth().value() / 1e9, kRounded,
               "1024 pins of 4.8 Gb/s");
  rows->Judged("pim.unit_bandwidth", "bandwidth of a stack for its units, TB/s", Source::kDerived,
               2.46, kHbm3.unit_bandwidth().value() / 1e12, kRounded, "256 x 32 B / 3.33 ns");
  rows->Judged("pim.advantage", "units' bandwidth over the device's", Source::kPrinted, 4,
               kHbm3.unit_bandwidth() / kHbm3.device_bandwidth(), kRounded,
               "printed: about 4 to 8");
  rows->Judged("pim.group.tiles", "tiles that one command works on, BF16", Source::kDerived, 16,
               LanesOf(kHbm3, kBf16), 0);
  rows->Judged("pim.group.bytes", "group of strided BF16 tiles, KiB", Source::kDerived, 8,
               GroupElements(kHbm3, kBf16) * kBf16.bits / 8 / 1024, 0);
  rows->Judged("pim.rows.row", "DRAM rows that a block along a row touches", Source::kDerived, 1,
               RowsOfBlock(kHbm3, Axis::kRow), 0);
  rows->Judged("pim.rows.column", "DRAM rows that a block along a column touches", Source::kDerived,
               8, RowsOfBlock(kHbm3, Axis::kColumn), 0);
  rows->Judged("pim.row_open", "time of opening a row, ns", Source::kDerived, 48,
               kHbm3.row_open().value() * 1e9, 0);
  struct Shifts {
    MxFormat format;
    int bf16;
    int fp32;
  };
  for (const Shifts& s : {Shifts{kMx9, 1, 17}, Shifts{kMx6, 4, 20}, Shifts{kMx4, 6, 22}}) {
    rows->Judged(absl::StrCat("pim.shifts.bf16.", s.format.name),
                 absl::StrCat("shifts of a block's largest element, BF16 to ", Upper(s.format)),
                 Source::kDerived, s.bf16, ShiftsOfMaximum(kBf16, s.format), 0);
    rows->Judged(absl::StrCat("pim.shifts.fp32.", s.format.name),
                 absl::StrCat("shifts of a block's largest element, FP32 to ", Upper(s.format)),
                 Source::kDerived, s.fp32, ShiftsOfMaximum(kFp32, s.format), 0);
  }
}

void AddPlacements(Rows* rows) {
  const PimKernel tiled = Kernel(Placement::kTiled, false);
  const PimKernel strided = Kernel(Placement::kStrided, false);
  const PimKernel opt = Kernel(Placement::kStrided, true);
  const std::string checked = absl::StrCat("command counts: ours, with ", kFieldCommands,
                                           " field commands per element FITTED to opt : strided");
  rows->Judged("pim.opt_of_strided", "time with conditional shifts, of strided", Source::kDerived,
               0.30 / 0.52, SlowerThan(opt, strided), kModel,
               "FITTED: the field commands per element, a whole number, are chosen for this row");
  const std::string tiled_checked =
      absl::StrCat(checked, "; the tiled one's series of ", kLaneMaxima,
                   " maxima is CHOSEN, a tree of them is below");
  rows->Judged("pim.strided", "time of the strided placement, of tiled (BF16 to MX6, rows)",
               Source::kPrinted, 0.52, SlowerThan(strided, tiled), kModel, tiled_checked);
  rows->Judged("pim.opt", "time with conditional shifts, of tiled (BF16 to MX6, rows)",
               Source::kPrinted, 0.30, SlowerThan(opt, tiled), kModel,
               absl::StrCat(tiled_checked, "; no check of its own: the product of the two before"));
  const PimCommands opt_commands = CommandsOfGroup(kHbm3, opt);
  const double shift = opt_commands.bit_shift * kHbm3.command / TimeOf(kHbm3, opt_commands);
  rows->Judged("pim.opt.shift", "part of that in shifts", Source::kDerived, 0.11,
               shift * SlowerThan(opt, tiled), kModel, checked);
  rows->Judged("pim.opt.other", "part of that in all else", Source::kDerived, 0.19,
               (1 - shift) * SlowerThan(opt, tiled), kModel, checked);
  PimKernel column = opt;
  column.axis = Axis::kColumn;
  rows->Judged("pim.column", "time along columns, of rows", Source::kPrinted, 1.18,
               SlowerThan(column, opt), kModel,
               absl::StrCat(checked, "; a row open serves both banks of a unit"));

  const std::string sensitivity =
      "not judged: what the row becomes under another count that the paper does not exclude: ";
  PimKernel bare_tiled = tiled;
  PimKernel bare_opt = opt;
  bare_tiled.field_commands = bare_opt.field_commands = 0;
  rows->Shown("pim.opt.no_fields", "time with conditional shifts, of tiled, nothing calibrated",
              Source::kPrinted, 0.30, SlowerThan(bare_opt, bare_tiled),
              absl::StrCat(sensitivity, "no field commands"));
  PimKernel tree = tiled;
  tree.lane_maxima = 4;  // log2 of the lanes
  rows->Shown("pim.strided.tree", "time of the strided placement, of tiled with a tree of maxima",
              Source::kPrinted, 0.52, SlowerThan(strided, tree),
              absl::StrCat(sensitivity, "4 maxima over 15 lane shifts"));
}

void AddFp32Times(Rows* rows) {
  const std::string note =
      "half the lanes per word and 24 for 8 shifts; nothing fitted to FP32 (field commands: see "
      "opt : strided)";
  for (const PrintedFormat& p : kPrinted) {
    const double slowdown = Fp32Slowdown(p.format);
    if (p.fp32_slack == 0) {
      rows->Shown(absl::StrCat("pim.fp32.slack.", p.format.name),
                  absl::StrCat("T_GPU / T_PIM, FP32 master weights, ", Upper(p.format)),
                  Source::kPrinted, 1, p.slack / slowdown,
                  "printed: slack is maintained, hence at least 1, without a number");
      continue;
    }
    rows->Judged(absl::StrCat("pim.fp32.time.", p.format.name),
                 absl::StrCat("T_PIM of FP32 over BF16, ", Upper(p.format)), Source::kDerived,
                 p.slack / p.fp32_slack, slowdown, kModel, note);
    rows->Judged(absl::StrCat("pim.fp32.slack.", p.format.name),
                 absl::StrCat("T_GPU / T_PIM, FP32 master weights, ", Upper(p.format)),
                 Source::kPrinted, p.fp32_slack, p.slack / slowdown, kModel,
                 absl::StrCat("printed BF16 ratio over our T_PIM of FP32 over BF16: ", note));
  }
}

void AddFutureModels(Rows* rows) {
  for (size_t i = 0; i < sizeof(kFutureModels) / sizeof(kFutureModels[0]); ++i) {
    const ShardedTransformer& shape = kFutureModels[i];
    rows->Judged(absl::StrCat("models.parameters.", shape.name),
                 absl::StrCat("parameters of future-", shape.name, ": 12 L H^2"), Source::kPrinted,
                 kFutureParameters[i], shape.parameters(), 0.05,
                 "the paper's is its name, one digit; embeddings left out");
  }
  for (const ShardedTransformer& shape : kFutureModels) {
    for (const PrintedFormat& p : kPrinted) {
      PimKernel kernel;
      kernel.to = p.format;
      const double rate = p.format.mantissa_bits == kMx9.mantissa_bits ? kRateOfMx9 : kRateOfNarrow;
      const MatrixDevice device{rate * kBf16Peak, kStacks * kHbm3.device_bandwidth()};
      const Seconds quantize = QuantizationTime(
          kHbm3, kernel, shape.block_parameters() / shape.tensor_parallel, kStacks);
      const Seconds compute = BlockComputeTime(shape, device, p.format.bytes_per_element());
      rows->Shown(absl::StrCat("models.slack.", shape.name, ".", p.format.name),
                  absl::StrCat("T_GPU / T_PIM of a block forward, future-", shape.name, ", ",
                               Upper(p.format)),
                  Source::kPrinted, p.slack, compute / quantize,
                  absl::StrFormat("paper: its mean over ten models. Missing there: peak rates of "
                                  "MX (here %.0f TFLOP/s), stacks (here %d), this model's ratio",
                                  device.peak.value() / 1e12, kStacks));
    }
  }
}

void AddSharding(Rows* rows) {
  struct Case {
    MxFormat format;
    double by_hand;
  };
  for (const Case& c : {Case{kMx4, 0.25}, Case{kMx6, 0.375}, Case{kMx9, 0.5625}}) {
    const double elements = kFutureModels[0].block_parameters();
    const Bytes bf16 = GatheredBytes(elements, Bytes(2), kShards);
    rows->Judged(absl::StrCat("sharding.", c.format.name),
                 absl::StrCat("bytes on the wire of a pass whose shards are quantized before they "
                              "are sent, ",
                              Upper(c.format), ", of BF16"),
                 Source::kDerived, c.by_hand,
                 GatheredBytes(elements, c.format.bytes_per_element(), kShards) / bf16, 0,
                 "one axis per pass; `paper`: by hand. Section 6 gives no number");
  }
}

}  // namespace

std::vector<Row> JitqRows() {
  Rows rows;
  AddMaximumSavings(&rows);
  AddAverageSavings(&rows);
  AddServerSavings(&rows);
  AddLoss(&rows);
  AddStalls(&rows);
  AddMemory(&rows);
  AddPlacements(&rows);
  AddFp32Times(&rows);
  AddFutureModels(&rows);
  AddSharding(&rows);
  return rows.Take();
}

}  // namespace eps::planner
