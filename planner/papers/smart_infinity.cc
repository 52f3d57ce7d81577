#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "planner/papers/papers.h"
#include "planner/papers/smart_infinity_model.h"
#include "planner/units.h"

namespace eps::planner {
namespace {

namespace smart = smart_infinity;
using smart::Method;
using smart::Variant;

// Tolerances, relative to `paper`.
constexpr double kExact = 0;
constexpr double kDigits = 1e-4;  // for a number printed with five digits
constexpr double kClosedForm = 0.06;
constexpr double kEmulator = 0.15;

constexpr double kGb = 1e9;
constexpr double kMb = 1e6;
constexpr double kParameters = 4.0e9;  // parameters of the GPT-2 that most figures use
constexpr uint64_t kSubgroup = 40000000;

constexpr char kFitted[] = "an input was fitted to this row";
constexpr char kFittedToOthers[] =
    "inputs were fitted to figure 9's GPT-2 4.0B (the GPU's time, "
    "the host's software), not to this row";
constexpr char kA100Fitted[] =
    "the A100's times were fitted to figure 11(b), the host's software "
    "to figure 9";

constexpr char kTwoSsds[] =
    "; figure 3(b) has 1.71 for two SSDs, and the simulated RAID0 has no cost of its own";

// A variant with its names in ids and in texts.
struct VariantName {
  Variant variant;
  const char* id;
  const char* text;
};
constexpr VariantName kBase{Variant::kBase, "base", "BASE"};
constexpr VariantName kNaive{Variant::kNaive, "su", "SU"};
constexpr VariantName kHandover{Variant::kHandover, "su_o", "SU+O"};
constexpr VariantName kTopK{Variant::kTopK, "su_o_c", "SU+O+C"};

Method MethodOf(Variant variant, const smart::Optimizer& optimizer = smart::kAdam,
                double c = 0.02) {
  Method method;
  method.variant = variant;
  method.optimizer = optimizer;
  method.c = c;
  return method;
}

smart::StepTime TimeOf(const Method& method, double parameters, int devices,
                       const smart::Gpu& gpu = smart::kA5000) {
  return smart::Simulate(smart::PaperMachine(), gpu, method, parameters, devices);
}

// Returns how much faster the method is than `over` (by default the baseline) with the same
// optimizer and the same number of devices.
double SpeedUp(const Method& method, double parameters, int devices,
               Variant over = Variant::kBase) {
  const Method slower = MethodOf(over, method.optimizer);
  return TimeOf(slower, parameters, devices).total() / TimeOf(method, parameters, devices).total();
}

// Collects rows under the paper's prefix.
class Rows {
 public:
  void Add(std::string id, std::string what, Source source, double paper, double ours,
           std::optional<double> tolerance, std::string note = "") {
    rows_.push_back({absl::AsciiStrToLower(absl::StrCat("smart.", id)), std::move(what), source,
                     paper, ours, tolerance, std::move(note)});
  }
  // Adds a row that compares the event simulation with a figure.
  void AddEmulated(std::string id, std::string what, double paper, double ours, std::string note) {
    Add(std::move(id), std::move(what), Source::kFigure, paper, ours, kEmulator, std::move(note));
  }
  std::vector<Row> Take() { return std::move(rows_); }

