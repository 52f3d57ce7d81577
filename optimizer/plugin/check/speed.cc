#include "optimizer/plugin/check/speed.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>

#include "absl/strings/str_format.h"
#include "base/numerics/flush_denormals.h"
#include "optimizer/plugin/check/plain_loop.h"
#include "optimizer/plugin/check/report_lines.h"
#include "optimizer/plugin/eps_updater.h"

namespace eps {
namespace {

constexpr int kRounds = 5;
// Elements of one call. EPS updates pieces that stay in the first cache.
constexpr size_t kPiece = 2048;

// Calls `each` with the beginning and the size of each piece, and returns the seconds of all.
template <class Each>
double TimePieces(size_t n, Each each) {
  const auto begin = std::chrono::steady_clock::now();
  for (size_t at = 0; at < n; at += kPiece) each(at, std::min(kPiece, n - at));
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

std::unique_ptr<SpeedTrial> SpeedTrial::New(const UpdaterPlugin* plugin, uint64_t elements) {
  if (elements == 0) return nullptr;
  std::unique_ptr<SpeedTrial> speed(new SpeedTrial(plugin, elements));
  for (size_t i = 0; i < 2 + plugin->fields.size(); ++i) {
    void* const array = mmap(nullptr, elements * sizeof(float), PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (array == MAP_FAILED) return nullptr;
    speed->arrays_.push_back(static_cast<float*>(array));
  }
  return speed;
}

SpeedTrial::~SpeedTrial() {
  for (float* const array : arrays_) munmap(array, elements_ * sizeof(float));
}

void SpeedTrial::RunAndReport() {
  for (size_t i = 0; i < elements_; ++i) {
    arrays_[0][i] = static_cast<float>(static_cast<int>(i % 511) - 255) * 0x1p-10F;
    for (size_t a = 1; a < arrays_.size(); ++a) arrays_[a][i] = a == 1 ? 0.5F : 0.0F;
  }
  const ScopedFlushDenormals flush;
  TimeUpdate(1);  // also computes real fields
  WriteReportLine(absl::StrFormat("speed %d %d", elements_, 4 + 8 * (1 + plugin_->fields.size())));
  for (uint64_t round = 0; round < kRounds; ++round) {
    const double update = TimeUpdate(2 + round);
    WriteReportLine(absl::StrFormat("round %.9g %.9g", update, TimePlainLoop()));
  }
}

double SpeedTrial::TimeUpdate(uint64_t update) {
  const eps_updater_step step = {update, 1e-3, 0.01, 1};
  std::vector<double> parameters;
  for (const PluginParameter& parameter : plugin_->parameters)
    parameters.push_back(parameter.usual);
  return TimePieces(elements_, [&](size_t at, size_t n) {
    float* fields[EPS_UPDATER_MAX_FIELDS] = {};
    for (size_t a = 2; a < arrays_.size(); ++a) fields[a - 2] = arrays_[a] + at;
    plugin_->update(&step, parameters.data(), n, arrays_[0] + at, arrays_[1] + at, fields);
  });
}

double SpeedTrial::TimePlainLoop() {
  const size_t field_count = plugin_->fields.size();
  return TimePieces(elements_, [&](size_t at, size_t n) {
    float* fields[EPS_UPDATER_MAX_FIELDS] = {};
    for (size_t a = 2; a < arrays_.size(); ++a) fields[a - 2] = arrays_[a] + at;
    PlainLoop(n, arrays_[0] + at, arrays_[1] + at, field_count, fields);
  });
}

}  // namespace eps
