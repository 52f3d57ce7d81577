#include "compression/plugin/check/codec_speed.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/numerics/flush_denormals.h"
#include "base/plugin/check/report_lines.h"
#include "base/plugin/check/timed_pieces.h"
#include "base/plugin/check/trial_values.h"

namespace eps {
namespace {

// Elements of one call: a chunk of a job.
constexpr size_t kPiece = size_t{256} << 10;

}  // namespace

CodecSpeedTrial::CodecSpeedTrial(const CodecPlugin* plugin, size_t elements)
    : plugin_(plugin), elements_(elements), sizes_((elements + kPiece - 1) / kPiece) {}

std::unique_ptr<CodecSpeedTrial> CodecSpeedTrial::New(const CodecPlugin* plugin,
                                                      uint64_t elements) {
  if (elements == 0) return nullptr;
  std::unique_ptr<CodecSpeedTrial> speed(new CodecSpeedTrial(plugin, elements));
  const size_t bytes = speed->sizes_.size() * plugin->MostBytes(std::min(elements, kPiece));
  speed->gradient_ = static_cast<float*>(MapTimedMemory(elements * sizeof(float)));
  speed->decoded_ = static_cast<float*>(MapTimedMemory(elements * sizeof(float)));
  speed->bytes_ = static_cast<uint8_t*>(MapTimedMemory(bytes));
  const bool mapped =
      speed->gradient_ != nullptr && speed->decoded_ != nullptr && speed->bytes_ != nullptr;
  return mapped ? std::move(speed) : nullptr;
}

void CodecSpeedTrial::RunAndReport() {
  for (size_t i = 0; i < elements_; ++i) {
    gradient_[i] = TrialValue(TrialValues::kUsual, MixedNumber(9, i));
  }
  const ScopedFlushDenormals flush;
  TimeEncode();  // also touches the pages
  TimeDecode();
  if (refused_) return;
  WriteReportLine(absl::StrFormat("speed %d %d", elements_,
                                  std::accumulate(sizes_.begin(), sizes_.end(), size_t{0})));
  for (uint64_t round = 0; round < kTimedRounds; ++round) {
    const double encode = TimeEncode();
    const double decode = TimeDecode();
    WriteReportLine(absl::StrFormat("round %.9g %.9g %.9g", encode, decode, TimeCopy()));
  }
}

double CodecSpeedTrial::TimeEncode() {
  const size_t most = plugin_->MostBytes(std::min(elements_, kPiece));
  return TimePieces(elements_, kPiece, [&](size_t at, size_t n) {
    const size_t piece = at / kPiece;
    sizes_[piece] = plugin_->encode(n, gradient_ + at, bytes_ + piece * most);
  });
}

double CodecSpeedTrial::TimeDecode() {
  const size_t most = plugin_->MostBytes(std::min(elements_, kPiece));
  return TimePieces(elements_, kPiece, [&](size_t at, size_t n) {
    const size_t piece = at / kPiece;
    const int code = plugin_->decode(sizes_[piece], bytes_ + piece * most, n, decoded_ + at);
    refused_ = refused_ || code != 0;
  });
}

double CodecSpeedTrial::TimeCopy() {
  return TimePieces(elements_, kPiece, [&](size_t at, size_t n) {
    std::memcpy(decoded_ + at, gradient_ + at, n * sizeof(float));
  });
}

}  // namespace eps
