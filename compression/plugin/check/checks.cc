#include "compression/plugin/check/checks.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/plugin/check/report_lines.h"
#include "base/plugin/check/thread_mode.h"
#include "base/status_macros.h"

namespace eps {
namespace {

// The lengths of most trials: all short ones, and those around the blocks of a codec.
std::vector<size_t> Lengths() {
  std::vector<size_t> lengths;
  for (size_t n = 1; n <= kShortLengths; ++n) lengths.push_back(n);
  lengths.insert(lengths.end(), {1023, 1024, 1025, kMostCodecElements});
  return lengths;
}

// Elements of one kind, and the words for them.
struct Sample {
  std::string text;
  std::vector<float> elements;
};

Sample EqualElements(float value, size_t n) {
  return {absl::StrFormat("elements that are all %g", value), std::vector<float>(n, value)};
}

// Returns elements of all kinds.
std::vector<Sample> SamplesOf(size_t n) {
  std::vector<Sample> samples = {
      {"small elements", TrialElements(TrialValues::kUsual, n, 2)},
      {"elements with denormals and 2^20 among them", TrialElements(TrialValues::kFinite, n, 3)},
      {"elements with infinities and NaN among them", TrialElements(TrialValues::kSpecial, n, 4)}};
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const float value : {0.0F, -1.0F, 0x1p-130F, 0x1p100F, kInfinity, kNan}) {
    samples.push_back(EqualElements(value, n));
  }
  samples.push_back(EqualElements(0, n));
  samples.back().text = "zeros but for the last element";
  samples.back().elements.back() = 3;
  return samples;
}

std::string Where(const char* function, size_t n, const std::string& text) {
  return absl::StrCat(function, ", length ", n, ", ", text);
}

std::string Explain(const std::string& where, const std::string& difference) {
  return difference.empty() ? "" : absl::StrCat(where, ": ", difference);
}

std::string CheckRoundTripOf(CodecArrays* arrays, size_t n, const Sample& sample) {
  const std::string encode = Where("encode", n, sample.text);
  const Encoding first = arrays->Encode(sample.elements, {}, 0xa5);
  const Encoding second = arrays->Encode(sample.elements, {}, 0x5a);
  std::string finding = Explain(encode + ", once more in memory that held other bytes",
                                EncodingDifference(second, first));
  if (!finding.empty()) return finding;
  const std::string decode = Where("decode", n, sample.text);
  const Decoding decoded = arrays->Decode(first.bytes, n, {}, 0xa5);
  if (decoded.code != 0) {
    return absl::StrCat(decode, ": refuses what encode wrote, with code ", decoded.code);
  }
  return Explain(decode + ", once more in memory that held other bytes",
                 DecodingDifference(arrays->Decode(first.bytes, n, {}, 0x5a), decoded));
}

// An element that a server refuses must not vanish in the encoding.
std::string CheckInadmissible(CodecArrays* arrays, size_t n) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const float wild : {kInfinity, -kInfinity, kNan, -kNan, 0x1p50F, -0x1p60F}) {
    for (const size_t at : {size_t{0}, n / 2, n - 1}) {
      std::vector<float> elements = TrialElements(TrialValues::kUsual, n, 5);
      elements[at] = wild;
      const Decoding decoded = arrays->Decode(arrays->Encode(elements).bytes, n);
      bool found = decoded.code != 0;
      for (const float element : decoded.elements) found = found || !IsAdmissible(element);
      if (found) continue;
      return absl::StrFormat(
          "length %d: element %d is %g, and every decoded element is finite and below 2^50", n, at,
          wild);
    }
  }
  return "";
}

// Elements that a job lets through must not become others.
std::string CheckAdmissible(CodecArrays* arrays, size_t n) {
  for (const TrialValues values : {TrialValues::kUsual, TrialValues::kFinite}) {
    const Decoding decoded = arrays->Decode(arrays->Encode(TrialElements(values, n, 6)).bytes, n);
    for (size_t i = 0; i < n; ++i) {
      if (decoded.code != 0 || IsAdmissible(decoded.elements[i])) continue;
      return absl::StrFormat("length %d: elements are at most 2^20, and decoded element %d is %g",
                             n, i, decoded.elements[i]);
    }
  }
  return "";
}

// A gradient, its encoding and what that decodes to, if nothing disturbs.
struct Expected {
  std::vector<float> elements;
  Encoding encoding;
  Decoding decoding;
};

Expected ExpectedOf(CodecArrays* arrays, std::vector<float> elements) {
  Expected expected;
  expected.elements = std::move(elements);
  expected.encoding = arrays->Encode(expected.elements);
  expected.decoding = arrays->Decode(expected.encoding.bytes, expected.elements.size());
  return expected;
}

// Returns how one encoding and decoding differ from the expected ones.
std::string Compare(CodecArrays* arrays, const Expected& expected,
                    const CodecPlacement& place = {}) {
  std::string finding = Explain(
      "encode", EncodingDifference(arrays->Encode(expected.elements, place), expected.encoding));
  if (!finding.empty()) return finding;
  return Explain("decode", DecodingDifference(arrays->Decode(expected.encoding.bytes,
                                                             expected.elements.size(), place),
                                              expected.decoding));
}

}  // namespace

