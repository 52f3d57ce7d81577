#include "eps_server/core/steps/lead.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/job/schedule.h"
#include "base/numerics/reduction_tree.h"
#include "eps_server/core/cuts/recovery.h"

namespace eps {
namespace {

// A border may still be exported after the next step has its norm.
constexpr size_t kNormsKept = 4;

// The decision that the slowest shard waits for, that of the open step, and one ahead of it.
constexpr size_t kDecisionsKept = 4;

// The counts of classes.
using Classes = google::protobuf::RepeatedField<uint64_t>;

// Returns whether the two have as many classes as each other.
bool Match(const v1::HeldOutCounts& a, const v1::HeldOutCounts& b) {
  return a.class_correct_size() == b.class_correct_size() &&
         a.class_predicted_size() == b.class_predicted_size() &&
         a.class_labels_size() == b.class_labels_size();
}

void AddTo(const Classes& more, Classes* sum) {
  for (int c = 0; c < more.size(); ++c) sum->Set(c, sum->Get(c) + more.Get(c));
}

v1::HeldOutCounts Add(v1::HeldOutCounts left, const v1::HeldOutCounts& right) {
  left.set_rows(left.rows() + right.rows());
  left.set_correct(left.correct() + right.correct());
  AddTo(right.class_correct(), left.mutable_class_correct());
  AddTo(right.class_predicted(), left.mutable_class_predicted());
  AddTo(right.class_labels(), left.mutable_class_labels());
  left.set_sum_x(left.sum_x() + right.sum_x());
  left.set_sum_y(left.sum_y() + right.sum_y());
  left.set_sum_xx(left.sum_xx() + right.sum_xx());
  left.set_sum_yy(left.sum_yy() + right.sum_yy());
  left.set_sum_xy(left.sum_xy() + right.sum_xy());
  return left;
}

// Returns what the parts counted in an evaluation: the sums of the integers, and those of the
// doubles along the canonical tree over the parts. Returns nullopt if a part has counted nothing,
// or other classes than the first. REQUIRES that every part has reported.
std::optional<v1::HeldOutCounts> SumOfCounts(
    const std::vector<std::optional<v1::PartLoss>>& parts) {
  using Tree = TreeAccumulator<v1::HeldOutCounts,
                               v1::HeldOutCounts (*)(v1::HeldOutCounts, const v1::HeldOutCounts&)>;
  Tree tree(static_cast<uint32_t>(parts.size()), Add);
  for (uint32_t p = 0; p < parts.size(); ++p) {
    if (!parts[p]->has_counts() || !Match(parts[p]->counts(), parts[0]->counts())) {
      return std::nullopt;
    }
    tree.Insert(TreeRange{p, 1}, parts[p]->counts());
  }
  return tree.Take();
}

}  // namespace

Lead::Lead(const JobSpec& spec, uint32_t chunks, uint32_t shards, CutPlan cuts)
    : spec_(spec), chunks_(chunks), shards_(shards), cuts_(cuts), imported_(shards) {}

absl::StatusOr<bool> Lead::OnImported(ShardId shard, const v1::Imported& imported,
                                      uint64_t now_ms) {
  if (open_) return false;
  for (uint32_t s = 0; s < shards_; ++s) {
    if (!imported_[s].has_value()) continue;
    if (imported_[s]->step() != imported.step() || imported_[s]->version() != imported.version() ||
        imported_[s]->update() != imported.update() ||
        LossScaleAfter(spec_, *imported_[s]) != LossScaleAfter(spec_, imported)) {
      return absl::FailedPreconditionError(absl::StrCat(
          "ImportState: shard ", shard.value(), " holds step ", imported.step(), " version ",
          imported.version(), ", shard ", s, " holds step ", imported_[s]->step(), " version ",
          imported_[s]->version(), "; import the same checkpoint into all shards"));
    }
  }
  imported_[shard.value()] = imported;
  if (!std::all_of(imported_.begin(), imported_.end(),
                   [](const auto& i) { return i.has_value(); })) {
    return false;
  }
  Open(*imported_[0], now_ms);
  return true;
}

void Lead::Open(const v1::Imported& border, uint64_t now_ms) {
  open_ = true;
  base_step_ = border.step();
  last_update_ = border.update();
  next_decision_ = next_record_ = base_step_ + 1;
  cuts_.OnOpened(base_step_, now_ms);
  last_record_ms_ = now_ms;
  loss_scale_ = LossScaleAfter(spec_, border);
  norms_[base_step_] = border.lagged_norm();
  last_norm_step_ = base_step_;
}

Lead::OpenStep& Lead::At(uint64_t step) {
  OpenStep& open = steps_[step];
  if (open.shard_in.empty()) {
    open.shard_in.assign(shards_, false);
    open.sum_squares.assign(chunks_, 0.0);
    open.losses.resize(spec_.training.parts);
  }
  return open;
}

bool Lead::IsNews(ShardId shard, const v1::Stats& stats) const {
  if (!open_ || stats.step() < next_record_ || stats.step() > next_decision_) return false;
  const auto it = steps_.find(stats.step());
  return it == steps_.end() || !it->second.shard_in[shard.value()];
}

bool Lead::IsNews(const v1::PartLoss& loss) const {
  if (!open_ || loss.step() < next_record_ || loss.step() > next_decision_) return false;
  if (loss.part() >= spec_.training.parts) return false;
  const auto it = steps_.find(loss.step());
  return it == steps_.end() || !it->second.losses[loss.part()].has_value();
}

bool Lead::IsNewEvaluation(const v1::PartLoss& loss) const {
  if (!open_ || loss.part() >= spec_.training.parts || loss.step() < evaluated_step_) return false;
  return evaluations_.empty() || loss.step() > evaluated_step_ ||
         !evaluations_[loss.part()].has_value();
}

void Lead::OnStats(ShardId shard, const v1::Stats& stats) {
  if (!IsNews(shard, stats)) return;
  OpenStep& open = At(stats.step());
  open.shard_in[shard.value()] = true;
  ++open.shards_in;
  for (int i = 0; i < stats.chunks_size() && i < stats.sum_squares_size(); ++i) {
    if (stats.chunks(i) < chunks_) open.sum_squares[stats.chunks(i)] = stats.sum_squares(i);
  }
  open.nonfinite |= stats.nonfinite();
  open.nonfinite_chunk = std::max(open.nonfinite_chunk, stats.nonfinite_chunk());
  if (!StatsComplete(open)) return;
  double sum = 0;
  for (double s : open.sum_squares) sum += s;  // in chunk order, so that placement has no influence
  open.norm = open.nonfinite ? std::nan("") : std::sqrt(sum);
  norms_[stats.step()] = Skips(stats.step()) ? NormOf(stats.step() - 1) : open.norm;
  while (norms_.size() > kNormsKept) norms_.erase(norms_.begin());
  last_norm_step_ = stats.step();
}

double Lead::NormOf(uint64_t step) const {
  const auto it = norms_.find(step);
  return it == norms_.end() ? 0.0 : it->second;
}

// Returns whether everything is known that the decision of a step depends on.
bool Lead::Decidable(uint64_t step) const {
  if (spec_.training.mode == Mode::kSealed) return last_norm_step_ == step;
  if (spec_.training.clip == Clip::kLagged) return last_norm_step_ + 1 == step;
  return step <= last_norm_step_ + 2;  // depends on no gradient, so decide one step ahead
}

void Lead::OnLoss(const v1::PartLoss& loss) {
  if (!IsNews(loss)) return;
  OpenStep& open = At(loss.step());
  open.losses[loss.part()] = loss;
  ++open.losses_in;
}

std::optional<v1::StepRecord> Lead::OnEvaluation(const v1::PartLoss& loss, Term term,
                                                 uint64_t now_ms) {
  if (!IsNewEvaluation(loss)) return std::nullopt;
  if (evaluations_.empty() || loss.step() > evaluated_step_) {
    evaluated_step_ = loss.step();
    evaluations_.assign(spec_.training.parts, std::nullopt);
  }
  evaluations_[loss.part()] = loss;
  double sum = 0;
  uint64_t tokens = 0;
  for (const std::optional<v1::PartLoss>& part : evaluations_) {
    if (!part.has_value()) return std::nullopt;
    sum += part->loss_sum();
    tokens += part->tokens();
  }
  v1::StepRecord record;
  record.set_step(evaluated_step_);
  record.set_term(term.value());
  record.mutable_evaluation()->set_loss(tokens == 0 ? 0.0 : sum / static_cast<double>(tokens));
  record.mutable_evaluation()->set_tokens(tokens);
  if (std::optional<v1::HeldOutCounts> counts = SumOfCounts(evaluations_); counts.has_value()) {
    *record.mutable_evaluation()->mutable_counts() = *std::move(counts);
  }
  // The time of an evaluation does not count towards the step after its border.
  record.set_step_seconds(static_cast<double>(now_ms - last_record_ms_) / 1e3);
  last_record_ms_ = now_ms;
  return record;
}

// Returns whether the step's gradient is known and must not be applied. Shards report such a
// gradient explicitly, so that all agree whatever the sum of their squares is.
bool Lead::Skips(uint64_t step) const {
  const auto it = steps_.find(step);
  return spec_.training.nonfinite == Nonfinite::kSkip && it != steps_.end() &&
         !std::isfinite(it->second.norm);
}

std::optional<ChunkId> Lead::OverflowAtLowestScale() const {
  const auto it = steps_.find(next_decision_);
  if (!loss_scale_.has_value() || it == steps_.end() || !StatsComplete(it->second) ||
      !it->second.nonfinite || !IsLowest(spec_.training.loss_scale, *loss_scale_)) {
    return std::nullopt;
  }
  return ChunkId(it->second.nonfinite_chunk);
}

v1::Decision Lead::Decide(uint64_t step, uint64_t now_ms) const {
  v1::Decision decision;
  decision.set_step(step);
  decision.set_loss_scale_log2(LossScaleLog2(spec_, loss_scale_));
  decision.set_cut(cuts_.Due(step, spec_.training.steps, now_ms) ||
                   (cuts_.enabled() && gates_.count(step) > 0));
  if (Skips(step)) {
    decision.set_skip(true);
    decision.set_update(last_update_);
    decision.set_clip_factor(1.0);
    // The rate of the update that is skipped: a record without a rate would look like a gap in a
    // chart.
    decision.set_lr(
        LearningRate(spec_.schedule, spec_.optimizer.lr, last_update_ + 1, spec_.training.steps));
    return decision;
  }
  const uint64_t update = last_update_ + 1;
  decision.set_update(update);
  decision.set_lr(LearningRate(spec_.schedule, spec_.optimizer.lr, update, spec_.training.steps));
  decision.set_bias_correction1(1.0 - IntegerPower(spec_.optimizer.beta1, update));
  decision.set_bias_correction2(1.0 - IntegerPower(spec_.optimizer.beta2, update));
  // The factor of torch.nn.utils.clip_grad_norm_; with lagged clipping, from the norm of the step
  // before.
  double norm = 0;
  if (spec_.training.clip == Clip::kExact) norm = NormOf(step);
  if (spec_.training.clip == Clip::kLagged) norm = NormOf(step - 1);
  decision.set_clip_factor(norm > 0 ? std::min(1.0, spec_.training.max_grad_norm / (norm + 1e-6))
                                    : 1.0);
  return decision;
}

std::vector<v1::Decision> Lead::TakeDecisions(uint64_t now_ms) {
  std::vector<v1::Decision> decisions;
  if (!open_) return decisions;
  while (next_decision_ <= spec_.training.steps && Decidable(next_decision_)) {
    decisions.push_back(Decide(next_decision_, now_ms));
    Adopt(decisions.back(), now_ms);
  }
  return decisions;
}

void Lead::Adopt(const v1::Decision& decision, uint64_t now_ms) {
  if (decision.step() != next_decision_) return;
  if (decision.cut()) cuts_.OnDecided(next_decision_, now_ms);
  OpenStep& open = At(next_decision_);
  open.decision = decision;
  open.loss_scale = loss_scale_;
  if (loss_scale_.has_value()) {
    loss_scale_ = NextLossScale(spec_.training.loss_scale, *loss_scale_, decision.skip());
  }
  last_update_ = decision.update();
  Remember(decision);
  while (last_decisions_.size() > kDecisionsKept) last_decisions_.erase(last_decisions_.begin());
  ++next_decision_;
}

v1::StepRecord Lead::Record(uint64_t step, const OpenStep& open) const {
  using DoubleTree = TreeAccumulator<double, double (*)(double, double)>;
  DoubleTree tree(
      spec_.training.parts, +[](double a, double b) { return a + b; });
  uint64_t tokens = 0;
  for (uint32_t p = 0; p < spec_.training.parts; ++p) {
    tree.Insert(TreeRange{p, 1}, open.losses[p]->loss_sum());
    tokens += open.losses[p]->tokens();
  }
  v1::StepRecord record;
  record.set_step(step);
  record.set_update(open.decision->update());
  record.set_version(open.decision->update());
  record.set_loss(tokens == 0 ? 0.0 : tree.Take() / static_cast<double>(tokens));
  record.set_grad_norm(open.norm);
  record.set_lr(open.decision->lr());
  record.set_clip_factor(open.decision->clip_factor());
  record.set_skipped(open.decision->skip());
  record.set_tokens(tokens);
  if (open.loss_scale.has_value()) record.set_loss_scale_log2(open.loss_scale->log2);
  return record;
}

std::vector<v1::StepRecord> Lead::TakeRecords(Term term, uint64_t now_ms) {
  std::vector<v1::StepRecord> records;
  for (auto it = steps_.find(next_record_); it != steps_.end(); it = steps_.find(next_record_)) {
    const OpenStep& open = it->second;
    if (!open.decision.has_value() || !StatsComplete(open) ||
        open.losses_in < spec_.training.parts) {
      break;
    }
    v1::StepRecord record = Record(next_record_, open);
    record.set_term(term.value());
    step_seconds_ = static_cast<double>(now_ms - last_record_ms_) / 1e3;
    record.set_step_seconds(step_seconds_);
    last_record_ms_ = now_ms;
    records.push_back(std::move(record));
    steps_.erase(it);
    ++next_record_;
  }
  return records;
}

std::vector<v1::Decision> Lead::LastDecisions() const {
  std::vector<v1::Decision> decisions;
  for (const auto& [step, decision] : last_decisions_) decisions.push_back(decision);
  return decisions;
}

std::string Lead::WaitsFor() const {
  if (!open_) {
    for (uint32_t s = 0; s < shards_; ++s) {
      if (!imported_[s].has_value()) return absl::StrCat("shard ", s, ": ImportState");
    }
    return "";
  }
  auto it = steps_.find(next_record_);
  if (it == steps_.end()) return "";
  for (uint32_t s = 0; s < shards_; ++s) {
    if (!it->second.shard_in[s]) {
      return absl::StrCat("shard ", s, ": gradient statistics of step ", next_record_);
    }
  }
  for (uint32_t p = 0; p < spec_.training.parts; ++p) {
    if (!it->second.losses[p].has_value()) {
      return absl::StrCat("part ", p, ": loss of step ", next_record_);
    }
  }
  return "";
}

}  // namespace eps
