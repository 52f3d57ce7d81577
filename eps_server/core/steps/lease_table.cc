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
  if (!over.empty()) GrantStandbys(now_ms);
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
  const bool granted = process.held.empty() && TryGrant(nonce, &process, now_ms);
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
  if (parts.empty()) {
    for (uint32_t p = 0; p < parts_.size(); ++p) {
      if (parts_[p].holder == 0) parts.push_back(p);
    }
  }
  const bool all_free =
      std::all_of(parts.begin(), parts.end(), [this](uint32_t p) { return parts_[p].holder == 0; });
  if (parts.empty() || !all_free) return false;
  for (const uint32_t p : parts) {
    parts_[p].holder = nonce;
    ++parts_[p].generation;
  }
  process->held = parts;
  process->still_since_ms = now_ms;
  changes_.push_back(Change{nonce, std::nullopt, std::move(parts)});
  next_ms_ = std::min(next_ms_, EndOf(*process));
  return true;
}

// Standbys whose session is open get what is free, in the order in which they came. One that is not
// connected might never come for its parts.
void LeaseTable::GrantStandbys(uint64_t now_ms) {
  std::vector<uint64_t> left;
  for (const uint64_t nonce : standbys_) {
    Process& process = processes_.at(nonce);
    if (!process.is_open || !TryGrant(nonce, &process, now_ms)) left.push_back(nonce);
  }
  standbys_ = std::move(left);
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
    case LeaseTable::End::kStuck:
      return absl::StrCat("it computed no stage for ", seconds(limits.stuck_ms),
                          " (servers.worker_stuck_timeout)");
  }
  return "unknown";
}

}  // namespace eps
