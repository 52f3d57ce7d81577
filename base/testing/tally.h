#ifndef EPS_BASE_TESTING_TALLY_H_
#define EPS_BASE_TESTING_TALLY_H_

// For tests that draw from seeds: a few rounds by default, and any number in a long mode, which can
// be interrupted and continued.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>

#include "base/check.h"

namespace eps {

// A whole number from the environment, or `otherwise`.
inline uint64_t NumberFromEnvironment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// Draws from a seed, the same numbers everywhere.
class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15 + 1) {}
  uint64_t operator()(uint64_t sides) {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_ % sides;
  }

 private:
  uint64_t state_;
};

// Counters in a file, one "name value" per line. Without a path, nothing is stored.
class Tally {
 public:
  explicit Tally(const char* path_or_null) : path_(path_or_null == nullptr ? "" : path_or_null) {
    std::ifstream in(path_);
    std::string name;
    uint64_t value = 0;
    while (in >> name >> value) counts_[name] = value;
  }

  uint64_t& operator[](const std::string& name) { return counts_[name]; }

  // Replaces the whole file.
  void Save() const {
    if (path_.empty()) return;
    const std::string next = path_ + ".new";
    std::ofstream out(next);
    for (const auto& [name, value] : counts_) out << name << " " << value << "\n";
    out.close();
    EPS_CHECK_MSG(out.good() && std::rename(next.c_str(), path_.c_str()) == 0,
                  "the tally " << path_ << " cannot be written");
  }
  std::string ToString() const {
    std::string text;
    for (const auto& [name, value] : counts_) {
      text += (text.empty() ? "" : ", ") + name + " " + std::to_string(value);
    }
    return text;
  }

 private:
  const std::string path_;
  std::map<std::string, uint64_t> counts_;
};

}  // namespace eps

#endif  // EPS_BASE_TESTING_TALLY_H_
