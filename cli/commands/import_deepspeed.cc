#include "cli/commands/import_deepspeed.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/config/config.h"
#include "base/files/files.h"
#include "base/job/names.h"
#include "base/job/optimizers.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

using nlohmann::ordered_json;

constexpr size_t kMaxBytes = size_t{1} << 20;
constexpr int kMaxDepth = 32;
constexpr size_t kMaxShownValue = 80;

// The reason why a top-level key, with everything below it, has no equivalent.
struct Reason {
  const char* key;
  const char* why;
};
constexpr char kReplicas[] = "there are no replicas of the weights to keep equal";
constexpr char kStages[] = "not needed: a worker holds one layer at a time and recomputes it";
constexpr char kMemory[] =
    "not needed: weights and optimizer state are on the servers, sharded; a worker fetches one "
    "layer at a time (worker.prefetch, worker.stash)";
constexpr Reason kReasons[] = {
    {"zero_optimization", kMemory},
    {"zero_allow_untested_optimizer", kMemory},
    {"zero_force_ds_cpu_optimizer", kMemory},
    {"bf16",
     "not translated: training.precision=bf16 computes so; quantization.weights and "
     "quantization.gradients choose bf16 for the wire"},
    {"bfloat16", "as bf16"},
    {"fp16", "not translated: training.precision=cmp (float16) has a loss scale of its own"},
    {"amp", "not supported: training.precision has fp32, bf16 and cmp"},
    {"data_types", "not needed: gradients are summed in FP32"},
    {"communication_data_type",
     "not translated: quantization.gradients chooses the wire format of gradients"},
    {"prescale_gradients", kReplicas},
    {"gradient_predivide_factor", kReplicas},
    {"sparse_gradients", "not supported"},
    {"disable_allgather", kReplicas},
    {"activation_checkpointing", kStages},
    {"pipeline", "not needed: depth costs nothing on the device"},
    {"sparse_attention", "not supported"},
    {"aio", "not needed: the servers keep the state in memory"},
    {"steps_per_print", nullptr},
    {"wall_clock_breakdown", "not needed: the worker's --report has the times of each step"},
    {"memory_breakdown", "not needed: eps status shows the memory of each server by kind"},
    {"dump_state", "not needed: eps config print shows the resolved configuration"},
    {"flops_profiler", "not supported"},
    {"comms_logger", "not needed: the worker's --report has the bytes of each step"},
    {"csv_monitor", "not needed: metrics.jsonl has every step"},
    {"comet", "not supported: metrics.jsonl has every step"},
    {"autotuning", "not supported"},
    {"elasticity", "not needed: the result does not depend on which worker computes a part"},
    {"checkpoint", "other names: checkpoint.dir, checkpoint.save_steps"},
    {"load_universal_checkpoint", "not needed: any checkpoint resumes on any number of servers"},
    {"use_data_before_expert_parallel", "not supported"},
    {"data_efficiency", "not supported"},
    {"curriculum_learning", "not supported"},
    {"progressive_layer_drop", "not supported"},
    {"eigenvalue", "not supported"},
    {"quantize_training", "not supported"},
    {"compression_training", "not supported"},
    {"hybrid_engine", "not supported"},
    {"tensor_parallel", "not needed: a layer is fetched whole"},
    {"sequence_parallel_size", "not supported"},
    {"dataloader_drop_last", "not needed: every step has the same number of samples"},
    {"seed", "another name: training.seed"},
};

// Returns a value truncated to a bounded length and escaped, so that it cannot end a comment.
std::string Shown(const ordered_json& value) {
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true);
  if (text.size() > kMaxShownValue) text = text.substr(0, kMaxShownValue) + "...";
  return text;
}

// Does the same for a name, which is untrusted too.
std::string ShownName(const std::string& name) {
  const std::string quoted = Shown(ordered_json(name));
  return quoted == absl::StrCat("\"", name, "\"") ? name : quoted;
}

