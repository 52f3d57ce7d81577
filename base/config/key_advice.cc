#include "base/config/key_advice.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace eps {
namespace {

// A setting of another trainer.
struct ForeignName {
  absl::string_view name;
  const char* advice;
};

constexpr char kBatch[] =
    "use training.micro_batch_size; a step trains on micro_batch_size * micro_batches * parts "
    "samples";
constexpr char kBf16[] =
    "use training.precision=bf16; quantization.weights=bf16 halves the bytes of the weights on the "
    "wire";
constexpr char kFp16[] =
    "use training.precision=cmp (float16 with a loss scale); bf16 needs no loss scale";
constexpr char kEpochs[] = "use training.epochs";
constexpr char kReports[] =
    "use metrics.tensorboard or metrics.wandb; metrics.jsonl in the output folder has every step";

constexpr ForeignName kForeignNames[] = {
    {"batch_size", kBatch},
    {"per_device_train_batch_size", kBatch},
    {"num_epochs", kEpochs},
    {"num_train_epochs", kEpochs},
    {"max_steps", "use training.steps"},
    {"learning_rate", "use optimizer.lr"},
    {"output_dir", "use --out (checkpoint.dir)"},
    {"output", "use --out (checkpoint.dir)"},
    {"bf16", kBf16},
    {"fp16", kFp16},
    {"report_to", kReports},
    {"lr_scheduler_type", "use lr_scheduler.name"},
    {"resume_from_checkpoint", "use --resume (checkpoint.resume)"},
    {"overwrite_output_dir", "use --overwrite (checkpoint.overwrite)"},
    {"logging_steps", "use metrics.log_every_steps"},
    {"metric_for_best_model", "use eval.best_metric"},
    {"load_best_model_at_end", "use checkpoint.save_best; the file `best` names the checkpoint"},
    {"early_stopping_patience", "use training.early_stop_patience"},
    {"model_name_or_path", "use --model (model.path), a folder on this machine"},
    {"gradient_checkpointing", "a worker always recomputes activations; leave it out"},
};

}  // namespace

std::string KeyAdvice(absl::string_view name, const std::vector<std::string>& keys) {
  const absl::string_view leaf = name.substr(name.rfind('.') + 1);  // npos + 1 is 0
  std::vector<std::string> same_leaf;
  for (const std::string& key : keys) {
    if (absl::EndsWith(key, absl::StrCat(".", leaf))) same_leaf.push_back(key);
  }
  if (!same_leaf.empty())
    return absl::StrCat("did you mean ", absl::StrJoin(same_leaf, " or "), "?");
  for (const ForeignName& foreign : kForeignNames) {
    if (leaf == foreign.name) return foreign.advice;
  }
  return "";
}

}  // namespace eps
