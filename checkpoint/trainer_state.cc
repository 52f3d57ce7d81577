#include "checkpoint/trainer_state.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/job/data_position.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

constexpr size_t kMaxHistory = 2000;

}  // namespace

void TrainerHistory::Sample::Add(uint64_t place, const Entry& entry) {
  if (place % stride != 0) return;
  records.emplace_back(place, entry);
  if (records.size() < kMaxHistory) return;
  stride *= 2;
  records.erase(std::remove_if(records.begin(), records.end(),
                               [&](const auto& entry) { return entry.first % stride != 0; }),
                records.end());
}

bool TrainerHistory::Add(const v1::StepRecord& record, const std::vector<Figure>& figures) {
  if (!record.has_evaluation()) {
    last_step_ = record.step();
    steps_.Add(record.step(), {record, {}});
    return true;
  }
  if (record.step() <= last_evaluated_) return false;
  evaluations_.Add(evaluations_seen_++, {record, figures});
  last_evaluated_ = record.step();
  return true;
}

std::string TrainerHistory::Text(const JobSpec& spec, uint64_t step, uint64_t eval_steps,
                                 const BestCheckpoint& best) const {
  const double samples = static_cast<double>(WholeSamples(spec));
  const auto epoch_of = [&](uint64_t at) {
    return static_cast<double>(at) * static_cast<double>(spec.samples_per_step()) / samples;
  };
  nlohmann::ordered_json state;
  state["best_metric"] = nullptr;
  state["best_model_checkpoint"] = nullptr;
  if (!best.folder.empty()) {
    state["best_metric"] = best.figure;
    state["best_model_checkpoint"] = best.folder;
  }
  state["epoch"] = epoch_of(step);
  state["global_step"] = step;
  state["is_hyper_param_search"] = false;
  state["is_local_process_zero"] = true;
  state["is_world_process_zero"] = true;
  nlohmann::ordered_json& history = state["log_history"] = nlohmann::ordered_json::array();
  auto evaluation = evaluations_.records.begin();
  const auto add_evaluations = [&](uint64_t below) {
    for (; evaluation != evaluations_.records.end(); ++evaluation) {
      const v1::StepRecord& record = evaluation->second.record;
      if (record.step() >= below) return;
      nlohmann::ordered_json entry = {{"epoch", epoch_of(record.step())},
                                      {"eval_loss", record.evaluation().loss()}};
      for (const Figure& figure : evaluation->second.figures) {
        entry[absl::StrCat("eval_", NameOf(figure.metric))] = figure.value;
      }
      entry["eval_runtime"] = record.step_seconds();
      entry["step"] = record.step();
      history.push_back(std::move(entry));
    }
  };
  for (const auto& [place, at] : steps_.records) {
    const v1::StepRecord& record = at.record;
    if (record.step() > step) break;
    add_evaluations(record.step());
    history.push_back({{"epoch", epoch_of(record.step())},
                       {"grad_norm", record.grad_norm()},
                       {"learning_rate", record.lr()},
                       {"loss", record.loss()},
                       {"step", record.step()}});
  }
  add_evaluations(step + 1);
  if (eval_steps > 0) state["eval_steps"] = eval_steps;
  state["logging_steps"] = steps_.stride;
  state["max_steps"] = spec.training.steps;
  state["num_train_epochs"] = static_cast<uint64_t>(std::ceil(epoch_of(spec.training.steps)));
  state["train_batch_size"] = spec.samples_per_step();
  return state.dump(2) + "\n";
}

}  // namespace eps
