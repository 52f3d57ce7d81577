#include "optimizer/plugin/check/checks.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/plugin/check/report_lines.h"
#include "base/plugin/check/thread_mode.h"
#include "base/plugin/check/trial_values.h"
#include "base/status_macros.h"

namespace eps {
namespace {

constexpr double kUsualRate = 1e-3;

// One of the two functions of a plug-in.
struct Function {
  const char* name;
  eps_updater_update* call;
};

std::vector<Function> FunctionsOf(const UpdaterPlugin& plugin) {
  return {{"update", plugin.update}, {"reference", plugin.reference}};
}

std::vector<double> UsualParameters(const UpdaterPlugin& plugin) {
  std::vector<double> values;
  for (const PluginParameter& parameter : plugin.parameters) values.push_back(parameter.usual);
  return values;
}

Trial TrialOf(const TrialArrays& arrays, size_t n, uint64_t seed) {
  Trial trial;
  trial.n = n;
  trial.seed = seed;
  trial.lr = kUsualRate;
  trial.parameters = UsualParameters(arrays.plugin());
  return trial;
}

// Returns pieces of the lengths in turn, which cover n elements.
std::vector<TrialPiece> PiecesOf(size_t n, const std::vector<size_t>& lengths) {
  std::vector<TrialPiece> pieces;
  for (size_t begin = 0; begin < n; begin += pieces.back().size) {
    pieces.push_back({begin, std::min(lengths[pieces.size() % lengths.size()], n - begin)});
  }
  return pieces;
}

std::string Explain(const char* function, absl::string_view where, const std::string& difference) {
  return difference.empty() ? "" : absl::StrCat(function, ", ", where, ": ", difference);
}

// Returns how a state by `update` differs from one by `reference`.
std::string CompareFunctions(TrialArrays* arrays, const Trial& trial, absl::string_view where) {
  const std::vector<float> expected = arrays->Run(trial, arrays->plugin().reference);
  const std::vector<float> found = arrays->Run(trial, arrays->plugin().update);
  const std::string difference = arrays->Difference(found, expected);
  if (difference.empty()) return "";
  return absl::StrCat("update differs from reference, ", where, ": ", difference);
}

// Returns trials that differ from `trial` in one number each, so that a function which keeps what
// it has computed from the others is noticed.
std::vector<Trial> OtherTrials(const Trial& trial, const UpdaterPlugin& plugin) {
  std::vector<Trial> others;
  const auto other = [&]() -> Trial& {
    others.push_back(trial);
    others.back().n = kShortLengths;
    ++others.back().seed;
    return others.back();
  };
  other().first_update += 1000;
  other().lr = 0.5;
  other().weight_decay = 0;
  other().grad_scale = 2;
  for (size_t i = 0; i < plugin.parameters.size(); ++i) {
    const PluginParameter& range = plugin.parameters[i];
    other().parameters[i] = range.usual == range.least ? range.most : range.least;
  }
  return others;
}

// Updates the arrays in pieces, with calls for the other trial in between.
std::vector<float> RunBetween(CheckTools* tools, const Trial& trial, const Trial& other,
                              eps_updater_update* call, const std::vector<TrialPiece>& pieces) {
  tools->arrays->Begin(trial, {});
  tools->other_arrays->Begin(other, {});
  for (uint64_t update = 0; update < trial.updates; ++update) {
    tools->arrays->SetUpdate(update);
    tools->other_arrays->SetUpdate(update);
    for (const TrialPiece& piece : pieces) {
      tools->other_arrays->Call(call, {0, other.n}, 0);
      tools->arrays->Call(call, piece, 0);
    }
  }
  return tools->arrays->State();
}

// The same with the threads: each updates its share of the pieces. The other arrays are updated at
// the same time, in a share for each thread.
std::vector<float> RunOnThreads(CheckTools* tools, const Trial& trial, eps_updater_update* call,
                                const std::vector<TrialPiece>& pieces) {
  Trial other = TrialOf(*tools->arrays, kTrialCallers * kShortLengths, trial.seed + 2000);
  other.first_update = 77;
  other.lr = 0.25;
  tools->arrays->Begin(trial, {});
  tools->other_arrays->Begin(other, {});
  for (uint64_t update = 0; update < trial.updates; ++update) {
    tools->arrays->SetUpdate(update);
    tools->other_arrays->SetUpdate(update);
    tools->threads->Run([&](size_t caller) {
      for (size_t i = caller; i < pieces.size(); i += kTrialCallers) {
        tools->arrays->Call(call, pieces[i], caller);
        tools->other_arrays->Call(call, {caller * kShortLengths, kShortLengths}, caller);
      }
    });
  }
  return tools->arrays->State();
}

// Trains with gradients of any size that a job lets through.
std::string CheckFinite(TrialArrays* arrays, const Function& function) {
  Trial trial = TrialOf(*arrays, 259, 6);
  trial.values = TrialValues::kFinite;
  trial.grad_scale = 1;
  trial.updates = 100;
  arrays->Begin(trial, {});
  for (uint64_t update = 0; update < trial.updates; ++update) {
    arrays->SetUpdate(update);
    arrays->Call(function.call, {0, trial.n}, 0);
    const std::string value = arrays->NonFinite(arrays->State());
    if (value.empty()) continue;
    return absl::StrFormat("%s: after update %d with gradients of at most 2^20, %s", function.name,
                           update + 1, value);
  }
  return "";
}

}  // namespace

absl::StatusOr<CheckTools> CheckTools::New(const UpdaterPlugin* plugin) {
  CheckTools tools;
  EPS_ASSIGN_OR_RETURN(tools.arrays, TrialArrays::New(plugin));
  EPS_ASSIGN_OR_RETURN(tools.other_arrays, TrialArrays::New(plugin));
  tools.threads = std::make_unique<CallThreads>(kTrialCallers);
  return tools;
}

std::string CheckBounds(CheckTools* tools) {
  std::vector<size_t> lengths(kShortLengths);
  for (size_t i = 0; i < kShortLengths; ++i) lengths[i] = i + 1;
  lengths.push_back(kMostTrialElements);
  for (const Function& function : FunctionsOf(tools->arrays->plugin())) {
    for (const size_t n : lengths) {
      Trial trial = TrialOf(*tools->arrays, n, 1);
      trial.updates = 1;
      for (const bool at_end : {true, false}) {
        const std::string where =
            absl::StrCat(function.name, ", length ", n, ", arrays that ",
                         at_end ? "end before" : "begin after", " an inaccessible page");
        WriteReportLine(absl::StrCat("at ", where));
        tools->arrays->Run(trial, function.call, {at_end, {}}, {{0, n}});
        if (tools->arrays->SurroundingsAreUntouched()) continue;
        return absl::StrCat("writes outside of its arrays: ", where);
      }
    }
  }
  return "";
}

std::string CheckSplits(CheckTools* tools) {
  for (const Function& function : FunctionsOf(tools->arrays->plugin())) {
    for (const size_t n : {kShortLengths, kMostTrialElements}) {
      const Trial trial = TrialOf(*tools->arrays, n, 2);
      const std::vector<float> whole = tools->arrays->Run(trial, function.call);
      std::vector<TrialPiece> odd = PiecesOf(n, {1, 2, 3, 5, 7, 11, 13, 17, 31, 61});
      const auto compare = [&](const char* where, const std::vector<TrialPiece>& pieces) {
        const std::vector<float> found = tools->arrays->Run(trial, function.call, {}, pieces);
        return Explain(function.name, where, tools->arrays->Difference(found, whole));
      };
      std::string finding = compare("once more at once", {{0, n}});
      if (finding.empty()) finding = compare("in pieces of 1 to 61 elements", odd);
      if (finding.empty()) finding = compare("in pieces of 64 elements", PiecesOf(n, {64}));
      if (finding.empty()) finding = compare("element by element", PiecesOf(n, {1}));
      std::reverse(odd.begin(), odd.end());
      if (finding.empty()) finding = compare("with the last piece first", odd);
      if (!finding.empty()) return finding;
    }
  }
  return "";
}

std::string CheckAlignment(CheckTools* tools) {
  constexpr size_t kOffsets = 16;  // 64 bytes
  for (const Function& function : FunctionsOf(tools->arrays->plugin())) {
    for (const size_t n : {kShortLengths, size_t{259}}) {
      const Trial trial = TrialOf(*tools->arrays, n, 3);
      const std::vector<float> expected = tools->arrays->Run(trial, function.call);
      for (size_t offset = 0; offset < kOffsets; ++offset) {
        for (const size_t stride : {0, 1, 3}) {
          TrialPlacement place;
          place.at_end = false;
          for (size_t a = 0; a < place.first.size(); ++a) {
            place.first[a] = (offset + a * stride) % kOffsets;
          }
          const auto found = tools->arrays->Run(trial, function.call, place, {{0, n}});
          const std::string where =
              absl::StrCat("gradients ", 4 * offset, " bytes after a multiple of 64",
                           stride == 0 ? "" : ", other arrays elsewhere");
          std::string finding =
              Explain(function.name, where, tools->arrays->Difference(found, expected));
          if (!finding.empty()) return finding;
        }
      }
    }
  }
  return "";
}

std::string CheckThreads(CheckTools* tools) {
  const Trial trial = TrialOf(*tools->arrays, kMostTrialElements, 4);
  const std::vector<TrialPiece> pieces = PiecesOf(trial.n, {64, 3, 128, 17});
  for (const Function& function : FunctionsOf(tools->arrays->plugin())) {
    const std::vector<float> expected = tools->arrays->Run(trial, function.call);
    std::string finding;
    for (const Trial& other : OtherTrials(trial, tools->arrays->plugin())) {
      if (!finding.empty()) break;
      const std::vector<float> found = RunBetween(tools, trial, other, function.call, pieces);
      finding = Explain(function.name, "between calls with other numbers",
                        tools->arrays->Difference(found, expected));
    }
    for (int round = 0; finding.empty() && round < 20; ++round) {
      finding = Explain(
          function.name, "called on several threads at once",
          tools->arrays->Difference(RunOnThreads(tools, trial, function.call, pieces), expected));
    }
    if (!finding.empty()) return finding;
  }
  return "";
}

std::string CheckValues(CheckTools* tools) {
  for (const TrialValues values :
       {TrialValues::kUsual, TrialValues::kFinite, TrialValues::kSpecial}) {
    for (const float grad_scale : {1.0F, 1.0F / 3, 0x1p-60F}) {
      for (const uint64_t first_update : {uint64_t{1}, uint64_t{1} << 33}) {
        Trial trial = TrialOf(*tools->arrays, kMostTrialElements, 5);
        trial.values = values;
        trial.updates = 6;
        trial.first_update = first_update;
        trial.grad_scale = grad_scale;
        std::string finding = CompareFunctions(
            tools->arrays.get(), trial,
            values == TrialValues::kSpecial  ? "gradients with infinities and NaN among them"
            : values == TrialValues::kFinite ? "gradients with denormals and 2^20 among them"
                                             : "small gradients");
        if (!finding.empty()) return finding;
      }
    }
  }
  for (const Function& function : FunctionsOf(tools->arrays->plugin())) {
    std::string finding = CheckFinite(tools->arrays.get(), function);
    if (!finding.empty()) return finding;
  }
  return "";
}

std::string CheckParameters(CheckTools* tools) {
  const auto& parameters = tools->arrays->plugin().parameters;
  // (where, values of the parameters)
  std::vector<std::pair<std::string, std::vector<double>>> choices;
  std::vector<double> least = UsualParameters(tools->arrays->plugin());
  std::vector<double> most = least;
  choices.emplace_back("with the usual parameters", least);
  for (size_t i = 0; i < parameters.size(); ++i) {
    for (const double value : {parameters[i].least, parameters[i].most}) {
      choices.emplace_back(absl::StrCat(parameters[i].name, "=", value), choices[0].second);
      choices.back().second[i] = value;
    }
    least[i] = parameters[i].least;
    most[i] = parameters[i].most;
  }
  choices.emplace_back("with the least of all parameters", least);
  choices.emplace_back("with the most of all parameters", most);
  for (const auto& [where, values] : choices) {
    for (const double lr : {0.0, kUsualRate, 1.0}) {
      for (const double weight_decay : {0.0, 0.1}) {
        Trial trial = TrialOf(*tools->arrays, 259, 7);
        trial.parameters = values;
        trial.lr = lr;
        trial.weight_decay = weight_decay;
        std::string finding =
            CompareFunctions(tools->arrays.get(), trial,
                             absl::StrCat(where, ", lr ", lr, ", weight decay ", weight_decay));
        if (!finding.empty()) return finding;
      }
    }
  }
  return "";
}

std::string CheckMode(CheckTools* tools) {
  TrialArrays* const arrays = tools->arrays.get();
  for (const Function& function : FunctionsOf(arrays->plugin())) {
    for (size_t n = 1; n <= kShortLengths; ++n) {
      arrays->Begin(TrialOf(*arrays, n, 8), {});
      arrays->SetUpdate(0);
      // Odd lengths with all signals blocked, even ones with none. Not Call(), which restores the
      // mode.
      const std::string finding = FindModeChange(function.name, /*blocked=*/n % 2 == 1, [&] {
        arrays->CallOnly(function.call, {0, n}, 0);
      });
      if (!finding.empty()) return finding;
    }
  }
  return "";
}

}  // namespace eps
