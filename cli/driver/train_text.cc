#include "cli/driver/train_text.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/job/models/model_family.h"
#include "base/text.h"

namespace eps {
namespace {

uint32_t Vocabulary(const ModelSpec& model) { return FamilyOf(model.type).vocabulary(model); }

}  // namespace

std::string LossText(const ModelSpec& model, double loss, uint64_t steps, double entropy) {
  return absl::StrFormat(
      "loss: %.4f over the last %d steps; guessing from %s frequencies alone "
      "gives %.4f (ratio %.2f)\n",
      loss, steps, Vocabulary(model) == kByteVocabulary ? "letter" : "token", entropy,
      loss / entropy);
}

std::string HeldOutText(const v1::StepRecord& evaluation, const std::vector<Figure>& figures) {
  std::string text = absl::StrFormat("held-out loss: %.4f", evaluation.evaluation().loss());
  for (const Figure& figure : figures) {
    absl::StrAppendFormat(&text, ", %s %.4f", NameOf(figure.metric), figure.value);
  }
  absl::StrAppendFormat(&text, " after step %d, on %s tokens of other data\n", evaluation.step(),
                        FormatCount(evaluation.evaluation().tokens()));
  return text;
}

std::string GenerateHint(const ModelSpec& model, const std::string& checkpoint) {
  const uint32_t vocabulary = Vocabulary(model);
  if (vocabulary == 0) return "";
  return absl::StrCat(
      "  eps generate --model=", checkpoint,
      vocabulary == kByteVocabulary ? " --prompt=\"This License\"\n" : " --prompt-ids=0\n");
}

}  // namespace eps
