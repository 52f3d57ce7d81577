#include "worker/data/masked_tokens.h"

#include <algorithm>

#include "base/job/models/model_family.h"
#include "base/numerics/rng.h"

namespace eps {
namespace {

// Of the tokens to guess, these shares become the mask token or any token; the others stay.
constexpr double kMasked = 0.8;
constexpr double kRandom = 0.1;

class Masker {
 public:
  Masker(const JobSpec& spec, Step step)
      : spec_(spec),
        draw_(spec.training.seed, step.value()),
        vocabulary_(FamilyOf(spec.model.type).vocabulary(spec.model)),
        chosen_below_(WordsBelow(spec.data.mlm_probability)),
        masked_below_(WordsBelow(kMasked)),
        random_below_(WordsBelow(kMasked + kRandom)) {}

  // Works on the first `length` tokens of a row. A row has at least one label, unless all of its
  // tokens are special.
  void MaskRow(uint64_t sample, uint32_t length, int32_t* tokens, int32_t* labels) const {
    bool has_label = false;
    uint32_t lowest = 0;  // the place with the lowest first word
    uint32_t lowest_word = UINT32_MAX;
    bool has_lowest = false;
    for (uint32_t place = 0; place < length; ++place) {
      if (IsSpecial(tokens[place])) continue;
      const PhiloxBlock draw = draw_(sample, place);
      if (draw[0] < chosen_below_) {
        Hide(draw, &tokens[place], &labels[place]);
        has_label = true;
      } else if (!has_lowest || draw[0] < lowest_word) {
        has_lowest = true;
        lowest = place;
        lowest_word = draw[0];
      }
    }
    if (!has_label && has_lowest) Hide(draw_(sample, lowest), &tokens[lowest], &labels[lowest]);
  }

 private:
  bool IsSpecial(int32_t token) const {
    const std::vector<uint32_t>& special = spec_.data.special_tokens;
    return std::binary_search(special.begin(), special.end(), static_cast<uint32_t>(token));
  }
  void Hide(const PhiloxBlock& draw, int32_t* token, int32_t* label) const {
    *label = *token;
    if (draw[1] < masked_below_) {
      *token = static_cast<int32_t>(spec_.data.mask_token);
    } else if (draw[1] < random_below_) {
      *token = static_cast<int32_t>(uint64_t{draw[2]} * vocabulary_ >> 32);
    }
  }

  const JobSpec& spec_;
  const TokenDraws draw_;
  const uint32_t vocabulary_;
  const uint64_t chosen_below_, masked_below_, random_below_;  // of words
};

}  // namespace

void MaskTokens(const JobSpec& spec, const std::vector<uint64_t>& samples, MicroBatch* batch) {
  const Masker masker(spec, batch->step);
  batch->labels.assign(batch->tokens.size(), kIgnoreLabel);
  for (size_t row = 0; row < samples.size(); ++row) {
    const size_t first = row * batch->seq_len;
    const uint32_t length = batch->lengths.empty() ? batch->seq_len : batch->lengths[row];
    masker.MaskRow(samples[row], length, &batch->tokens[first], &batch->labels[first]);
  }
}

}  // namespace eps
