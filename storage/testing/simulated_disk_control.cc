// SimulatedDisk: what a test plans, breaks and reads between the calls of the code under test.

#include <algorithm>
#include <memory>

#include "base/check.h"
#include "storage/testing/simulated_disk.h"

namespace eps {

void SimulatedDisk::FailCall(Call call, uint64_t n, Fault fault) {
  MutexLock lock(&mu_);
  plan_.Fail(call, n, fault);
}

void SimulatedDisk::FlipBit(const std::string& path, uint64_t offset, int bit) {
  MutexLock lock(&mu_);
  const auto it = files_.find(path);
  EPS_CHECK_MSG(it != files_.end() && offset < it->second->now.size(), path << " at " << offset);
  const auto mask = static_cast<uint8_t>(1 << bit);
  it->second->now[offset] ^= mask;
  it->second->durable[offset] ^= mask;
}

void SimulatedDisk::ReplaceByCopy(const std::string& path) {
  MutexLock lock(&mu_);
  const auto it = files_.find(path);
  EPS_CHECK_MSG(it != files_.end(), path);
  it->second = std::make_shared<SimulatedInode>(*it->second);
  it->second->number = ++inodes_;
}

void SimulatedDisk::SetFileNumber(const std::string& path, uint64_t number) {
  MutexLock lock(&mu_);
  const auto it = files_.find(path);
  EPS_CHECK_MSG(it != files_.end(), path);
  it->second->number = number;
  inodes_ = std::max(inodes_, number);
}

void SimulatedDisk::set_capacity_bytes(uint64_t bytes) {
  MutexLock lock(&mu_);
  capacity_bytes_ = bytes;
}

uint64_t SimulatedDisk::calls(Call call) const {
  MutexLock lock(&mu_);
  return plan_.count(call);
}

uint64_t SimulatedDisk::calls() const {
  MutexLock lock(&mu_);
  return plan_.count();
}

uint64_t SimulatedDisk::UsedBytes() const {
  uint64_t bytes = 0;
  for (const auto& file : files_) bytes += file.second->now.size();
  return bytes;
}

uint64_t SimulatedDisk::used_bytes() const {
  MutexLock lock(&mu_);
  return UsedBytes();
}

std::string SimulatedDisk::Contents(const std::string& path) const {
  MutexLock lock(&mu_);
  const auto it = files_.find(path);
  EPS_CHECK_MSG(it != files_.end(), "no file " << path);
  return std::string(it->second->now.begin(), it->second->now.end());
}

}  // namespace eps