absl::StatusOr<CodecTools> CodecTools::New(const CodecPlugin* plugin) {
  CodecTools tools;
  for (size_t i = 0; i < kTrialCallers; ++i) {
    EPS_ASSIGN_OR_RETURN(CodecArrays arrays, CodecArrays::New(plugin));
    tools.callers.push_back(std::move(arrays));
  }
  tools.threads = std::make_unique<CallThreads>(kTrialCallers);
  return tools;
}

std::string CheckCodecBounds(CodecTools* tools) {
  CodecArrays& arrays = tools->arrays();
  for (const size_t n : Lengths()) {
    const std::vector<float> elements = TrialElements(TrialValues::kUsual, n, 1);
    for (const bool at_end : {true, false}) {
      const CodecPlacement place = {at_end, 0, 0};
      const std::string arrays_text = absl::StrCat(
          "arrays that ", at_end ? "end before" : "begin after", " an inaccessible page");
      const std::string encode = Where("encode", n, arrays_text);
      WriteReportLine(absl::StrCat("at ", encode));
      const Encoding encoding = arrays.Encode(elements, place);
      if (!arrays.SurroundingsAreUntouched()) {
        return absl::StrCat("writes outside of its array: ", encode);
      }
      const std::string decode = Where("decode", n, arrays_text);
      WriteReportLine(absl::StrCat("at ", decode));
      arrays.Decode(encoding.bytes, n, place);
      if (!arrays.SurroundingsAreUntouched()) {
        return absl::StrCat("writes outside of its array: ", decode);
      }
    }
  }
  return "";
}

std::string CheckCodecSize(CodecTools* tools) {
  CodecArrays& arrays = tools->arrays();
  for (const size_t n : Lengths()) {
    const uint64_t most = arrays.plugin().MostBytes(n);
    for (const Sample& sample : SamplesOf(n)) {
      const Encoding encoding = arrays.Encode(sample.elements);
      if (encoding.size <= most) continue;
      return absl::StrCat(Where("encode", n, sample.text), ": returns ", encoding.size,
                          " bytes; the description allows ", most);
    }
  }
  return "";
}

std::string CheckRoundTrip(CodecTools* tools) {
  for (const size_t n : Lengths()) {
    for (const Sample& sample : SamplesOf(n)) {
      std::string finding = CheckRoundTripOf(&tools->arrays(), n, sample);
      if (!finding.empty()) return finding;
    }
  }
  return "";
}

std::string CheckCodecAlignment(CodecTools* tools) {
  for (const size_t n : {kShortLengths, size_t{1025}}) {
    const Expected expected =
        ExpectedOf(&tools->arrays(), TrialElements(TrialValues::kUsual, n, 7));
    for (size_t elements = 0; elements < 16; ++elements) {
      for (size_t bytes = 0; bytes < 16; ++bytes) {
        const std::string finding =
            Compare(&tools->arrays(), expected, {/*at_end=*/false, elements, bytes});
        if (finding.empty()) continue;
        return absl::StrCat("length ", n, ", elements ", 4 * elements, " and bytes ", bytes,
                            " after a multiple of 64: ", finding);
      }
    }
  }
  return "";
}

std::string CheckCodecThreads(CodecTools* tools) {
  constexpr size_t kLengths[kTrialCallers] = {1024, kShortLengths, kMostCodecElements, 259};
  std::vector<Expected> expected;
  for (size_t i = 0; i < kTrialCallers; ++i) {
    expected.push_back(
        ExpectedOf(&tools->arrays(), TrialElements(TrialValues::kUsual, kLengths[i], 20 + i)));
  }
  for (size_t i = 0; i < kTrialCallers; ++i) {
    for (const TrialValues values : {TrialValues::kUsual, TrialValues::kFinite}) {
      for (const size_t n : {kLengths[i], size_t{3}}) {
        ExpectedOf(&tools->callers[1], TrialElements(values, n, 30 + i));
        const std::string finding = Compare(&tools->arrays(), expected[i]);
        if (!finding.empty()) return absl::StrCat("after calls with other elements: ", finding);
      }
    }
  }
  for (int round = 0; round < 100; ++round) {
    std::string findings[kTrialCallers];
    tools->threads->Run([&](size_t caller) {
      for (size_t i = 0; i < kTrialCallers && findings[caller].empty(); ++i) {
        findings[caller] = Compare(&tools->callers[caller], expected[(i + caller) % kTrialCallers]);
      }
    });
    for (const std::string& finding : findings) {
      if (!finding.empty()) return absl::StrCat("called on several threads at once: ", finding);
    }
  }
  return "";
}

std::string CheckCodecValues(CodecTools* tools) {
  for (const size_t n : Lengths()) {
    std::string finding = CheckAdmissible(&tools->arrays(), n);
    if (finding.empty()) finding = CheckInadmissible(&tools->arrays(), n);
    if (!finding.empty()) return finding;
  }
  return "";
}

std::string CheckCodecMode(CodecTools* tools) {
  CodecArrays& arrays = tools->arrays();
  for (size_t n = 1; n <= kShortLengths; ++n) {
    // Odd lengths with all signals blocked, even ones with none.
    const bool blocked = n % 2 == 1;
    const Encoding encoding = arrays.Encode(TrialElements(TrialValues::kUsual, n, 8));
    std::string finding = FindModeChange("encode", blocked, [&] { arrays.EncodeOnly(); });
    if (!finding.empty()) return finding;
    arrays.Decode(encoding.bytes, n);
    finding = FindModeChange("decode", blocked, [&] { arrays.DecodeOnly(); });
    if (!finding.empty()) return finding;
  }
  return "";
}

}  // namespace eps
