#include "optimizer/plugin/check/trial.h"

#include <cmath>
#include <cstring>

#include "absl/strings/str_format.h"
#include "base/numerics/flush_denormals.h"
#include "base/status_macros.h"

namespace eps {
namespace {

constexpr size_t kGradients = 0;
constexpr size_t kWeights = 1;
// Fills the memory around arrays: a NaN that no arithmetic makes.
constexpr uint32_t kSurroundings = 0x7fc5a5a5;

// Returns a first weight: finite, whatever the gradients are.
float WeightOf(TrialValues gradients, uint64_t mixed) {
  return TrialValue(gradients == TrialValues::kSpecial ? TrialValues::kFinite : TrialValues::kUsual,
                    mixed);
}

}  // namespace

absl::StatusOr<std::unique_ptr<TrialArrays>> TrialArrays::New(const UpdaterPlugin* plugin) {
  std::unique_ptr<TrialArrays> arrays(new TrialArrays(plugin));
  constexpr size_t kBytes = (kMostTrialElements + 64) * sizeof(float);
  for (size_t i = 0; i < 2 + plugin->fields.size(); ++i) {
    const auto access =
        i == kGradients ? GuardedArray::Access::kReadOnly : GuardedArray::Access::kReadWrite;
    EPS_ASSIGN_OR_RETURN(GuardedArray array, GuardedArray::New(kBytes, access));
    arrays->arrays_.push_back(array);
  }
  for (size_t i = 0; i < kTrialCallers; ++i) {
    EPS_ASSIGN_OR_RETURN(GuardedArray array, GuardedArray::New(1, GuardedArray::Access::kReadOnly));
    arrays->field_pointers_.push_back(array);
  }
  for (int i = 0; i < 2; ++i) {
    EPS_ASSIGN_OR_RETURN(GuardedArray array, GuardedArray::New(1, GuardedArray::Access::kReadOnly));
    arrays->numbers_.push_back(array);
  }
  return arrays;
}

size_t TrialArrays::OffsetOf(size_t array) const {
  if (!place_.at_end) return place_.first[array];
  return arrays_[array].size() / sizeof(float) - trial_.n;
}

float* TrialArrays::Own(size_t array) const {
  return reinterpret_cast<float*>(arrays_[array].own()) + OffsetOf(array);
}

float* TrialArrays::Shown(size_t array) const {
  return reinterpret_cast<float*>(arrays_[array].shown()) + OffsetOf(array);
}

void TrialArrays::Begin(const Trial& trial, const TrialPlacement& place) {
  trial_ = trial;
  place_ = place;
  for (size_t array = kWeights; array < arrays_.size(); ++array) {
    for (size_t at = 0; at < arrays_[array].size(); at += sizeof(kSurroundings)) {
      std::memcpy(arrays_[array].own() + at, &kSurroundings, sizeof(kSurroundings));
    }
    std::memset(Own(array), 0, trial_.n * sizeof(float));
  }
  for (size_t i = 0; i < trial_.n; ++i) {
    Own(kWeights)[i] = WeightOf(trial_.values, MixedNumber(trial_.seed, i));
  }
  const size_t bytes = trial_.parameters.size() * sizeof(double);
  const GuardedArray& room = numbers_[1];
  if (bytes > 0) std::memcpy(room.own() + room.size() - bytes, trial_.parameters.data(), bytes);
}

void TrialArrays::SetUpdate(uint64_t index) {
  for (size_t i = 0; i < trial_.n; ++i) {
    Own(kGradients)[i] = TrialValue(trial_.values, MixedNumber(trial_.seed + index + 1, i));
  }
  const eps_updater_step step = {trial_.first_update + index, trial_.lr, trial_.weight_decay,
                                 trial_.grad_scale};
  std::memcpy(numbers_[0].own() + numbers_[0].size() - sizeof(step), &step, sizeof(step));
}

void TrialArrays::Call(eps_updater_update* function, const TrialPiece& piece, size_t caller) const {
  const ScopedFlushDenormals flush;
  CallOnly(function, piece, caller);
}

void TrialArrays::CallOnly(eps_updater_update* function, const TrialPiece& piece,
                           size_t caller) const {
  const size_t fields = plugin_->fields.size();
  const size_t pointer_bytes = fields * sizeof(float*);
  const GuardedArray& pointers = field_pointers_[caller];
  for (size_t f = 0; f < fields; ++f) {
    float* const field = Shown(kWeights + 1 + f) + piece.begin;
    std::memcpy(pointers.own() + pointers.size() - pointer_bytes + f * sizeof(float*), &field,
                sizeof(field));
  }
  const uint8_t* const step = numbers_[0].shown() + numbers_[0].size() - sizeof(eps_updater_step);
  const uint8_t* const parameters =
      numbers_[1].shown() + numbers_[1].size() - trial_.parameters.size() * sizeof(double);
  function(reinterpret_cast<const eps_updater_step*>(step),
           reinterpret_cast<const double*>(parameters), piece.size, Shown(kGradients) + piece.begin,
           Shown(kWeights) + piece.begin,
           reinterpret_cast<float* const*>(pointers.shown() + pointers.size() - pointer_bytes));
}

std::vector<float> TrialArrays::State() const {
  std::vector<float> state;
  state.reserve((arrays_.size() - 1) * trial_.n);
  for (size_t array = kWeights; array < arrays_.size(); ++array) {
    state.insert(state.end(), Own(array), Own(array) + trial_.n);
  }
  return state;
}

bool TrialArrays::SurroundingsAreUntouched() const {
  for (size_t array = kWeights; array < arrays_.size(); ++array) {
    const size_t begin = OffsetOf(array);
    for (size_t i = 0; i < arrays_[array].size() / sizeof(float); ++i) {
      uint32_t bits = 0;
      std::memcpy(&bits, arrays_[array].own() + i * sizeof(float), sizeof(bits));
      if ((i < begin || i >= begin + trial_.n) && bits != kSurroundings) return false;
    }
  }
  return true;
}

std::vector<float> TrialArrays::Run(const Trial& trial, eps_updater_update* function,
                                    const TrialPlacement& place,
                                    const std::vector<TrialPiece>& pieces) {
  Begin(trial, place);
  for (uint64_t update = 0; update < trial.updates; ++update) {
    SetUpdate(update);
    for (const TrialPiece& piece : pieces) Call(function, piece, /*caller=*/0);
  }
  return State();
}

std::vector<float> TrialArrays::Run(const Trial& trial, eps_updater_update* function) {
  return Run(trial, function, {}, {{0, trial.n}});
}

std::string TrialArrays::NameOf(const std::vector<float>& state, size_t index) const {
  const size_t n = state.size() / (1 + plugin_->fields.size());
  const size_t array = index / n;
  return absl::StrFormat("element %d of %s", index % n,
                         array == 0 ? "the weights" : plugin_->fields[array - 1]);
}

std::string TrialArrays::Difference(const std::vector<float>& found,
                                    const std::vector<float>& expected) const {
  for (size_t i = 0; i < found.size(); ++i) {
    if (SameBits(found[i], expected[i])) continue;
    return absl::StrFormat("%s is %.9g (0x%08x), expected %.9g (0x%08x)", NameOf(found, i),
                           found[i], BitsOf(found[i]), expected[i], BitsOf(expected[i]));
  }
  return "";
}

std::string TrialArrays::NonFinite(const std::vector<float>& state) const {
  for (size_t i = 0; i < state.size(); ++i) {
    if (!std::isfinite(state[i])) return absl::StrFormat("%s is %g", NameOf(state, i), state[i]);
  }
  return "";
}

}  // namespace eps