 private:
  std::vector<Row> rows_;
};

// ---- bytes

// The traffic of one method by the paper, for comparison with TrafficOf.
struct TrafficPaper {
  const char* id;
  const char* text;
  Variant variant;
  smart::Optimizer optimizer;
  double c;
  // Bytes per parameter; kNotListed for values that were not derived.
  double host_read, host_written, internal_read, internal_written, media_read, media_written;
};
constexpr double kNotListed = -1;
constexpr TrafficPaper kTraffic[] = {
    {"base.adam", "BASE, Adam", Variant::kBase, smart::kAdam, 1, 16, 16, kNotListed, kNotListed,
     kNotListed, kNotListed},
    {"su.adam", "SU, Adam", Variant::kHandover, smart::kAdam, 1, 4, 4, 16, 12, 20, 16},
    {"su_c10.adam", "SU+C 10 %, Adam", Variant::kTopK, smart::kAdam, 0.10, 4, 0.40, kNotListed,
     kNotListed, kNotListed, kNotListed},
    {"su_c5.adam", "SU+C 5 %, Adam", Variant::kTopK, smart::kAdam, 0.05, 4, 0.20, kNotListed,
     kNotListed, kNotListed, kNotListed},
    {"su_c2.adam", "SU+C 2 %, Adam", Variant::kTopK, smart::kAdam, 0.02, 4, 0.08, 12.08, 12, 16.08,
     12.08},
    {"su_c1.adam", "SU+C 1 %, Adam", Variant::kTopK, smart::kAdam, 0.01, 4, 0.04, kNotListed,
     kNotListed, kNotListed, kNotListed},
    {"base.sgd", "BASE, SGD with momentum", Variant::kBase, smart::kSgdMomentum, 1, 12, 12,
     kNotListed, kNotListed, kNotListed, kNotListed},
    {"su.sgd", "SU, SGD with momentum", Variant::kHandover, smart::kSgdMomentum, 1, 4, 4, 12, 8,
     kNotListed, kNotListed},
    {"base.adagrad", "BASE, AdaGrad", Variant::kBase, smart::kAdaGrad, 1, 12, 12, kNotListed,
     kNotListed, kNotListed, kNotListed},
    {"su.adagrad", "SU, AdaGrad", Variant::kHandover, smart::kAdaGrad, 1, 4, 4, 12, 8, kNotListed,
     kNotListed},
};

void AddTraffic(Rows* rows) {
  for (const TrafficPaper& paper : kTraffic) {
    const smart::Traffic t = smart::TrafficOf(MethodOf(paper.variant, paper.optimizer, paper.c));
    const struct {
      const char* id;
      const char* text;
      double paper;
      Bytes ours;
    } columns[] = {
        {"host_read", "host read", paper.host_read, t.host_read()},
        {"host_written", "host written", paper.host_written, t.host_written()},
        {"internal_read", "internal read", paper.internal_read, t.internal_read},
        {"internal_written", "internal written", paper.internal_written, t.internal_written},
        {"media_read", "media read", paper.media_read, t.media_read},
        {"media_written", "media written", paper.media_written, t.media_written},
    };
    for (const auto& column : columns) {
      if (column.paper == kNotListed) continue;
      rows->Add(absl::StrCat("bytes.", paper.id, ".", column.id),
                absl::StrCat(paper.text, ": ", column.text, ", B per parameter"), Source::kDerived,
                column.paper, column.ours.value(), kExact);
    }
  }
  Method fp16 = MethodOf(Variant::kHandover);
  fp16.widths.up = Bytes(2);
  rows->Add("bytes.su_fp16.adam.host_read", "SU, Adam, FP16 up: host read, B per parameter",
            Source::kDerived, 2, smart::TrafficOf(fp16).host_read().value(), kExact);
}

// Adds the rows of Table I, in units of M, the bytes of the FP16 parameters.
void AddTableOne(Rows* rows) {
  constexpr double kC = 0.02;
  constexpr struct {
    const char* id;
    const char* text;
    Variant variant;
    double states_read, states_written, gradients_read, gradients_written;
  } kTable[] = {
      {"zero_inf", "ZeRO-Inf", Variant::kBase, 6, 6, 2, 2},
      {"smart_update", "SmartUpdate", Variant::kHandover, 2, 0, 0, 2},
      {"smart_comp", "SmartComp (2 %)", Variant::kTopK, 2, 0, 0, kC * 2},
  };
  for (const auto& line : kTable) {
    const Method method = MethodOf(line.variant, smart::kAdam, kC);
    const smart::Traffic t = smart::TrafficOf(method);
    const struct {
      const char* id;
      const char* text;
      double paper;
      Bytes ours;
    } columns[] = {
        {"states_read", "optimizer states, read", line.states_read, t.host_states_read},
        {"states_written", "optimizer states, write", line.states_written, t.host_states_written},
        {"gradients_read", "gradients, read", line.gradients_read, t.host_gradients_read},
        {"gradients_written", "gradients, write", line.gradients_written, t.host_gradients_written},
    };
    for (const auto& column : columns) {
      rows->Add(absl::StrCat("table1.", line.id, ".", column.id),
                absl::StrCat("Table I, ", line.text, ": ", column.text, ", M"), Source::kPrinted,
                column.paper, column.ours / method.widths.weight, kExact);
    }
  }
}

void AddSizes(Rows* rows) {
  const Method topk = MethodOf(Variant::kTopK);
  const Method handover = MethodOf(Variant::kHandover);
  rows->Add("topk.entries", "entries of a subgroup's top-k list, c = 2 %", Source::kDerived, 400000,
            static_cast<double>(smart::TopKEntries(topk, kSubgroup)), kExact);
  rows->Add("topk.bytes", "top-k list of a subgroup, c = 2 %, MB", Source::kDerived, 3.2,
            smart::TopKBytes(topk, kSubgroup).value() / kMb, kExact);
  rows->Add("topk.dense", "dense gradients of a subgroup, MB", Source::kDerived, 160,
            (static_cast<double>(kSubgroup) * handover.gradient()).value() / kMb, kExact);
  constexpr char kDramNote[] =
      "the paper has the 4 GB of a device, and that overlapping naively overflows them, but not "
      "its subgroups' size: shown against the 4 GB";
  constexpr double kDeviceDram = 4;
  Method fp16 = handover;
  fp16.widths.up = Bytes(2);
  const auto gigabytes = [](const Method& method, int sets) {
    return smart::DeviceMemory(method, kSubgroup, sets).value() / kGb;
  };
  rows->Add("dram.naive", "device memory of a subgroup of 4e7, naive, GB", Source::kDerived, 0.64,
            gigabytes(MethodOf(Variant::kNaive), 1), kExact,
            "allocated and freed for each subgroup; the mark is that of handover");
  rows->Add("dram.handover", "the same, handover (one set of buffers)", Source::kDerived, 0.64,
            gigabytes(handover, 1), kExact);
  rows->Add("dram.handover_fp16", "the same, with FP16 up", Source::kDerived, 0.72,
            gigabytes(fp16, 1), kExact);
  for (int sets : {2, 3}) {
    rows->Add(absl::StrCat("dram.pipelined", sets),
              absl::StrCat("the same, pipelined (", sets, " sets)"), Source::kPrinted, kDeviceDram,
              gigabytes(handover, sets), std::nullopt, kDramNote);
  }
  rows->Add("unscale", "unscale factor: scale 1024, scaled norm 4096, clip 1", Source::kDerived,
            2.4414e-4, smart::UnscaleFactor(1024, 4096, 1), kDigits);
}

// ---- figure 9: time per iteration

// One bar of figure 9.
struct Breakdown {
  VariantName variant;
  int devices;
  double forward, backward, update;  // seconds
  bool backward_fitted, update_fitted;
};
// The time of FW is fitted to all these rows.
constexpr Breakdown kBreakdown[] = {
    {kBase, 6, 0.62, 5.59, 17.55, false, true},     {kNaive, 6, 0.67, 5.33, 13.05, false, false},
    {kHandover, 6, 0.67, 5.44, 12.27, false, true}, {kTopK, 6, 0.67, 4.14, 10.77, true, true},
    {kBase, 10, 0.67, 5.23, 17.76, false, true},    {kNaive, 10, 0.67, 5.33, 9.63, false, false},
    {kHandover, 10, 0.67, 5.80, 8.28, false, true}, {kTopK, 10, 0.67, 4.19, 7.30, true, true},
};

void AddBreakdown(Rows* rows) {
  for (const Breakdown& bar : kBreakdown) {
    const smart::StepTime ours = TimeOf(MethodOf(bar.variant.variant), kParameters, bar.devices);
    const struct {
      const char* id;
      const char* text;
      double paper;
      Seconds ours;
      bool fitted;
    } parts[] = {
        {"fw", "FW", bar.forward, ours.forward, true},
        {"bw", "BW + gradient offload", bar.backward, ours.backward, bar.backward_fitted},
        {"update", "update", bar.update, ours.update, bar.update_fitted},
    };
    for (const auto& part : parts) {
      rows->AddEmulated(absl::StrCat("fig9.gpt2_4.0b.", bar.variant.id, bar.devices, ".", part.id),
                        absl::StrCat("GPT-2 4.0B, ", bar.variant.text, ", n = ", bar.devices, ": ",
                                     part.text, ", s"),
                        part.paper, part.ours.value(), part.fitted ? kFitted : kFittedToOthers);
    }
  }
}

// The iteration times of one model in figures 9 and 10.
struct Totals {
  const char* id;
  const char* text;
  double parameters;
  std::vector<VariantName> variants;
  std::vector<double> six, ten;  // seconds with 6 and 10 devices, by variant
};

std::vector<Totals> PaperTotals() {
  const std::vector<VariantName> all = {kBase, kNaive, kHandover, kTopK};
  const std::vector<VariantName> three = {kBase, kHandover, kTopK};
  return {
      {"fig9.gpt2_8.4b",
       "GPT-2 8.4B",
       8.4e9,
       all,
       {50.0, 40.4, 39.5, 35.2},
       {48.8, 32.4, 31.6, 26.3}},
      {"fig9.bert_4.0b",
       "BERT 4.0B",
       4.0e9,
       all,
       {23.7, 19.6, 18.8, 16.0},
       {23.5, 14.9, 14.3, 12.0}},
      {"fig9.bert_8.3b",
       "BERT 8.3B",
       8.3e9,
       all,
       {49.2, 41.8, 39.6, 33.3},
       {48.2, 32.8, 30.2, 25.1}},
      {"fig10.gpt2_16.6b", "GPT-2 16.6B", 16.6e9, three, {93.8, 74.6, 66.6}, {93.8, 58.7, 49.6}},
      {"fig10.gpt2_33.0b", "GPT-2 33.0B", 33.0e9, three, {187, 154, 135}, {184, 115, 96}},
  };
}

void AddTotals(Rows* rows) {
  for (const Totals& model : PaperTotals()) {
    for (int devices : {6, 10}) {
      const std::vector<double>& paper = devices == 6 ? model.six : model.ten;
      for (size_t i = 0; i < model.variants.size(); ++i) {
        const VariantName& variant = model.variants[i];
        rows->AddEmulated(
            absl::StrCat(model.id, ".", variant.id, devices),
            absl::StrCat(model.text, ", ", variant.text, ", n = ", devices, ": iteration, s"),
            paper[i], TimeOf(MethodOf(variant.variant), model.parameters, devices).total().value(),
            kFittedToOthers);
      }
    }
  }
}

// ---- figures 3(b) and 11: n = 1 to 10

constexpr int kDevices[] = {1, 2, 4, 6, 8, 10};
constexpr size_t kPoints = 6;
// One curve of figures 3(b) and 11.
struct Scaling {
  VariantName variant;
  double speed[kPoints];  // relative to BASE with one SSD
};
constexpr Scaling kA5000Scaling[] = {
    {kBase, {1, 1.55, 2.23, 2.26, 2.26, 2.27}},
    {kHandover, {0.81, 1.49, 2.55, 2.92, 3.26, 3.64}},
    {kTopK, {0.88, 1.60, 2.79, 3.44, 3.74, 4.40}},
};
constexpr Scaling kA100Scaling[] = {
    {kBase, {1, 1.54, 2.28, 2.44, 2.42, 2.48}},
    {kHandover, {0.81, 1.45, 2.59, 3.19, 3.81, 4.47}},
    {kTopK, {0.74, 1.36, 2.63, 3.32, 4.37, 5.23}},
};
constexpr Scaling kRaid0{kBase, {1, 1.71, 2.16, 2.22, 2.24, 2.26}};

void AddScaling(const std::string& id, const smart::Gpu& gpu, const Scaling& scaling,
                const char* note, Rows* rows) {
  const Seconds one = TimeOf(MethodOf(Variant::kBase), kParameters, 1, gpu).total();
  const bool raid0 = id == "fig3b";
  for (size_t i = 0; i < kPoints; ++i) {
    // This row is the unit.
    if (scaling.variant.variant == Variant::kBase && kDevices[i] == 1) continue;
    const Seconds time =
        TimeOf(MethodOf(scaling.variant.variant), kParameters, kDevices[i], gpu).total();
    const bool two_ssds = !raid0 && scaling.variant.variant == Variant::kBase && kDevices[i] == 2;
    rows->AddEmulated(
        absl::StrCat(id, ".", scaling.variant.id, kDevices[i]),
        absl::StrCat(raid0 ? "RAID0" : "Figure 11", ", ", gpu.name, ", ", scaling.variant.text,
                     ", n = ", kDevices[i], ": speed against BASE with n = 1"),
        scaling.speed[i], one / time, absl::StrCat(note, two_ssds ? kTwoSsds : ""));
  }
}

// Adds figure 11's speeds, converted to seconds by figure 9's BASE with ten SSDs.
void AddClosedForm(Rows* rows) {
  constexpr Breakdown kTen = kBreakdown[4];
  static_assert(kTen.variant.variant == Variant::kBase && kTen.devices == 10, "BASE10");
  constexpr double kTenSeconds = kTen.forward + kTen.backward + kTen.update;
  constexpr double kOneSecond = kTenSeconds * kA5000Scaling[0].speed[kPoints - 1];
  for (const Scaling& scaling : kA5000Scaling) {
    for (size_t i = 0; i < kPoints; ++i) {
      rows->Add(absl::StrCat("closed_form.", scaling.variant.id, kDevices[i]),
                absl::StrCat("closed form, ", scaling.variant.text, ", n = ", kDevices[i],
                             ": iteration, s"),
                Source::kFigure, kOneSecond / scaling.speed[i],
                smart::ClosedForm(scaling.variant.variant, kDevices[i]).value(), kClosedForm,
                "a curve that was fitted to these rows");
    }
  }
}

// ---- the gain of compression: time of SU+O over that of SU+O+C

constexpr char kGain[] =
    "by figure 14's rates a device loses more with decompression than it saves by reading fewer "
    "gradients; what ours gains is in the backward pass";
constexpr char kA100Gain[] =
    "in the paper compression makes one and two devices beside an A100 slower, but not beside an "
    "A5000, and it gives no cause; the A100's times were fitted to figure 11(b)";
constexpr char kHiddenGain[] =
    "not judged: the most that figure 14's rates allow; the authors' public code decompresses "
    "after "
    "the reads";

// Adds the ratio, and whether it exceeds 1.
void AddGain(const std::string& id, const std::string& what, double paper, double ours,
             const char* note, Rows* rows) {
  rows->AddEmulated(absl::StrCat("gain.", id), absl::StrCat(what, ": SU+O over SU+O+C"), paper,
                    ours, note);
  rows->Add(absl::StrCat("gain.", id, ".faster"),
            absl::StrCat(what, ": SU+O+C is faster than SU+O (1) or not (0)"), Source::kFigure,
            paper > 1 ? 1 : 0, ours > 1 ? 1 : 0, kExact, note);
}

double UpdateGain(const smart::Machine& machine, int devices) {
  const auto update = [&](Variant variant) {
    return smart::Simulate(machine, smart::kA5000, MethodOf(variant), kParameters, devices).update;
  };
  return update(Variant::kHandover) / update(Variant::kTopK);
}

double IterationGain(double parameters, int devices, const smart::Gpu& gpu = smart::kA5000) {
  return TimeOf(MethodOf(Variant::kHandover), parameters, devices, gpu).total() /
         TimeOf(MethodOf(Variant::kTopK), parameters, devices, gpu).total();
}

// Returns the bar of figure 9 for GPT-2 4.0B.
const Breakdown& BarOf(Variant variant, int devices) {
  return *std::find_if(std::begin(kBreakdown), std::end(kBreakdown), [&](const Breakdown& bar) {
    return bar.variant.variant == variant && bar.devices == devices;
  });
}

void AddGainsOfModels(Rows* rows) {
  smart::Machine hidden = smart::PaperMachine();
  hidden.decompress_beside_reads = true;
  for (int devices : {6, 10}) {
    const Breakdown& dense = BarOf(Variant::kHandover, devices);
    const Breakdown& compressed = BarOf(Variant::kTopK, devices);
    const std::string id = absl::StrCat("gpt2_4.0b.update", devices);
    const std::string what = absl::StrCat("GPT-2 4.0B, n = ", devices, ", update");
    const double paper = dense.update / compressed.update;
    AddGain(id, what, paper, UpdateGain(smart::PaperMachine(), devices), kGain, rows);
    rows->Add(absl::StrCat("gain.", id, ".hidden"),
              absl::StrCat(what, ", decompression hidden behind reads: SU+O over SU+O+C"),
              Source::kFigure, paper, UpdateGain(hidden, devices), std::nullopt, kHiddenGain);
    for (const Totals& model : PaperTotals()) {
      const std::vector<double>& times = devices == 6 ? model.six : model.ten;  // SU+O+C is last
      AddGain(absl::StrCat(model.id, ".iteration", devices),
              absl::StrCat(model.text, ", n = ", devices, ", iteration"),
              times[times.size() - 2] / times.back(), IterationGain(model.parameters, devices),
              kGain, rows);
    }
  }
}

// Figure 11, GPT-2 4.0B; all its speeds are relative to the same BASE.
void AddGainsOfDevices(const char* id, const smart::Gpu& gpu, const Scaling& dense,
                       const Scaling& compressed, const char* note, Rows* rows) {
  for (size_t i = 0; i < kPoints; ++i) {
    AddGain(absl::StrCat(id, ".iteration", kDevices[i]),
            absl::StrCat("GPT-2 4.0B, ", gpu.name, ", n = ", kDevices[i], ", iteration"),
            compressed.speed[i] / dense.speed[i], IterationGain(kParameters, kDevices[i], gpu),
            note, rows);
  }
}

// ---- ranges in the paper's text

// A range of speed-ups that the text names.
struct Range {
  const char* id;
  VariantName variant;
  VariantName over;
  int devices;
  double low, high;
};
// Section VII-C, over the four models of figure 9. For the last range it names no number of
// devices; figure 9 has these values with ten.
constexpr Range kRanges[] = {
    {"su6", kNaive, kBase, 6, 1.18, 1.24},
    {"su10", kNaive, kBase, 10, 1.54, 1.60},
    {"su_o10", kHandover, kBase, 10, 1.60, 1.66},
    {"su_o_c10", kTopK, kBase, 10, 1.85, 1.98},
    {"su_o_c10_over_su", kTopK, kNaive, 10, 1.22, 1.31},
};

void AddText(Rows* rows) {
  for (const Range& range : kRanges) {
    std::vector<double> ours;
    for (double parameters : {4.0e9, 8.4e9, 8.3e9}) {  // BERT 4.0B equals GPT-2 4.0B here
      ours.push_back(
          SpeedUp(MethodOf(range.variant.variant), parameters, range.devices, range.over.variant));
    }
    const auto bounds = std::minmax_element(ours.begin(), ours.end());
    const std::string what = absl::StrCat(range.variant.text, " over ", range.over.text,
                                          ", n = ", range.devices, ": speed-up of four models, ");
    rows->Add(absl::StrCat("text.", range.id, ".low"), what + "lowest", Source::kPrinted, range.low,
              *bounds.first, kEmulator, kFittedToOthers);
    rows->Add(absl::StrCat("text.", range.id, ".high"), what + "highest", Source::kPrinted,
              range.high, *bounds.second, kEmulator, kFittedToOthers);
  }
  rows->Add("text.33b_6", "GPT-2 33.0B, SU+O+C, n = 6: speed-up", Source::kPrinted, 1.37,
            SpeedUp(MethodOf(Variant::kTopK), 33.0e9, 6), kEmulator, kFittedToOthers);
  rows->Add("text.33b_10", "GPT-2 33.0B, SU+O+C, n = 10: speed-up", Source::kPrinted, 1.88,
            SpeedUp(MethodOf(Variant::kTopK), 33.0e9, 10), kEmulator, kFittedToOthers);
  const Seconds a100_base = TimeOf(MethodOf(Variant::kBase), kParameters, 10, smart::kA100).total();
  const Seconds a100_ours = TimeOf(MethodOf(Variant::kTopK), kParameters, 10, smart::kA100).total();
  rows->Add("text.max", "largest speed-up: A100, GPT-2 4.0B, SU+O+C, n = 10", Source::kPrinted,
            2.11, a100_base / a100_ours, kEmulator, kA100Fitted);
  const smart::StepTime one = TimeOf(MethodOf(Variant::kBase), kParameters, 1);
  const Seconds computing = kParameters * (smart::kA5000.forward + smart::kA5000.backward);
  constexpr char kBound[] = "the paper says \"more than\"; judged as if it were equal";
  rows->Add("text.update_share", "BASE, one SSD: share of the update", Source::kPrinted, 0.80,
            one.update / one.total(), kEmulator, kBound);
  rows->Add("text.transfer_share", "BASE, one SSD: share of transfers from and to storage",
            Source::kPrinted, 0.88, (one.total() - computing) / one.total(), kEmulator, kBound);
  const smart::StepTime six = TimeOf(MethodOf(Variant::kBase), 8.4e9, 6);
  rows->Add("text.update_share6", "BASE, GPT-2 8.4B, n = 6: share of the update", Source::kPrinted,
            0.7557, six.update / six.total(), kEmulator, kFittedToOthers);
}

// ---- other optimizers, ratios, models, GPUs; the price

void AddOptimizers(Rows* rows) {
  constexpr struct {
    const char* id;
    smart::Optimizer optimizer;
    double handover6, topk6, handover10, topk10;
  } kOptimizers[] = {
      {"sgd", smart::kSgdMomentum, 1.17, 1.26, 1.59, 1.79},
      {"adagrad", smart::kAdaGrad, 1.19, 1.25, 1.60, 1.79},
  };
  for (const auto& paper : kOptimizers) {
    const struct {
      VariantName variant;
      int devices;
      double speed_up;
    } bars[] = {{kHandover, 6, paper.handover6},
                {kTopK, 6, paper.topk6},
                {kHandover, 10, paper.handover10},
                {kTopK, 10, paper.topk10}};
    for (const auto& bar : bars) {
      rows->AddEmulated(
          absl::StrCat("fig12.", paper.id, ".", bar.variant.id, bar.devices),
          absl::StrCat("GPT-2 4.0B, ", paper.optimizer.name, ", ", bar.variant.text,
                       ", n = ", bar.devices, ": speed-up"),
          bar.speed_up,
          SpeedUp(MethodOf(bar.variant.variant, paper.optimizer), kParameters, bar.devices),
          kFittedToOthers);
    }
  }
}

void AddRatios(Rows* rows) {
  constexpr struct {
    int percent;  // 0 means SU+O
    double six, ten;
  } kRatios[] = {
      {0, 18.3, 14.7}, {10, 18.5, 14.1}, {5, 16.6, 13.1}, {2, 15.5, 12.1}, {1, 16.2, 12.5}};
  for (int devices : {6, 10}) {
    for (const auto& paper : kRatios) {
      const bool dense = paper.percent == 0;
      const Method method = MethodOf(dense ? Variant::kHandover : Variant::kTopK, smart::kAdam,
                                     paper.percent / 100.0);
      const std::string name = dense ? kHandover.text : absl::StrCat("c = ", paper.percent, " %");
      rows->AddEmulated(absl::StrCat("fig16.c", paper.percent, "_", devices),
                        absl::StrCat("GPT-2 4.0B, ", name, ", n = ", devices, ": iteration, s"),
                        devices == 6 ? paper.six : paper.ten,
                        TimeOf(method, kParameters, devices).total().value(),
                        paper.percent == 1
                            ? "slower than at 2 % in the paper, which gives no cause; ours is not"
                            : kFittedToOthers);
    }
  }
}

// Models for which the paper lacks an input, shown with the GPU time per parameter of GPT-2 4.0B.
void AddOtherModels(Rows* rows) {
  constexpr char kShape[] =
      "not judged: the paper gives no sequence length or time of the GPU for this model; ours has "
      "GPT-2 4.0B's time per parameter";
  constexpr struct {
    const char* id;
    const char* text;
    double parameters;
    double handover6, topk6, handover10, topk10;
  } kModels[] = {
      {"bloom_3b", "BLOOM 3B", 3.0e9, 1.34, 1.40, 1.58, 1.81},
      {"bloom_7.1b", "BLOOM 7.1B", 7.1e9, 1.32, 1.43, 1.71, 1.81},
      {"vit_0.30b", "ViT 0.30B", 0.30e9, 1.43, 1.55, 1.64, 1.85},
      {"vit_0.63b", "ViT 0.63B", 0.63e9, 1.35, 1.51, 1.42, 1.69},
  };
  for (const auto& model : kModels) {
    const struct {
      VariantName variant;
      int devices;
      double speed_up;
    } bars[] = {{kHandover, 6, model.handover6},
                {kTopK, 6, model.topk6},
                {kHandover, 10, model.handover10},
                {kTopK, 10, model.topk10}};
    for (const auto& bar : bars) {
      rows->Add(
          absl::StrCat("fig13.", model.id, ".", bar.variant.id, bar.devices),
          absl::StrCat(model.text, ", ", bar.variant.text, ", n = ", bar.devices, ": speed-up"),
          Source::kFigure, bar.speed_up,
          SpeedUp(MethodOf(bar.variant.variant), model.parameters, bar.devices), std::nullopt,
          kShape);
    }
  }
  constexpr double kA4000[] = {1.66, 1.73, 1.87};
  for (int gpus = 1; gpus <= 3; ++gpus) {
    rows->Add(absl::StrCat("fig17.a4000_", gpus),
              absl::StrCat("GPT-2 1.16B, SU+O+C, n = 10, ", gpus, " A4000: speed-up"),
              Source::kFigure, kA4000[gpus - 1], SpeedUp(MethodOf(Variant::kTopK), 1.16e9, 10),
              std::nullopt,
              "not judged: the paper gives no time of an A4000 nor the traffic of tensor "
              "parallelism on the shared link; ours has one A5000");
  }
}

void AddFineTuning(Rows* rows) {
  constexpr struct {
    const char* id;
    const char* text;
    double parameters;
    double speed_up[5];  // SU+O, c = 10, 5, 2, 1 %
  } kModels[] = {
      {"bert_0.34b", "BERT 0.34B", 0.34e9, {1.10, 1.23, 1.34, 1.38, 1.40}},
      {"gpt2_0.77b", "GPT-2 0.77B", 0.77e9, {1.11, 1.23, 1.29, 1.35, 1.44}},
      {"gpt2_1.6b", "GPT-2 1.6B", 1.6e9, {1.29, 1.45, 1.54, 1.54, 1.53}},
  };
  constexpr int kPercent[5] = {0, 10, 5, 2, 1};
  for (const auto& model : kModels) {
    for (size_t i = 0; i < 5; ++i) {
      const bool dense = kPercent[i] == 0;
      const Method method =
          MethodOf(dense ? Variant::kHandover : Variant::kTopK, smart::kAdam, kPercent[i] / 100.0);
      rows->Add(
          absl::StrCat("table4.", model.id, ".c", kPercent[i]),
          absl::StrCat(model.text, ", ", dense ? "SU+O" : absl::StrCat("c = ", kPercent[i], " %"),
                       ", n = 6: speed-up of fine-tuning"),
          Source::kPrinted, model.speed_up[i], SpeedUp(method, model.parameters, 6), std::nullopt,
          "not judged: the paper gives no sequence length or time of the GPU for "
          "fine-tuning; ours has GPT-2 4.0B's time per parameter");
    }
  }
}

// Figure 15: 1 where SU+O+C has more performance per dollar than BASE with the same number of
// devices.
void AddPrices(Rows* rows) {
  constexpr struct {
    int devices;
    double wins;
  } kWinners[] = {{1, 0}, {2, 0}, {6, 1}, {8, 1}, {10, 1}};
  for (const smart::Gpu& gpu : {smart::kA5000, smart::kA100}) {
    for (const auto& paper : kWinners) {
      const auto seconds_dollars = [&](Variant variant) {
        return TimeOf(MethodOf(variant), kParameters, paper.devices, gpu).total() *
               smart::Price(gpu, variant, paper.devices);
      };
      const double ratio = seconds_dollars(Variant::kBase) / seconds_dollars(Variant::kTopK);
      rows->Add(absl::StrCat("fig15.", gpu.name, ".n", paper.devices),
                absl::StrCat(gpu.name, ", n = ", paper.devices,
                             ": SU+O+C gives more per dollar than BASE (1) or less (0)"),
                Source::kFigure, paper.wins, ratio > 1 ? 1 : 0, kExact,
                absl::StrFormat("ours: %.2f times as much per dollar", ratio));
    }
  }
}

}  // namespace

std::vector<Row> SmartInfinityRows() {
  Rows rows;
  AddTableOne(&rows);
  AddTraffic(&rows);
  AddSizes(&rows);
  AddBreakdown(&rows);
  AddTotals(&rows);
  for (const Scaling& scaling : kA5000Scaling) {
    AddScaling("fig11.a5000", smart::kA5000, scaling, kFittedToOthers, &rows);
  }
  for (const Scaling& scaling : kA100Scaling) {
    AddScaling("fig11.a100", smart::kA100, scaling, kA100Fitted, &rows);
  }
  AddScaling("fig3b", smart::kA5000, kRaid0,
             "the paper does not name figure 3(b)'s model; taken as GPT-2 4.0B, as figure 11's",
             &rows);
  AddClosedForm(&rows);
  AddGainsOfModels(&rows);
  AddGainsOfDevices("fig11.a5000", smart::kA5000, kA5000Scaling[1], kA5000Scaling[2], kGain, &rows);
  AddGainsOfDevices("fig11.a100", smart::kA100, kA100Scaling[1], kA100Scaling[2], kA100Gain, &rows);
  AddText(&rows);
  AddOptimizers(&rows);
  AddRatios(&rows);
  AddOtherModels(&rows);
  AddFineTuning(&rows);
  AddPrices(&rows);
  return rows.Take();
}

}  // namespace eps::planner
