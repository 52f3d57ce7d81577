#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "planner/papers/nntile_model.h"
#include "planner/papers/papers.h"
#include "planner/papers/tolerance.h"
#include "planner/papers/transformer_counts.h"

namespace eps::planner {
namespace {

constexpr double kGiga = 1e9;
constexpr double kTera = 1e12;
constexpr Bytes kGigabyte(1e9);

// NVIDIA's data sheet of the A100: TF32 on tensor cores without sparsity; and the memory of the
// A100 in the DGX-A100 of section 1.
constexpr FlopsPerSecond kA100Tf32(156e12);
constexpr Bytes kA100Memory = 80 * kGigabyte;
// Section 1: "average model floating point operations (model FLOPs) per GPU barely reach 55% of the
// theoretical peak" in other frameworks. Not fitted to Figures 1 and 2.
constexpr double kEfficiency = 0.55;

// One model size of a curve in Figures 1 and 2.
struct Point {
  double billions;   // billions of parameters, as printed
  double teraflops;  // per second, over all devices; 0 means out of memory, as in the figures
};
constexpr double kRuns = -1;  // teraflops of a size that runs at an unknown rate

constexpr Point kFigure1[] = {{1.5, 327},  {2.1, 338},  {2.8, 349},  {3.6, 349},  {4.5, 340},
                              {5.6, 346},  {6.7, 357},  {7.9, 359},  {9.2, 328},  {10.6, 327},
                              {12.1, 343}, {13.7, 347}, {15.4, 344}, {17.3, 342}, {19.2, 288},
                              {21.2, 297}, {23.3, 289}, {25.5, 267}, {27.8, 0}};
constexpr Point kFigure2[] = {{2.8, 529},  {3.9, 496},  {5.3, 553},  {6.9, 577},  {8.6, 562},
                              {10.6, 499}, {12.8, 518}, {15.1, 529}, {17.7, 550}, {20.5, 487},
                              {23.4, 387}, {26.6, 443}, {30.0, 416}, {33.6, 410}, {37.3, 351},
                              {41.3, 314}, {45.5, 314}, {49.9, 317}, {54.5, 0}};
constexpr Point kFigure2Wide[] = {{50.0, kRuns}, {53.2, 0}};

// One curve of the figures and its machine.
struct Experiment {
  const char* id;
  uint64_t layers;
  double devices;
  Bytes host;
  uint64_t first_width;  // width of the first point in units of 1024; each further point adds one
  absl::Span<const Point> points;
  double largest;  // billions of parameters that NNTile trains
  Source largest_source;
  double fsdp;  // the same for PyTorch's FSDP; 0 if not given
};

std::vector<Experiment> Experiments() {
  return {
      {"l4_gpu4", 4, 4, 500 * kGigabyte, 5, kFigure1, 25.5, Source::kPrinted, 6.7},
      {"l8_gpu8", 8, 8, 900 * kGigabyte, 5, kFigure2, 49.9, Source::kPrinted, 10.6},
      {"l4_gpu8", 4, 8, 900 * kGigabyte, 31, kFigure2Wide, 50.0, Source::kFigure, 0},
  };
}

double Billions(const Gpt2Shape& shape) {
  return static_cast<double>(ModelParameters(shape)) / kGiga;
}

void AddSizes(const Experiment& e, std::vector<Row>* rows) {
  uint64_t width = e.first_width;
  for (const Point& point : e.points) {
    rows->push_back(
        {absl::StrCat("nntile.size.", e.id, ".k", width),
         absl::StrFormat("parameters, %d layers, width %d x 1024, billions", e.layers, width),
         Source::kFigure, point.billions, Billions(NntileShape(e.layers, width)),
         HalfLastDigit(point.billions, 1), ""});
    ++width;
  }
  rows->back().note =
      "with GPT-2's 1024 learned positions, a fit to these rows: the paper names no number, and of "
      "0, 512, 1024 and 2048 only 1024 gives every printed size";
}

void AddFits(const Experiment& e, std::vector<Row>* rows) {
  uint64_t width = e.first_width;
  for (const Point& point : e.points) {
    rows->push_back({absl::StrCat("nntile.fits.", e.id, ".k", width),
                     absl::StrFormat("runs on %g GPUs and a host of %g GB, %gB in %d layers: 1",
                                     e.devices, e.host / kGigabyte, point.billions, e.layers),
                     Source::kFigure, point.teraflops == 0 ? 0.0 : 1.0,
                     FitsHost(NntileShape(e.layers, width), e.host) ? 1.0 : 0.0, 0,
                     "0.92 of the host's memory: a fit to these rows"});
    ++width;
  }
}

// Adds the largest model that can be trained. Ours comes from a search over all widths, not only
// the listed ones.
void AddLargest(const Experiment& e, std::vector<Row>* rows) {
  rows->push_back(
      {absl::StrCat("nntile.largest.", e.id),
       absl::StrFormat("largest model, %d layers, %g GPUs, %g GB, billions", e.layers, e.devices,
                       e.host / kGigabyte),
       e.largest_source, e.largest, Billions(NntileShape(e.layers, LargestWidth(e.layers, e.host))),
       HalfLastDigit(e.largest, 1), "0.92 of the host's memory: a fit to the same figures"});
  if (e.fsdp == 0) return;
  // The rule for the host, applied to the memory of the devices.
  const uint64_t width = LargestWidth(e.layers, e.devices * kA100Memory);
  rows->push_back(
      {absl::StrCat("nntile.largest.", e.id, ".fsdp"),
       absl::StrFormat("the same of FSDP, in the memory of %g GPUs", e.devices), Source::kPrinted,
       e.fsdp, Billions(NntileShape(e.layers, width)), std::nullopt,
       "ours counts weights, gradients and moments alone: the paper gives no batch, and so no "
       "sizes of activations"});
}

void AddRates(const Experiment& e, std::vector<Row>* rows) {
  uint64_t width = e.first_width;
  for (const Point& point : e.points) {
    const std::string id = absl::StrCat("nntile.rate.", e.id, ".k", width++);
    if (point.teraflops <= 0) continue;
    rows->push_back({id,
                     absl::StrFormat("%gB in %d layers on %g GPUs, TFLOP/s", point.billions,
                                     e.layers, e.devices),
                     Source::kFigure, point.teraflops,
                     ComputeRate(e.devices, kA100Tf32, kEfficiency).value() / kTera, std::nullopt,
                     "A100's TF32 peak at 55 %; batch and traffic to the host are not given"});
  }
}

void AddOperations(std::vector<Row>* rows) {
  struct Case {
    uint64_t layers;
    double teraflops;
  };
  constexpr Case kCases[] = {{4, 157.761065189376}, {8, 308.565956886528}};
  for (const Case& c : kCases) {
    rows->push_back(
        {absl::StrCat("nntile.flops.l", c.layers),
         absl::StrFormat("training of one sequence of 1024 tokens, %d layers, width 22 x 1024, "
                         "Tflop",
                         c.layers),
         Source::kDerived, c.teraflops,
         SequenceTrainingFlops(NntileShape(c.layers, 22), kGpt2Positions).value() / kTera, 0,
         "3 (L (4 S E I + 8 S E^2 + 4 S^2 E) + 2 S E V) by hand; the paper gives no length"});
  }
}

void AddTiles(std::vector<Row>* rows) {
  constexpr double kExpected[] = {4, 4, 2};
  const std::vector<uint64_t> extents = TileExtents(10, 4);
  rows->push_back({"nntile.tiles.count", "tiles of an axis of 10 by a base of 4", Source::kDerived,
                   3, static_cast<double>(extents.size()), 0, ""});
  for (size_t i = 0; i < std::min<size_t>(extents.size(), 3); ++i) {
    rows->push_back({absl::StrCat("nntile.tiles.", i), absl::StrCat("extent of tile ", i),
                     Source::kDerived, kExpected[i], static_cast<double>(extents[i]), 0, ""});
  }
  const MaxSumExp merged = Merge(OfTile({0, std::log(2.0)}), OfTile({std::log(4.0)}));
  rows->push_back({"nntile.softmax.max", "maximum of the tiles [0, ln 2] and [ln 4], merged",
                   Source::kDerived, 1.38629, merged.max, HalfLastDigit(1.38629, 5), ""});
  rows->push_back({"nntile.softmax.sum", "their sum of exp(value - maximum)", Source::kDerived,
                   1.75, merged.sum, 0, ""});
}

void AddOptimizer(std::vector<Row>* rows) {
  constexpr float kGradient = 1e-25F;
  constexpr double kBeta2 = 0.999;
  rows->push_back({"nntile.adam.v", "Adam's v after a gradient of 1e-25, FP32: it underflows",
                   Source::kDerived, 0, NextSecondMoment(0, kGradient, kBeta2), 0, ""});
  rows->push_back({"nntile.adam.root_v", "NNTile's root of v after the same gradient",
                   Source::kDerived, 3.16e-27, NextRootSecondMoment(0, kGradient, kBeta2),
                   HalfLastDigit(3.16, 2), "its public code keeps the root"});
}

}  // namespace

std::vector<Row> NntileRows() {
  std::vector<Row> rows;
  const std::vector<Experiment> experiments = Experiments();
  for (const Experiment& e : experiments) AddSizes(e, &rows);
  for (const Experiment& e : experiments) AddFits(e, &rows);
  for (const Experiment& e : experiments) AddLargest(e, &rows);
  AddOperations(&rows);
  for (const Experiment& e : experiments) AddRates(e, &rows);
  AddTiles(&rows);
  AddOptimizer(&rows);
  return rows;
}

}  // namespace eps::planner
