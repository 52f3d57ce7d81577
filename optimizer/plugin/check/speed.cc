#include "optimizer/plugin/check/speed.h"

#include "absl/strings/str_format.h"
#include "base/numerics/flush_denormals.h"
#include "base/plugin/check/report_lines.h"
#include "base/plugin/check/timed_pieces.h"
#include "optimizer/plugin/check/plain_loop.h"
#include "optimizer/plugin/eps_updater.h"

namespace eps {
namespace {

// Elements of one call. EPS updates pieces that stay in the first cache.
constexpr size_t kPiece = 2048;

}  // namespace

std::unique_ptr<SpeedTrial> SpeedTrial::New(const UpdaterPlugin* plugin, uint64_t elements) {
  if (elements == 0) return nullptr;
  std::unique_ptr<SpeedTrial> speed(new SpeedTrial(plugin, elements));
  for (size_t i = 0; i < 2 + plugin->fields.size(); ++i) {
    void* const array = MapTimedMemory(elements * sizeof(float));
    if (array == nullptr) return nullptr;
    speed->arrays_.push_back(static_cast<float*>(array));
  }
  return speed;
}

void SpeedTrial::RunAndReport() {
  for (size_t i = 0; i < elements_; ++i) {
    arrays_[0][i] = static_cast<float>(static_cast<int>(i % 511) - 255) * 0x1p-10F;
    for (size_t a = 1; a < arrays_.size(); ++a) arrays_[a][i] = a == 1 ? 0.5F : 0.0F;
  }
  const ScopedFlushDenormals flush;
  TimeUpdate(1);  // also computes real fields
  WriteReportLine(absl::StrFormat("speed %d %d", elements_, 4 + 8 * (1 + plugin_->fields.size())));
  for (uint64_t round = 0; round < kTimedRounds; ++round) {
    const double update = TimeUpdate(2 + round);
    WriteReportLine(absl::StrFormat("round %.9g %.9g", update, TimePlainLoop()));
  }
}

double SpeedTrial::TimeUpdate(uint64_t update) {
  const eps_updater_step step = {update, 1e-3, 0.01, 1};
  std::vector<double> parameters;
  for (const PluginParameter& parameter : plugin_->parameters)
    parameters.push_back(parameter.usual);
  return TimePieces(elements_, kPiece, [&](size_t at, size_t n) {
    float* fields[EPS_UPDATER_MAX_FIELDS] = {};
    for (size_t a = 2; a < arrays_.size(); ++a) fields[a - 2] = arrays_[a] + at;
    plugin_->update(&step, parameters.data(), n, arrays_[0] + at, arrays_[1] + at, fields);
  });
}

double SpeedTrial::TimePlainLoop() {
  const size_t field_count = plugin_->fields.size();
  return TimePieces(elements_, kPiece, [&](size_t at, size_t n) {
    float* fields[EPS_UPDATER_MAX_FIELDS] = {};
    for (size_t a = 2; a < arrays_.size(); ++a) fields[a - 2] = arrays_[a] + at;
    PlainLoop(n, arrays_[0] + at, arrays_[1] + at, field_count, fields);
  });
}

}  // namespace eps
