#include "eps_server/core/steps/lease_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace eps {

LeaseTable::LeaseTable(uint32_t parts, const Limits& limits) : limits_(limits), parts_(parts) {}

// ---------------------------------------------------------------- times

uint64_t LeaseTable::StuckAt(const Process& process) const {
  if (limits_.stuck_ms == 0 || process.waits || process.held.empty()) return kNever;
  return process.still_since_ms + limits_.stuck_ms;
}

uint64_t LeaseTable::EndOf(const Process& process) const {
  return std::min({process.expires_ms, process.closes_ms, StuckAt(process)});
}

void LeaseTable::FindDeadline() {
  next_ms_ = kNever;
  for (const auto& [nonce, process] : processes_) next_ms_ = std::min(next_ms_, EndOf(process));
  next_ms_ = std::min(next_ms_, DealBy());
}

void LeaseTable::Advance(uint64_t now_ms) {
  if (now_ms < next_ms_) return;
  std::vector<std::pair<uint64_t, End>> over;
  for (const auto& [nonce, process] : processes_) {
    if (now_ms >= process.closes_ms) {
      over.emplace_back(nonce, End::kClosed);
    } else if (now_ms >= process.expires_ms) {
      over.emplace_back(nonce, End::kExpired);
    } else if (now_ms >= StuckAt(process)) {
      over.emplace_back(nonce, End::kStuck);
    }
  }
  for (const auto& [nonce, end] : over) Remove(nonce, end, now_ms);
  if (!over.empty() || now_ms >= DealBy()) GrantStandbys(now_ms);
  FindDeadline();
}

// ---------------------------------------------------------------- the life of a process

void LeaseTable::Open(uint64_t now_ms) {
  for (Part& part : parts_) {
    if (part.holder == 0) part.free_since_ms = now_ms;
  }
  for (auto& [nonce, process] : processes_) {
    process.expires_ms = now_ms + limits_.lease_ms;
    process.still_since_ms = now_ms;
  }
  FindDeadline();
}

bool LeaseTable::Join(uint64_t nonce, std::vector<uint32_t> wanted, uint64_t now_ms) {
  EPS_CHECK(nonce != 0);
  Advance(now_ms);
  const bool is_new = processes_.count(nonce) == 0;
  if (is_new && standbys_.size() >= kMaxStandbys) return false;
  Process& process = processes_[nonce];
  process.expires_ms = now_ms + limits_.lease_ms;
  if (is_new) {
    process.wanted = std::move(wanted);
    process.joined_ms = process.still_since_ms = now_ms;
  }
  next_ms_ = std::min(next_ms_, EndOf(process));
  const bool granted = target_ == 0 && process.held.empty() && TryGrant(nonce, &process, now_ms);
  if (is_new && !granted) standbys_.push_back(nonce);
  if (!is_new && granted) {
    standbys_.erase(std::find(standbys_.begin(), standbys_.end(), nonce));
  }
  return true;
}

bool LeaseTable::Beat(uint64_t nonce, uint64_t visits, bool waits, uint64_t now_ms) {
  Advance(now_ms);
  const auto it = processes_.find(nonce);
  if (it == processes_.end()) return false;
  Process& process = it->second;
  const bool opens = !process.is_open;
  process.is_open = true;
  process.closes_ms = kNever;
  process.expires_ms = now_ms + limits_.lease_ms;
  if (visits != process.visits || process.waits || waits) process.still_since_ms = now_ms;
  process.visits = visits;
  process.waits = waits;
  next_ms_ = std::min(next_ms_, EndOf(process));
  if (opens) GrantStandbys(now_ms);
  return true;
}

void LeaseTable::CloseSession(uint64_t nonce, uint64_t now_ms) {
  Advance(now_ms);
  const auto it = processes_.find(nonce);
  if (it == processes_.end() || !it->second.is_open) return;
  it->second.is_open = false;
  it->second.closes_ms = now_ms + limits_.close_grace_ms;
  next_ms_ = std::min(next_ms_, EndOf(it->second));
}

void LeaseTable::Leave(uint64_t nonce, uint64_t now_ms) {
  Advance(now_ms);
  if (processes_.count(nonce) == 0) return;
  Remove(nonce, End::kLeft, now_ms);
  GrantStandbys(now_ms);
}

