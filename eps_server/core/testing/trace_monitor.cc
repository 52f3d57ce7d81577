#include "eps_server/core/testing/trace_monitor.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "eps_server/core/trace/trace_text.h"

namespace eps {
namespace {

using Kind = TraceAction::Kind;

}  // namespace

void TraceMonitor::Expect(bool holds, const char* rule) {
  if (holds) return;
  violations_.push_back(absl::StrCat(
      rule, ": shard ", at_.value(), " ", TraceKindName(action_.kind), " term ",
      action_.term.value(), " step ", action_.step.value(), " subject ", action_.subject, " cut ",
      action_.cut.step.value(), "/", action_.cut.term.value()));
}

void TraceMonitor::OnProcess(ShardId shard) {
  Shard& s = shards_[shard.value()];
  Shard next;
  next.promised = s.promised;
  next.cuts = std::move(s.cuts);
  next.begun = std::move(s.begun);
  next.had_base = s.had_base;
  if (logs_) next.base = s.base;
  next.left_term = s.term;
  next.left_at = s.open_step;
  s = std::move(next);
}

void TraceMonitor::OnRecovered(Shard* shard) {
  const Term promised(action_.subject);
  if (!shard->recovered) {
    Expect(promised >= shard->promised, "a promise is durable");
    shard->promised = promised;
  }
  shard->recovered = true;
  shard->cuts.clear();
}

bool TraceMonitor::OnAll(const CutId& cut) const {
  return std::all_of(shards_.begin(), shards_.end(),
                     [&cut](const Shard& s) { return s.cuts.count(cut) > 0; });
}

void TraceMonitor::OnAction(ShardId shard, const TraceAction& action) {
  ++actions_;
  at_ = shard;
  action_ = action;
  Shard* s = &shards_[shard.value()];
  Expect(!s->failed, "nothing happens behind a failure");
  switch (action.kind) {
    case Kind::kRecovered:
      return OnRecovered(s);
    case Kind::kFound:
      s->cuts.insert(action.cut);
      return;
    case Kind::kPromised:
      return OnPromised(s);
    case Kind::kRestored:
      return OnRestored(s);
    case Kind::kResumed:
      return OnResumed(s);
    case Kind::kReplayed:
      return OnReplayed(s);
    case Kind::kStepOpened:
      return OnStepOpened(s);
    case Kind::kCut:
      return OnCut(s);
    case Kind::kDurable:
      return OnDurable(s);
    case Kind::kCounted:
      Expect(s->open_step > 0 && s->term == action.term && s->open_step == action.step.value(),
             "contributions count in the open step of the open term");
      return Expect(s->updating.count(action.subject) == 0,
                    "a contribution counts before its chunk is updated");
    case Kind::kUpdateStarted:
    case Kind::kUpdated:
      return OnUpdate(s);
    case Kind::kFailed:
      s->failed = true;
      return;
    case Kind::kStepComplete:
      return Expect(s->updating == s->updated, "a step is complete when no update is under way");
    case Kind::kRecorded:
      return;
  }
}

void TraceMonitor::OnPromised(Shard* shard) {
  Expect(shard->promised < action_.term, "no term is promised twice, or behind a later one");
  std::set<CutId> cuts = std::move(shard->cuts);
  *shard = Shard();
  shard->cuts = std::move(cuts);
  shard->recovered = true;
  shard->promised = shard->term = action_.term;
}

void TraceMonitor::OnRestored(Shard* shard) {
  const CutId& base = action_.cut;
  for (const Shard& other : shards_) {
    Expect(other.promised >= action_.term, "all promise before the base is chosen");
  }
  Expect(shard->promised == action_.term, "a shard restores in the term that it promised last");
  const auto [it, first] = bases_.emplace(action_.term, base);
  Expect(first || it->second == base, "all shards of a term have one base");
  if (first) Expect(OnAll(base), "the base is a cut of all shards");
  Expect(!committed_.has_value() || !(base < *committed_),
         "no term goes back behind a cut that was everywhere");
  shard->cuts.erase(shard->cuts.upper_bound(base), shard->cuts.end());
  shard->base = shard->had_base = base;
  shard->begun.clear();
}

// A log is replayed: the process continues in the place of the one before it.
void TraceMonitor::OnResumed(Shard* shard) {
  // The cut after which the term began: the first one here, if the state was imported.
  std::optional<CutId> opened;
  if (!shard->begun.empty()) opened = shard->begun.front();
  if (const auto base = bases_.find(action_.term); base != bases_.end()) opened = base->second;
  Expect(shard->promised == action_.term && opened.has_value(),
         "a log is replayed in the term that was promised last");
  Expect(!shard->cuts.empty() && *shard->cuts.rbegin() == action_.cut,
         "a log is replayed behind the youngest cut");
  const auto end = std::find(shard->begun.begin(), shard->begun.end(), action_.cut);
  Expect(end != shard->begun.end() || action_.cut == opened,
         "a log is replayed behind a cut of its term");
  shard->begun.erase(end == shard->begun.end() ? shard->begun.begin() : end + 1,
                     shard->begun.end());
  shard->durable = shard->begun.size();
  shard->base = shard->had_base = opened;
  shard->term = action_.term;
  shard->open_step = action_.cut.step.value();
  shard->replaying = true;
}

void TraceMonitor::OnReplayed(Shard* shard) {
  shard->replaying = false;
  shard->settles = true;
  // Nobody received what was not durable, so no worker had begun the step after it.
  Expect(shard->left_term != shard->term || shard->open_step + 1 >= shard->left_at,
         "a replay loses no step that anybody was told of");
  ExpectNear(*shard);
}

void TraceMonitor::OnStepOpened(Shard* shard) {
  const uint64_t step = action_.step.value();
  if (shard->open_step == 0) {
    shard->term = action_.term;
    Expect(shard->base.has_value() && shard->base->step.value() + 1 == step,
           "the first step of a term is the one behind its base");
    for (const Shard& other : shards_) {
      Expect(other.promised > action_.term ||
                 (other.had_base.has_value() && other.had_base == shard->base),
             "a term opens when all shards have its base");
    }
  } else {
    Expect(shard->term == action_.term && shard->open_step + 1 == step,
           "steps open one behind the other");
  }
  shard->open_step = step;
  shard->settles = false;
  shard->updating.clear();
  shard->updated.clear();
  ExpectNear(*shard);
}

void TraceMonitor::ExpectNear(const Shard& shard) {
  for (const Shard& other : shards_) {
    if (other.term != shard.term || other.open_step == 0) continue;
    if (other.replaying || shard.replaying) continue;
    const auto most = [](const Shard& behind) {
      return behind.open_step + (behind.settles ? 2 : 1);
    };
    Expect(most(other) >= shard.open_step && most(shard) >= other.open_step,
           "open steps differ by at most one");
  }
}

void TraceMonitor::OnCut(Shard* shard) {
  Expect(action_.cut.term == action_.term, "a cut names the term that it is made in");
  Expect(shard->begun.empty() || shard->begun.back() < action_.cut, "cuts are made in order");
  // The first cut of a state that was imported.
  if (shard->open_step == 0) shard->base = shard->had_base = action_.cut;
  shard->begun.push_back(action_.cut);
  for (const Shard& other : shards_) {
    if (other.term != shard->term) continue;
    const size_t common = std::min(other.begun.size(), shard->begun.size());
    Expect(std::equal(other.begun.begin(), other.begun.begin() + static_cast<long>(common),
                      shard->begun.begin()),
           "all shards make the same cuts");
  }
}

void TraceMonitor::OnDurable(Shard* shard) {
  Expect(shard->durable < shard->begun.size() && shard->begun[shard->durable] == action_.cut,
         "cuts become durable in the order in which they are made");
  ++shard->durable;
  shard->cuts.insert(action_.cut);
  if (OnAll(action_.cut) && (!committed_.has_value() || *committed_ < action_.cut)) {
    committed_ = action_.cut;
  }
}

void TraceMonitor::OnUpdate(Shard* shard) {
  const bool begins = action_.kind == Kind::kUpdateStarted;
  std::set<uint64_t>* const chunks = begins ? &shard->updating : &shard->updated;
  Expect(chunks->insert(action_.subject).second, "a chunk is updated once in a step");
  Expect(begins || shard->updating.count(action_.subject) > 0, "an update ends that was begun");
}

}  // namespace eps
