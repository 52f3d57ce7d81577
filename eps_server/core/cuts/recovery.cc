#include "eps_server/core/cuts/recovery.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/cuts/common_cut.h"

namespace eps {

CutId ToCutId(const v1::CutId& cut) { return CutId{Step(cut.step()), Term(cut.term())}; }

v1::CutId ToProto(const CutId& cut) {
  v1::CutId proto;
  proto.set_step(cut.step.value());
  proto.set_term(cut.term.value());
  return proto;
}

v1::Imported ToImported(const CutBorder& border) {
  v1::Imported imported;
  imported.set_step(border.id.step.value());
  imported.set_version(border.version.value());
  imported.set_update(border.update);
  imported.set_lagged_norm(border.lagged_norm);
  if (border.loss_scale.has_value()) {
    SetMessage(*border.loss_scale, imported.mutable_loss_scale());
  }
  return imported;
}

std::optional<LossScale> LossScaleAfter(const JobSpec& spec, const v1::Imported& border) {
  if (spec.training.precision != Precision::kCmp) return std::nullopt;
  return border.has_loss_scale() ? ToLossScale(border.loss_scale())
                                 : FirstLossScale(spec.training.loss_scale);
}

Recovery::Recovery(std::vector<std::string> servers)
    : servers_(std::move(servers)), shards_(servers_.size()) {}

std::string Recovery::Name(size_t shard) const {
  return absl::StrCat("shard ", shard, " at ", servers_[shard]);
}

bool Recovery::OnRegister(ShardId shard, uint64_t incarnation, Term promised) {
  Shard& s = shards_[shard.value()];
  s.promised = std::max(s.promised, promised);
  const bool is_new = s.incarnation != incarnation;
  s.incarnation = incarnation;
  return is_new;
}

void Recovery::OnLimit(ShardId shard, uint64_t most_cut_steps) {
  shards_[shard.value()].most_cut_steps = most_cut_steps;
}

uint64_t Recovery::most_cut_steps() const {
  uint64_t most = 0;
  for (const Shard& s : shards_) {
    if (s.most_cut_steps > 0 && (most == 0 || s.most_cut_steps < most)) most = s.most_cut_steps;
  }
  return most;
}

bool Recovery::AllRegistered() const {
  return std::all_of(shards_.begin(), shards_.end(),
                     [](const Shard& s) { return s.incarnation.has_value(); });
}

std::vector<uint64_t> Recovery::Incarnations() const {
  std::vector<uint64_t> incarnations;
  for (const Shard& s : shards_) incarnations.push_back(s.incarnation.value_or(0));
  return incarnations;
}

Term Recovery::NextTerm(Term current) const {
  Term latest = std::max(current, term_);
  for (const Shard& s : shards_) latest = std::max(latest, s.promised);
  return latest.Next();
}

void Recovery::Begin(Term term) {
  term_ = term;
  for (Shard& s : shards_) {
    s.answer.reset();
    s.durable.reset();
  }
}

bool Recovery::OnPromised(ShardId shard, const v1::Promised& promised) {
  Shard& s = shards_[shard.value()];
  if (Term(promised.term()) != term_ || s.answer.has_value()) return false;
  s.answer = promised;
  s.promised = std::max(s.promised, term_);
  return std::all_of(shards_.begin(), shards_.end(),
                     [](const Shard& other) { return other.answer.has_value(); });
}

absl::StatusOr<std::optional<CutId>> Recovery::HighestCommon() const {
  std::vector<HeldCuts> held;
  for (size_t i = 0; i < shards_.size(); ++i) {
    HeldCuts& shard = held.emplace_back();
    shard.holder = Name(i);
    for (const v1::CutId& cut : shards_[i].answer->cuts()) shard.cuts.push_back(ToCutId(cut));
    shard.opened = shards_[i].answer->opened();
    shard.damage = shards_[i].answer->damage();
  }
  return HighestCommonCut(held, watermark_);
}

bool Recovery::OnDurable(ShardId shard, const CutId& cut) {
  Shard& s = shards_[shard.value()];
  if (!s.durable.has_value() || *s.durable < cut) s.durable = cut;
  std::optional<CutId> lowest;
  for (const Shard& other : shards_) {
    if (!other.durable.has_value()) return false;
    if (!lowest.has_value() || *other.durable < *lowest) lowest = other.durable;
  }
  if (watermark_.has_value() && !(*watermark_ < *lowest)) return false;
  watermark_ = lowest;
  return true;
}

void Recovery::OnOpened(const CutId& base) {
  if (!watermark_.has_value() || *watermark_ < base) watermark_ = base;
}

std::string Recovery::WaitsFor() const {
  for (size_t i = 0; i < shards_.size(); ++i) {
    if (!shards_[i].incarnation.has_value()) return absl::StrCat(Name(i), ": Register");
  }
  for (size_t i = 0; i < shards_.size(); ++i) {
    if (!shards_[i].answer.has_value()) {
      return absl::StrCat(Name(i), ": its promise of term ", term_.value());
    }
  }
  return "";
}

}  // namespace eps