void LeaseTable::Remove(uint64_t nonce, End end, uint64_t now_ms) {
  const auto it = processes_.find(nonce);
  for (const uint32_t p : it->second.held) {
    parts_[p].holder = 0;
    parts_[p].free_since_ms = now_ms;
    parts_[p].last_holder = nonce;
    parts_[p].ended = end;
  }
  changes_.push_back(Change{nonce, end, std::move(it->second.held)});
  standbys_.erase(std::remove(standbys_.begin(), standbys_.end(), nonce), standbys_.end());
  processes_.erase(it);
}

// ---------------------------------------------------------------- grants

bool LeaseTable::TryGrant(uint64_t nonce, Process* process, uint64_t now_ms) {
  std::vector<uint32_t> parts = process->wanted;
  if (parts.empty()) parts = FreeParts();
  const bool all_free =
      std::all_of(parts.begin(), parts.end(), [this](uint32_t p) { return parts_[p].holder == 0; });
  if (parts.empty() || !all_free) return false;
  Grant(nonce, std::move(parts), now_ms);
  return true;
}

void LeaseTable::Grant(uint64_t nonce, std::vector<uint32_t> parts, uint64_t now_ms) {
  Process& process = processes_.at(nonce);
  for (const uint32_t p : parts) {
    parts_[p].holder = nonce;
    ++parts_[p].generation;
  }
  process.held = parts;
  process.still_since_ms = now_ms;
  changes_.push_back(Change{nonce, std::nullopt, std::move(parts)});
  next_ms_ = std::min(next_ms_, EndOf(process));
}

// Standbys whose session is open get what is free, in the order in which they came. One that is not
// connected might never come for its parts.
void LeaseTable::GrantStandbys(uint64_t now_ms) {
  if (target_ > 0) return Deal(now_ms);
  std::vector<uint64_t> left;
  for (const uint64_t nonce : standbys_) {
    Process& process = processes_.at(nonce);
    if (!process.is_open || !TryGrant(nonce, &process, now_ms)) left.push_back(nonce);
  }
  standbys_ = std::move(left);
}

// ---------------------------------------------------------------- deals

void LeaseTable::SetTarget(uint32_t workers, uint64_t now_ms) {
  Advance(now_ms);
  if (workers == target_) return;
  target_ = workers;
  deal_to_.reset();
  free_since_ms_ = kNever;
  GrantStandbys(now_ms);
}

bool LeaseTable::Yields(uint64_t nonce) const {
  const auto it = processes_.find(nonce);
  return deal_to_.has_value() && it != processes_.end() && !it->second.held.empty();
}

std::vector<uint64_t> LeaseTable::OpenStandbys() const {
  std::vector<uint64_t> open;
  for (const uint64_t nonce : standbys_) {
    if (processes_.at(nonce).is_open) open.push_back(nonce);
  }
  return open;
}

bool LeaseTable::IsDealt(size_t most_holders) const {
  size_t held = 0;
  size_t least = parts_.size();
  size_t most = 0;
  for (const auto& [nonce, process] : processes_) {
    if (process.held.empty()) continue;
    held += process.held.size();
    least = std::min(least, process.held.size());
    most = std::max(most, process.held.size());
  }
  return held == parts_.size() && Holders() == most_holders && most - least <= 1;
}

uint64_t LeaseTable::DealBy() const {
  if (!deal_to_.has_value() || free_since_ms_ == kNever) return kNever;
  return free_since_ms_ + (Holders() > 0 && !OpenStandbys().empty() ? kYieldMs : kDealMs);
}

std::vector<uint32_t> LeaseTable::FreeParts() const {
  std::vector<uint32_t> parts;
  for (uint32_t p = 0; p < parts_.size(); ++p) {
    if (parts_[p].holder == 0) parts.push_back(p);
  }
  return parts;
}

void LeaseTable::BeginDeal(size_t open_standbys) {
  const size_t most = std::min<size_t>(target_, parts_.size());
  const size_t holders = std::min(most, Holders() + open_standbys);
  if (holders == 0 || IsDealt(holders)) return;
  deal_to_ = holders;
  for (const auto& [nonce, process] : processes_) {
    if (process.held.empty()) continue;
    changes_.push_back(Change{nonce, std::nullopt, {}, /*yields=*/true});
  }
}