bool IsAuto(const ordered_json& value) { return value.is_string() && value == "auto"; }

// Reads the file into `root`.
absl::Status Parse(absl::string_view json, const std::string& origin, ordered_json* root) {
  if (json.size() > kMaxBytes) {
    return absl::InvalidArgumentError(absl::StrCat(origin, " has ", json.size(),
                                                   " bytes, expected at most ", kMaxBytes,
                                                   ": not a DeepSpeed configuration"));
  }
  // Check the depth before parsing: deeply nested values are expensive to build and to free.
  int depth = 0;
  int deepest = 0;
  bool in_text = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_text) {
      if (c == '\\') ++i;
      if (c == '"') in_text = false;
    } else if (c == '"') {
      in_text = true;
    } else if (c == '{' || c == '[') {
      deepest = std::max(deepest, ++depth);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  if (deepest > kMaxDepth) {
    return absl::InvalidArgumentError(
        absl::StrCat(origin, " nests ", deepest, " levels deep, expected at most ", kMaxDepth));
  }
  std::vector<std::set<std::string>> seen;
  std::string twice;
  const auto on_event = [&](int, ordered_json::parse_event_t event, ordered_json& value) {
    if (event == ordered_json::parse_event_t::object_start) seen.emplace_back();
    if (event == ordered_json::parse_event_t::object_end) seen.pop_back();
    if (event == ordered_json::parse_event_t::key &&
        !seen.back().insert(value.get<std::string>()).second && twice.empty()) {
      twice = ShownName(value.get<std::string>());
    }
    return true;
  };
  *root = ordered_json::parse(json.begin(), json.end(), on_event, /*allow_exceptions=*/false);
  if (!root->is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(origin, ": expected one JSON object"));
  }
  if (!twice.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(origin, ": the key ", twice, " appears twice"));
  }
  return absl::OkStatus();
}

class Importer {
 public:
  explicit Importer(std::string origin) : origin_(std::move(origin)) {}

