#include <optional>
#include "absl/strings/str_cat.h"

#include "planner/papers/l2l_model.h"
#include "planner/papers/papers.h"
#include "planner/papers/tolerance.h"
#include "planner/papers/transformer_counts.h"

namespace eps::planner {
namespace {

constexpr double kGiga = 1e9;
constexpr Bytes kMegabyte(1e6);
constexpr Bytes kGigabyte(1e9);
// The GB of Tables 2 to 5. The paper does not define it; with 2^30 bytes the sizes of layer inputs
// agree with the differences within Table 4 to 2.4 %, with 10^9 bytes to 4.8 %.
constexpr Bytes kTableGigabyte(1024.0 * 1024.0 * 1024.0);
constexpr Bytes kFp16(2);
constexpr BytesPerSecond kGigabytePerSecond(1e9);
constexpr FlopsPerSecond kTeraflopPerSecond(1e12);
constexpr Seconds kMillisecond(1e-3);

// Table 1 and section 3.1.
constexpr uint64_t kBertLayers = 24;
constexpr uint64_t kBertWidth = 1024;
constexpr uint64_t kBertTokens = 512;
constexpr uint64_t kMicroBatch = 64;  // per device
constexpr double kDevices = 4;
constexpr Gpt2Shape kBert{kBertLayers, kBertWidth, 30522, 512};  // BERT's vocabulary

// Table 5: a model like Turing-NLG; only the shape of its layers.
constexpr Gpt2Shape kTuring{78, 4256, 1, 1};
constexpr uint64_t kTuringMicroBatch = 8;
constexpr double kTuringMicroBatches = 16;
constexpr uint64_t kTuringTokens = 1024;

// NVIDIA's data sheet of the V100 (SXM2): FP32, and FP16 on tensor cores.
constexpr FlopsPerSecond kV100Fp32 = 15.7 * kTeraflopPerSecond;
constexpr FlopsPerSecond kV100Fp16 = 125 * kTeraflopPerSecond;
// Achieved rate of PCIe 3.0 x16 to a V100; the paper gives no rate.
constexpr BytesPerSecond kPcie = 12 * kGigabytePerSecond;

// Fits to Table 3's three steps of 256 u samples, which take 2.475 + 2.384 u seconds: the compute
// of one micro-batch (its four passes over all layers), and the time that does not depend on u,
// transfers included.
constexpr Seconds kFitMicroBatch(2.384);
constexpr Seconds kFitFixed(2.475);
// A fit to Table 3's memory: the layer inputs that each micro-batch after the first keeps on the
// device.
constexpr double kFitInFlight = 3;
// An input of the memory model, taken from the row of Table 4 with 24 layers and the stash on the
// host.
constexpr Bytes kBaseMemory = 3.69 * kTableGigabyte;

constexpr double kFitTolerance = 0.01;

double InTableGigabytes(Bytes bytes) { return bytes / kTableGigabyte; }

// The worked example of section 2.2.1 with the numbers of a typical accelerator, chosen so that X
// equals C.
RelayStep Example(double micro_batches) {
  RelayStep step;
  step.layers = kBertLayers;
  step.micro_batches = micro_batches;
  step.samples = kMicroBatch;
  step.compute = LayerComputeTime(Flops(500e9), 50 * kTeraflopPerSecond);
  step.transfer = LayerTransferTime(100 * kMegabyte, 10 * kGigabytePerSecond);
  return step;
}

void AddEquations(std::vector<Row>* rows) {
  const RelayStep one = Example(1);
  rows->push_back({"l2l.x", "X = L / B of a layer of 100 MB at 10 GB/s, ms", Source::kDerived, 10,
                   one.transfer / kMillisecond, 0, ""});
  rows->push_back({"l2l.c", "C = c / F of 500 Gop at 50 TFLOP/s, ms", Source::kDerived, 10,
                   one.compute / kMillisecond, 0, ""});
  struct Case {
    int micro_batches;
    double training;
    double forward;
  };
  constexpr Case kCases[] = {
      {1, 44.44, 133.3}, {2, 53.33, 177.8}, {4, 59.26, 213.3}, {10, 63.49, 242.4}};
  for (const Case& c : kCases) {
    const RelayStep step = Example(c.micro_batches);
    rows->push_back(
        {absl::StrCat("l2l.eq6.training.u", c.micro_batches),
         absl::StrCat("training, N 24, ub 64, C = X = 10 ms, u ", c.micro_batches, ", samples/s"),
         Source::kDerived, c.training, TrainingThroughput(step).value(),
         HalfLastDigit(c.training, 2), "equation 6 with the N that its print lost"});
    rows->push_back({absl::StrCat("l2l.eq5.forward.u", c.micro_batches),
                     absl::StrCat("forward, the same, u ", c.micro_batches, ", samples/s"),
                     Source::kDerived, c.forward, ForwardThroughput(step).value(),
                     HalfLastDigit(c.forward, 1), "equation 5 with the u that its print lost"});
  }
  const RelayStep ten = Example(10);
  rows->push_back({"l2l.eq6.limit", "training, u without limit, samples/s", Source::kDerived, 66.67,
                   TrainingThroughputLimit(one).value(), HalfLastDigit(66.67, 2), ""});
  rows->push_back({"l2l.overhead.training.u10", "transfers against compute, training, u 10, %",
                   Source::kDerived, 5, 100 * TrainingOverhead(ten), 0,
                   "section 2.2.1: \"less than 10%\" where X is C"});
  rows->push_back({"l2l.overhead.forward.u10", "transfers against compute, forward, u 10, %",
                   Source::kDerived, 10, 100 * ForwardOverhead(ten), 0, ""});
  rows->push_back({"l2l.eq5.as_printed", "equation 5 word by word, u 10, samples/s",
                   Source::kPrinted, PrintedForwardThroughput(ten).value(),
                   ForwardThroughput(ten).value(), std::nullopt,
                   "as printed it divides by N (C + X): u micro-batches in the time of one"});
  rows->push_back({"l2l.eq6.as_printed", "equation 6 word by word, u 10, samples/s",
                   Source::kPrinted, PrintedTrainingThroughput(ten).value(),
                   TrainingThroughput(ten).value(), std::nullopt,
                   "as printed it divides by 4 u C + 2 X: N layers in the time of one"});
}

void AddTransfers(std::vector<Row>* rows) {
  const RelayTransfers all = WalkRelay(kBertLayers, /*keep_top=*/false);
  const RelayTransfers kept = WalkRelay(kBertLayers, /*keep_top=*/true);
  rows->push_back({"l2l.transfers.weights", "layers sent to the device in a step, N 24: 2 N",
                   Source::kDerived, 48, static_cast<double>(all.weights), 0, ""});
  rows->push_back({"l2l.transfers.weights.keep_top", "the same, the top layer kept: 2 N - 1",
                   Source::kDerived, 47, static_cast<double>(kept.weights), 0, ""});
  rows->push_back({"l2l.transfers.gradients", "gradients sent back: N", Source::kDerived, 24,
                   static_cast<double>(kept.gradients), 0, ""});
}

// Returns the samples per second that kDevices compute at their peak if nothing but `passes` times
// the forward operations takes time.
double RoofSamples(FlopsPerSecond peak, double passes) {
  const Flops sample = passes * LayersForwardFlops(kBert, kBertTokens);
  return (kDevices * peak) / PerSecond(1) / sample;
}

void AddTable2(std::vector<Row>* rows) {
  constexpr double kPassesWithoutRecomputation = 3;
  constexpr double kPassesOfRelay = 4;
  struct Case {
    const char* id;
    const char* what;
    double samples;
    FlopsPerSecond peak;
    double passes;
  };
  constexpr Case kCases[] = {
      {"baseline_fp32", "baseline FP32", 16.52, kV100Fp32, kPassesWithoutRecomputation},
      {"baseline_amp", "baseline AMP", 26.2, kV100Fp16, kPassesWithoutRecomputation},
      {"l2l_fp32", "L2L FP32", 22.5, kV100Fp32, kPassesOfRelay},
      {"l2l_cmp", "L2L CMP", 52.48, kV100Fp16, kPassesOfRelay}};
  for (const Case& c : kCases) {
    rows->push_back({absl::StrCat("l2l.table2.", c.id, ".throughput"),
                     absl::StrCat("Table 2, ", c.what, ", against the roof of 4 V100, samples/s"),
                     Source::kPrinted, c.samples, RoofSamples(c.peak, c.passes), std::nullopt,
                     "the roof is the devices' peak; the paper gives no rate that they reach"});
  }
  const Bytes states = 16 * Bytes(static_cast<double>(ModelParameters(kBert)));
  rows->push_back({"l2l.table2.baseline_fp32.memory",
                   "Table 2, baseline FP32, against 16 B per parameter, GB", Source::kPrinted,
                   10.51, InTableGigabytes(states), std::nullopt,
                   "weights, gradients and moments; the paper gives no sizes of activations"});
  rows->push_back({"l2l.table2.baseline_amp.memory",
                   "Table 2, baseline AMP, against 16 B per parameter, GB", Source::kPrinted, 9.2,
                   InTableGigabytes(states), std::nullopt,
                   "two FP16 and three FP32 numbers; the paper gives no sizes of activations"});
}

// The step of Tables 3 and 5: kFitMicroBatch is four passes over all layers, and the EPS's own time
// is kFitFixed minus the transfers.
RelayStep MeasuredStep(double micro_batches) {
  RelayStep step;
  step.layers = kBertLayers;
  step.micro_batches = micro_batches;
  step.samples = kDevices * kMicroBatch;
  step.compute = kFitMicroBatch / (4.0 * kBertLayers);
  step.transfer =
      LayerTransferTime(static_cast<double>(LayerParameters(kBertWidth)) * kFp16, kPcie);
  step.host = kFitFixed - 2.0 * kBertLayers * step.transfer;
  return step;
}

RelayMemory MeasuredMemory(StashHome stash) {
  RelayMemory memory;
  memory.base = kBaseMemory;
  memory.layer_input = LayerInput(kMicroBatch, kBertTokens, kBertWidth, kFp16);
  memory.stash = stash;
  memory.in_flight = kFitInFlight;
  return memory;
}

// One row of the paper's Table 3.
struct Table3 {
  int micro_batches;
  double samples;  // per second
  double gigabytes;
  // The time of the printed row: samples of a step over the rate.
  constexpr Seconds step() const {
    return Seconds(micro_batches * kDevices * kMicroBatch / samples);
  }
};
constexpr Table3 kTable3[] = {{1, 52.48, 3.69}, {2, 70.97, 3.89}, {4, 84.91, 4.27}};

void AddTable3(std::vector<Row>* rows) {
  for (const Table3& c : kTable3) {
    rows->push_back({absl::StrCat("l2l.table3.throughput.u", c.micro_batches),
                     absl::StrCat("Table 3, L2L CMP, u ", c.micro_batches, ", samples/s"),
                     Source::kPrinted, c.samples,
                     TrainingThroughput(MeasuredStep(c.micro_batches)).value(), kFitTolerance,
                     "C and the EPS's own time are a fit to these three rows"});
  }
  for (const Table3& c : kTable3) {
    const bool is_input = c.micro_batches == 1;
    const Bytes ours = DeviceMemory(MeasuredMemory(StashHome::kHost), kBertLayers, c.micro_batches);
    rows->push_back({absl::StrCat("l2l.table3.memory.u", c.micro_batches),
                     absl::StrCat("Table 3, device memory, u ", c.micro_batches, ", GB"),
                     Source::kPrinted, c.gigabytes, InTableGigabytes(ours),
                     is_input ? std::nullopt : std::make_optional(kFitTolerance),
                     is_input ? "an input of the model: the paper gives no sizes of activations"
                              : "three layer inputs per further micro-batch: a fit to these rows"});
  }
  const RelayStep step = MeasuredStep(1);
  rows->push_back(
      {"l2l.table3.pcie", "of a step, 2 N transfers of FP16 layers at 12 GB/s, s", Source::kDerived,
       0.10, 2 * step.layers * step.transfer / Seconds(1), HalfLastDigit(0.10, 2),
       absl::StrCat("PCIe alone; ", kFitFixed.value(), " s of a step do not grow with u, and ",
                    step.host.value(), " s of them are the EPS's own work")});
}

// Predicts Table 3's row u = 2 from the other two alone, so that not every row is judged by a fit
// to itself.
void AddTable3Prediction(std::vector<Row>* rows) {
  const Table3& first = kTable3[0];
  const Table3& last = kTable3[2];
  const Table3& between = kTable3[1];
  RelayStep step = MeasuredStep(between.micro_batches);
  const Seconds micro_batch =
      (last.step() - first.step()) / (last.micro_batches - first.micro_batches);
  step.compute = micro_batch / (4.0 * kBertLayers);
  step.host = first.step() - micro_batch - 2.0 * kBertLayers * step.transfer;
  rows->push_back({"l2l.table3.throughput.u2.predicted",
                   "Table 3, u 2, predicted from u 1 and u 4 alone, samples/s", Source::kPrinted,
                   between.samples, TrainingThroughput(step).value(), kFitTolerance, ""});
}

void AddTable4(std::vector<Row>* rows) {
  rows->push_back({"l2l.layer_input", "a layer's input of one sample of BERT-large, FP16, MB",
                   Source::kPrinted, 1, LayerInput(1, kBertTokens, kBertWidth, kFp16) / kMegabyte,
                   0.05, "section 1: \"only 1MB per sample\""});
  constexpr double kTolerance = 0.02;
  struct Case {
    StashHome stash;
    int layers;
    double gigabytes;
  };
  constexpr Case kCases[] = {{StashHome::kDevice, 24, 5.22}, {StashHome::kDevice, 48, 6.76},
                             {StashHome::kDevice, 96, 9.83}, {StashHome::kHost, 24, 3.69},
                             {StashHome::kHost, 96, 3.69},   {StashHome::kHost, 384, 3.69}};
  for (const Case& c : kCases) {
    const bool on_device = c.stash == StashHome::kDevice;
    const bool is_input = c.layers == static_cast<int>(kBertLayers);
    const char* home = on_device ? "device" : "host";
    const char* note = on_device  ? "the GB is read as 2^30 B, which suits these rows better"
                       : is_input ? "an input of the model: the paper gives no sizes of activations"
                                  : "the input of 24 layers again: with the stash on the host, no "
                                    "term of the model depends on the layers";
    rows->push_back(
        {absl::StrCat("l2l.table4.", home, ".n", c.layers),
         absl::StrCat("Table 4, device memory, stash on the ", home, ", ", c.layers, " layers, GB"),
         Source::kPrinted, c.gigabytes,
         InTableGigabytes(DeviceMemory(MeasuredMemory(c.stash), c.layers, 1)),
         on_device ? std::make_optional(kTolerance) : std::nullopt, note});
  }
  const double cmp =
      InTableGigabytes(DeviceMemory(MeasuredMemory(StashHome::kDevice), kBertLayers, 1));
  rows->push_back({"l2l.table2.l2l_cmp.memory", "Table 2, L2L CMP, as stash on the device, GB",
                   Source::kPrinted, 4.96, cmp, std::nullopt,
                   "not said where its stash was; Table 3 has 3.69 GB beside the same 52.48/s"});
  rows->push_back({"l2l.table2.l2l_fp32.memory", "Table 2, L2L FP32, as twice that, GB",
                   Source::kPrinted, 9.45, 2 * cmp, std::nullopt,
                   "four bytes for two; not said where its stash was"});
}

void AddParameters(std::vector<Row>* rows) {
  struct Case {
    const char* id;
    const char* what;
    uint64_t layers;
    uint64_t width;
    Source source;
    double billions;
    double tolerance;
  };
  // Table 4 prints at most two digits ("300 million") and does not count embeddings.
  constexpr double kRounded = 0.01;
  constexpr Case kCases[] = {
      {"n24", "Table 4, 24 layers", 24, kBertWidth, Source::kPrinted, 0.3, kRounded},
      {"n48", "Table 4, 48 layers", 48, kBertWidth, Source::kPrinted, 0.6, kRounded},
      {"n96", "Table 4, 96 layers", 96, kBertWidth, Source::kPrinted, 1.2, kRounded},
      {"n384", "Table 4, 384 layers", 384, kBertWidth, Source::kPrinted, 4.8, kRounded},
      {"turing", "Table 5, 78 layers of h 4256", kTuring.layers, kTuring.width, Source::kPrinted,
       17, HalfLastDigit(17, 0)},
      {"turing.exact", "the same to four digits", kTuring.layers, kTuring.width, Source::kDerived,
       16.96, HalfLastDigit(16.96, 2)},
  };
  rows->push_back({"l2l.parameters.layer", "parameters of one layer, h 1024: 12 h^2 + 13 h",
                   Source::kDerived, 12596224,
                   static_cast<double>(CountLayout({1, kBertWidth, 1, 1}).layers), 0,
                   "counted in EPS's GPT-2 block, whose shapes are those of BERT's layer"});
  for (const Case& c : kCases) {
    const uint64_t ours = CountLayout({c.layers, c.width, 1, 1}).layers;
    rows->push_back({absl::StrCat("l2l.parameters.", c.id),
                     absl::StrCat(c.what, ", parameters of the layers, billions"), c.source,
                     c.billions, static_cast<double>(ours) / kGiga, c.tolerance, ""});
  }
}

// The step of Table 5 on `devices` devices, derived from what Table 3 shows of the V100 and its
// host: the compute rate, and the EPS's time per parameter.
double TuringSamplesPerSecond(double devices) {
  const RelayStep bert = MeasuredStep(1);
  const FlopsPerSecond rate = static_cast<double>(kMicroBatch) / bert.layers *
                              LayersForwardFlops(kBert, kBertTokens) / bert.compute;
  const double parameters = static_cast<double>(LayerParameters(kTuring.width));
  RelayStep step;
  step.layers = static_cast<double>(kTuring.layers);
  step.micro_batches = kTuringMicroBatches;
  step.samples = devices * kTuringMicroBatch;
  step.compute =
      kTuringMicroBatch / step.layers * LayersForwardFlops(kTuring, kTuringTokens) / rate;
  step.transfer = LayerTransferTime(parameters * kFp16, kPcie);
  step.host = step.layers * parameters /
              (bert.layers * static_cast<double>(LayerParameters(kBertWidth))) * bert.host;
  return TrainingThroughput(step).value();
}

void AddTable5(std::vector<Row>* rows) {
  for (const int devices : {1, 4}) {
    rows->push_back({absl::StrCat("l2l.table5.throughput.devices", devices),
                     absl::StrCat("Table 5, 17B, ub 8, u 16, with ", devices, " V100, samples/s"),
                     Source::kPrinted, 0.58, TuringSamplesPerSecond(devices), std::nullopt,
                     "not said how many devices; rates and the EPS's time scaled from Table 3"});
  }
  RelayMemory memory;
  memory.base = 2 * static_cast<double>(LayerParameters(kTuring.width)) * kFp16;
  memory.layer_input = LayerInput(kTuringMicroBatch, kTuringTokens, kTuring.width, kFp16);
  memory.in_flight = kFitInFlight;
  rows->push_back({"l2l.table5.memory",
                   "Table 5, against one layer's weights, gradients and inputs, GB",
                   Source::kPrinted, 6.68,
                   InTableGigabytes(DeviceMemory(memory, kTuring.layers, kTuringMicroBatches)),
                   std::nullopt, "the paper gives no sizes of what is computed within a layer"});
}

void AddCapacity(std::vector<Row>* rows) {
  struct Case {
    const char* id;
    double bytes;
    double billions;
    Source source;
    std::optional<double> tolerance;
    const char* note;
  };
  const Case cases[] = {
      {"12b", 12, 42.7, Source::kDerived, HalfLastDigit(42.7, 1),
       "FP32 weights and two FP32 moments"},
      {"10.24b", 10.24, 50, Source::kPrinted, std::nullopt,
       "bytes per parameter are not given; 50 billion leave 10.24, less than FP32 moments need"},
      {"8b", 8, 64, Source::kDerived, HalfLastDigit(64, 0),
       "FP32 weights and two moments of 16 bits"}};
  for (const Case& c : cases) {
    rows->push_back({absl::StrCat("l2l.capacity.", c.id),
                     absl::StrCat("parameters in 512 GB at ", c.bytes, " B each, billions"),
                     c.source, c.billions, HostCapacity(512 * kGigabyte, Bytes(c.bytes)) / kGiga,
                     c.tolerance, c.note});
  }
}

void AddRatios(std::vector<Row>* rows) {
  // Measurements of Table 2 for sentences of the abstract; these two rows use no model of ours.
  constexpr double kAmpGigabytes = 9.2;
  constexpr double kCmpGigabytes = 4.96;
  constexpr double kBaselineFp32 = 16.52;
  constexpr double kL2lFp32 = 22.5;
  constexpr double kBaselineAmp = 26.2;
  rows->push_back({"l2l.ratio.memory", "memory that L2L saves, abstract against Table 2, %",
                   Source::kPrinted, 45, 100 * (1 - kCmpGigabytes / kAmpGigabytes), std::nullopt,
                   "CMP against AMP, both measured: the paper's sentence against its own table"});
  rows->push_back({"l2l.ratio.fp32", "throughput that L2L gains, abstract against Table 2, factor",
                   Source::kPrinted, 1.4, kL2lFp32 / kBaselineFp32, std::nullopt,
                   "FP32, both measured: the paper's sentence against its own table"});
  const double u1 = TrainingThroughput(MeasuredStep(1)).value();
  const double u4 = TrainingThroughput(MeasuredStep(4)).value();
  rows->push_back({"l2l.ratio.cmp", "Table 2, throughput of L2L CMP to baseline AMP",
                   Source::kDerived, 2.003, u1 / kBaselineAmp, kFitTolerance,
                   "the model's u 1, a fit, to the measured baseline; the text says twice"});
  rows->push_back({"l2l.ratio.inner_loop", "Table 3, throughput of u 4 to u 1", Source::kDerived,
                   1.618, u4 / u1, kFitTolerance,
                   "of the model, a fit; the text says \"over 60%\""});
}

}  // namespace

std::vector<Row> L2lRows() {
  std::vector<Row> rows;
  AddEquations(&rows);
  AddTransfers(&rows);
  AddTable2(&rows);
  AddTable3(&rows);
  AddTable3Prediction(&rows);
  AddTable4(&rows);
  AddParameters(&rows);
  AddTable5(&rows);
  AddCapacity(&rows);
  AddRatios(&rows);
  return rows;
}

}  // namespace eps::planner