void LeaseTable::Deal(uint64_t now_ms) {
  std::vector<uint64_t> open = OpenStandbys();
  const std::vector<uint32_t> free = FreeParts();
  const auto give = [&] {
    Grant(open.front(), free, now_ms);
    standbys_.erase(std::find(standbys_.begin(), standbys_.end(), open.front()));
    free_since_ms_ = kNever;
    open.erase(open.begin());
  };
  const bool helps = Holders() > 0 && !free.empty() && !open.empty();
  if (!deal_to_.has_value()) {
    if (helps && Holders() < target_) give();
    BeginDeal(open.size());
    if (!deal_to_.has_value()) return;
  } else if (now_ms >= DealBy()) {
    if (helps) {
      give();
    } else {
      EndHolders(now_ms);
    }
  }
  if (!FreeParts().empty() && free_since_ms_ == kNever) free_since_ms_ = now_ms;
  next_ms_ = std::min(next_ms_, DealBy());
  if (Holders() > 0 || (open.size() < *deal_to_ && now_ms < DealBy())) return;
  free_since_ms_ = kNever;
  deal_to_.reset();
  DealAll(open, now_ms);
}

void LeaseTable::EndHolders(uint64_t now_ms) {
  std::vector<uint64_t> holders;
  for (const auto& [nonce, process] : processes_) {
    if (!process.held.empty()) holders.push_back(nonce);
  }
  for (const uint64_t nonce : holders) Remove(nonce, End::kDealt, now_ms);
  if (!holders.empty()) free_since_ms_ = now_ms;
}

void LeaseTable::DealAll(const std::vector<uint64_t>& standbys, uint64_t now_ms) {
  const size_t holders = std::min<size_t>({target_, parts_.size(), standbys.size()});
  for (size_t h = 0; h < holders; ++h) {
    std::vector<uint32_t> share;
    for (size_t p = h * parts_.size() / holders; p < (h + 1) * parts_.size() / holders; ++p) {
      share.push_back(static_cast<uint32_t>(p));
    }
    Grant(standbys[h], std::move(share), now_ms);
    standbys_.erase(std::find(standbys_.begin(), standbys_.end(), standbys[h]));
  }
}

void LeaseTable::Restore(uint32_t part, uint64_t generation, uint64_t holder) {
  const uint64_t before = parts_[part].holder;
  parts_[part] = Part();
  parts_[part].generation = generation;
  parts_[part].holder = holder;
  if (before != 0 && before != holder) {
    std::vector<uint32_t>& held = processes_.at(before).held;
    held.erase(std::remove(held.begin(), held.end(), part), held.end());
    if (held.empty()) processes_.erase(before);
  }
  if (holder == 0 || before == holder) return;
  Process& process = processes_[holder];
  process.held.insert(std::upper_bound(process.held.begin(), process.held.end(), part), part);
  process.wanted = process.held;
}

// ---------------------------------------------------------------- queries

std::vector<LeaseTable::Change> LeaseTable::TakeChanges() { return std::exchange(changes_, {}); }

std::vector<uint32_t> LeaseTable::PartsOf(uint64_t nonce) const {
  const auto it = processes_.find(nonce);
  return it == processes_.end() ? std::vector<uint32_t>() : it->second.held;
}

std::string TextOf(LeaseTable::End end, const LeaseTable::Limits& limits) {
  const auto seconds = [](uint64_t ms) {
    return absl::StrCat(static_cast<double>(ms) / 1e3, " s");
  };
  switch (end) {
    case LeaseTable::End::kExpired:
      return absl::StrCat("it sent no Beat for ", seconds(limits.lease_ms),
                          " (servers.worker_lease)");
    case LeaseTable::End::kLeft:
      return "it left";
    case LeaseTable::End::kClosed:
      return absl::StrCat("its session was closed for ", seconds(limits.close_grace_ms),
                          " (servers.worker_close_grace)");
    case LeaseTable::End::kDealt:
      return "its step needs parts that nobody holds, and all parts are dealt again";
    case LeaseTable::End::kStuck:
      return absl::StrCat("it computed no stage for ", seconds(limits.stuck_ms),
                          " (servers.worker_stuck_timeout)");
  }
  return "unknown";
}

}  // namespace eps