  absl::Status Run(const ordered_json& root) {
    EPS_RETURN_IF_ERROR(Batch(root));
    EPS_RETURN_IF_ERROR(Clipping(root));
    EPS_RETURN_IF_ERROR(Optimizer(root));
    EPS_RETURN_IF_ERROR(Scheduler(root));
    EPS_RETURN_IF_ERROR(Monitoring(root));
    for (const auto& [name, value] : root.items()) {
      if (done_.count(name) > 0) continue;
      const auto reason = std::find_if(std::begin(kReasons), std::end(kReasons),
                                       [&key = name](const Reason& r) { return key == r.key; });
      const bool known = reason != std::end(kReasons) && reason->why != nullptr;
      LeaveOut(name, value, known ? reason->why : "not a key that is known to EPS");
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Text() const {
    std::string text =
        absl::StrCat("# From ", ShownName(origin_),
                     " by eps config import-deepspeed. All other keys have their defaults.\n");
    for (const auto& [section, lines] : sections_) absl::StrAppend(&text, section, ":\n", lines);
    if (!left_out_.empty()) absl::StrAppend(&text, "\n# Left out:\n", left_out_);
    // Users pass the output to --config, so Config must accept every value.
    Config config;
    EPS_RETURN_IF_ERROR(config.MergeYaml(text, absl::StrCat("what ", origin_, " became")));
    return text;
  }

 private:
  absl::Status Wrong(const std::string& name, const ordered_json& value, const char* expected) {
    return absl::InvalidArgumentError(
        absl::StrCat(origin_, ": ", name, ": expected ", expected, ", found ", Shown(value)));
  }

  void Set(const char* section, const char* key, const std::string& value,
           const std::string& comment = "") {
    absl::StrAppend(&sections_[section], "  ", key, ": ", value,
                    comment.empty() ? "" : absl::StrCat("  # ", comment), "\n");
  }

  // Lists a key and everything below it, one per line.
  void LeaveOut(const std::string& name, const ordered_json& value, const std::string& why) {
    if (!value.is_object() || value.empty()) {
      absl::StrAppend(&left_out_, "# ", ShownName(name), ": ", Shown(value), "  -- ", why, "\n");
      return;
    }
    absl::StrAppend(&left_out_, "# ", ShownName(name), "  -- ", why, "\n");
    AddLeaves("", value);
  }
  void AddLeaves(const std::string& prefix, const ordered_json& object) {
    for (const auto& [name, value] : object.items()) {
      const std::string path = prefix + ShownName(name);
      if (value.is_object() && !value.empty()) {
        AddLeaves(path + ".", value);
      } else {
        absl::StrAppend(&left_out_, "#   ", path, ": ", Shown(value), "\n");
      }
    }
  }

  // Returns the value of `name` in `object` and marks the key as handled; null if it is absent, or
  // if it is "auto", which is listed as left out.
  const ordered_json* Take(const ordered_json& object, const char* name,
                           const std::string& prefix = "") {
    const auto it = object.find(name);
    if (prefix.empty()) done_.insert(name);
    if (it == object.end()) return nullptr;
    if (!IsAuto(*it)) return &*it;
    LeaveOut(prefix + name, *it, "transformers' Trainer would fill it in; set it if it matters");
    return nullptr;
  }

  absl::StatusOr<std::optional<uint64_t>> TakeInteger(const ordered_json& object, const char* name,
                                                      const std::string& prefix = "") {
    const ordered_json* const value = Take(object, name, prefix);
    if (value == nullptr) return std::optional<uint64_t>();
    const double number = value->is_number() ? value->get<double>() : -1;
    if (number < 1 || number > 4294967295.0 || number != std::floor(number)) {
      return Wrong(prefix + name, *value, "a whole number from 1 to 4294967295");
    }
    return std::optional<uint64_t>(static_cast<uint64_t>(number));
  }

  absl::StatusOr<std::optional<double>> TakeNumber(const ordered_json& object, const char* name,
                                                   const std::string& prefix = "") {
    const ordered_json* const value = Take(object, name, prefix);
    if (value == nullptr) return std::optional<double>();
    if (!value->is_number() || !(value->get<double>() >= 0) || std::isinf(value->get<double>())) {
      return Wrong(prefix + name, *value, "a number that is not negative");
    }
    return std::optional<double>(value->get<double>());
  }

  static std::string Number(double value) { return ordered_json(value).dump(); }

  absl::Status Batch(const ordered_json& root);
  absl::Status Clipping(const ordered_json& root);
  absl::Status Optimizer(const ordered_json& root);
  // Parameters have the same names in DeepSpeed.
  absl::Status Rule(const OptimizerRow& row, const ordered_json& params,
                    std::set<std::string>* known);
  absl::Status Scheduler(const ordered_json& root);
  absl::Status WarmUp(const std::string& type, const ordered_json& params,
                      std::set<std::string>* known);
  absl::Status Monitoring(const ordered_json& root);
  // Returns {type, params} of `name`; the type is empty if the section is absent.
  absl::StatusOr<std::pair<std::string, ordered_json>> TypeAndParams(const ordered_json& root,
                                                                     const char* name);
  void LeaveOutOthers(const std::string& prefix, const ordered_json& params,
                      const std::set<std::string>& known);

  const std::string origin_;
  std::map<std::string, std::string> sections_;  // lines by section
  std::string left_out_;
  std::set<std::string> done_;  // the handled keys of the top level
  std::optional<double> scheduled_lr_;
};

// A part is the share of one GPU: micro_batch_size x micro_batches samples.
absl::Status Importer::Batch(const ordered_json& root) {
  EPS_ASSIGN_OR_RETURN(const auto total, TakeInteger(root, "train_batch_size"));
  EPS_ASSIGN_OR_RETURN(const auto micro, TakeInteger(root, "train_micro_batch_size_per_gpu"));
  EPS_ASSIGN_OR_RETURN(const auto accumulation, TakeInteger(root, "gradient_accumulation_steps"));
  if (total.has_value()) Set("training", "train_batch_size", absl::StrCat(*total));
  if (micro.has_value()) Set("training", "micro_batch_size", absl::StrCat(*micro));
  if (accumulation.has_value()) Set("training", "micro_batches", absl::StrCat(*accumulation));
  if (!total.has_value() || !micro.has_value()) {
    if (total.has_value() || micro.has_value() || accumulation.has_value()) {
      absl::StrAppend(&left_out_,
                      "# The number of GPUs is not in the file: set training.parts to it.\n");
    }
    return absl::OkStatus();
  }
  const uint64_t per_gpu = *micro * accumulation.value_or(1);
  if (*total % per_gpu != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        origin_, ": train_batch_size = ", *total,
        " is not a multiple of train_micro_batch_size_per_gpu * gradient_accumulation_steps = ",
        *micro, " * ", accumulation.value_or(1)));
  }
  if (accumulation.has_value()) {
    Set("training", "parts", absl::StrCat(*total / per_gpu), "the number of GPUs");
  } else {
    absl::StrAppend(&left_out_,
                    "# train_batch_size / train_micro_batch_size_per_gpu = ", *total / *micro,
                    " is training.micro_batches * training.parts: set the number of GPUs as "
                    "training.parts, and the rest as training.micro_batches.\n");
  }
  return absl::OkStatus();
}

absl::Status Importer::Clipping(const ordered_json& root) {
  const bool is_auto = root.contains("gradient_clipping") && IsAuto(root["gradient_clipping"]);
  EPS_ASSIGN_OR_RETURN(const auto norm, TakeNumber(root, "gradient_clipping"));
  if (norm.value_or(0) > 0) {
    Set("training", "clip", "exact");
    Set("training", "max_grad_norm", Number(*norm));
  } else if (!is_auto) {
    Set("training", "clip", "none", "DeepSpeed clips only if gradient_clipping says so");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::pair<std::string, ordered_json>> Importer::TypeAndParams(
    const ordered_json& root, const char* name) {
  std::pair<std::string, ordered_json> result("", ordered_json::object());
  const ordered_json* const section = Take(root, name);
  if (section == nullptr) return result;
  if (!section->is_object()) return Wrong(name, *section, "an object with type and params");
  const auto type = section->find("type");
  if (type == section->end() || !type->is_string()) {
    return Wrong(absl::StrCat(name, ".type"), type == section->end() ? ordered_json() : *type,
                 "a name");
  }
  result.first = type->get<std::string>();
  const auto params = section->find("params");
  if (params != section->end()) {
    if (!params->is_object()) return Wrong(absl::StrCat(name, ".params"), *params, "an object");
    result.second = *params;
  }
  LeaveOutOthers(absl::StrCat(name, "."), *section, {"type", "params"});
  return result;
}

void Importer::LeaveOutOthers(const std::string& prefix, const ordered_json& params,
                              const std::set<std::string>& known) {
  for (const auto& [name, value] : params.items()) {
    if (known.count(name) == 0) LeaveOut(prefix + name, value, "not supported");
  }
}

absl::Status Importer::Rule(const OptimizerRow& row, const ordered_json& params,
                            std::set<std::string>* known) {
  const std::string prefix = "optimizer.params.";
  Set("optimizer", "name", NameOf(row.name));
  for (const OptimizerParameter* parameter : row.parameters) {
    const char* const name = parameter->key + std::strlen("optimizer.");
    known->insert(name);
    const ordered_json* const value = Take(params, name, prefix);
    if (value == nullptr) continue;
    const size_t count = parameter->numbers.size();
    const auto is_number = [](const ordered_json& item) { return item.is_number(); };
    const bool fits = count == 0   ? value->is_boolean()
                      : count == 1 ? value->is_number()
                                   : value->is_array() && value->size() == count &&
                                         std::all_of(value->begin(), value->end(), is_number);
    const char* const kinds[] = {"true or false", "a number", "two numbers"};
    if (!fits) return Wrong(prefix + name, *value, kinds[count]);
    Set("optimizer", name, value->dump());
  }
  const auto is = [&](const char* name, bool value) {
    return params.contains(name) && params[name].is_boolean() && params[name] == value;
  };
  if (is("bias_correction", false)) {
    LeaveOut(prefix + "bias_correction", false, "not supported: the moments are always corrected");
  }
  if (is("amsgrad", true)) LeaveOut(prefix + "amsgrad", true, "not supported");
  known->insert({"adam_w_mode", "bias_correction", "amsgrad", "torch_adam"});
  return absl::OkStatus();
}

absl::Status Importer::Optimizer(const ordered_json& root) {
  EPS_ASSIGN_OR_RETURN(const auto optimizer, TypeAndParams(root, "optimizer"));
  const auto& [type, params] = optimizer;
  if (type.empty()) return absl::OkStatus();
  const std::string prefix = "optimizer.params.";
  std::set<std::string> known = {"lr", "weight_decay"};
  OptimizerName name{};
  if (!FindName(absl::AsciiStrToLower(type), &name) || RowOf(name).adapts) {  // LAMB differs there
    LeaveOut("optimizer.type", type,
             "not supported as it is there; the update rules are " +
                 absl::StrJoin(NamesOf<OptimizerName>(), ", "));
    LeaveOutOthers(prefix, params, {});
    return absl::OkStatus();
  }
  // Adam is AdamW there, unless this says that it is not.
  const bool is_coupled = params.contains("adam_w_mode") && params["adam_w_mode"] == false;
  if (name == OptimizerName::kAdam && !is_coupled) name = OptimizerName::kAdamW;
  EPS_RETURN_IF_ERROR(Rule(RowOf(name), params, &known));
  EPS_ASSIGN_OR_RETURN(const auto lr, TakeNumber(params, "lr", prefix));
  scheduled_lr_ = lr;
  if (lr.has_value()) Set("optimizer", "lr", Number(*lr));
  if (lr.has_value() && !root.contains("scheduler")) Set("lr_scheduler", "name", "constant");
  EPS_ASSIGN_OR_RETURN(const auto decay, TakeNumber(params, "weight_decay", prefix));
  const bool is_auto = params.contains("weight_decay") && IsAuto(params["weight_decay"]);
  if (!is_auto) {
    Set("optimizer", "weight_decay", Number(decay.value_or(0)),
        decay.value_or(0) > 0 ? "of matrices; biases and norms do not decay here"
                              : "DeepSpeed's default");
  }
  LeaveOutOthers(prefix, params, known);
  return absl::OkStatus();
}

absl::Status Importer::WarmUp(const std::string& type, const ordered_json& params,
                              std::set<std::string>* known) {
  constexpr uint64_t kDefaultWarmup = 1000;
  const std::string prefix = "scheduler.params.";
  const bool cosine = type == "WarmupCosineLR";
  EPS_ASSIGN_OR_RETURN(const auto steps, TakeInteger(params, "total_num_steps", prefix));
  if (steps.has_value()) Set("training", "steps", absl::StrCat(*steps));
  Set("lr_scheduler", "name",
      cosine               ? "cosine_with_min_lr"
      : type == "WarmupLR" ? "constant_with_warmup"
                           : "linear");
  const bool auto_warmup =
      params.contains("warmup_num_steps") && IsAuto(params["warmup_num_steps"]);
  EPS_ASSIGN_OR_RETURN(const auto warmup, TakeNumber(params, "warmup_num_steps", prefix));
  if (warmup.has_value() && *warmup != std::floor(*warmup)) {
    return Wrong(prefix + "warmup_num_steps", params["warmup_num_steps"], "a whole number");
  }
  if (!auto_warmup) {
    Set("lr_scheduler", "warmup_steps",
        absl::StrCat(static_cast<uint64_t>(warmup.value_or(kDefaultWarmup))));
  }
  const ordered_json shape = params.value("warmup_type", ordered_json("log"));
  if (!auto_warmup && shape != "linear") {
    LeaveOut(prefix + "warmup_type", shape, "not supported: the warm-up is linear");
  }
  if (cosine) {
    EPS_ASSIGN_OR_RETURN(const auto least, TakeNumber(params, "cos_min_ratio", prefix));
    Set("lr_scheduler", "min_lr_ratio", Number(least.value_or(0.0001)));
    known->insert({"cos_min_ratio"});
  } else {
    EPS_ASSIGN_OR_RETURN(const auto peak, TakeNumber(params, "warmup_max_lr", prefix));
    if (peak.has_value() && peak != scheduled_lr_) {
      if (scheduled_lr_.has_value()) {
        return absl::InvalidArgumentError(
            absl::StrCat(origin_, ": optimizer.params.lr is ", Number(*scheduled_lr_),
                         ", scheduler.params.warmup_max_lr ", Number(*peak),
                         ": DeepSpeed trains with the second value; make them equal"));
      }
      Set("optimizer", "lr", Number(*peak));
    }
    known->insert("warmup_max_lr");
  }
  for (const char* from : {"warmup_min_lr", "warmup_min_ratio"}) {
    if (!params.contains(from)) continue;
    known->insert(from);
    EPS_ASSIGN_OR_RETURN(const auto least, TakeNumber(params, from, prefix));
    if (least.value_or(0) > 0) {
      LeaveOut(prefix + from, params[from], "not supported: the warm-up begins at 0");
    }
  }
  known->insert({"total_num_steps", "warmup_num_steps", "warmup_type", "last_batch_iteration"});
  return absl::OkStatus();
}

absl::Status Importer::Scheduler(const ordered_json& root) {
  EPS_ASSIGN_OR_RETURN(const auto scheduler, TypeAndParams(root, "scheduler"));
  const auto& [type, params] = scheduler;
  if (type.empty()) return absl::OkStatus();
  std::set<std::string> known;
  if (type == "WarmupLR" || type == "WarmupDecayLR" || type == "WarmupCosineLR") {
    EPS_RETURN_IF_ERROR(WarmUp(type, params, &known));
  } else {
    LeaveOut("scheduler.type", type, "not supported: eps config reference has lr_scheduler.name");
  }
  LeaveOutOthers("scheduler.params.", params, known);
  return absl::OkStatus();
}

absl::Status Importer::Monitoring(const ordered_json& root) {
  EPS_ASSIGN_OR_RETURN(const auto print, TakeInteger(root, "steps_per_print"));
  if (print.has_value()) Set("metrics", "log_every_steps", absl::StrCat(*print));
  for (const char* const name : {"tensorboard", "wandb"}) {
    const ordered_json* const monitor = Take(root, name);
    if (monitor == nullptr) continue;
    const auto on = monitor->is_object() ? monitor->value("enabled", ordered_json()) : nullptr;
    if (!on.is_boolean()) return Wrong(name, *monitor, "an object with enabled: true or false");
    Set("metrics", name, on.get<bool>() ? "true" : "false");
    for (const auto& [key, value] : monitor->items()) {
      if (key == "enabled") continue;
      LeaveOut(absl::StrCat(name, ".", key), value, "its files are below checkpoint.dir");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> ImportDeepSpeed(absl::string_view json, const std::string& origin) {
  ordered_json root;
  EPS_RETURN_IF_ERROR(Parse(json, origin, &root));
  Importer importer(origin);
  EPS_RETURN_IF_ERROR(importer.Run(root));
  return importer.Text();
}

absl::Status RunImportDeepSpeed(const std::string& path) {
  EPS_ASSIGN_OR_RETURN(const std::string json, ReadTextFile(path));
  EPS_ASSIGN_OR_RETURN(const std::string yaml, ImportDeepSpeed(json, path));
  std::fputs(yaml.c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace eps
